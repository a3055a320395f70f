"""The native API's part about oneself: account, keys, limits. Usage is in billing.usage_api."""

import datetime
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from pydantic import BaseModel, ConfigDict
from rest_framework.request import Request
from rest_framework.response import Response

from billing import schema  # noqa: F401 - registers with drf-spectacular
from billing.admission import states_for
from billing.bodies import Body
from billing.limits import WindowState
from billing.operations import issue_key, revoke_key
from billing.text import clean
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


class LimitOut(BaseModel):
    """One window. `used` counts running answers with what they may still write; `renews_at`: when some of it is back,
    `renewed_at`: when all of it is; null while nothing is used."""

    name: str
    limit_of: str
    kind: str
    window_seconds: int
    amount: int
    used: int
    left: int
    renews_at: datetime.datetime | None
    renewed_at: datetime.datetime | None

    @classmethod
    def of(cls, state: WindowState, now: datetime.datetime) -> "LimitOut":
        window, is_used = state.window, state.used > 0
        return cls(
            name=window.name,
            limit_of=window.holder,
            kind=window.kind,
            window_seconds=window.seconds,
            amount=window.amount,
            used=state.used,
            left=state.left,
            renews_at=now + datetime.timedelta(seconds=state.next_s) if is_used else None,
            renewed_at=now + datetime.timedelta(seconds=state.full_s) if is_used else None,
        )


class LimitsOut(BaseModel):
    plan: PlanOut
    items: list[LimitOut]


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


class LimitsView(ApiView):
    @extend_schema(responses=LimitsOut)
    def get(self, request: Request) -> Response:
        """What your plan, your organization and the key you use allow, what is used of it, and when it renews."""
        states, now = states_for(self.principal), timezone.now()
        items = [LimitOut.of(state, now) for state in states]
        return rendered(LimitsOut(plan=PlanOut.model_validate(self.user.current_plan), items=items))
