"""DRF's hooks: API keys, and refusals in the native API's one shape. Imported by DRF only, never by a worker."""

from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import APIException, ParseError, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from billing.authentication import key_principal
from billing.errors import Refusal
from billing.models import ApiKey, User


class ApiKeyAuthentication(BaseAuthentication):
    """DRF: `Authorization: Bearer sk-chat-…`; request.auth is then the ApiKey."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey | None] | None:
        if "Authorization" not in request.headers:
            return None
        principal = key_principal(request.headers["Authorization"])
        return principal.user, principal.api_key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def first_validation_error(detail: Any, path: str = "") -> tuple[str, str]:
    """The first (field path, message) of a DRF validation detail."""
    if isinstance(detail, dict):
        name, inner = next(iter(detail.items()))
        return first_validation_error(inner, path if name == "non_field_errors" else f"{path}.{name}".lstrip("."))
    if isinstance(detail, list):
        return first_validation_error(detail[0], path)
    return path, str(detail)


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's hook: Refusals and DRF's own exceptions in one shape; anything else stays an error of ours."""
    from rest_framework.views import exception_handler as drf_exception_handler  # which imports this module

    if isinstance(error, ValidationError):
        param, message = first_validation_error(error.detail)
        error = Refusal("invalid_request", message, param=param or None)
    if isinstance(error, ParseError):
        error = Refusal("invalid_json", str(error.detail), param="body")
    if isinstance(error, Refusal):
        return Response(error.body(), status=error.status, headers=error.headers())
    response = drf_exception_handler(error, context)
    if response is not None:
        code = error.default_code if isinstance(error, APIException) else "not_found"
        detail = response.data.get("detail", "") if isinstance(response.data, dict) else ""
        response.data = {"error": {"code": code, "message": str(detail) or "Not found."}}
    return response
