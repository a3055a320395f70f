"""Loaded by vLLM in each of its processes (entry points vllm.general_plugins): none outlives the worker, a request's
seed cannot kill it, and on a CPU it leaves the worker room.

vLLM's EngineCore does not watch its parent: after a kill -9 of the worker it would go on generating for nobody
and keep the GPU's memory.
"""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

EXIT_CODE = 70


def exit_with_parent() -> None:
    """End this process when its parent has ended; in the worker itself, which vLLM did not start, do nothing."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(EXIT_CODE)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C reaches the whole process group: the worker drains first, and stops its engine itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def allow_seeds_on_cpu() -> None:
    """Let a request have a seed where torch's generators cannot be wound back.

    vLLM 0.32 winds a seeded request's generator back after each chunk of a long prompt; the CPU's generator refuses
    ("does not use offset"), which ends the engine for everyone. Not winding back is harmless: the numbers drawn stay
    a function of the seed and the prompt's chunks.
    """
    import torch

    if multiprocessing.parent_process() is None or torch.cuda.is_available():
        return

    class Generator(torch.Generator):
        def get_offset(self) -> int:
            return 0

        def set_offset(self, offset: int) -> "Generator":
            return self

    torch.Generator = Generator  # type: ignore[misc]


NICE = 10


def leave_room_on_cpu() -> None:
    """Let the worker, which takes in and hands on, go before the engine's threads, which want every core all the time.

    Measured with 32 streams on two cores: 1 to 2 % more tokens, for answers begin sooner and fill the batch.
    """
    import torch

    if multiprocessing.parent_process() is not None and not torch.cuda.is_available():
        os.nice(NICE - os.nice(0))
