"""A site whose worker runs vLLM and can be watched, and the same engine in a process of its own.

Both are loaded all the time and used one after the other; idle, neither needs CPU. KV_CACHE_BYTES (1 GiB here unless
set) lets both fit beside each other.
"""

import os
import random
import sys
from typing import Self

from bench.load import Client
from bench.remote import Remote
from bench.site import START_S, Site

SLOTS = 32
KV_BYTES = 1 << 30
MODEL = "smollm2-135m-instruct"
TEMPERATURE = 0.7
TOPICS = (
    "a lighthouse", "a clockmaker", "two rivers", "the first winter", "a lost map", "an old train", "a beekeeper",
    "the night market", "a stone bridge", "a violin", "the last library", "a desert well", "a paper boat", "the ferry",
    "a glass garden", "three sisters",
)  # fmt: skip
WORDS = (
    "amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "ledge",
    "marsh", "north", "ocean", "prairie",
)  # fmt: skip


class VllmSite:
    """`up` with a GPU worker that is watched, and the direct engine."""

    def __init__(self) -> None:
        self.model = os.environ.get("MODEL") or MODEL
        kv_bytes = os.environ.get("KV_CACHE_BYTES") or str(KV_BYTES)
        self.site = Site(engine="vllm", slots=SLOTS, is_watched=True, MODEL=self.model, KV_CACHE_BYTES=kv_bytes)
        self.site.environment["BENCH_SOCKET"] = str(self.site.folder / "watch")

    def __enter__(self) -> Self:
        site = self.site
        site.__enter__()
        try:
            self._start_engines()
        except BaseException as error:
            site.__exit__(type(error))
            raise
        self.client = Client(site.url, site.key, self.model)
        return self

    def __exit__(self, *error: object) -> None:
        self.site.__exit__(*error)

    def _start_engines(self) -> None:
        """The worker's is up; beside each other they would load more slowly still."""
        site, environment = self.site, self.site.environment
        self.watch = Remote(site.folder / "watch", lambda: site.is_up, START_S)
        folder = f"{environment['MODEL_DIR']}/{self.model}"
        options = environment.get("ENGINE_OPTIONS") or "{}"
        path = site.folder / "direct"
        arguments = [str(path), folder, str(SLOTS), environment["KV_CACHE_BYTES"], options]
        child = site.start("direct", [sys.executable, "-m", "bench.direct", *arguments])
        self.direct = Remote(path, lambda: child.poll() is None, START_S)


def stories(count: int, draw: int) -> list[str]:
    """Prompts with long answers; each draw has others, so that no prefix is in a cache."""
    choose = random.Random(draw)
    ask = "Write a very long story, at least thirty chapters, about"
    return [f"{ask} {choose.choice(TOPICS)} and {' '.join(choose.choices(WORDS, k=6))}." for _ in range(count)]


def long_prompt(draw: int, words: int = 300) -> str:
    """A prompt that takes many KV blocks."""
    choose = random.Random(-draw - 1)
    return f"Repeat these words for ever: {' '.join(choose.choices(WORDS, k=words))}"


def story(client: Client, content: str, max_tokens: int) -> bytes:
    """A streamed request's bytes."""
    options = {"temperature": TEMPERATURE, "stream_options": {"include_usage": True}}
    return client.chat(content, max_tokens=max_tokens, **options)
