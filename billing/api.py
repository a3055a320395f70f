"""The native API's part about oneself: account, keys, usage."""

import datetime
from typing import ClassVar
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import BaseModel, ConfigDict
from rest_framework.request import Request
from rest_framework.response import Response

from billing import schema  # noqa: F401 - registers with drf-spectacular
from billing.bodies import Body
from billing.operations import issue_key, revoke_key
from billing.text import clean
from billing.usage import by_day, period
from billing.views import ApiView, rendered


class PlanOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    slug: str
    name: str
    max_concurrent: int
    max_output_tokens: int


class MeOut(BaseModel):
    id: UUID
    email: str
    organization: UUID
    is_staff: bool
    plan: PlanOut


class KeyBody(Body):
    name: str


class KeyOut(BaseModel):
    """A key as it is listed: `hint` is how it begins."""

    model_config = ConfigDict(from_attributes=True)

    id: UUID
    name: str
    hint: str
    created_at: datetime.datetime
    last_used_at: datetime.datetime | None
    revoked_at: datetime.datetime | None


class NewKeyOut(KeyOut):
    """A new key; `secret` is shown this once."""

    secret: str


class KeysOut(BaseModel):
    items: list[KeyOut]


class DayOut(BaseModel):
    """One day (UTC) and model; money in micro-units of the operator's currency."""

    day: datetime.date
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_micro: int


class UsageOut(BaseModel):
    first: datetime.date
    last: datetime.date
    items: list[DayOut]


class MeView(ApiView):
    @extend_schema(responses=MeOut)
    def get(self, request: Request) -> Response:
        """Who you are and what your plan gives you."""
        user = self.user
        return rendered(
            MeOut(
                id=user.pk,
                email=user.email,
                organization=user.organization_id,
                is_staff=user.is_staff,
                plan=PlanOut.model_validate(user.current_plan),
            )
        )


class KeysView(ApiView):
    @extend_schema(operation_id="keys_list", responses=KeysOut)
    def get(self, request: Request) -> Response:
        """Your API keys, newest first, the revoked ones included."""
        return rendered(KeysOut(items=[KeyOut.model_validate(key) for key in self.user.api_keys.all()]))

    @extend_schema(request=KeyBody, responses={201: NewKeyOut})
    def post(self, request: Request) -> Response:
        """A new API key. Its secret is in this answer and nowhere else."""
        key, secret = issue_key(user=self.user, name=clean(self.body(KeyBody).name, "name"))
        return rendered(NewKeyOut(**KeyOut.model_validate(key).model_dump(), secret=secret), status=201)


class KeyView(ApiView):
    @extend_schema(responses={204: None})
    def delete(self, request: Request, key_id: UUID) -> Response:
        """Revoke a key; it stops working at once."""
        revoke_key(user=self.user, key_id=key_id)
        return Response(status=204)


class UsageView(ApiView):
    DAYS: ClassVar = [
        OpenApiParameter("from", datetime.date, description="First day (UTC); default: 30 days up to `to`."),
        OpenApiParameter("to", datetime.date, description="Last day (UTC); default: today."),
    ]

    @extend_schema(parameters=DAYS, responses=UsageOut)
    def get(self, request: Request) -> Response:
        """What you used, by day and model. Deleting a chat changes nothing here."""
        query = request.query_params
        first, last = period(query.get("from"), query.get("to"), timezone.now().date())
        days = by_day(user_id=self.user.pk, first=first, last=last)
        return rendered(UsageOut(first=first, last=last, items=[DayOut(**day) for day in days]))
