"""What holds for every engine: the same tests against the echo engine and against real vLLM."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import psutil
import pytest
import pytest_asyncio

from inference.engine import Chunk, Engine, EngineFailed, Prompt, Sampling
from inference.engines import make_engine
from inference.templating import Template, load_template
from inference.turns import Turn
from tests.inference import small_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

Test = TypeVar("Test", bound=Callable[..., object])
SLOTS = 4
CONTEXT = 2048
EMOJI = "Hi 👩‍👩‍👧‍👦 from 🇨🇭, 👍🏽 日本語!"


@dataclass
class Case:
    """One engine, and how to ask it for what a test needs."""

    engine: Engine
    template: Template
    endless: str  # a user text answered with more tokens than any test takes
    short: str  # one answered with a few tokens
    ids: Callable[[str], list[int]]  # token ids of an answer's text
    leaks: tuple[str, ...]  # text of the prompt that no answer contains

    def prompt(self, text: str, *, emitted: Sequence[int] = (), max_tokens: int = 20, **more: object) -> Prompt:
        ids = (*self.template.encode([Turn("user", text)]), *emitted)
        values = {"request_id": "r", "cache_salt": "tenant", "sampling": Sampling(temperature=0.0), **more}
        return Prompt(token_ids=ids, max_tokens=max_tokens, emitted=len(emitted), **values)  # type: ignore[arg-type]

    def text(self, *chunks: Sequence[int], stop: tuple[str, ...] = (), finished: bool = True) -> str:
        """Text of an answer's ids, fed in these chunks; `finished` is said with the last."""
        detokenizer = self.engine.detokenizer(self.template.encode([Turn("user", EMOJI)]), stop)
        return "".join(
            detokenizer.update(ids, finished=finished and index == len(chunks)) for index, ids in enumerate(chunks, 1)
        )


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["echo", pytest.param("vllm", marks=pytest.mark.vllm)]
)
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    kind: str = request.param
    path = small_model.folder()
    engine = make_engine(kind=kind, path=path, context_length=CONTEXT, slots=SLOTS, kv_bytes=1 << 28)
    await engine.start()
    pid = engine.pid()
    if kind == "echo":
        yield Case(
            engine,
            load_template("echo"),
            endless="[[n=5000 itl=20 ttft=1 emoji=1]]",
            short="[[n=5 itl=1]]",
            ids=lambda text: list(text.encode()),
            leaks=("[[", "ttft"),
        )
    else:
        yield Case(
            engine,
            load_template(small_model.NAME),
            endless="Write a very long story about a fox.",
            short="Say hi.",
            ids=lambda text: small_model.tokenizer().encode(text, add_special_tokens=False).ids,
            leaks=("SmolLM", "<|im_", "very long story"),
        )
    await engine.stop()
    assert pid is None or not psutil.pid_exists(pid)


async def chunks_of(engine: Engine, prompt: Prompt) -> list[Chunk]:
    async with aclosing(engine.generate(prompt)) as outputs:
        return [chunk async for chunk in outputs]


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_it_answers_in_chunks_and_ends_at_the_limit(case: Case) -> None:
    chunks = await chunks_of(case.engine, case.prompt(case.endless, max_tokens=20))
    assert len(ids_of(chunks)) == 20
    assert len(chunks) > 1
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


async def test_it_ends_by_itself(case: Case) -> None:
    chunks = await chunks_of(case.engine, case.prompt(case.short, max_tokens=400))
    assert chunks[-1].finish_reason == "stop"
    assert case.text(ids_of(chunks))


async def test_it_knows_its_capacity(case: Case) -> None:
    engine = case.engine
    assert (engine.slots, engine.context_length) == (SLOTS, CONTEXT)
    assert engine.kv_tokens >= CONTEXT
    pid = engine.pid()
    assert pid is None or psutil.Process(pid).is_running()
    await engine.check()


async def test_all_slots_run_at_once_and_no_more(case: Case) -> None:
    tasks = [
        asyncio.create_task(chunks_of(case.engine, case.prompt(case.endless, max_tokens=60, request_id=f"r{number}")))
        for number in range(SLOTS + 2)
    ]
    await until(lambda: case.engine.load().running == SLOTS and case.engine.load().waiting == 2)
    assert case.engine.load().kv_usage > 0
    for chunks in await asyncio.gather(*tasks):
        assert len(ids_of(chunks)) == 60
    await until(lambda: case.engine.load().running == 0)


async def test_closing_or_cancelling_frees_the_slot(case: Case) -> None:
    prompt = case.prompt(case.endless, max_tokens=1500)
    outputs = case.engine.generate(prompt)
    await anext(outputs)
    await outputs.aclose()  # type: ignore[attr-defined]
    await until(lambda: case.engine.load().running == 0)

    task = asyncio.create_task(chunks_of(case.engine, prompt))
    await until(lambda: case.engine.load().running == 1)
    task.cancel()
    await until(lambda: case.engine.load().running == 0 and case.engine.load().kv_usage == 0)
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("broken", ["too long", "no tokens"])
async def test_a_bad_request_fails_alone(case: Case, broken: str) -> None:
    bad = case.prompt("word " * CONTEXT) if broken == "too long" else case.prompt(case.endless, max_tokens=0)
    good = asyncio.create_task(chunks_of(case.engine, case.prompt(case.endless, max_tokens=30, request_id="good")))
    with pytest.raises(EngineFailed):
        await chunks_of(case.engine, bad)
    assert len(ids_of(await good)) == 30
    await case.engine.check()
    assert len(ids_of(await chunks_of(case.engine, case.prompt(case.endless)))) == 20


async def test_characters_are_whole_wherever_the_answer_is_cut(case: Case) -> None:
    """Case 1: live, replayed from any seq, and across a failover inside a character."""
    ids = case.ids(EMOJI)
    assert case.text(ids) == EMOJI
    assert case.text(*([token] for token in ids)) == EMOJI
    for cut in range(len(ids) + 1):
        assert case.text(ids[:cut], ids[cut:]) == EMOJI
        begun = case.text(ids[:cut], finished=True)
        assert EMOJI.startswith(begun)
        assert begun == case.text(ids[:cut], finished=False)


async def test_stop_strings_are_withheld_whole(case: Case) -> None:
    text = "One two STOP three"
    ids = case.ids(text)
    for cut in range(len(ids) + 1):
        assert case.text(ids[:cut], ids[cut:], stop=("nothing", "STOP")) == "One two "
        assert "One two ".startswith(case.text(ids[:cut], stop=("STOP",), finished=False))
    assert case.text(*([token] for token in ids), stop=("STOP",)) == "One two "
    assert case.text(ids, stop=("STOP it",)) == text


async def test_a_stop_string_ends_a_live_answer(case: Case) -> None:
    detokenizer = case.engine.detokenizer((), (" ",))
    text = ""
    async with aclosing(case.engine.generate(case.prompt(case.endless, max_tokens=500))) as outputs:
        async for chunk in outputs:
            text += detokenizer.update(chunk.token_ids, finished=chunk.finish_reason is not None)
            if detokenizer.stopped:
                break
    assert detokenizer.stopped
    assert text
    assert " " not in text
    await until(lambda: case.engine.load().running == 0)


@pytest.mark.parametrize("cut", [1, 3, 10])
async def test_a_continuation_joins_at_the_seam(case: Case, cut: int) -> None:
    before = ids_of(await chunks_of(case.engine, case.prompt(case.endless, max_tokens=20)))[:cut]
    chunks = await chunks_of(case.engine, case.prompt(case.endless, emitted=before, max_tokens=20))
    after = ids_of(chunks)
    assert len(after) == 20
    assert chunks[-1].finish_reason == "length"
    whole = case.text(before, after)
    assert whole == case.text(before + after)
    assert whole.startswith(case.text(before, finished=False))
    assert "\ufffd" not in whole
    assert not any(leak in whole for leak in case.leaks)


async def test_a_cut_inside_a_character_does_not_leak_the_prompt(case: Case) -> None:
    """A detokenizer that is primed with emitted ids, too, gives back the whole prompt (notes: engine)."""
    ids = case.ids("Hi 👩‍👩‍👧‍👦")
    for cut in range(1, len(ids)):
        chunks = await chunks_of(case.engine, case.prompt("Hello", emitted=ids[:cut], max_tokens=2))
        text = case.text(ids[:cut], ids_of(chunks))
        assert text.startswith(case.text(ids[:cut], finished=False))
        assert not any(leak in text for leak in (*case.leaks, "user", "assistant", "Hello"))


def only_vllm(test: Test) -> Test:
    """For what the echo engine does not do: it neither samples nor caches."""
    marked: Test = pytest.mark.vllm(pytest.mark.parametrize("case", ["vllm"], indirect=True)(test))
    return marked


@only_vllm
async def test_a_prefix_is_shared_within_a_tenant_and_never_across(case: Case) -> None:
    """Case 35."""

    async def cached(salt: str) -> int:
        prompt = case.prompt("All work and no play makes Jack a dull boy. " * 20, max_tokens=2, cache_salt=salt)
        return (await chunks_of(case.engine, prompt))[0].cached_tokens

    before = case.engine.load()
    assert [await cached(salt) for salt in ("a", "b")] == [0, 0]
    assert await cached("a") >= 192
    assert await cached("b") >= 192
    assert await cached("c") == 0
    after = case.engine.load()
    assert after.prefix_hits - before.prefix_hits >= 384
    assert after.prefix_queries > before.prefix_queries


@only_vllm
async def test_a_seed_repeats_and_is_advanced_by_what_was_emitted(case: Case) -> None:
    async def sampled(seed: int | None, emitted: Sequence[int] = ()) -> list[int]:
        sampling = Sampling(temperature=1.5, seed=seed)
        prompt = case.prompt(case.endless, emitted=emitted, max_tokens=16, sampling=sampling)
        return ids_of(await chunks_of(case.engine, prompt))

    first = await sampled(7)
    assert first == await sampled(7)
    assert first != await sampled(8)
    assert await sampled(None) != await sampled(None)
    for seed in (-1, 0, (1 << 63) - 1, -(1 << 63)):
        assert len(await sampled(seed, emitted=first[:5])) > 0


@only_vllm
async def test_sampling_out_of_range_fails_the_request(case: Case) -> None:
    for sampling in (Sampling(temperature=-1.0), Sampling(top_p=7.0), Sampling(presence_penalty=99.0)):
        with pytest.raises(EngineFailed):
            await chunks_of(case.engine, case.prompt("hi", sampling=sampling))
    await case.engine.check()


async def test_a_seed_with_a_prompt_of_several_chunks_does_not_kill_the_engine(case: Case) -> None:
    long = case.prompt("word " * 300, max_tokens=3, sampling=Sampling(temperature=1.0, seed=7))
    async with aclosing(case.engine.generate(long)) as outputs:
        assert [chunk async for chunk in outputs][-1].finish_reason is not None
    await case.engine.check()


@only_vllm
async def test_what_is_not_said_is_as_the_models_makers_recommend(case: Case) -> None:
    from inference.vllm_engine import VllmEngine, sampling_params

    assert isinstance(case.engine, VllmEngine)
    recommended = case.engine._recommended
    for sampling, expected in (
        (Sampling(), (0.2, 0.9)),
        (Sampling(temperature=1.0), (1.0, 0.9)),
        (Sampling(temperature=0.0, top_p=1.0), (0.0, 1.0)),
    ):
        params = sampling_params(case.prompt("hi", sampling=sampling), recommended)
        assert (params.temperature, params.top_p) == expected
    params = sampling_params(case.prompt("hi", sampling=Sampling()), {})
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 0)
