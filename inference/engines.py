"""Which engine a worker hosts."""

import os
from pathlib import Path
from typing import Any

from inference.echo_engine import EchoEngine
from inference.engine import Engine

# Read by vllm at its import: no telemetry, no look at the model hub (the model is a folder), no chatter.
VLLM_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def make_engine(
    *,
    kind: str,
    path: Path,
    context_length: int,
    slots: int = 0,
    kv_bytes: int = 0,
    options: dict[str, Any] | None = None,
) -> Engine:
    """An engine that is not yet started. `kind`: echo or vllm; the others are settings, 0 meaning its default.

    `options` are further arguments: of vLLM's AsyncEngineArgs, or of EchoEngine (kv_tokens, start_s).
    """
    if kind == "echo":
        return EchoEngine(slots=slots or 256, context_length=context_length, **(options or {}))
    for name, value in VLLM_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from inference.vllm_engine import VllmEngine  # 8 s and 500 MB, for GPU workers only

    return VllmEngine(path=path, context_length=context_length, slots=slots, kv_bytes=kv_bytes, options=options)
