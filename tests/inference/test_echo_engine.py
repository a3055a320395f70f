"""The echo engine's orders and faults."""

import asyncio
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
import uvloop

from inference.echo_engine import EchoEngine
from inference.engine import Chunk, EngineDead, EngineFailed, Prompt
from inference.templating import ByteTemplate
from inference.turns import Turn

ZWJ = "👩‍👩‍👧‍👦🇨🇭👍🏽"


def prompt(text: str, *, emitted: tuple[int, ...] = (), max_tokens: int = 10_000) -> Prompt:
    ids = (*ByteTemplate().encode([Turn("user", text)]), *emitted)
    return Prompt("r", ids, max_tokens, cache_salt="t", emitted=len(emitted))


async def chunks_of(engine: EchoEngine, request: Prompt) -> list[Chunk]:
    async with aclosing(engine.generate(request)) as outputs:
        return [chunk async for chunk in outputs]


async def answer(text: str, **options: int) -> tuple[str, list[Chunk]]:
    engine = EchoEngine()
    chunks = await chunks_of(engine, prompt(text, **options))  # type: ignore[arg-type]
    detokenizer = engine.detokenizer((), ())
    text = "".join(detokenizer.update(c.token_ids, finished=c.finish_reason is not None) for c in chunks)
    return text, chunks


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ("[[rid=x n=3 itl=0 ttft=0]] tell me", "t00000 t00001 t00002 "),
        ("[[n=9]] then [[n=2 itl=0]]", "t00000 t00001 "),
        ("[[n=2 itl=3 emoji=1]]", "t00000😀 t00001😀 "),
        ("[[n=2 itl=3 zwj=1]]", f"t00000{ZWJ} t00001{ZWJ} "),
        ("[[n=2 itl=3 nul=1]]", "t00000\0 t00001\0 "),
        (f"[[itl=1 text=Hello {ZWJ} [1] world]]", f"Hello {ZWJ} [1] world"),
        ("Hello there, 😀", "You said: Hello there, 😀"),
        ("see [[the wiki]]", "You said: see [[the wiki]]"),
        ("", "You said:"),
    ],
)
async def test_orders(order: str, text: str) -> None:
    got, chunks = await answer(order)
    assert got == text
    assert chunks[-1].finish_reason == "stop"


async def test_an_emoji_arrives_in_pieces() -> None:
    _, chunks = await answer("[[n=3 itl=20 emoji=1]]")
    with pytest.raises(UnicodeDecodeError):
        bytes(token for token in chunks[0].token_ids if token < 256).decode()


async def test_the_rate_is_kept() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    await answer("[[n=11 itl=20 ttft=50]]")
    assert loop.time() - start >= 0.25 - 0.002


def test_many_begin_at_once_on_the_loop_of_a_worker() -> None:
    """A call that is due at once has no `when` there: on a busy machine, those who came next failed."""

    async def all_answers() -> list[list[Chunk]]:
        engine = EchoEngine()
        return await asyncio.gather(*(chunks_of(engine, prompt("[[n=3 itl=1 ttft=0]]")) for _ in range(20)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert all(chunks[-1].finish_reason == "stop" for chunks in runner.run(all_answers()))


async def test_a_slow_reader_gets_merged_chunks() -> None:
    async with aclosing(EchoEngine().generate(prompt("[[n=50 itl=1 ttft=0]]"))) as outputs:
        sizes = []
        async for chunk in outputs:
            sizes.append(len(chunk.token_ids))
            await asyncio.sleep(0.02)
    assert sum(sizes) == 50
    assert len(sizes) < 15


@pytest.mark.parametrize("cut", [0, 1, 5, 6, 7, 29, 30])
async def test_a_continuation_goes_on_behind_what_was_emitted(cut: int) -> None:
    order = "[[n=5 itl=1 emoji=1]]"
    whole = tuple(token for chunk in (await answer(order))[1] for token in chunk.token_ids)
    rest = await chunks_of(EchoEngine(), prompt(order, emitted=whole[:cut]))
    assert whole[:cut] + tuple(token for chunk in rest for token in chunk.token_ids) == whole
    assert rest[-1].finish_reason == "stop"


async def test_an_order_that_is_not_understood_fails_the_request() -> None:
    with pytest.raises(EngineFailed, match="many"):
        await answer("[[n=many]]")


async def test_fail_ends_one_request_and_only_its_first_attempt() -> None:
    engine = EchoEngine()
    order = "[[n=5 itl=0 ttft=0 fail=2]]"
    seen: list[int] = []
    with pytest.raises(EngineFailed):
        async with aclosing(engine.generate(prompt(order))) as outputs:
            async for chunk in outputs:
                seen += chunk.token_ids
    assert len(seen) == 2
    await engine.check()
    rest = await chunks_of(engine, prompt(order, emitted=tuple(seen)))
    assert rest[-1].finish_reason == "stop"
    with pytest.raises(EngineFailed):
        await chunks_of(engine, prompt("[[n=5 itl=0 fail=2 always=1]]", emitted=tuple(seen)))


async def test_die_ends_everything_for_good() -> None:
    engine = EchoEngine(slots=3)
    orders = ("[[n=10000]]", "[[stall=1]]", "[[n=9 itl=0 ttft=60 die=1]]", "[[n=5]]")  # the last waits for a slot
    ends = await asyncio.gather(*(chunks_of(engine, prompt(order)) for order in orders), return_exceptions=True)
    assert [type(end) for end in ends] == [EngineDead] * 4
    assert engine.load().running == 0
    with pytest.raises(EngineDead):
        await engine.check()
    with pytest.raises(EngineDead):
        await chunks_of(engine, prompt("[[n=1]]"))


async def test_stall_sends_nothing_more_and_frees_its_slot_when_cancelled() -> None:
    engine = EchoEngine()
    outputs = engine.generate(prompt("[[n=9 itl=0 ttft=0 stall=2]]"))
    first = await anext(outputs)
    assert (len(first.token_ids), first.finish_reason) == (2, None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(outputs), 0.1)
    assert engine.load().running == 0


async def test_a_loading_engine_takes_its_time() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    await EchoEngine(start_s=0.05).start()
    assert loop.time() - start >= 0.049


def test_exit_ends_the_process() -> None:
    code = (
        "import asyncio\n"
        "from tests.inference.test_echo_engine import EchoEngine, chunks_of, prompt\n"
        "asyncio.run(chunks_of(EchoEngine(), prompt('[[n=9 itl=0 exit=3]]')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 70
