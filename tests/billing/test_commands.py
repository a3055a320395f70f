"""`create_user` and `create_key`, as a script uses them beside a running site."""

import io

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from billing.models import ApiKey, User

GOOD = "a long enough one"


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_a_user_and_a_key_that_is_all_that_is_printed() -> None:
    run("create_user", "Ada@Example.org", "--password", GOOD)
    user = User.objects.get(email="ada@example.org")
    assert user.check_password(GOOD) and not user.is_superuser
    secret = run("create_key", "ada@example.org", "--name", "laptop").rstrip("\n")
    key = user.api_keys.get()
    assert key.name == "laptop" and key.digest == ApiKey.digest_of(secret)


@pytest.mark.django_db
def test_an_administrator() -> None:
    run("create_user", "root@example.org", "--password", GOOD, "--admin")
    user = User.objects.get(email="root@example.org")
    assert user.is_superuser and user.is_staff


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create_user", "ada@example.org", "--password", GOOD), "There is an account"),
        (("create_user", "no address", "--password", GOOD), "valid email"),
        (("create_user", "bob@example.org", "--password", "short"), "too short"),
        (("create_key", "nobody@example.org"), "no active account with the address nobody@example.org"),
        (("create_key", "ada@example.org", "--name", ""), "1 to 100 characters"),
    ],
)
def test_refusals_are_one_line(arguments: tuple[str, ...], said: str) -> None:
    run("create_user", "ada@example.org", "--password", GOOD)
    with pytest.raises(CommandError, match=said) as refusal:
        run(*arguments)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "said"), [("", "No site runs in"), ("postgresql://u@127.0.0.1:1/d", "does not answer")]
)
def test_no_site_is_one_line(settings: Settings, url: str, said: str) -> None:
    settings.DATABASE_URL = url
    for arguments in (("create_user", "x@example.org", "--password", GOOD), ("create_key", "x@example.org")):
        with pytest.raises(CommandError, match=said) as refusal:
            run(*arguments)
        assert "\n" not in str(refusal.value)
