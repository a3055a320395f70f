"""What the tests of limits share: windows, bookings, and a model that counts every token by its moment."""

from uuid import UUID, uuid4

from billing import admission, counters
from billing.errors import Refusal
from billing.limits import Allowed
from billing.models import PlanWindow, User
from billing.operations import Principal


def only_windows(user: User, *windows: tuple[str, int, int]) -> None:
    """The user's plan has these windows (kind, amount, seconds) and no others."""
    PlanWindow.objects.filter(plan=user.plan).delete()
    for kind, amount, seconds in windows:
        PlanWindow.objects.create(plan=user.plan, kind=kind, amount=amount, seconds=seconds)


def admit(user: User, prompt: int, asked: int | None = None, room: int = 4000, name: UUID | None = None) -> Allowed:
    return admission.admit(
        generation_id=name or uuid4(), principal=Principal(user), prompt_tokens=prompt, room=room, asked=asked
    )


def settle(user: User, name: UUID, tokens: int) -> None:
    admission.settle(subjects=admission.subjects_of(Principal(user)), generation_id=name, tokens=tokens)


def used(user: User) -> dict[str, int]:
    """What the counters say, by window."""
    return {state.window.name: state.used for state in admission.states_for(Principal(user))}


def refusal_of(user: User, prompt: int, asked: int | None = None) -> Refusal:
    """How a request is refused; AssertionError when it is not."""
    try:
        admit(user, prompt, asked)
    except Refusal as refusal:
        return refusal
    raise AssertionError("it was admitted")


def flush() -> None:
    """Valkey loses everything."""
    counters.store().flushall()
