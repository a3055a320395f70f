"""The rest of /v1: models, usage, cancel. API keys only; refusals in OpenAI's shape."""

from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from billing.admission import limit_headers
from billing.authentication import key_principal, unauthenticated
from billing.errors import Refusal, not_found
from billing.models import User
from billing.operations import Principal
from billing.text import clean
from billing.usage_api import usage_of
from conversations.http import parse_object
from inference.models import Generation, ServedModel
from inference.operations import cancel_own, models_for

View = Callable[..., dict[str, Any] | HttpResponse]


def endpoint(**views: View) -> Callable[..., HttpResponseBase]:
    """A Django view from one function per method (`GET=…`), each (user, request, …) → the body, or a response."""

    @csrf_exempt  # no cookie is ever read here
    @wraps(next(iter(views.values())))
    def view(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        principal = None
        try:
            work = views.get(request.method or "")
            if work is None:
                raise Refusal("method_not_allowed", f"{request.method} is not possible here.", status=405)
            principal = _principal(request)
            answer = work(principal.user, request, **kwargs)
            response = answer if isinstance(answer, HttpResponse) else JsonResponse(answer)
            for name, value in limit_headers(principal).items():
                response[name] = value
            return response
        except Refusal as refusal:
            limits = limit_headers(principal) if principal else {}
            headers = limits | refusal.headers() | ({"Allow": ", ".join(views)} if refusal.status == 405 else {})
            return JsonResponse(refusal.openai_body(), status=refusal.status, headers=headers)

    return view


def _principal(request: HttpRequest) -> Principal:
    if "Authorization" not in request.headers:
        raise unauthenticated()
    return key_principal(request.headers["Authorization"], plan_rows=())  # a cancel does not wait for these


def _no_such_path(user: User, request: HttpRequest, **_: Any) -> dict[str, Any]:
    raise Refusal("not_found", f"There is no {request.path}.", status=404)


def _models(user: User, request: HttpRequest) -> dict[str, Any]:
    return {"object": "list", "data": [model_object(model) for model in models_for(user)]}


def _model(user: User, request: HttpRequest, name: str) -> dict[str, Any]:
    found = models_for(user).filter(name=clean(name, "model")).first()
    if found is None:
        raise Refusal("model_not_found", "There is no such model.", status=404, param="model")
    return model_object(found)


def model_object(model: ServedModel) -> dict[str, Any]:
    """OpenAI's model object, and what the model can do."""
    return {
        "id": model.name,
        "object": "model",
        "created": int(model.created_at.timestamp()),
        "owned_by": "chatsite",
        "context_length": model.context_length,
        "max_output_tokens": model.max_output_tokens,
        "is_default": model.is_default,
        "capabilities": {
            "streaming": True,
            "structured_output": model.follows_schemas,
            "tools": False,
            "vision": False,
            "logprobs": False,
        },
    }


def _usage(user: User, request: HttpRequest) -> dict[str, Any] | HttpResponse:
    answer = usage_of(user, request.GET, request.headers.get("Accept", ""), items="data")
    return answer if isinstance(answer, HttpResponse) else {"object": "list", **answer}


def _cancel(user: User, request: HttpRequest, request_id: UUID) -> dict[str, Any]:
    ended = cancel_own(user=user, generation_id=request_id)
    if ended is None:
        raise not_found("request")
    # A running one ends when its worker has stopped; to the caller it is cancelled now.
    is_cancelled = ended.cancel_requested and ended.is_open
    return {"request_id": str(request_id), "status": Generation.Status.CANCELLED if is_cancelled else ended.status}


def _cancel_named(user: User, request: HttpRequest) -> dict[str, Any]:
    named = parse_object(request.read(settings.MAX_BODY_BYTES + 1)).get("generation_id")
    try:
        return _cancel(user, request, UUID(named if isinstance(named, str) else ""))
    except ValueError:
        raise Refusal("invalid_request", "generation_id is the id of a request.", param="generation_id") from None


models = endpoint(GET=_models)
model = endpoint(GET=_model)
usage = endpoint(GET=_usage)
cancel_completion = endpoint(POST=_cancel)
cancel_named = endpoint(POST=_cancel_named)
completions = endpoint(POST=_no_such_path)  # POST is answered by conversations.openai, before Django
no_such_path = endpoint(**dict.fromkeys(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"), _no_such_path))
