"""People who use a running site, in tests that share its database: rows are committed, not rolled back.

A conftest.py imports the fixtures; what its tests leave is removed with the package.
"""

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

import httpx
import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from billing.models import Plan, PlanWindow, User
from billing.operations import create_user, issue_key
from conversations.operations import start
from inference.models import Generation
from inference.operations import register_model
from tests.site import wait_until

ship_windows = import_module("billing.migrations.0005_shipped_windows").add
NUMBERED = re.compile(r"t(\d{5})\S* ")  # what the echo engine says
KEPT_TABLES = {"django_migrations", "django_content_type", "auth_permission", "billing_plan", "billing_planwindow"}
# Plans name models: truncating these would take those along.
EMPTIED_TABLES = {"inference_servedmodel"}


def numbers(text: str) -> list[int]:
    """The echo engine's numbered tokens in a text."""
    return [int(number) for number in NUMBERED.findall(text)]


@dataclass(frozen=True)
class Person:
    """An account with an API key and a login session."""

    user: User
    key: str
    session: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def cookie(self) -> dict[str, str]:
        return {"Cookie": f"{settings.SESSION_COOKIE_NAME}={self.session}"}

    def http(self, url: str) -> httpx.Client:
        return httpx.Client(base_url=url, headers=self.headers, timeout=30)

    def chat(self) -> uuid.UUID:
        """A new conversation. Gives the connection back: a test's threads share a small pool."""
        try:
            return start(user=self.user, model="echo").pk
        finally:
            connection.close()

    def newest(self) -> Generation:
        """Their latest generation."""
        return Generation.objects.filter(user=self.user).latest("created_at")

    def wait_for_status(self, status: str, timeout_s: float = 5.0) -> None:
        """Until their latest generation has this status."""

        def has_it() -> bool:
            return Generation.objects.filter(user=self.user).exists() and self.newest().status == status

        wait_until(has_it, f"the generation is {status}", timeout_s)


def make_person() -> Person:
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):  # a slow one is slow
        user = create_user(email=f"{uuid.uuid4().hex}@example.org", password="tall-trees-7")
    return Person(user, issue_key(user=user, name="test")[1], login(user))


def login(user: User) -> str:
    """A new login session; its key."""
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return str(session.session_key)


@pytest.fixture(scope="package")
def committed(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The test database, without a transaction around each test."""
    with django_db_blocker.unblock():
        plan = Plan.objects.filter(is_default=True)
        if not plan.exists():  # flushed by a transactional test
            Plan.objects.create(slug="e2e", name="e2e", is_default=True)
        plan.update(max_concurrent=50)
        PlanWindow.objects.all().delete()  # the tests of limits bring their own
        register_model(name="echo", engine="echo", context_length=8192)
        yield
        tables = set(connection.introspection.table_names()) - KEPT_TABLES - EMPTIED_TABLES
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE " + ", ".join(f'"{table}"' for table in sorted(tables)) + " CASCADE")
            for table in EMPTIED_TABLES:
                cursor.execute(f'DELETE FROM "{table}"')
        ship_windows(apps, None)
        connection.close()


@pytest.fixture
def db(committed: None) -> None:
    """Instead of pytest-django's, which would hide rows in a transaction. By this name it also knows that these
    tests need the test database."""


@pytest.fixture
def person(db: None) -> Person:
    return make_person()


@pytest.fixture
def stranger(db: None) -> Person:
    return make_person()
