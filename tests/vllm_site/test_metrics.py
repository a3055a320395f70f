"""The engine's own figures: steps, prefix cache, and what vLLM counts itself."""

import pytest

from tests.observability.scrape import scrape
from tests.people import Person
from tests.site import Site, wait_until
from tests.vllm_site.model import MODEL

pytestmark = pytest.mark.vllm


def test_steps_and_the_prefix_cache_are_counted(site: Site, person: Person) -> None:
    url = site.webs[0].url
    before = scrape(url)
    body = {
        "model": MODEL,
        "max_tokens": 20,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Tell me about the sea and its tides. " * 20}],
    }
    with person.http(url) as http:
        for _ in range(2):  # with two workers, one of them may have been given both
            answer = http.post("/v1/chat/completions", json=body, timeout=120)
            assert answer.status_code == 200
    used = answer.json()["usage"]

    def has_moved() -> bool:
        now = scrape(url)

        def moved(name: str, **labels: str) -> float:
            return now.sum(name, **labels) - before.sum(name, **labels)

        return (
            moved("chatsite_engine_step_seconds_count", model=MODEL) >= used["completion_tokens"]
            and moved("chatsite_prefix_cache_queries_total", model=MODEL) >= 2 * used["prompt_tokens"]
            and moved("chatsite_tokens_total", model=MODEL, direction="prompt") == 2 * used["prompt_tokens"]
            and moved("vllm:generation_tokens_total") >= used["completion_tokens"]
        )

    wait_until(has_moved, "the engine's figures", 30)
