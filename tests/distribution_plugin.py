"""pytest plugin: which tests a process of `-n` takes together, and which come first.

The tests of a package that runs one site for all of them stay together; other files go one by one. What takes longest
comes first, so that the processes end at about the same time. Loaded by `-p`, see pyproject.toml.
"""

from pathlib import PurePath
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/town/", "tests/vllm_site/")
FIRST = ("tests/town/", "tests/browser/", "tests/faults/", "tests/vllm_site/", "tests/chatsite/", "tests/end_to_end/")


class ByPackage(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        whole: str = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if whole.startswith(folder)), whole)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> ByPackage | None:
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # by the number of tests, which tells little
    return ByPackage(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(PurePath(item.nodeid.split("::")[0]).as_posix()))


def _rank(path: str) -> int:
    return next((rank for rank, folder in enumerate(FIRST) if path.startswith(folder)), len(FIRST))
