"""Counters after a restart of their Valkey: with the data it had, and with data from before."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from billing import counters
from billing.models import User
from billing.truth import drifted
from inference.models import Generation, ServedModel
from tests.billing.limits import only_windows, used
from tests.faults.own_stores import OwnStore, own_valkey_in
from tests.inference.test_limit_properties import ask, finish

pytestmark = pytest.mark.faults


@pytest.fixture
def kept_valkey(tmp_path: Path, settings: Any) -> Iterator[OwnStore]:
    usual = counters.store()
    running = own_valkey_in(tmp_path, durable=True)
    settings.REDIS_URLS = [running.url]
    counters.store.cache_clear()
    yield running
    running.kill()
    counters.store.cache_clear()
    usual.delete("limits:epoch")  # the database has gone on to the epochs of the other store


def used_by(user: User, running: Generation) -> tuple[int, int]:
    """What the counters say, and what they should."""
    held = running.prompt_tokens + running.grant
    ended = Generation.objects.exclude(pk=running.pk).filter(user=user)
    return used(user)["tokens_per_hour"], held + sum(row.prompt_tokens + row.completion_tokens for row in ended)


def test_kept_data_begin_a_new_epoch_and_old_data_are_not_believed(
    kept_valkey: OwnStore, tmp_path: Path, user: User, echo_model: ServedModel
) -> None:
    """A promoted replica is the same: another run id, with all of the data or with some missing."""
    only_windows(user, ("tokens", 5000, 3600))
    user.plan.max_concurrent = 10
    running, ending = (ask(user, echo_model, 10, 50) for _ in range(2))
    finish(ask(user, echo_model, 10, 50), 20)
    first = counters.current_epoch()
    data = kept_valkey.store.folder / "appendonlydir"
    kept_valkey.stop()
    shutil.copytree(data, tmp_path / "old")

    finish(ending, 30, is_announced=False)  # its worker finds no store to settle in
    kept_valkey.start()
    assert counters.store().exists("limits:epoch") and counters.current_epoch() == ""
    count, truth = used_by(user, running)
    assert count == truth == 60 + 30 + 40
    second = counters.current_epoch()
    assert int(second) > int(first)

    finish(ask(user, echo_model, 10, 50), 45)
    kept_valkey.stop()
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "old", data)
    kept_valkey.start()
    count, truth = used_by(user, running)
    assert count == truth == 60 + 30 + 40 + 55
    assert int(counters.current_epoch()) > int(second)
    with pytest.raises(Exception, match="lost this reservation"), transaction.atomic():
        stale = ask(user, echo_model, 10, 50)
        Generation.objects.filter(pk=stale.pk).delete()
        stale.epoch = int(second)
        stale.save(force_insert=True)
    finish(running, 1)
    assert drifted() == []
