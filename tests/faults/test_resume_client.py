"""The client that the documentation shows, against a site whose web processes are killed under it."""

import signal
import subprocess
import sys

import pytest

from tests.people import numbers
from tests.site import REPOSITORY, wait_until

pytestmark = pytest.mark.faults


def test_the_documented_client_gets_its_whole_answer(make_site, person):
    site = make_site(webs=2, shares_port=True)
    chat = str(person.chat())
    argv = [sys.executable, str(REPOSITORY / "docs" / "resume_client.py"), site.webs[0].url, person.key, chat]
    client = subprocess.Popen([*argv, "[[n=240 itl=40 emoji=1]]"], stdout=subprocess.PIPE, text=True)
    wait_until(lambda: person.user.generations.filter(status="RUNNING").exists(), "it is asked", 30)
    for number in (signal.SIGKILL, signal.SIGTERM):
        for web in site.webs:
            if person.newest().is_open:
                site.kill(web, number)
                site.restart(web)
    text, _ = client.communicate(timeout=60)
    assert client.returncode == 0
    assert numbers(text.replace("\n", " ")) == list(range(240)) and text.count("😀") == 240
    assert person.user.generations.count() == 1


def test_it_is_short_and_the_documentation_names_it():
    client = (REPOSITORY / "docs" / "resume_client.py").read_text()
    loop = client.partition("    while end is None:")[2].partition("    if end[")[0]
    assert len(loop.splitlines()) <= 20
    assert "resume_client.py" in (REPOSITORY / "docs" / "api.md").read_text()
