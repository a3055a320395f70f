"""The sampling fields of a request, checked once for the native API, the WebSocket and /v1."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from billing import bodies
from billing.text import clean
from inference.engine import Sampling

MOST_STOPS = 4


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Stops = Annotated[list[Stop], Field(max_length=MOST_STOPS)]


class SamplingFields(bodies.Body):
    """OpenAI's names and ranges; None: the model's default. `max_completion_tokens` goes before `max_tokens`."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=1_000_000)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[Stops | None, BeforeValidator(_as_list)] = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1, le=1)

    def sampling(self) -> Sampling:
        """As the engine takes it. Raises Refusal (invalid_text)."""
        names = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return Sampling(**given, stop=tuple(clean(text, "stop") for text in self.stop or ()))

    def asked(self) -> int | None:
        """Output tokens at most, if the caller named a number; huge ones mean "what is allowed"."""
        most = self.max_completion_tokens or self.max_tokens
        return None if most is None else min(most, 2**31 - 1)


def parse(data: Mapping[str, Any]) -> tuple[Sampling, int | None]:
    """The sampling fields of a body, whatever else it holds, and the output tokens asked for.

    Raises Refusal (400) that names the field.
    """
    fields = bodies.parse(SamplingFields, {name: data[name] for name in SamplingFields.model_fields if name in data})
    return fields.sampling(), fields.asked()
