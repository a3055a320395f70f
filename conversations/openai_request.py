"""The body of POST /v1/chat/completions: OpenAI's fields, checked; what we cannot do is refused, not ignored."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.validators import validator_for
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from billing.bodies import parse
from billing.errors import Refusal
from billing.text import clean
from conversations.sampling import SamplingFields
from inference.engine import Sampling
from inference.turns import Role, Turn

LONGEST_SCHEMA = 64_000
ANY_OBJECT = '{"type": "object"}'
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


class JsonSchema(BaseModel):
    """OpenAI's: `strict` or not, an answer follows it."""

    model_config = ConfigDict(strict=True)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: dict[str, Any] = Field({}, alias="schema")
    strict: bool | None = None

    @field_validator("schema_", mode="after")
    @classmethod
    def _is_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        try:
            if len(json.dumps(schema, ensure_ascii=False).encode()) > LONGEST_SCHEMA:
                raise ValueError(f"a schema has at most {LONGEST_SCHEMA} bytes")
            validator_for(schema, default=Draft202012Validator).check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"no JSON Schema: {error.json_path}: {error.message[:200]}") from None
        except UnicodeEncodeError:
            raise ValueError("a lone surrogate is no text") from None
        except RecursionError:
            raise ValueError("this schema is nested too deeply") from None
        return schema


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("type json_schema needs json_schema")
        return self

    @property
    def schema_text(self) -> str:
        """The JSON Schema that the answer is to follow; empty: none."""
        if self.type == "json_schema" and self.json_schema:
            return json.dumps(self.json_schema.schema_)
        return "" if self.type == "text" else ANY_OBJECT


class ChatRequest(SamplingFields):
    """What a caller asks for. Fields that we do not know, a `cache_salt` among them, are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = Field(None, max_length=128)
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    conversation_id: UUID | None = Field(None, strict=False)

    @property
    def turns(self) -> list[Turn]:
        return [Turn(ROLES[message.role], message.content) for message in self.messages]

    def sampling(self) -> Sampling:
        schema = self.response_format.schema_text if self.response_format else ""
        return replace(super().sampling(), json_schema=schema)

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
