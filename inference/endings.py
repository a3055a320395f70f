"""How a generation ends: one transaction for status, text, message and ledger, whoever ends it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection, transaction

from billing import admission
from billing import operations as billing
from billing.counters import Subjects
from billing.operations import Usage
from billing.pricing import Prices
from inference import metrics, relay, token_log
from inference.charging import charge_rest
from inference.models import Generation
from inference.protocol import Entry, Notice
from inference.rows import row_of
from inference.signals import generation_finished

log = logging.getLogger(__name__)
Status = Generation.Status

# Classes of SQLSTATE: connections, rolled back, resources, not in this state, operators, the system around it.
PASSING = {"08", "40", "53", "55", "57", "58"}

END = """
WITH was AS (
    SELECT id, completion_tokens FROM inference_generation
    WHERE id = %(id)s AND status = %(expected)s AND attempt = %(attempt)s FOR UPDATE
)
UPDATE inference_generation g
SET status = %(status)s::varchar, finish_reason = %(finish_reason)s, text = %(text)s,
    completion_tokens = %(completion_tokens)s, cached_tokens = %(cached_tokens)s, frames = %(frames)s,
    error_code = CASE WHEN %(status)s::varchar = 'CANCELLED' AND %(error_code)s::varchar = '' THEN g.error_code
                      ELSE %(error_code)s::varchar END,
    error_message = %(error_message)s, finished_at = clock_timestamp(), lease_until = NULL
FROM was WHERE g.id = was.id
RETURNING was.completion_tokens
"""


@dataclass(frozen=True)
class Ending:
    """How a generation ended and what it produced; `frames` is the length of its token log."""

    status: str
    finish_reason: str
    text: str = ""
    completion_tokens: int = 0
    cached_tokens: int = 0
    frames: int = 0
    error_code: str = ""
    error_message: str = ""


def failed(code: str, message: str, ending: Ending) -> Ending:
    """`ending` as a failure that says what happened; what was produced stays."""
    return replace(ending, status=Status.FAILED, finish_reason="error", error_code=code, error_message=message)


def end(generation: Generation, expected: str, ending: Ending) -> bool:
    """End a generation that is still `expected` in the attempt that was read; False when someone else won.

    If the transaction raises for a reason that stays (a receiver's bug, text the database refuses), it is repeated
    as FAILED(internal) with its ledger entry and without the receiver, so that no generation stays open and none
    goes unbooked. What passes is raised: django.db.OperationalError, InterfaceError. The end is announced after
    commit.
    """
    try:
        is_ours = _end_in_transaction(generation, expected, ending, with_receiver=True)
    except Exception as error:
        if _passes(error) or not connection.is_usable():
            raise
        log.exception("ending %s failed; ending it as an internal error", generation.pk)
        ending = failed("internal", "The answer could not be stored.", replace(ending, text=""))
        is_ours = _end_in_transaction(generation, expected, ending, with_receiver=False)
    if is_ours:
        transaction.on_commit(lambda: _announce(generation))
    return is_ours


def _passes(error: Exception) -> bool:
    """Whether the same may succeed later: the disk was full, say, or the database about to restart."""
    state = getattr(error.__cause__, "sqlstate", None)
    return isinstance(error, OperationalError | InterfaceError) and (state is None or state[:2] in PASSING)


def _end_in_transaction(generation: Generation, expected: str, ending: Ending, *, with_receiver: bool) -> bool:
    with transaction.atomic():
        charged_tokens = _write_ending(generation, expected, ending)
        if charged_tokens is None:
            return False
        for name, value in ending.__dict__.items():
            setattr(generation, name, value)
        if with_receiver:
            generation_finished.send(Generation, generation=generation)
        billing.book(
            generation_id=generation.pk,
            user_id=generation.user_id,
            organization_id=generation.organization_id,
            api_key_id=generation.api_key_id,
            model=generation.model_id,
            purpose=generation.purpose,
            prices=_prices(generation),
            usage=usage_of(generation),
            finish_reason=ending.finish_reason,
            admitted_at=generation.admitted_at,
        )
        if generation.started_at is not None:
            charge_rest(generation, charged_tokens)
    return True


def usage_of(generation: Generation) -> Usage:
    """What is charged: the prompt once it was started, and every token produced."""
    if generation.started_at is None:
        return Usage(0, 0, 0)
    return Usage(generation.prompt_tokens, generation.cached_tokens, generation.completion_tokens)


def _prices(generation: Generation) -> Prices:
    model = generation.model
    return Prices(model.price_prompt_micro, model.price_completion_micro, generation.price_multiplier)


def _write_ending(generation: Generation, expected: str, ending: Ending) -> int | None:
    """The one conditional UPDATE; returns the output tokens that the row told before, None when someone else won."""
    values = {**ending.__dict__, "id": generation.pk, "expected": expected, "attempt": generation.attempt}
    with connection.cursor() as cursor:
        cursor.execute(END, values)
        row = cursor.fetchone()
    return None if row is None else int(row[0])


def _announce(generation: Generation) -> None:
    _count(generation)
    event = row_of(generation).terminal_event()
    relay.call(relay.end(Notice(generation.pk, event.seq, event.kind, event.data)))
    if generation.purpose == "chat":
        settle_limits(generation)


def _count(generation: Generation) -> None:
    model, usage = generation.model_id, usage_of(generation)
    metrics.generations_ended.labels(model, generation.finish_reason, generation.error_code or "none").inc()
    metrics.tokens.labels(model, "prompt").inc(usage.prompt_tokens)
    metrics.tokens.labels(model, "cached").inc(usage.cached_tokens)
    metrics.tokens.labels(model, "completion").inc(usage.completion_tokens)


def settle_limits(generation: Generation) -> None:
    """Its windows count what it used from now on, instead of what it was granted. Twice is harmless."""
    subjects = Subjects(generation.user_id, generation.organization_id, generation.api_key_id)
    usage = usage_of(generation)
    tokens = usage.prompt_tokens + usage.completion_tokens
    admission.settle(subjects=subjects, generation_id=generation.pk, tokens=tokens)


def end_waiting(generation: Generation, *, status: str, finish_reason: str, code: str = "", message: str = "") -> bool:
    """End a waiting row as it was read, keeping what earlier attempts showed; False when someone else won."""
    entries = _fence(generation.pk, generation.attempt + 1) if generation.attempt > 1 else []
    return end(
        generation,
        Status.WAITING,
        Ending(
            status=status,
            finish_reason=finish_reason,
            text="".join(entry.text for entry in entries),
            completion_tokens=sum(len(entry.token_ids) for entry in entries) or generation.completion_tokens,
            cached_tokens=generation.cached_tokens,
            frames=len(entries),
            error_code=code,
            error_message=message,
        ),
    )


def _fence(generation_id: UUID, attempt: int) -> Sequence[Entry]:
    """What the log holds, closed to every earlier attempt. Raises nothing: without a log the counts remain."""
    entries: list[Entry] = []

    async def open_log() -> None:
        entries.extend((await token_log.open_log(generation_id, attempt)).entries)

    relay.call(open_log())
    return entries
