"""A site with a real engine: one web process, two vLLM workers, SmolLM2-135M-Instruct."""

import os
from collections.abc import Iterator

import pytest

from tests.people import committed, db, person, stranger
from tests.site import Site, database_url_of_tests
from tests.vllm_site.model import MODEL, register

__all__ = ["committed", "db", "person", "stranger"]


@pytest.fixture(scope="package")
def site(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    register()
    with Site(
        tmp_path_factory.mktemp("site"),
        database_url=database_url_of_tests(),
        redis_url=os.environ["REDIS_URL"],
        webs=1,
        workers=2,
        slots=4,
        model=MODEL,
        environment={"KV_CACHE_BYTES": str(1 << 28)},
    ) as running:
        yield running
