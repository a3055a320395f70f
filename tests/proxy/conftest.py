"""Two nginx hops in front of a site: a stranger's with everything at its default, then the configuration we ship.

Needs Debian's nginx; its system service is not used.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from chatsite.stores import free_port, log_tail, with_parent
from inference.models import Generation, Worker
from tests.people import committed, db, person, stranger
from tests.site import REPOSITORY, Site, database_url_of_tests, wait_until

__all__ = ["committed", "db", "person", "stranger"]

SHIPPED = REPOSITORY / "deploy" / "nginx" / "chatsite.conf"
IDLE_S = 2  # instead of a minute, for silences that a test can wait for
HEARTBEAT_S = 0.5

# What an operator in front of us has: buffering on, timeouts, nothing about streams. All that it must do is to pass
# Upgrade on, and to have a body limit of its own.
OUTER = """
map $http_upgrade $outer_connection {{ default upgrade; '' close; }}
server {{
    listen 127.0.0.1:{port};
    client_max_body_size 0;
    location / {{
        proxy_pass http://127.0.0.1:{inner};
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $outer_connection;
        proxy_read_timeout {idle_s}s;
    }}
}}
"""
MAIN = """
daemon off;
{user}
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/server.conf;
}}
"""


@pytest.fixture(scope="session")
def nginx() -> str:
    """The path of nginx; without one the tests are skipped, but never in CI."""
    found = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if found:
        return found
    if os.environ.get("CI"):
        pytest.fail("nginx is missing: apt-get install nginx-light")
    pytest.skip("nginx is missing: apt-get install nginx-light")


@contextmanager
def running_nginx(nginx: str, folder: Path, server: str, port: int) -> Iterator[None]:
    folder.mkdir()
    (folder / "server.conf").write_text(server)
    user = "user root;" if os.geteuid() == 0 else ""  # pytest's folders are closed to others
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user))
    log = folder / "log"
    with log.open("wb") as output:
        argv = [nginx, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
        child = subprocess.Popen(with_parent(argv, "TERM"), stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def accepts() -> bool:
        assert child.poll() is None, log_tail(log)
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(accepts, "nginx listens")
        yield
    finally:
        child.terminate()
        child.wait(15)


def shipped(port: int, webs: list[int], idle_s: int) -> str:
    """The configuration in deploy/, with our ports and a shorter idle limit."""
    text = SHIPPED.read_text()
    upstream = "\n".join(f"    server 127.0.0.1:{web};" for web in webs)
    for ours, theirs in (
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("    server 127.0.0.1:8000;", upstream),
        ("proxy_read_timeout 60s;", f"proxy_read_timeout {idle_s}s;"),
    ):
        assert text.count(ours) == 1, ours
        text = text.replace(ours, theirs)
    return text


@pytest.fixture(scope="package")
def site(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two web processes with ports of their own, as on two machines."""
    with Site(
        tmp_path_factory.mktemp("site"),
        database_url=database_url_of_tests(),
        redis_url=os.environ["REDIS_URL"],
        environment={"HEARTBEAT": str(HEARTBEAT_S)},
    ) as running:
        yield running
    Generation.objects.filter(status__in=Generation.OPEN).delete()
    Worker.objects.all().delete()


@pytest.fixture(scope="package")
def url(nginx: str, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site's address behind both hops."""
    outer, inner = free_port(), free_port()
    folder = tmp_path_factory.mktemp("nginx")
    with ExitStack() as stack:
        webs = [web.port for web in site.webs]
        stack.enter_context(running_nginx(nginx, folder / "inner", shipped(inner, webs, IDLE_S), inner))
        front = OUTER.format(port=outer, inner=inner, idle_s=IDLE_S)
        stack.enter_context(running_nginx(nginx, folder / "outer", front, outer))
        yield f"http://127.0.0.1:{outer}"
