"""What a caller may have. Pure: facts in, a decision out; a refusal is a value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Allowed:
    """Go ahead, with at most `granted_tokens` output tokens; `is_cut` when that is less than was asked for."""

    granted_tokens: int
    is_cut: bool = False


@dataclass(frozen=True)
class Refused:
    """Not now: a code, words for people, and seconds after which to try again."""

    reason: str
    message: str
    retry_after: float


def decide(*, room: int, asked: int | None, plan_output: int) -> Allowed | Refused:
    """The output grant: the least of what is asked for, what the plan allows, and the room in the context."""
    if plan_output < 1:
        return Refused("plan_without_output", "Your plan does not include answers.", retry_after=60)
    wanted = asked if asked is not None else room
    granted = max(1, min(room, wanted, plan_output))
    return Allowed(granted, is_cut=granted < min(wanted, room))
