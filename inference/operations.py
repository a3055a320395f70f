"""Acts on generations from the web's side: admit, submit, cancel. A worker's are in inference.claims."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg.errors
from django.conf import settings
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from billing import admission, counters
from billing.errors import Refusal
from billing.models import Plan, User
from billing.operations import Principal
from billing.rules import rules_for
from inference import relay, waiting
from inference.endings import end_waiting
from inference.engine import Sampling
from inference.logs import request_id
from inference.models import Generation, ServedModel, Worker
from inference.queueing import check_queue, join_queue, queue_terms
from inference.tickets import send_tickets

log = logging.getLogger(__name__)

Status = Generation.Status
OWN_BAND = -1  # below every plan's
FLAG = """
UPDATE inference_generation g SET cancel_requested = true, error_code = %(code)s::varchar
WHERE g.id = %(id)s AND g.status = %(running)s::varchar AND g.user_id = coalesce(%(user)s::uuid, g.user_id)
RETURNING (SELECT w.channel FROM inference_worker w WHERE w.id = g.worker_id)
"""


def register_model(*, name: str, engine: str, context_length: int) -> ServedModel:
    """Make a model known, or bring its facts up to date; the first one becomes the default."""
    facts = {"engine": engine, "context_length": context_length, "max_output_tokens": context_length}
    model, is_new = ServedModel.objects.update_or_create(name=name, defaults=facts)
    if is_new and not ServedModel.objects.filter(is_default=True).exists():
        ServedModel.objects.filter(pk=name).update(is_default=True)
    return model


def models_for(user: User) -> QuerySet[ServedModel]:
    """The enabled models that the user's plan includes: what every list of models shows them."""
    names = rules_for(user.current_plan, user.organization_id, None).models
    enabled = ServedModel.objects.filter(is_enabled=True)
    return enabled.filter(name__in=names) if names else enabled


def find_model(name: str | None, user: User) -> ServedModel:
    """The enabled model of that name, even one that `admitted` will refuse with the reason. Without a name: the
    default one of the user's plan, or another while that has no worker.

    Raises Refusal (model_not_found).
    """
    if name is None:
        is_served = Exists(Worker.objects.filter(model=OuterRef("pk"), lease_until__gt=Now()))
        found = models_for(user).order_by(is_served.desc(), "-is_default", "name")
    else:
        found = ServedModel.objects.filter(is_enabled=True, name=name)
    model = found.first()
    if model is None:
        raise Refusal("model_not_found", f"There is no model {name or ''!r}.", status=404, param="model")
    return model


def has_worker(model: str, within_s: float = 0) -> bool:
    """Whether a worker of this model lives, or lived at some time within the last `within_s` seconds."""
    return Worker.objects.filter(model_id=model, lease_until__gt=Now() - timedelta(seconds=within_s)).exists()


@contextmanager
def admitted(
    *,
    principal: Principal,
    model: ServedModel,
    prompt_ids: list[int],
    sampling: Sampling,
    asked: int | None,
    affinity: UUID | None = None,
    client_key: str | None = None,
    purpose: str = "chat",
    generation_id: UUID | None = None,
    instead_of: str = "",
) -> Iterator[Generation]:
    """Reserve queue room, a place and tokens, and yield the generation to submit in a short transaction.

    `instead_of`: the model that was asked for, where `model` stands in for it (inference.queueing.stand_in).
    No transaction may be open yet. If the block raises, the reservation is given back. Raises Refusal
    (model_not_allowed, context_length_exceeded, queue_full, and those of admission.admit). Writing the row raises
    OperationalError where the counters lost the reservation meanwhile: that is answered with 503 like any absence.
    """
    user, plan = principal.user, principal.user.current_plan
    if not rules_for(plan, user.organization_id, principal.api_key_id).allows(model.name):
        raise Refusal("model_not_allowed", f"Your plan does not include {model.name}.", status=403, param="model")
    terms = queue_terms(plan)
    room = room_of(model, plan, len(prompt_ids))
    if room < 1:
        raise context_exceeded(len(prompt_ids), context_of(model, plan))
    queue_room = check_queue(model, user, terms)
    generation_id = generation_id or uuid.uuid4()
    allowed = admission.admit(
        generation_id=generation_id, principal=principal, prompt_tokens=len(prompt_ids), room=room, asked=asked
    )
    admitted_at = datetime.fromtimestamp(allowed.admitted_ms / 1000, UTC)
    try:
        generation = Generation(
            id=generation_id,
            model=model,
            instead_of=instead_of,
            user=user,
            organization_id=user.organization_id,
            api_key_id=principal.api_key_id,
            affinity=affinity,
            client_key=client_key,
            purpose=purpose,
            request_id=request_id(),
            prompt=Generation.pack(prompt_ids),
            prompt_tokens=len(prompt_ids),
            sampling=sampling.to_json(),
            grant=allowed.granted_tokens,
            asked=output_asked(room, asked),
            band=terms.band,
            weight=terms.weight,
            boost_s=terms.boost_s,
            wait_until=timezone.now() + timedelta(seconds=terms.max_wait_s),
            admitted_at=admitted_at,
            epoch=allowed.epoch,
            renews_at=admitted_at + timedelta(seconds=allowed.cut_by.next_s) if allowed.cut_by else None,
            price_multiplier=plan.price_multiplier,
        )
        generation.limit_states, generation.queue_room = allowed.states, queue_room
        yield generation
    except BaseException as error:
        if is_of_past_epoch(error):
            counters.distrust(allowed.epoch)
        # Repeats share an id and its reservation: whoever made it gives it back, and the sweep what is left.
        if allowed.is_new:
            give_back(principal=principal, generation_id=generation_id, admitted_at=admitted_at)
        raise


def give_back(*, principal: Principal, generation_id: UUID, admitted_at: datetime) -> None:
    """Give back a reservation, made at `admitted_at`, that no generation uses.

    A repeat may have written the row with it, which then counts, however it ended since; while the database cannot say,
    the sweep decides.
    """
    try:
        if Generation.objects.filter(pk=generation_id, admitted_at=admitted_at).exists():
            return
    except DatabaseError as error:
        log.warning("reservation of %s is left to the sweep: %s", generation_id, error)
        return
    admission.release(principal=principal, generation_id=generation_id)


def context_of(model: ServedModel, plan: Plan) -> int:
    """Tokens, input and output together, that the model reads and the plan allows."""
    return min(model.context_length, plan.max_context_tokens or model.context_length)


def room_of(model: ServedModel, plan: Plan, prompt_tokens: int) -> int:
    """Output tokens that model and context leave beside a prompt; less than 1: it does not fit."""
    return min(context_of(model, plan) - prompt_tokens, model.max_output_tokens)


def output_asked(room: int, asked: int | None) -> int:
    """Output tokens that a caller may expect: what they asked for, or all the room."""
    return room if asked is None else min(asked, room)


def is_of_past_epoch(error: BaseException) -> bool:
    """Whether the trigger on generations refused a row: the counters lost its reservation meanwhile."""
    cause = error.__cause__
    return isinstance(cause, psycopg.errors.ObjectNotInPrerequisiteState)


def context_exceeded(tokens: int, limit: int) -> Refusal:
    """A prompt that leaves no room for an answer."""
    return Refusal(
        "context_length_exceeded",
        f"This is {tokens:,} tokens long; the model reads at most {limit:,}, answer included.",
        param="messages",
        tokens=tokens,
        limit=limit,
    )


def submit(generation: Generation) -> None:
    """Insert an admitted generation, inside the caller's transaction; a worker is called on commit.

    Raises IntegrityError when this user has used its client_key before, Refusal (queue_full) when others took the last
    places of the queue meanwhile.
    """
    if generation.queue_room is not None:
        join_queue(generation, generation.queue_room)
    generation.floor = waiting.clock(generation.model_id, generation.band)  # read by the INSERT itself
    generation.save(force_insert=True)
    transaction.on_commit(lambda: _announce(generation))


def _announce(generation: Generation) -> None:
    log.info("a generation waits for %s", generation.model_id, extra={"generation": str(generation.pk)})
    send_tickets(generation.model_id, band=generation.band)


def submit_own(
    *, generation_id: UUID, user: User, model: ServedModel, prompt_ids: list[int], sampling: Sampling, grant: int,
    purpose: str, affinity: UUID,
) -> bool:  # fmt: skip
    """Queue a generation of the site's own, such as a title: behind everyone, outside the user's limits, for free.

    `grant`: output tokens. One per user waits or runs at a time. False, and nothing is queued, when there is one,
    when the prompt does not fit or the queue is full, or when this id was used before.
    """
    own = Generation.objects.filter(user=user, status__in=Generation.OPEN).exclude(purpose="chat")
    is_full = waiting.count_waiting(model.name, settings.QUEUE_DEPTH) >= settings.QUEUE_DEPTH
    if is_full or own.exists() or len(prompt_ids) + grant > model.context_length:
        return False
    generation = Generation(
        id=generation_id,
        model=model,
        user=user,
        organization_id=user.organization_id,
        affinity=affinity,
        purpose=purpose,
        prompt=Generation.pack(prompt_ids),
        prompt_tokens=len(prompt_ids),
        sampling=sampling.to_json(),
        grant=grant,
        asked=grant,
        band=OWN_BAND,
        boost_s=None,  # never aged: a title must not go before a person
    )
    try:
        with transaction.atomic():
            submit(generation)
    except IntegrityError:
        return False
    return True


def drain_worker(*, worker: Worker) -> None:
    """Let a worker end what it has and leave; its supervisor starts it anew. A hint: it may be sent again."""
    if worker.channel and worker.state != Worker.State.GONE:
        relay.call(relay.drain_worker(worker.channel, worker.pk))


def cancel(*, generation: Generation, code: str = "") -> Generation:
    """End a generation early; idempotent, and harmless once it has ended. Returns it refreshed.

    `code` says why, where that was not its person's wish (its error_code, once it is cancelled).

    A waiting one ends here. A running one is flagged and its worker told; it ends when the worker says so,
    normally within one engine step.
    """
    _cancel(generation.pk, code)
    generation.refresh_from_db()
    return generation


def cancel_own(*, user: User, generation_id: UUID) -> Generation | None:
    """Cancel this user's generation; None when they have none of this id. It acts before it looks: people wait."""
    _cancel(generation_id, user_id=user.pk)
    return user.generations.filter(pk=generation_id).defer("prompt", "text").first()


def _cancel(generation_id: UUID, code: str = "", user_id: UUID | None = None) -> None:
    is_flagged, channel = _flag_running(generation_id, code, user_id)
    if not is_flagged and not _cancel_waiting(generation_id, code, user_id):
        _, channel = _flag_running(generation_id, code, user_id)  # claimed in between
    if channel:
        transaction.on_commit(lambda: relay.call(relay.tell_worker(channel, generation_id)))


def _flag_running(generation_id: UUID, code: str, user_id: UUID | None) -> tuple[bool, str | None]:
    """Whether it is running and flagged now, and the channel of its worker."""
    with connection.cursor() as cursor:
        cursor.execute(FLAG, {"id": generation_id, "running": Status.RUNNING, "code": code, "user": user_id})
        row = cursor.fetchone()
    return row is not None, row[0] if row else None


def _cancel_waiting(generation_id: UUID, code: str, user_id: UUID | None) -> bool:
    mine = {"user_id": user_id} if user_id else {}
    found = Generation.objects.filter(pk=generation_id, status=Status.WAITING, **mine).first()
    return found is not None and end_waiting(found, status=Status.CANCELLED, finish_reason="cancelled", code=code)
