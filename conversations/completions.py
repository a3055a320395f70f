"""Completions without a conversation: the turns come with each call, and only counts stay."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid5

from django.db import IntegrityError, transaction

from billing.errors import Refusal
from billing.operations import Principal
from conversations import prompts
from conversations.models import Message
from inference.engine import Sampling
from inference.models import Generation, ServedModel
from inference.operations import admitted, output_asked, room_of, submit
from inference.queueing import stand_in
from inference.templating import ModelFilesMissing, TemplateRefused, load_template
from inference.turns import Turn


@dataclass(frozen=True)
class Call:
    """What is asked for. `asked`: output tokens at most; `key`, an Idempotency-Key, makes a repeat harmless."""

    principal: Principal
    turns: Sequence[Turn]
    model: ServedModel
    sampling: Sampling
    asked: int | None
    key: str | None


def complete(call: Call, generation_id: UUID) -> Generation:
    """Submit a generation for these turns, without a key under the id that its reader already follows.

    With a key it returns what an equal call made before. Raises Refusal: turns_refused, key_taken (400),
    model_not_ready (503), and what admission raises (400, 429, 503).
    """
    earlier = _earlier(call)
    if earlier:
        return earlier
    model, prompt_ids = _answering(call)
    try:
        with (
            admitted(
                principal=call.principal,
                model=model,
                instead_of=call.model.name if model.pk != call.model.pk else "",
                prompt_ids=prompt_ids,
                sampling=call.sampling,
                asked=call.asked,
                client_key=call.key,
                generation_id=_shared_id(call) or generation_id,
            ) as generation,
            transaction.atomic(),
        ):
            submit(generation)
    except (IntegrityError, Refusal):
        earlier = _earlier(call)  # the same call at the same time; or refused because of it
        if earlier is None:
            raise
        return earlier
    return generation


def _answering(call: Call) -> tuple[ServedModel, list[int]]:
    """The model that answers, and the prompt in its tokens: a busy one's stand-in only where it has the room."""
    prompt_ids = _encode(call.model.name, call.turns)
    other, plan = stand_in(call.model, call.principal), call.principal.user.current_plan
    if other is not None:
        try:
            ids = _encode(other.name, call.turns)
        except Refusal:  # not in its template: wait for the one asked for
            return call.model, prompt_ids
        if room_of(other, plan, len(ids)) >= (call.asked or prompts.LEAST_OUTPUT):
            return other, ids
    return call.model, prompt_ids


def _shared_id(call: Call) -> UUID | None:
    """The id of all repeats of a call, which share one reservation, so that a repeat needs no place of its own.

    None without a key, and where a call took that id whose key is forgotten by now.
    """
    if call.key is None:
        return None
    shared = uuid5(call.principal.user.pk, call.key)
    return None if Generation.objects.filter(pk=shared).exists() else shared


def _encode(model: str, turns: Sequence[Turn]) -> list[int]:
    try:
        return load_template(model).encode(turns)
    except TemplateRefused as error:
        raise Refusal("turns_refused", str(error), param="messages") from error
    except ModelFilesMissing as error:
        raise Refusal("model_not_ready", str(error), status=503, param="model", retry_after=30) from error


def _earlier(call: Call) -> Generation | None:
    """The generation that an equal call with this key made. Raises Refusal (key_taken) for another call.

    Once its prompt and text are purged there is nothing to compare or to replay, so that the key is spent.
    """
    if call.key is None:
        return None
    user = call.principal.user
    earlier = Generation.objects.filter(user=user, client_key=call.key).defer("text").first()
    if earlier is None:
        return None
    if not _is_equal(earlier, call) or Message.objects.filter(generation=earlier).exists():
        raise Refusal(
            "key_taken",
            "This Idempotency-Key was used for another call, or for one whose answer is gone; choose a new one.",
            param="Idempotency-Key",
        )
    return earlier


def _is_equal(earlier: Generation, call: Call) -> bool:
    if (earlier.instead_of or earlier.model_id) != call.model.name:
        return False
    room = room_of(earlier.model, call.principal.user.current_plan, earlier.prompt_tokens)
    return (
        bytes(earlier.prompt) == Generation.pack(_encode(earlier.model_id, call.turns))
        and earlier.sampling == call.sampling.to_json()
        and earlier.asked == output_asked(room, call.asked)
    )
