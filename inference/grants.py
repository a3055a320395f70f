"""What open generations may use, for the counters of limits, which live below this app."""

from collections.abc import Iterable
from uuid import UUID

from billing.counters import Subjects
from billing.truth import OpenGrant
from inference.models import Generation


def open_grants(column: str, subject_id: UUID) -> Iterable[OpenGrant]:
    """Open generations within limits of a user_id, organization_id or api_key_id."""
    rows = Generation.objects.filter(**{column: subject_id}, status__in=Generation.OPEN, purpose="chat")
    fields = ("pk", "user_id", "organization_id", "api_key_id", "admitted_at", "created_at", "prompt_tokens", "grant")
    for pk, user, organization, key, admitted_at, created_at, prompt, grant in rows.values_list(*fields):
        since = int((admitted_at or created_at).timestamp() * 1000 + 0.5)
        yield OpenGrant(pk, Subjects(user, organization, key), since, prompt + grant, grant)
