"""The engine called directly: what the same machine does without the site around it.

The echo engine runs in the bench's own process. vLLM runs in a process of its own (`python -m bench.direct SOCKET
MODEL_FOLDER SLOTS KV_BYTES OPTIONS`), made and called as a GPU worker does it.
"""

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path
from time import monotonic

from bench.load import Answer
from bench.remote import serve_in_thread
from inference import model_files
from inference.echo_engine import EchoEngine
from inference.engine import Engine, Prompt, Sampling
from inference.engines import make_engine
from inference.templating import ByteTemplate, HfTemplate
from inference.turns import Turn


async def echo_answers(orders: list[tuple[int, str]], concurrency: int) -> list[Answer]:
    """Orders (their number of tokens, their text) to one echo engine, `concurrency` at a time."""
    engine = EchoEngine(slots=concurrency)
    await engine.start()
    free = asyncio.Semaphore(concurrency)

    async def one(number: int, n: int, content: str) -> Answer:
        prompt = Prompt(str(number), tuple(ByteTemplate().encode([Turn("user", content)])), n, "bench")
        async with free:
            return await _generate(engine, prompt, Answer(n))

    answers = await asyncio.gather(*(one(number, *item) for number, item in enumerate(orders)))
    await engine.stop()
    return answers


async def _generate(engine: Engine, prompt: Prompt, answer: Answer) -> Answer:
    answer.sent_at = monotonic()
    detokenizer = engine.detokenizer(prompt.token_ids, prompt.sampling.stop)
    produced = 0
    async with aclosing(engine.generate(prompt)) as chunks:
        async for chunk in chunks:
            produced += len(chunk.token_ids)
            text = detokenizer.update(chunk.token_ids, finished=chunk.finish_reason is not None)
            if text:
                answer.pieces.append(text)
                answer.times.append(monotonic())
            answer.finish = chunk.finish_reason
    answer.ended_at, answer.status, answer.is_done = monotonic(), 200, True
    answer.usage = {"completion_tokens": produced}
    return answer


class DirectVllm:
    """One vLLM engine and its model's template."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self._engine = engine
        self._template = HfTemplate(folder)
        self._runs = 0

    async def run(self, contents: list[str], max_tokens: int, temperature: float) -> tuple[int, float]:
        """All prompts at once: (tokens produced, seconds from the first call to the last token)."""
        self._runs += 1
        prompts = [
            Prompt(
                f"{self._runs}-{number}",
                tuple(self._template.encode([Turn("user", content)])),
                max_tokens,
                "bench",
                Sampling(temperature=temperature),
            )
            for number, content in enumerate(contents)
        ]
        began = monotonic()
        answers = await asyncio.gather(*(_generate(self._engine, prompt, Answer()) for prompt in prompts))
        ended = max(answer.ended_at for answer in answers)
        return sum(answer.usage["completion_tokens"] for answer in answers), ended - began


async def _main(socket: str, folder: Path, slots: int, kv_bytes: int, options: str) -> None:
    engine = make_engine(
        kind="vllm",
        path=folder,
        context_length=model_files.context_length(engine="vllm", folder=folder, wanted=0),
        slots=slots,
        kv_bytes=kv_bytes,
        options=json.loads(options),
    )
    await engine.start()
    direct = DirectVllm(folder, engine)
    loop = asyncio.get_running_loop()

    def run(contents: list[str], max_tokens: int, temperature: float) -> tuple[int, float]:
        return asyncio.run_coroutine_threadsafe(direct.run(contents, max_tokens, temperature), loop).result()

    serve_in_thread(Path(socket), {"run": run})
    await loop.create_future()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
