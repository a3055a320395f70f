"""Loaded by vLLM in each of its processes (entry point vllm.general_plugins): none outlives the worker.

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
