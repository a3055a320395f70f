"""The operator's report of usage: sums, drill-down, search, order, and the CSV."""

import csv
import io
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync
from django.http import StreamingHttpResponse
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from billing import report
from billing.models import LedgerEntry, Organization, User
from billing.operations import issue_key
from billing.tasks import roll_up_usage
from billing.usage import roll_up
from tests.chatsite.test_admin import clerk, operator

__all__ = ["clerk", "operator"]
PAGE = "/admin/billing/usageday/report/"
Use = Callable[..., LedgerEntry]


@pytest.fixture
def use(user: User) -> Use:
    """Book a usage of so many output tokens, a micro-unit each."""

    def make(who: User | None = None, tokens: int = 5, model: str = "m", day: date | None = None, **facts: Any) -> Any:
        who = who or user
        at = datetime(day.year, day.month, day.day, 12, tzinfo=UTC) if day else timezone.now()
        values = {"user_id": who.pk, "organization_id": who.organization_id, "cost_micro": tokens} | facts
        return LedgerEntry.objects.create(
            generation_id=uuid4(), model=model, purpose="chat", prompt_tokens=10, completion_tokens=tokens,
            finish_reason="stop", created_at=at, **values,
        )  # fmt: skip

    return make


def ask(**query: str) -> report.Report:
    return report.report(report.question_of(query, timezone.now().astimezone(UTC).date()))


def sums(found: report.Report) -> dict[str, int]:
    return {row["label"] or row["key"]: row["completion_tokens"] for row in found.rows}


def test_organizations_and_their_people(user: User, stranger: User, use: Use) -> None:
    use(tokens=5)
    use(tokens=2)
    use(stranger, tokens=40)
    found = ask()
    assert sums(found) == {"stranger@example.org": 40, "user@example.org": 7}  # the dearest first
    assert list(sums(found)) == ["stranger@example.org", "user@example.org"]
    assert found.totals == {
        "requests": 3, "prompt_tokens": 30, "cached_tokens": 0, "completion_tokens": 47, "cost_micro": 47,
    }  # fmt: skip
    within = ask(by="user", organization=str(user.organization_id))
    assert sums(within) == {"user@example.org": 7} and within.totals["requests"] == 2
    assert sums(ask(sort="label")) == sums(found) and next(iter(sums(ask(sort="-label")))) == "user@example.org"


def test_days_models_and_keys_of_a_person(user: User, use: Use) -> None:
    today = timezone.now().astimezone(UTC).date()
    key, _ = issue_key(user=user, name="laptop")
    use(tokens=1, day=today - timedelta(days=3))
    use(tokens=2, model="n", api_key_id=key.pk)
    who = str(user.pk)
    assert sums(ask(by="day", user=who)) == {str(today): 2, str(today - timedelta(days=3)): 1}
    assert sums(ask(by="model", user=who)) == {"n": 2, "m": 1}
    assert sums(ask(by="key", user=who)) == {f"{key.hint}… laptop": 2, "": 1}
    assert sums(ask(by="day", user=who, model="n")) == {str(today): 2}
    assert sums(ask(by="day", user=str(uuid4()))) == {}


def test_rolled_up_days_and_the_ledger_give_one_sum(use: Use) -> None:
    """Before the first roll-up, after it, and with what came since; a day is never counted twice."""
    today = timezone.now().astimezone(UTC).date()
    for ago in (9, 5, 1, 0):
        use(day=today - timedelta(days=ago))
    assert ask().totals["requests"] == 4
    roll_up(today - timedelta(days=20), today - timedelta(days=5))  # the side worker was away since
    use(day=today - timedelta(days=5))
    assert ask().totals["requests"] == 5
    roll_up_usage()  # it is back, and catches up
    use()
    assert ask().totals["requests"] == 6
    days = {"from": str(today - timedelta(days=5)), "to": str(today - timedelta(days=1))}
    assert ask(**days).totals["requests"] == 3


def test_a_deleted_account_keeps_its_line(user: User, use: Use) -> None:
    use(tokens=3)
    user_id = user.pk
    organization = user.organization
    user.delete()
    organization.delete()
    assert sums(ask(by="user")) == {str(user_id): 3}
    assert sums(ask(by="user", q=str(user_id))) == {str(user_id): 3}


def test_search_and_pages(user: User, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        Organization.objects.create(id=UUID(int=number + 1), name=f"Firm {number}% _")
        use(organization_id=UUID(int=number + 1), tokens=number + 1)
    assert list(sums(ask(q="firm 3%"))) == ["Firm 3% _"]
    assert sums(ask(q="firm 3% x")) == {}
    monkeypatch.setattr(report, "PAGE", 2)
    pages = [ask(page=str(page)) for page in (1, 2, 3)]
    assert [list(sums(page)) for page in pages] == [
        ["Firm 4% _", "Firm 3% _"], ["Firm 2% _", "Firm 1% _"], ["Firm 0% _"],
    ]  # fmt: skip
    assert {(page.pages, page.groups, page.totals["requests"]) for page in pages} == {(3, 5, 5)}
    assert ask(page="99").page == 1  # gone meanwhile


def test_the_page_leads_from_organizations_to_days(operator: Client, user: User, use: Use) -> None:
    use(tokens=1_234_567)
    page = operator.get(PAGE).content.decode()
    assert user.email in page and "1,234,567" in page and "1.2346" in page
    down = f"by=user&sort=-cost_micro&organization={user.organization_id}"
    assert escape(down) in page
    page = operator.get(f"{PAGE}?{down}").content.decode()
    assert escape(f"by=day&sort=-cost_micro&organization={user.organization_id}&user={user.pk}") in page
    assert "Nothing was used" in operator.get(f"{PAGE}?to=2020-01-01").content.decode()


@pytest.mark.parametrize(
    "query",
    ["from=x", "to=2026-02-30", "from=2020-01-01", "by=password", "sort=email", "page=0", "page=x", "user=1", "q=%00",
     "organization=%ff", "model=%00", "page=" + "9" * 50],
)  # fmt: skip
@pytest.mark.parametrize("page", ["report/", "report.csv"])
def test_a_bad_question_is_told_so(operator: Client, use: Use, page: str, query: str) -> None:
    assert operator.get(f"/admin/billing/usageday/{page}?{query}").status_code == 400


def test_names_are_inert(operator: Client, user: User, use: Use) -> None:
    Organization.objects.filter(pk=user.organization_id).update(name="<img src=x onerror=alert(1)>")
    use(model="<script>alert(1)</script>")
    for by in ("organization", "model"):
        assert b"<img src=x" not in operator.get(f"{PAGE}?by={by}").content
        assert b"<script>alert" not in operator.get(f"{PAGE}?by={by}").content


@pytest.mark.parametrize("url", [PAGE, "/admin/billing/usageday/report.csv"])
def test_who_may_not_look_does_not(url: str, user: User, clerk: Client) -> None:
    assert Client().get(url).status_code == 302  # to the login
    person = Client()
    person.force_login(user)
    assert person.get(url).status_code == 302
    User.objects.filter(pk=user.pk).update(is_staff=True)
    assert person.get(url).status_code == 403  # staff without the permission
    assert clerk.get(url).status_code == 200


async def text_of(answer: StreamingHttpResponse) -> list[bytes]:
    return [part async for part in cast(AsyncIterator[bytes], answer.streaming_content)]


def test_the_csv_is_whole_and_comes_in_parts(
    operator: Client, user: User, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spreadsheet must not run what a model or an organization is called."""
    monkeypatch.setattr(report, "BATCH", 2)
    names = ['=HYPERLINK("http://x")', "+1", "-1", "@x", "\tx", "\rx", "plain, \"quoted\"", "ünï"]  # fmt: skip
    for number, name in enumerate(names):
        use(model=name, tokens=number)
    use(model="negative", tokens=0, cost_micro=-7, kind="correction")
    answer = operator.get("/admin/billing/usageday/report.csv?by=model")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert 'filename="usage-model-' in answer.headers["Content-Disposition"]
    parts = async_to_sync(text_of)(cast(StreamingHttpResponse, answer))
    assert len(parts) == 1 + 5
    rows = list(csv.reader(io.StringIO(b"".join(parts).decode(), newline="")))
    assert rows[0] == ["model", "name", "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro"]
    found = {row[0]: row[5] for row in rows[1:]}
    assert found.pop("negative") == "0" and [row[6] for row in rows if row[0] == "negative"] == ["-7"]
    expected = {f"'{name}" if name[0] in "=+-@\t\r" else name: str(number) for number, name in enumerate(names)}
    assert found == expected


def test_it_is_linked(operator: Client, user: User) -> None:
    assert reverse("admin:billing_usageday_report") in operator.get("/admin/").content.decode()
    assert f"?by=day&amp;user={user.pk}" in operator.get("/admin/billing/user/").content.decode()
    page = operator.get("/admin/billing/organization/").content.decode()
    assert f"?by=user&amp;organization={user.organization_id}" in page
