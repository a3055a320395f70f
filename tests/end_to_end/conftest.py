"""One site for all tests here: two web processes and one echo worker."""

import os
from collections.abc import Iterator

import pytest

from tests.people import committed, db, person, stranger
from tests.site import Site, database_url_of_tests

__all__ = ["committed", "db", "person", "stranger"]


@pytest.fixture(scope="package")
def site(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two web processes and one echo worker; silence is filled after half a second."""
    with Site(
        tmp_path_factory.mktemp("site"),
        database_url=database_url_of_tests(),
        redis_url=os.environ["REDIS_URL"],
        environment={"HEARTBEAT": "0.5"},
    ) as running:
        yield running
