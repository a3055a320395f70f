"""What an engine is to the rest of the project: one protocol and its value types.

Two engines implement it: vllm_engine (real models) and echo_engine (scripted, rate-controlled, with faults on
order). tests/inference/test_engine_contract.py runs against both.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

EngineFinish = Literal["stop", "length"]


class EngineFailed(Exception):
    """This one request failed; the engine goes on."""


class SchemaRefused(EngineFailed):
    """The engine cannot hold an answer to this request's JSON Schema."""


class EngineDead(Exception):
    """The engine is gone for good; its process must be replaced."""


@dataclass(frozen=True)
class Sampling:
    """How to sample; names and ranges are OpenAI's. `stop` is at most four non-empty strings.

    `json_schema`: a JSON Schema, as JSON, that the answer follows; empty: none.
    None: as the model's makers recommend (generation_config.json), else temperature 1 and no cut.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: str = ""

    def to_json(self) -> dict[str, Any]:
        """Only what differs from the default: what a Generation row stores."""
        return {
            name: list(value) if name == "stop" else value
            for name, value in self.__dict__.items()
            if value != self.__dataclass_fields__[name].default
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Sampling":
        """The inverse of to_json; fields this version does not know are dropped."""
        known = {name: value for name, value in stored.items() if name in cls.__dataclass_fields__}
        return cls(**{**known, "stop": tuple(known.get("stop", ()))})


@dataclass(frozen=True)
class Prompt:
    """One request to an engine.

    `token_ids` is the whole input: the original prompt, followed by `emitted` tokens that an earlier attempt
    already produced (0 for a first attempt). `max_tokens` counts new tokens only. `cache_salt` separates
    tenants in the prefix cache.
    """

    request_id: str
    token_ids: tuple[int, ...]
    max_tokens: int
    cache_salt: str
    sampling: Sampling = field(default_factory=Sampling)
    emitted: int = 0


@dataclass(frozen=True)
class Chunk:
    """New tokens since the last chunk; the last chunk of a request, and only it, has `finish_reason`.

    `cached_tokens`: how many of the prompt's tokens came from the prefix cache.
    """

    token_ids: tuple[int, ...]
    finish_reason: EngineFinish | None = None
    cached_tokens: int = 0


@dataclass(frozen=True)
class Load:
    """The engine's own figures after its latest step."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0  # share of KV blocks in use, 0 to 1
    prefix_queries: int = 0  # prompt tokens looked up in the prefix cache, since the start
    prefix_hits: int = 0  # of which found


class Detokenizer(Protocol):
    """Text of one generation, fed with its token ids in order; primed with the original prompt."""

    def update(self, token_ids: Sequence[int], *, finished: bool) -> str:
        """Text that is now complete and may be shown.

        Characters that are not whole and text that may be the beginning of a stop string are held back until
        a later call; `finished` (the engine said so) releases what is held. Text from a stop string on is
        never returned. A character cut off by the end is dropped.
        """
        ...

    @property
    def stopped(self) -> bool:
        """A stop string was met: the generation is over and the request must be aborted."""
        ...


class Engine(Protocol):
    """One engine, in one process, on one event loop."""

    slots: int  # generations at once (vLLM: max_num_seqs)
    context_length: int  # tokens
    kv_tokens: int  # tokens that the KV cache holds

    async def start(self) -> None:
        """Load the model; returns when it can generate. Raises EngineDead."""
        ...

    def generate(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """An async generator of chunks. Closing it, or cancelling its task, aborts the request.

        Raises EngineFailed (this request) or EngineDead (all requests).
        """
        ...

    def detokenizer(self, prompt_ids: Sequence[int], stop: tuple[str, ...]) -> Detokenizer:
        """A new detokenizer, primed with the original prompt."""
        ...

    def load(self) -> Load:
        """Figures of the latest step."""
        ...

    def pid(self) -> int | None:
        """The process that computes, where it is another one than ours."""
        ...

    async def check(self) -> None:
        """Raises EngineDead once the engine cannot serve any more."""
        ...

    async def stop(self) -> None:
        """Free everything; no process is left behind."""
        ...
