"""Run the whole site on this machine: stores, migrations, model, administrator, web, workers, beat."""

import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from chatsite import local_run
from chatsite.checks import connections_needed
from chatsite.local_run import say, status_of, step
from chatsite.postgres import postgres
from chatsite.stores import Store, StoreFailed, log_tail, valkey, wait_until_answering, with_parent, write_closed
from chatsite.supervision import Supervisor, store_program

WEB_START_S = 60.0
OPEN_FILES = 65_536  # each stream is one


class Command(BaseCommand):
    help = "Run the whole site on this machine, until Ctrl-C."
    requires_system_checks = ()  # they look at stores that do not run yet

    def handle(self, *args: Any, **options: Any) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        folder: Path = settings.DATA_DIR
        folder.mkdir(parents=True, exist_ok=True)
        lock = local_run.lock(folder)
        try:
            self._run(folder, lock.fileno())
        except StoreFailed as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            say("Stopped.")
        finally:
            settings.RUN_FILE.unlink(missing_ok=True)

    def _run(self, folder: Path, lock: int) -> None:
        settings.RUN_FILE.unlink(missing_ok=True)  # of a killed run
        local_run.check_port(settings.HOST, settings.PORT)
        _prepare_environment(folder)
        with step("Setting up the stores"):
            stores = _stores(folder)
        supervisor = Supervisor(folder, [*map(store_program, stores), *local_run.programs()], say)
        with supervisor.running(keep_open=lock):
            with step("Starting the stores"):
                self._write_run_file(_answering(stores, supervisor))
            _prepare_site()
            with step("Starting web processes and workers"):
                supervisor.start()
                _wait_for_web(supervisor)
            _announce(supervisor)
            _watch(supervisor)

    def _write_run_file(self, urls: dict[str, Any]) -> None:
        """What other manage.py commands find the site by."""
        found = urls | {"host": settings.HOST, "port": settings.PORT, "pid": os.getpid()}
        write_closed(settings.RUN_FILE, json.dumps(found, indent=1))


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Only a second Ctrl-C is impatience; a closing terminal or `make` may well repeat the others.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    say("Stopping: web, workers, stores. Answers get a moment to end; Ctrl-C again ends all at once.")
    raise KeyboardInterrupt


def _prepare_environment(folder: Path) -> None:
    """What the children inherit: absolute folders, a secret key, enough open files."""
    metrics = Path(settings.METRICS_DIR or folder / "metrics").resolve()
    for left in metrics.glob("*_*.db"):  # by an earlier run
        left.unlink()
    os.environ.update(DATA_DIR=str(folder), MODEL_DIR=str(settings.MODEL_DIR))
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
    secret = folder / "secret_key"
    if not os.environ.get("SECRET_KEY") and not secret.exists():
        write_closed(secret, secrets.token_urlsafe(50))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _stores(folder: Path) -> list[Store]:
    """The embedded stores that this run needs. Settings may still show those of a killed run: ask the environment."""
    stores = []
    if not os.environ.get("DATABASE_URL"):
        stores.append(postgres(folder, max_connections=max(200, connections_needed() + 20)))
    if not os.environ.get("REDIS_URL"):
        stores.append(valkey(folder))
    return stores


def _answering(stores: list[Store], supervisor: Supervisor) -> dict[str, Any]:
    """Wait for all stores, embedded or not; their addresses, as the run file names them."""
    embedded = {store.name: store for store in stores}
    for store in stores:
        wait_until_answering(store.name, store.url, supervisor.log(store.name), supervisor.is_alive)
    database_url, redis_urls = settings.DATABASE_URL, settings.REDIS_URLS
    if "postgres" in embedded:
        database_url = embedded["postgres"].url
    else:
        wait_until_answering("DATABASE_URL", database_url, None, supervisor.is_alive)
    if "valkey" in embedded:
        redis_urls = [embedded["valkey"].url]
    else:
        for url in redis_urls:
            wait_until_answering("REDIS_URL", url, None, supervisor.is_alive)
    return {"database_url": database_url, "redis_urls": redis_urls}


def _prepare_site() -> None:
    """Migrations, administrator, model, static files: in a process of its own, which reads the new run file."""
    argv = with_parent([sys.executable, str(settings.BASE_DIR / "manage.py"), "prepare_site"], "KILL")
    done = subprocess.run(argv, check=False)
    if done.returncode != 0:
        raise CommandError("The site could not be prepared: see above.")


def _wait_for_web(supervisor: Supervisor) -> None:
    deadline = time.monotonic() + WEB_START_S
    while status_of("/healthz") is None:
        if time.monotonic() > deadline or supervisor.wait(0.1):
            log = next(iter(sorted(supervisor.logs.glob("web*.log"))))
            raise CommandError(f"The web processes do not answer. The log of one ends:\n{log_tail(log)}")


def _announce(supervisor: Supervisor) -> None:
    host = "localhost" if settings.HOST == "0.0.0.0" else settings.HOST
    say(f"\nThe site is at http://{host}:{settings.PORT}/")
    say(f"Processes: {', '.join(sorted(supervisor.states()))}")
    say(f"Logs: {supervisor.logs}/*.log    Stop: Ctrl-C")


def _watch(supervisor: Supervisor) -> None:
    """Say once when the engine can serve, or that it keeps dying; return when supervisord ends (never by itself)."""
    began, complained = time.monotonic(), False
    if settings.GPU_WORKERS:
        say(f"The engine loads {settings.MODEL} …")
        while status_of("/readyz") != 200:
            failing = [name for name, state in supervisor.states().items() if state == "BACKOFF"]
            if failing and not complained:
                complained = True
                say(f"{failing[0]} died and is started again. Its log ends:\n{log_tail(supervisor.log(failing[0]))}")
            if supervisor.wait(0.5):
                break
        else:
            say(f"{settings.MODEL} is ready after {time.monotonic() - began:.0f} s.")
    supervisor.wait(None)
    raise CommandError(f"supervisord ended. Its log ends:\n{log_tail(supervisor.log('supervisord'))}")
