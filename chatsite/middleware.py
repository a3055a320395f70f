"""What every page gets: its person's time zone, a Permissions-Policy, and an answer while a store is away."""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.utils.decorators import sync_and_async_middleware
from redis.exceptions import RedisError

from billing.errors import unavailable

PERMISSIONS = ", ".join(
    f"{feature}=()"
    for feature in (
        "accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "hid", "microphone", "midi",
        "payment", "serial", "usb",
    )
)  # fmt: skip
GetResponse = Callable[[HttpRequest], Any]


@sync_and_async_middleware
def permissions_policy(get_response: GetResponse) -> GetResponse:
    """No page of ours needs a device."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return _with_policy(await get_response(request))

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        return _with_policy(get_response(request))

    return answer


def _with_policy(response: HttpResponseBase) -> HttpResponseBase:
    response.headers.setdefault("Permissions-Policy", PERMISSIONS)
    return response


@sync_and_async_middleware
def around_views(get_response: GetResponse) -> GetResponse:
    """Times in the person's zone; 503 with Retry-After, never a 500, while PostgreSQL or Valkey is away."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return await get_response(request)  # type: ignore[no-any-return]

        middleware: Any = answer_async
    else:

        def answer(request: HttpRequest) -> HttpResponseBase:
            return get_response(request)  # type: ignore[no-any-return]

        middleware = answer
    middleware.process_view = _enter_time_zone
    middleware.process_exception = _store_away
    return middleware  # type: ignore[no-any-return]


def _enter_time_zone(request: HttpRequest, view: object, arguments: object, named: object) -> None:
    # Without a session there is nobody to ask for, and the response need not vary by cookie.
    user = request.user if settings.SESSION_COOKIE_NAME in request.COOKIES else None
    if user is not None and user.is_authenticated:
        timezone.activate(user.zone)
    else:
        timezone.deactivate()


def _store_away(request: HttpRequest, error: Exception) -> HttpResponse | None:
    if not isinstance(error, RedisError | OperationalError | InterfaceError):
        return None
    refusal = unavailable()
    return HttpResponse(refusal.message, status=refusal.status, content_type="text/plain", headers=refusal.headers())
