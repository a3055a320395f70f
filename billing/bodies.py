"""Request bodies: read within the limit, parsed as strict JSON, checked by a pydantic model, refused with a name."""

import json
from collections.abc import Mapping
from typing import IO, Any, TypeVar

from django.conf import settings
from pydantic import BaseModel, ConfigDict, ValidationError
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from billing.errors import Refusal

TEXT_ERRORS = {"string_unicode"}  # pydantic's word for lone surrogates


class Body(BaseModel):
    """A request body: no coercion ("1" is no number, true no integer), no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


B = TypeVar("B", bound=BaseModel)


def parse(model: type[B], data: Any) -> B:
    """`data` as a `model`. Raises Refusal (invalid_request, invalid_text; 400) whose `param` is the first bad field."""
    if not isinstance(data, Mapping):
        raise Refusal("invalid_request", "The body must be a JSON object.")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    code = "invalid_text" if first["type"] in TEXT_ERRORS else "invalid_request"
    # The name of an unknown field is the caller's text: it goes into JSON, where a lone surrogate has no place.
    param = param and param.encode("utf-8", "replace").decode()[:100]
    raise Refusal(code, f"{param}: {first['msg']}." if param else f"{first['msg']}.", param=param)


class JSONBody(JSONParser):
    """DRF's parser reads without a limit and lets deep nesting end in a RecursionError."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        raw = stream.read(settings.MAX_BODY_BYTES + 1)
        if len(raw) > settings.MAX_BODY_BYTES:
            raise Refusal("too_large", f"A request body has at most {settings.MAX_BODY_BYTES} bytes.", status=413)
        try:
            return json.loads(raw, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
            raise ParseError("The body is not valid JSON.") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
