"""What every view of the native API shares."""

from typing import Any

from django.db import InterfaceError, OperationalError
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.bodies import B, JSONBody, parse
from billing.errors import unavailable
from billing.models import ApiKey, User
from billing.operations import Principal


class ApiView(APIView):
    """A view for people with a session and programs with a key."""

    parser_classes = (JSONBody,)

    @property
    def user(self) -> User:
        """Who asks; the permission class has refused everyone else."""
        user = self.request.user
        assert isinstance(user, User)
        return user

    @property
    def principal(self) -> Principal:
        """Who asks, with the key they used."""
        return Principal(self.user, self.request.auth if isinstance(self.request.auth, ApiKey) else None)

    def body(self, model: type[B]) -> B:
        """The request's body as a `model`. Raises Refusal."""
        return parse(model, self.request.data)

    def handle_exception(self, exc: Exception) -> Response:
        """A database that is away is 503 with Retry-After, not an error of ours."""
        return super().handle_exception(unavailable() if isinstance(exc, OperationalError | InterfaceError) else exc)


def rendered(model: Any, status: int = 200) -> Response:
    """A pydantic model as a response."""
    return Response(model.model_dump(mode="json"), status=status)
