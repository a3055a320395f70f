"""The project as a whole: migrations are complete, settings are documented, one way to the channel layer."""

import re
from pathlib import Path

import pytest
from django.core.management import call_command

from chatsite.env import VARIABLES

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("billing", "chatsite", "conversations", "inference")


def sources():
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.django_db
def test_every_model_change_has_its_migration():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_the_readmes_table_names_every_setting_with_its_default():
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    documented = {name: default.strip("`") for name, default in rows}
    assert documented.keys() == VARIABLES.keys()
    assert documented == {name: variable.default for name, variable in VARIABLES.items()}


def test_only_the_relay_imports_the_channel_layer():
    importers = [path.name for path in sources() if "channels.layers" in path.read_text()]
    assert importers == ["layer.py"]


def test_only_the_counters_touch_the_limit_keys():
    importers = [path.name for path in sources() if re.search(r"[\"']limits:", path.read_text())]
    assert importers == ["counters.py", "scripts.py"]


def test_settings_are_read_in_one_place():
    readers = {path.name for path in sources() if re.search(r"os\.(environ\.get|getenv)|environ\[", path.read_text())}
    # up and its parts hand the environment on to the processes they start; metrics.py says why it does.
    parts = {"up.py", "local_run.py", "postgres.py", "supervision.py", "vllm_engine.py"}
    assert readers <= {"env.py", "metrics.py", *parts}
