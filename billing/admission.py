"""May this request run, and with how many tokens: reserve, settle, and what is left."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import OperationalError

from billing import counters
from billing.counters import Subjects
from billing.errors import Refusal
from billing.limits import Allowed, Refused, Window, WindowState, by_span, ceiling, headers, refused
from billing.models import Plan
from billing.operations import Principal
from billing.rules import better_plan, rules_for

NEVER = -1  # scripts.ADMIT's word for a wait without end


def subjects_of(principal: Principal) -> Subjects:
    """Whom a request of this principal counts for."""
    return Subjects(principal.user.pk, principal.user.organization_id, principal.api_key_id)


def admit(*, generation_id: UUID, principal: Principal, prompt_tokens: int, room: int, asked: int | None) -> Allowed:
    """Reserve a place, a request and tokens for one generation, in one atomic step over all windows that hold for it.

    `room`: output tokens that model and context allow; `asked`: what the caller wants at most. The same id again
    finds its reservation. Raises Refusal (429: plan_without_output, too_many_generations, <window>_used_up; 400:
    <window>_too_small; 503: unavailable), and nothing is reserved.
    """
    plan = principal.user.current_plan
    wanted = ceiling(room=room, asked=asked, plan_output=plan.max_output_tokens)
    if wanted < 1:
        raise Refusal("plan_without_output", "Your plan does not include answers.", status=403)
    spans = _spans(principal)
    query = _query(principal, spans) | {
        "gen": str(generation_id),
        "prompt": prompt_tokens,
        "wanted": wanted,
        "least": settings.LEAST_ANSWER,
        "places": plan.max_concurrent,
    }
    answer = counters.reserve(query)
    states = _states(spans, answer["states"])
    if answer["is"] == "refused":
        raise _refusal(_refused(spans, answer), states, plan)
    if answer["is"] == "busy":
        said = f"Your plan runs {plan.max_concurrent} answers at a time; wait for one to end."
        raise Refusal("too_many_generations", said, status=429, retry_after=5, limit_headers=headers(states))
    return Allowed(
        granted_tokens=int(answer["grant"]),
        admitted_ms=int(answer["at"]),
        epoch=int(answer["epoch"]),
        is_new=answer["is"] == "ok",
        cut_by=_cut_by(spans, answer) if answer.get("cut") else None,
        states=states,
    )


def settle(*, subjects: Subjects, generation_id: UUID, tokens: int) -> None:
    """A generation has ended and used this many tokens; the rest of its reservation is given back."""
    counters.settle(subjects, generation_id, tokens)


def release(*, principal: Principal, generation_id: UUID) -> None:
    """Give the reservation of a generation back that was never written. Doing it twice is harmless."""
    counters.release(subjects_of(principal), generation_id)


def states_for(principal: Principal) -> tuple[WindowState, ...]:
    """What is used of every window that holds for this principal. Raises Refusal (unavailable)."""
    spans = _spans(principal)
    if not spans:
        return ()
    query = _query(principal, spans) | {"peek": True, "prompt": 0, "wanted": 0, "least": 0, "places": 0}
    return _states(spans, counters.reserve(query)["states"])


def limit_headers(principal: Principal) -> dict[str, str]:
    """x-ratelimit-* as things stand; none while the counters cannot say."""
    try:
        return headers(states_for(principal))
    except (Refusal, OperationalError):
        return {}


# -- what the script is asked, and what it answers ----------------------------------------------------

Span = tuple[str, int, dict[str, Window]]  # subject, seconds, windows by kind


def _spans(principal: Principal) -> list[Span]:
    subjects, user = subjects_of(principal), principal.user
    rules = rules_for(user.current_plan, user.organization_id, principal.api_key_id)
    names = {"user": subjects.user, "organization": subjects.others[0], "api_key": subjects.others[-1]}
    return [
        (names[holder], seconds, {str(kind): window for kind, window in kinds.items()})
        for (holder, seconds), kinds in by_span(rules.windows).items()
    ]


def _query(principal: Principal, spans: list[Span]) -> dict[str, Any]:
    subjects = subjects_of(principal)
    limits = [
        [subject, seconds, *(kinds[kind].amount if kind in kinds else -1 for kind in ("requests", "tokens"))]
        for subject, seconds, kinds in spans
    ]
    return {"user": subjects.user, "others": subjects.others, "spans": limits}


def _states(spans: list[Span], answers: list[list[int]]) -> tuple[WindowState, ...]:
    return tuple(
        _state(kinds[kind], answer) for (_, _, kinds), answer in zip(spans, answers, strict=False) for kind in kinds
    )


def _state(window: Window, answer: list[int]) -> WindowState:
    at = 0 if window.kind == "requests" else 1
    return WindowState(window, int(answer[at]), answer[2 + 2 * at] / 1000, answer[3 + 2 * at] / 1000)


def _cut_by(spans: list[Span], answer: dict[str, Any]) -> WindowState:
    index = int(answer["cut"]) - 1
    return _state(spans[index][2]["tokens"], answer["states"][index])


def _refused(spans: list[Span], answer: dict[str, Any]) -> Refused:
    index = int(answer["index"]) - 1
    window = spans[index][2]["requests" if answer["kind"] == "r" else "tokens"]
    wait = None if answer["wait"] == NEVER else answer["wait"] / 1000
    state = _state(window, answer["states"][index])
    return refused(state, wait, answer["at"] / 1000, is_pending=bool(answer["pending"]))


def _refusal(found: Refused, states: tuple[WindowState, ...], plan: Plan) -> Refusal:
    facts = dict(found.extra)
    offer = better_plan(plan, found.window)
    if offer:
        facts["next_plan"] = {"name": offer.plan, "amount": offer.amount(found.window)}
    if "renews_at" in facts:
        facts["renews_at"] = datetime.fromtimestamp(facts["renews_at"], UTC).isoformat()
    return Refusal(
        found.reason,
        found.message,
        status=400 if found.retry_after is None else 429,
        retry_after=found.retry_after,
        limit_headers=headers(states),
        **facts,
    )
