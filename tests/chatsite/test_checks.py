"""System checks: impossible configurations are said, possible ones are not."""

import os

import pytest
import redis
from django.conf import settings as current
from pytest_django import Settings

from chatsite import checks
from chatsite.env import ImpossibleSetting


@pytest.mark.parametrize(
    ("options", "ids"), [("{}", []), ('{"x": 1}', []), ("{", ["chatsite.E002"]), ("[]", ["chatsite.E002"])]
)
def test_engine_options(settings: Settings, options: str, ids: list[str]) -> None:
    settings.ENGINE_OPTIONS = options
    assert [found.id for found in checks.engine_options_are_an_object(None)] == ids


def test_an_unset_secret_key_is_refused_where_it_serves(settings: Settings) -> None:
    assert checks.secret_key_is_set(None) == []
    checks.require_secret_key()
    settings.SECRET_KEY = "unset-" + "0" * 50
    assert [found.id for found in checks.secret_key_is_set(None)] == ["chatsite.E001"]
    with pytest.raises(ImpossibleSetting, match="SECRET_KEY"):
        checks.require_secret_key()


def test_a_lease_shorter_than_its_renewal(settings: Settings) -> None:
    assert checks.lease_outlives_its_renewal(None) == []
    settings.LEASE_S = 0.5
    assert [found.id for found in checks.lease_outlives_its_renewal(None)] == ["chatsite.E003"]


@pytest.mark.django_db
def test_pools_larger_than_the_database_allows(settings: Settings) -> None:
    assert checks.database_has_connections(None, databases=["default"]) == []
    assert checks.database_has_connections(None, databases=None) == []
    settings.DATABASE_POOL = 10_000
    assert [found.id for found in checks.database_has_connections(None, databases=["default"])] == ["chatsite.E004"]


def test_a_store_that_evicts(settings: Settings) -> None:
    assert checks.stores_evict_nothing(None, databases=["default"]) == []
    with redis.Redis.from_url(current.REDIS_URLS[0]) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            assert [found.id for found in checks.stores_evict_nothing(None, databases=["default"])] == ["chatsite.E005"]
            assert checks.stores_evict_nothing(None, databases=None) == []
        finally:
            client.config_set("maxmemory-policy", "noeviction")


def test_a_store_that_does_not_answer_is_a_warning(settings: Settings) -> None:
    settings.REDIS_URLS = ["redis://127.0.0.1:1"]
    assert [found.id for found in checks.stores_evict_nothing(None, databases=["default"])] == ["chatsite.W005"]


def test_a_store_that_keeps_nothing_is_a_warning() -> None:
    """As the tests' own does."""
    with redis.Redis.from_url(current.REDIS_URLS[0]) as client:
        assert [found.id for found in checks.stores_persist(None, databases=["default"])] == ["chatsite.W006"]
        client.config_set("appendonly", "yes")
        try:
            assert checks.stores_persist(None, databases=["default"]) == []
        finally:
            client.config_set("appendonly", "no")


def test_the_tests_themselves_run_on_a_random_key() -> None:
    assert os.environ["SECRET_KEY"] == current.SECRET_KEY
