"""The committed database and the people of the end-to-end tests; each test here runs a site that it may break."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from inference.models import Generation, Worker
from tests.people import committed, db, person, stranger
from tests.site import Site, database_url_of_tests

__all__ = ["committed", "db", "person", "stranger"]


@pytest.fixture
def make_site(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Site]]:
    """Start a site of the given shape; it ends with the test."""
    with ExitStack() as stack:

        def make(**shape: object) -> Site:
            folder = tmp_path_factory.mktemp("site")
            redis_url = os.environ["REDIS_URL"]
            site = Site(folder, database_url=database_url_of_tests(), redis_url=redis_url, **shape)
            return stack.enter_context(site)

        yield make
    Worker.objects.all().delete()
    Generation.objects.filter(status__in=Generation.OPEN).delete()
