"""pytest plugin: real PostgreSQL and Valkey for the whole run, before Django reads its settings.

Loaded by `-p tests.stores_plugin` (pyproject.toml). DATABASE_URL and REDIS_URL, where set, are used instead. The
processes of `-n` have stores of their own, so that a test may flush them.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from chatsite.stores import StoreFailed, running_stores

OURS = "STORES_OF_TESTS"  # set in processes whose stores were started here
REPOSITORY = Path(__file__).resolve().parent.parent
_running = contextlib.ExitStack()


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(args: list[str]) -> Generator[None, object, object]:
    # A wrapper runs before pytest-django's own hook, which imports the settings.
    folder = Path(tempfile.mkdtemp(prefix="chatsite-tests-"))
    folder.chmod(0o711)  # as root, PostgreSQL's own user must get through
    _running.callback(shutil.rmtree, folder, ignore_errors=True)
    os.environ.setdefault("SECRET_KEY", secrets.token_urlsafe(48))
    os.environ.setdefault("MODEL_DIR", str(REPOSITORY / "data" / "models"))  # converted once, not per run
    os.environ["DATA_DIR"] = str(folder)
    for name in os.environ.get(OURS, "").split():
        del os.environ[name]  # those of the process that distributes the tests
    missing = [name for name in ("DATABASE_URL", "REDIS_URL") if not os.environ.get(name)]
    if missing:
        try:
            database_url, redis_url = _running.enter_context(running_stores(folder))
        except StoreFailed as error:
            _running.close()
            raise pytest.UsageError(str(error)) from None
        if "DATABASE_URL" in missing:
            args.append("--reuse-db")  # the whole server is thrown away: dropping the database first only takes time
        urls = {"DATABASE_URL": database_url, "REDIS_URL": redis_url}
        os.environ.update({name: urls[name] for name in missing})
        os.environ[OURS] = " ".join(missing)
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    _running.close()
