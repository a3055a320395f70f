"""What many tests need: accounts, a client, and the echo engine's model."""

from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection
from django.db.models.signals import post_migrate
from rest_framework.test import APIClient

from billing.models import User
from billing.operations import Principal, create_user, issue_key
from inference.models import ServedModel
from inference.operations import register_model

# Tests that let many threads begin together need a connection for each.
connection.settings_dict["OPTIONS"]["pool"]["max_size"] = 16
ship_plans = import_module("billing.migrations.0002_plans").add
ship_windows = import_module("billing.migrations.0005_shipped_windows").add


def plans_again(**_: Any) -> None:
    """A transactional test ends with a flush, which takes the migration's plans along."""
    if "billing_planwindow" in connection.introspection.table_names():  # not in the middle of the migrations' own test
        ship_plans(apps, None)
        ship_windows(apps, None)


post_migrate.connect(plans_again, sender=apps.get_app_config("billing"))


class QuickHasher(PBKDF2PasswordHasher):
    """Hashes that every process can check, made in no time."""

    iterations = 1


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["tests.conftest.QuickHasher"]


@pytest.fixture(autouse=True)
def unhashed_static_files(settings: Any) -> None:
    """Pages name their assets whether or not collectstatic has run."""
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}


PASSWORD = "tall-trees-7"


@pytest.fixture
def user(db: None) -> User:
    return create_user(email="user@example.org", password=PASSWORD)


@pytest.fixture
def stranger(db: None) -> User:
    return create_user(email="stranger@example.org", password=PASSWORD)


@pytest.fixture
def principal(user: User) -> Principal:
    return Principal(user)


def client_of(user: User) -> APIClient:
    """A DRF client with an API key of this user. Errors of ours become responses, as they do for real clients."""
    _, secret = issue_key(user=user, name="test")
    client = APIClient(raise_request_exception=False)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


@pytest.fixture
def api(user: User) -> APIClient:
    return client_of(user)


@pytest.fixture
def echo_model(db: None) -> ServedModel:
    return register_model(name="echo", engine="echo", context_length=4096)
