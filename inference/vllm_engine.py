"""vLLM as an Engine: the only importer of vllm, and imported by GPU workers only (8 s, 500 MB).

What is special here, and why, is measured in the notes that docs/architecture.md names: no detokenisation in
vLLM (a continuation whose seam lies inside a character would be answered with the whole prompt), and on a CPU
one subprocess, Intel's OpenMP, eager mode and short prefill steps.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMError, VLLMValidationError
from vllm.inputs import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from inference import metrics
from inference.engine import Chunk, EngineDead, EngineFailed, EngineFinish, Load, Prompt, SchemaRefused
from inference.stop_strings import StopStrings

GIB = 1 << 30
CPU_OPTIONS: dict[str, Any] = {
    "enforce_eager": True,  # compiling costs 100 s at every start and gains nothing
    "block_size": 32,  # vLLM's 128 finds no shared prefix in a chat shorter than that
    "max_num_batched_tokens": 256,  # prefill in steps short enough for other streams and for aborts
}
SEEDS = 1 << 63
SHUTDOWN_S = 5.0  # a clean end takes 2.5; then it is killed
PRIMING_TOKENS = 32  # of the prompt's end: context for the first characters of the answer


class VllmEngine:
    """One AsyncLLM (Engine protocol).

    `path`: folder of the model. `slots` 0: 32 on a CPU, 256 on a GPU. `kv_bytes` 0: 1 GiB on a CPU, vLLM's
    choice on a GPU. `options`: further arguments of vLLM's AsyncEngineArgs, which win.
    """

    def __init__(
        self,
        *,
        path: Path,
        context_length: int,
        slots: int = 0,
        kv_bytes: int = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self._on_cpu = bool(current_platform.is_cpu())
        self.slots = slots or (32 if self._on_cpu else 256)
        self.context_length = context_length
        self.kv_tokens = 0
        self._arguments = {
            "model": str(path),
            "max_model_len": context_length,
            "max_num_seqs": self.slots,
            "enable_prefix_caching": True,
            "use_tqdm_on_load": False,
            "seed": secrets.randbits(31),  # else each start repeats the answers of requests without a seed
            "kv_cache_memory_bytes": kv_bytes or (GIB if self._on_cpu else None),
            **(CPU_OPTIONS if self._on_cpu else {}),
            **(options or {}),
        }
        self._stats = _LoadLogger(path.name)
        self._llm: AsyncLLM | None = None
        self._tokenizer: Any = None
        self._recommended: dict[str, Any] = {}

    async def start(self) -> None:
        if self._on_cpu:
            _set_up_cpu()
        try:
            # In a thread: it takes many seconds, in which the loop has leases to renew.
            self._llm = await asyncio.to_thread(self._load)
        except (RuntimeError, ValueError, OSError, VLLMError) as error:
            raise EngineDead(f"vLLM did not start: {error}") from error
        self._tokenizer = self._llm.get_tokenizer()
        self._recommended = self._llm.model_config.get_diff_sampling_param()
        cache = self._llm.vllm_config.cache_config
        self.kv_tokens = cache.kv_cache_size_tokens or (cache.num_gpu_blocks or 0) * cache.block_size

    def _load(self) -> AsyncLLM:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**self._arguments), stat_loggers=[self._stats.bind])

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        llm = self._running()
        try:
            tokens = tokens_input(list(prompt.token_ids), cache_salt=prompt.cache_salt)
            outputs = llm.generate(tokens, sampling_params(prompt, self._recommended), prompt.request_id)
            async with aclosing(outputs):  # leaving aborts the request in the engine
                async for output in outputs:
                    new = output.outputs[0]
                    if new.finish_reason == "error" and prompt.sampling.json_schema:
                        raise SchemaRefused("its grammar could not be compiled")
                    yield Chunk(tuple(new.token_ids), _finish(new.finish_reason), output.num_cached_tokens or 0)
        except EngineDeadError as error:
            raise EngineDead(str(error)) from error
        except (VLLMError, ValueError, TypeError) as error:
            is_refused = prompt.sampling.json_schema and isinstance(error, VLLMValidationError)
            raise (SchemaRefused if is_refused else EngineFailed)(str(error)) from error

    def detokenizer(self, prompt_ids: Sequence[int], stop: tuple[str, ...]) -> "VllmDetokenizer":
        return VllmDetokenizer(self._tokenizer, prompt_ids, stop)

    def load(self) -> Load:
        return self._stats.load

    def pid(self) -> int | None:
        if self._llm is None:
            return None
        manager = self._llm.engine_core.resources.engine_manager
        pid: int | None = manager.processes[0].pid if manager else None
        return pid

    async def check(self) -> None:
        try:
            await self._running().check_health()
        except EngineDeadError as error:
            raise EngineDead(str(error)) from error

    async def stop(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            manager = llm.engine_core.resources.engine_manager
            await asyncio.to_thread(llm.shutdown, SHUTDOWN_S)
            for process in manager.processes if manager else ():
                process.join(SHUTDOWN_S)  # killed is not yet gone

    def _running(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineDead("The engine does not run.")
        return self._llm


def sampling_params(prompt: Prompt, recommended: Mapping[str, Any]) -> SamplingParams:
    """vLLM's form of a prompt's sampling. Stop strings are the host's (VllmDetokenizer)."""
    sampling = prompt.sampling

    def choice(name: str, usual: float) -> Any:
        asked = getattr(sampling, name)
        return recommended.get(name, usual) if asked is None else asked

    seed = sampling.seed
    if seed is not None:
        # A continuation restarts the generator: the same seed would draw the same numbers again.
        seed = (seed + prompt.emitted) % SEEDS
    return SamplingParams(
        temperature=choice("temperature", 1.0),
        top_p=choice("top_p", 1.0),
        top_k=choice("top_k", 0),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=seed,
        max_tokens=prompt.max_tokens,
        structured_outputs=StructuredOutputsParams(json=sampling.json_schema) if sampling.json_schema else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _finish(reason: str | None) -> EngineFinish | None:
    """vLLM's finish reason; others than ours (abort, error) fail the request."""
    match reason:
        case None | "stop" | "length":
            return reason
    raise EngineFailed(f"vLLM ended the request: {reason}")


class VllmDetokenizer:
    """vLLM's own incremental detokenizer, kept on our side for the whole generation (Detokenizer protocol)."""

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int], stop: tuple[str, ...]) -> None:
        primer = list(prompt_ids[-PRIMING_TOKENS:])
        if tokenizer.decode(primer).endswith("\ufffd"):
            primer = []  # a prompt that ends inside a character would come back as text
        request: Any = SimpleNamespace(
            request_id="", sampling_params=SamplingParams(detokenize=True), prompt_token_ids=primer, prompt_embeds=None
        )
        self._decoder = IncrementalDetokenizer.from_new_request(tokenizer, request)
        self._stops = StopStrings(stop)

    def update(self, token_ids: Sequence[int], *, finished: bool) -> str:
        self._decoder.update(list(token_ids), False)
        return self._stops.feed(self._decoder.get_next_output_text(finished, True), finished=finished)

    @property
    def stopped(self) -> bool:
        return self._stops.stopped


class _LoadLogger(StatLoggerBase):
    """Keeps the figures of the latest step; `model`, as metrics name it, is its folder's name."""

    def __init__(self, model: str) -> None:
        self.load = Load()
        self._steps = metrics.engine_step.labels(model)
        self._stepped_at = 0.0

    def bind(self, vllm_config: VllmConfig, engine_index: int = 0) -> "_LoadLogger":
        """What vLLM calls to make its logger."""
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is None:
            return
        now = monotonic()
        if self.load.running:
            self._steps.observe(now - self._stepped_at)
        self._stepped_at = now
        prefix = scheduler_stats.prefix_cache_stats
        self.load = Load(
            running=scheduler_stats.num_running_reqs,
            waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
            kv_usage=scheduler_stats.kv_cache_usage,
            prefix_queries=self.load.prefix_queries + prefix.queries,
            prefix_hits=self.load.prefix_hits + prefix.hits,
        )

    def log_engine_initialized(self) -> None:
        pass


def _set_up_cpu() -> None:
    """The environment that vLLM's subprocess inherits: how fast it starts and decodes depends on it."""
    # One subprocess instead of two, of which one would spin.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    if not openmp.exists():
        return  # macOS and ARM: vLLM takes what torch brings
    loaded = os.environ.get("LD_PRELOAD", "")
    if "libiomp5" not in loaded:
        os.environ["LD_PRELOAD"] = f"{openmp}:{loaded}".rstrip(":")
    os.environ.setdefault("KMP_BLOCKTIME", "5")  # ms that a thread spins after its work
    os.environ.setdefault("KMP_TPAUSE", "0")
