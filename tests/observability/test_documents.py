"""docs/operations.md and the example rules name the metrics that there are, with their types and labels."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import metrics as kinds

from billing import metrics as billing_metrics
from chatsite.metrics import _site
from inference import metrics

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(chatsite_\w+)` \| (\w+)[^|]*\| ([^|]*)\|", re.MULTILINE)
SUFFIXES = ("_bucket", "_sum", "_count", "")


def declared() -> dict[str, tuple[str, set[str]]]:
    """name → (type, labels) of what the code has."""
    found = {}
    for metric in [billing_metrics.refusals, *vars(metrics).values()]:
        if isinstance(metric, kinds.MetricWrapperBase):
            name = metric._name + ("_total" if metric._type == "counter" else "")
            found[name] = (metric._type, set(metric._labelnames))
    return found


@pytest.mark.django_db
def test_the_table_is_complete_and_right(echo_model: Any, transactional_db: None) -> None:
    documented = {
        name: (kind, {label.strip() for label in labels.split(",") if label.strip()})
        for name, kind, labels in ROW.findall((ROOT / "docs/operations.md").read_text())
    }
    of_site = {family.name: (family.type, set(family._labelnames)) for family in _site()}
    assert documented == declared() | of_site


def test_the_rules_use_metrics_that_there_are() -> None:
    folder = ROOT / "deploy/prometheus"
    rules = [rule for group in yaml.safe_load((folder / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    table = {name for name, _, _ in ROW.findall((ROOT / "docs/operations.md").read_text())}
    for rule in rules:
        named = re.findall(r"chatsite_\w+", rule["expr"])
        assert named, rule
        for name in named:
            assert any(name.removesuffix(suffix) in table for suffix in SUFFIXES if name.endswith(suffix)), name
        labels = set(re.findall(r"(\w+)(?:=~|!=|=)\"", rule["expr"]))
        assert labels <= {"state", "finish_reason", "status", "reason", "how", "job", "result"}
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("page", "ticket")
    assert yaml.safe_load((folder / "prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]
