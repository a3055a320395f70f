"""vLLM's subprocess: it does not outlive its worker, and its death is seen at once."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.inference import small_model

pytestmark = [pytest.mark.vllm, pytest.mark.faults]

# A worker reduced to its engine: says the subprocess's pid, generates, and says how that ended.
WORKER = """
import asyncio, sys
from pathlib import Path
from inference.engine import EngineDead, Prompt, Sampling
from inference.engines import make_engine

async def main():
    engine = make_engine(kind="vllm", path=Path(sys.argv[1]), context_length=8192, slots=2, kv_bytes=1 << 28)
    await engine.start()
    try:
        prompt = Prompt("r", tuple(range(100, 120)), 8000, "t", Sampling())
        async for chunk in engine.generate(prompt):
            if chunk.token_ids and engine.load().running:
                print(engine.pid(), flush=True)
    except EngineDead:
        try:
            await engine.check()
        except EngineDead:
            print("both say so", flush=True)
    await engine.stop()

asyncio.run(main())
"""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(small_model.folder())],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def engine_of(worker: subprocess.Popen[str]) -> psutil.Process:
    """Its subprocess, once it generates."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.strip().isdigit():
            return psutil.Process(int(line))
    raise AssertionError("The worker ended before its engine generated.")


def test_a_killed_worker_takes_its_engine_with_it(worker: subprocess.Popen[str]) -> None:
    family = [engine_of(worker), *psutil.Process(worker.pid).children(recursive=True)]
    worker.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive


def test_a_killed_engine_is_dead_for_every_request(worker: subprocess.Popen[str]) -> None:
    engine_of(worker).kill()
    output, _ = worker.communicate(timeout=30)
    assert output.strip().endswith("both say so")
    assert worker.returncode == 0
