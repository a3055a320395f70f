"""Sites whose slots are full: the queue as people meet it. Requests are submitted by this process, as a web process
does, unless a test is about the web."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection

from billing.models import Plan, User
from billing.operations import Principal
from conversations import operations
from inference.models import Generation, Worker
from inference.operations import cancel
from tests.people import Person, committed, db, make_person, person, stranger
from tests.site import Site, database_url_of_tests, wait_until

__all__ = ["committed", "db", "person", "stranger"]

SLOTS = 10  # of which the shipped plans leave 6 to the free band


@contextmanager
def running_site(folder: Path, **shape: object) -> Iterator[Site]:
    with Site(folder, database_url=database_url_of_tests(), redis_url=os.environ["REDIS_URL"], **shape) as site:
        yield site
    Generation.objects.filter(status__in=Generation.OPEN).delete()
    Worker.objects.all().delete()


@pytest.fixture(scope="module")
def site(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One web process and two workers with little memory; fifteen may wait."""
    environment = {"QUEUE_DEPTH": "15", "ENGINE_OPTIONS": '{"kv_tokens": 4300}', "DATABASE_POOL": "8"}
    folder = tmp_path_factory.mktemp("site")
    with running_site(folder, webs=1, workers=2, slots=SLOTS, environment=environment) as site:
        yield site


@pytest.fixture(scope="module")
def narrow_site(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One web process and one worker that does one thing at a time."""
    with running_site(tmp_path_factory.mktemp("narrow"), webs=1, workers=1, slots=1) as site:
        yield site


@pytest.fixture
def submit(db: None) -> Iterator[Callable[..., Generation]]:
    """Send a message in a new conversation of a person; what is open at the end of the test is cancelled."""

    def send(person: Person, order: str, asked: int = 100) -> Generation:
        principal = Principal(User.objects.get(pk=person.user.pk))
        sent = operations.send(principal=principal, conversation_id=person.chat(), content=f"[[{order}]]", asked=asked)
        connection.close()
        return sent.generation

    yield send
    opened = Generation.objects.filter(status__in=Generation.OPEN)
    for generation in opened.all():
        cancel(generation=generation)
    wait_until(lambda: not opened.all().exists(), "the site is idle")


@pytest.fixture
def payer(db: None) -> Person:
    """A person of the band above the free one."""
    person = make_person()
    person.user.plan = Plan.objects.filter(reserved_share__gt=0).order_by("band")[0]
    person.user.save()
    return person
