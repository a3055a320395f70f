"""A site whose metrics, probes and logs are looked at."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from inference.models import Generation, Worker
from tests.people import committed, db, person, stranger
from tests.site import Site, database_url_of_tests

__all__ = ["committed", "db", "person", "stranger"]


@contextmanager
def running(folder: Path, **shape: object) -> Iterator[Site]:
    """All sites share the stores, and would serve each other's requests: one at a time."""
    with Site(folder, database_url=database_url_of_tests(), redis_url=os.environ["REDIS_URL"], **shape) as site:
        yield site
    Worker.objects.all().delete()
    Generation.objects.filter(status__in=Generation.OPEN).delete()


@pytest.fixture
def new_site(db: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Site]]:
    """Start a site of the given shape; it ends with the test."""
    with ExitStack() as stack:
        yield lambda **shape: stack.enter_context(running(tmp_path_factory.mktemp("site"), **shape))


@pytest.fixture(scope="module")
def site(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two web processes and a worker, with JSON logs."""
    with running(tmp_path_factory.mktemp("site"), environment={"LOG_FORMAT": "json"}) as site:
        yield site
