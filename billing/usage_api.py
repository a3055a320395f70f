"""What someone used, for programs: /api/v1/usage, and what /v1/usage shares with it."""

import datetime
from typing import Any, ClassVar
from uuid import UUID

from django.http import HttpResponse, HttpResponseBase, QueryDict
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import BaseModel
from rest_framework.request import Request
from rest_framework.response import Response

from billing import schema  # noqa: F401 - registers with drf-spectacular
from billing.models import User
from billing.usage import as_csv, summed, total, with_names
from billing.usage_query import parse_format, parse_usage_query
from billing.views import ApiView


class SumsOut(BaseModel):
    """Money in micro-units of the operator's currency; cached tokens are part of the prompt's."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    total_tokens: int
    cost_micro: int


class GroupOut(SumsOut):
    """Sums of one group; what was not grouped by is left out. Names are null once a key or an account is gone."""

    day: datetime.date | None = None
    model: str | None = None
    key: UUID | None = None
    key_name: str | None = None
    member: UUID | None = None
    member_email: str | None = None


class UsageOut(BaseModel):
    """Both days are included, as days of `time_zone`."""

    start: datetime.date
    end: datetime.date
    time_zone: str
    group_by: list[str]
    totals: SumsOut
    items: list[GroupOut]


PARAMETERS = [
    OpenApiParameter("start", datetime.date, description="First day; default: 30 days up to `end`."),
    OpenApiParameter("end", datetime.date, description="Last day, at most 366 from `start`; default: today."),
    OpenApiParameter("tz", str, description="Time zone of the days, such as Europe/Zurich; default: your own."),
    OpenApiParameter(
        "group_by",
        {"type": "array", "items": {"type": "string", "enum": ["day", "model", "key", "member"]}},
        explode=False,
        description="Separated by commas, or repeated; default: day,model. `member`: with `scope=organization`.",
    ),
    OpenApiParameter("scope", str, enum=["user", "organization"], description="`organization`: for its owners."),
    OpenApiParameter("format", str, enum=["json", "csv"], description="Or ask with `Accept: text/csv`."),
]


def usage_of(user: User, query: QueryDict, accept: str, *, items: str) -> dict[str, Any] | HttpResponse:
    """The answer as a body whose sums are under the name `items`, or as a CSV file. Raises Refusal."""
    wanted, form = parse_usage_query(user, query), parse_format(query, accept)
    rows = with_names(wanted, summed(wanted))
    if form == "csv":
        named = {"Content-Disposition": f'attachment; filename="usage-{wanted.first}-{wanted.last}.csv"'}
        return HttpResponse(as_csv(rows, wanted.by), content_type="text/csv; charset=utf-8", headers=named)
    return {
        "start": wanted.first,
        "end": wanted.last,
        "time_zone": wanted.zone.key,
        "group_by": wanted.by,
        "totals": total(rows),
        items: rows,
    }


class UsageView(ApiView):
    ANSWERS: ClassVar = {(200, "application/json"): UsageOut, (200, "text/csv"): OpenApiTypes.STR}

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        """CSV is this view's own answer, and refusals are JSON: DRF's renderers have nothing to refuse here."""
        return super().perform_content_negotiation(request, force=True)

    @extend_schema(parameters=PARAMETERS, responses=ANSWERS)
    def get(self, request: Request) -> HttpResponseBase:
        """What you used, or what the members of your organization did. Deleting a chat changes nothing here."""
        answer = usage_of(self.user, request.query_params, request.headers.get("Accept", ""), items="items")
        return answer if isinstance(answer, HttpResponse) else Response(answer)
