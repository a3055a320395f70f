"""What a caller may have. Pure: facts in, a decision out; a refusal is a value.

The counting itself must be one step in the store (billing.scripts); this is what surrounds it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["requests", "tokens"]
Holder = Literal["user", "api_key", "organization"]
BUCKETS = 100  # of a window; an amount leaves with its whole bucket
_UNITS = ((604_800, "week"), (86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
_WHOSE: dict[Holder, str] = {"user": "Your", "api_key": "This API key's", "organization": "Your organization's"}


@dataclass(frozen=True)
class Window:
    """At most `amount` of `kind` in any `seconds`, for whoever `holder` is."""

    holder: Holder
    kind: Kind
    amount: int
    seconds: int

    @property
    def name(self) -> str:
        """tokens_per_day, requests_per_3_hours, …"""
        return f"{self.kind}_per_{span_name(self.seconds)}"


@dataclass(frozen=True)
class WindowState:
    """What of a window is used, reservations included; seconds until some, and until all of it is renewed."""

    window: Window
    used: int
    next_s: float
    full_s: float

    @property
    def left(self) -> int:
        return max(0, self.window.amount - self.used)


@dataclass(frozen=True)
class Allowed:
    """Go ahead, with at most `granted_tokens` output tokens. `cut_by`: the window that left less than was wanted.

    `admitted_ms`: the store's clock; `epoch`: under which the reservation was made.
    """

    granted_tokens: int
    admitted_ms: int = 0
    epoch: int = 0
    is_new: bool = True
    cut_by: WindowState | None = None
    states: tuple[WindowState, ...] = ()


@dataclass(frozen=True)
class Refused:
    """Not now: a code, words for people, and seconds after which to try again (None: never so).

    `extra`: machine-readable facts; `window`: the one that refuses.
    """

    reason: str
    message: str
    retry_after: float | None
    extra: dict[str, Any]
    window: Window


def span_name(seconds: int) -> str:
    """A length for codes: day, 3_hours, 90_seconds."""
    unit, word = next((unit, word) for unit, word in _UNITS if seconds % unit == 0)
    count = seconds // unit
    return word if count == 1 else f"{count}_{word}s"


def ceiling(*, room: int, asked: int | None, plan_output: int) -> int:
    """Output tokens wanted: the least of what is asked for, what the plan allows, and the room in the context."""
    return min(room, plan_output, room if asked is None else asked)


def by_span(windows: Iterable[Window]) -> dict[tuple[Holder, int], dict[Kind, Window]]:
    """Windows of one holder and length are counted together; of two of one kind the tighter holds."""
    spans: dict[tuple[Holder, int], dict[Kind, Window]] = {}
    for window in windows:
        kinds = spans.setdefault((window.holder, window.seconds), {})
        if window.kind not in kinds or kinds[window.kind].amount > window.amount:
            kinds[window.kind] = window
    return spans


def refused(state: WindowState, wait_s: float | None, now_s: float, *, is_pending: bool) -> Refused:
    """Why this window lets nothing through. `wait_s` None: it never will, so large is the request.

    `is_pending`: running answers hold a part of it, which may come back with their end.
    """
    window = state.window
    whose, name = _WHOSE[window.holder], span_name(window.seconds).replace("_", " ")
    facts: dict[str, Any] = {
        "limit": window.name, "limit_of": window.holder, "limit_kind": window.kind, "amount": window.amount,
        "used": state.used, "window_seconds": window.seconds,
    }  # fmt: skip
    if wait_s is None:
        said = f"This is more than {whose.lower()} limit of {window.amount:,} {window.kind} per {name} ever allows."
        return Refused(f"{window.name}_too_small", said, None, facts, window)
    facts |= {"renews_at": round(now_s + wait_s, 3), "renews_in": round(wait_s, 3)}
    said = f"{whose} {window.amount:,} {window.kind} per {name} are used up; they renew in {in_words(wait_s)}."
    if is_pending:
        said += " Some may come back as running answers end."
    retry = min(wait_s, PENDING_RETRY_S) if is_pending and window.kind == "tokens" else wait_s
    return Refused(f"{window.name}_used_up", said, round(retry, 3), facts, window)


PENDING_RETRY_S = 5.0


def in_words(seconds: float) -> str:
    """A wait for people: 40 seconds, 12 minutes, 3 hours, 2 days."""
    for unit, word in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= unit * (1 if unit == 1 else 1.5):
            count = round(seconds / unit)
            return f"{count} {word}" + ("s" if count != 1 else "")
    return "a second"


def headers(states: Iterable[WindowState]) -> dict[str, str]:
    """OpenAI's x-ratelimit-* of the tightest window of each kind; the reset is when all of it is renewed."""
    found: dict[str, str] = {}
    for kind in ("requests", "tokens"):
        of_kind = [state for state in states if state.window.kind == kind]
        if of_kind:
            tight = min(of_kind, key=lambda state: (state.left, -state.full_s))
            found[f"x-ratelimit-limit-{kind}"] = str(tight.window.amount)
            found[f"x-ratelimit-remaining-{kind}"] = str(tight.left)
            found[f"x-ratelimit-reset-{kind}"] = f"{tight.full_s:.3f}s"
    return found
