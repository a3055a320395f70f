"""The front-end's own tests, by Node's test runner, and what its build leaves to Django."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(__file__).resolve().parent.parent.parent
FRONTEND = ROOT / "frontend"


@pytest.fixture(scope="module")
def built() -> None:
    subprocess.run([str(FRONTEND / "build.sh")], check=True)


def test_the_scripts_parts(built: None) -> None:
    # build.sh puts a Node into .venv where the system has none that is new enough.
    node = shutil.which("node", path=f"{ROOT / '.venv' / 'node'}:{os.environ['PATH']}")
    assert node
    done = subprocess.run([node, "--test"], cwd=FRONTEND, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_entry_has_a_hashed_name_and_a_compressed_twin(built: None) -> None:
    manifest = json.loads((settings.STATIC_ROOT / "staticfiles.json").read_text())["paths"]
    for entry in ("dist/app.js", "dist/app.css"):
        collected = settings.STATIC_ROOT / manifest[entry]
        assert manifest[entry] != entry
        assert collected.read_bytes() == (ROOT / "static" / entry).read_bytes()  # the bundle as it is now
        assert collected.with_name(collected.name + ".gz").exists()


def test_the_lock_names_no_registry() -> None:
    lock = json.loads((FRONTEND / "package-lock.json").read_text())
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]


def test_every_icon_in_the_templates_exists(built: None) -> None:
    icons = json.loads((ROOT / "static" / "dist" / "icons.json").read_text())
    assert icons["arrow-up"].startswith("<path")
    assert all(icons.values())
