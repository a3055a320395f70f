"""The figures with real vLLM: what the site takes from its throughput, and memory."""

import asyncio
import itertools
import time

from bench.figures import Row, median, spread
from bench.load import Answer, Client
from bench.steady import bare_server, must_be_whole
from bench.vllm_site import SLOTS, TEMPERATURE, VllmSite, stories, story

ROUNDS = 3
MAX_TOKENS = 128
_draws = itertools.count(1)

__all__ = ["VllmSite", "idle", "throughput"]


# -- memory ---------------------------------------------------------------------------------------------


def idle(vllm: VllmSite, scale: float) -> Row:
    """The web process at rest, after a request: then it has loaded the model's tokenizer."""
    fresh = vllm.site.web_rss_mb()
    asyncio.run(_stories(vllm.client, 1, 4))
    time.sleep(2)
    after = vllm.site.web_rss_mb()
    with bare_server(vllm.site) as (_, process):
        bare = process.memory_info().rss / 1e6
    return Row(
        "idle web process",
        "≤ 200 MB",
        f"{after:.0f} MB",
        f"uvicorn with an empty application: {bare:.0f} MB",
        after / bare,
        after <= 200,
        (f"Resident memory (RSS), 2 s after its first answer, the tokenizer loaded; {fresh:.0f} MB before it.",),
    )


# -- throughput -----------------------------------------------------------------------------------------


def throughput(vllm: VllmSite, scale: float) -> Row:
    """32 streams through /v1, and the same prompts to the engine itself, in turn."""
    max_tokens = max(32, int(MAX_TOKENS * scale))
    rates: list[float] = []
    directs: list[float] = []
    lengths = []
    _both(vllm, 16)
    for _ in range(ROUNDS):
        (tokens, seconds), (own_tokens, own_seconds) = _both(vllm, max_tokens)
        rates.append(tokens / seconds)
        directs.append(own_tokens / own_seconds)
        lengths.append(f"{tokens}/{own_tokens}")
    ratio = median(a / b for a, b in zip(rates, directs, strict=True))
    return Row(
        "real vLLM, 32 streams through `/v1`",
        "≥ 0.9 of the engine's tokens/s",
        f"{median(rates):.0f} tokens/s",
        f"the same engine called directly: {median(directs):.0f} tokens/s",
        ratio,
        ratio >= 0.9,
        (
            f"{ROUNDS} rounds, each first direct, then `/v1`: {SLOTS} prompts at once, at most {max_tokens} tokens "
            "each, tokens over the time from the first request to the last token. The ratio is the median of the "
            f"rounds' ratios. `/v1` {spread(rates)}, direct {spread(directs)} tokens/s; tokens `/v1`/direct "
            f"{', '.join(lengths)}.",
            "The direct engine is the same class with the same settings in a process of its own, with the host's "
            "detokenizer; the other one idles meanwhile.",
        ),
    )


def _both(vllm: VllmSite, max_tokens: int) -> tuple[tuple[int, float], tuple[int, float]]:
    """(tokens, seconds) through /v1 and directly, for the same new prompts."""
    draw = next(_draws)
    direct = vllm.direct.call("run", stories(SLOTS, draw), max_tokens, TEMPERATURE)
    answers, seconds = asyncio.run(_stories(vllm.client, SLOTS, max_tokens, draw))
    return (sum(answer.usage["completion_tokens"] for answer in answers), seconds), direct


async def _stories(client: Client, count: int, max_tokens: int, draw: int = 0) -> tuple[list[Answer], float]:
    """The answers, and the seconds from the first request to the last text."""
    requests = [story(client, content, max_tokens) for content in stories(count, draw)]
    answers = await client.staggered([(0.0, request, Answer()) for request in requests])
    must_be_whole(answers)
    last = max(at for answer in answers for at in answer.times)
    return answers, last - min(answer.sent_at for answer in answers)
