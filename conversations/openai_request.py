"""The body of POST /v1/chat/completions: OpenAI's fields, checked; what we cannot do is refused, not ignored."""

from collections.abc import Callable
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, field_validator

from billing.bodies import parse
from billing.errors import Refusal
from billing.text import clean
from conversations.sampling import SamplingFields
from inference.turns import Role, Turn

ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class ChatMessage(BaseModel):
    """One message; a list of text parts is one text."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        known = [text for text in texts if isinstance(text, str)]
        if len(known) < len(content):
            raise ValueError("only parts of type 'text' are supported")
        return "\n".join(known)


class ChatRequest(SamplingFields):
    """What a caller asks for. Fields that we do not know, a `cache_salt` among them, are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = Field(None, max_length=128)
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    conversation_id: UUID | None = Field(None, strict=False)

    @property
    def turns(self) -> list[Turn]:
        return [Turn(ROLES[message.role], message.content) for message in self.messages]

    @property
    def has_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


def _given(value: Any) -> bool:
    return bool(value)


# Fields that would change the answer, and when a value of theirs does.
UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "tools": _given,
    "functions": _given,
    "audio": _given,
    "prediction": _given,
    "web_search_options": lambda value: value is not None,
    "logit_bias": _given,
    "logprobs": _given,
    "top_logprobs": _given,
    "response_format": lambda value: value is not None and value != {"type": "text"},
    "modalities": lambda value: value not in (None, ["text"]),
}


def parse_request(data: dict[str, Any]) -> ChatRequest:
    """The checked request. Raises Refusal (400) that names the parameter."""
    for name, is_used in UNSUPPORTED.items():
        if is_used(data.get(name)):
            raise Refusal("unsupported_parameter", f"{name} is not supported here.", param=name)
    request = parse(ChatRequest, data)
    clean(request.model or "", "model")
    for index, message in enumerate(request.messages):
        clean(message.content, f"messages.{index}.content")
    return request


def checked_key(key: str | None) -> str | None:
    """An Idempotency-Key header. Raises Refusal (400)."""
    if key is not None and not (0 < len(key) <= 255 and key.isascii() and key.isprintable()):
        raise Refusal(
            "invalid_request", "An Idempotency-Key has 1 to 255 printable ASCII characters.", param="Idempotency-Key"
        )
    return key
