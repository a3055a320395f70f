"""What Django says when no view does: JSON under the APIs, each in its own shape; plain pages elsewhere."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import defaults

from billing.errors import Refusal


def _json(request: HttpRequest, refusal: Refusal) -> HttpResponse | None:
    if request.path.startswith("/v1/"):
        return JsonResponse(refusal.openai_body(), status=refusal.status)
    if request.path.startswith("/api/"):
        return JsonResponse(refusal.body(), status=refusal.status)
    return None


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """handler404."""
    refusal = Refusal("not_found", "There is nothing at this address.", status=404)
    return _json(request, refusal) or defaults.page_not_found(request, exception)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """handler400: an unknown host name, a malformed request."""
    refusal = Refusal("bad_request", "This request is malformed.", status=400)
    return _json(request, refusal) or defaults.bad_request(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """handler500."""
    refusal = Refusal("internal", "Something went wrong here; it has been logged.", status=500)
    return _json(request, refusal) or defaults.server_error(request)
