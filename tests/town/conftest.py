"""One site for all of these tests: the faults strike it in turn, and each leaves it whole."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pytest_django import DjangoDbBlocker

from tests.faults.own_stores import open_folder
from tests.town.town import Town


@pytest.fixture(scope="package")
def town(django_db_blocker: DjangoDbBlocker) -> Iterator[Town]:
    with django_db_blocker.unblock(), ExitStack() as stack:
        yield Town(stack.enter_context(open_folder()), stack)
