"""Completions without a conversation: the turns come with each call, and only counts stay."""

from collections.abc import Sequence
from uuid import UUID, uuid5

from django.db import IntegrityError, transaction

from billing.errors import Refusal
from billing.operations import Principal
from conversations.models import Message
from inference.engine import Sampling
from inference.models import Generation, ServedModel
from inference.operations import admitted, submit
from inference.templating import ModelFilesMissing, TemplateRefused, load_template
from inference.turns import Turn


def complete(
    *,
    principal: Principal,
    turns: Sequence[Turn],
    model: ServedModel,
    sampling: Sampling,
    asked: int | None,
    client_key: str | None,
    generation_id: UUID,
) -> Generation:
    """Submit a generation for these turns, without a key under the id that its reader already follows.

    `client_key` (an Idempotency-Key) makes a repeat harmless: it returns the earlier generation.
    Raises Refusal: turns_refused, key_taken (400), model_not_ready (503), and what admission raises (400, 429, 503).
    """
    prompt_ids = _encode(model, turns)
    room = min(model.context_length - len(prompt_ids), model.max_output_tokens)
    call = Generation(
        model=model,
        prompt=Generation.pack(prompt_ids),
        sampling=sampling.to_json(),
        asked=room if asked is None else min(asked, room),
        client_key=client_key,
        user=principal.user,
    )
    earlier = _earlier(call)
    if earlier:
        return earlier
    try:
        with (
            admitted(
                principal=principal,
                model=model,
                prompt_ids=prompt_ids,
                sampling=sampling,
                asked=asked,
                client_key=client_key,
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


def _shared_id(call: Generation) -> UUID | None:
    """The id of all repeats of a call, which share one reservation, so that a repeat needs no place of its own.

    None without a key, and where a call took that id whose key is forgotten by now.
    """
    if call.client_key is None:
        return None
    shared = uuid5(call.user.pk, call.client_key)
    return None if Generation.objects.filter(pk=shared).exists() else shared


def _encode(model: ServedModel, turns: Sequence[Turn]) -> list[int]:
    try:
        return load_template(model.name).encode(turns)
    except TemplateRefused as error:
        raise Refusal("turns_refused", str(error), param="messages") from error
    except ModelFilesMissing as error:
        raise Refusal("model_not_ready", str(error), status=503, param="model", retry_after=30) from error


def _earlier(call: Generation) -> Generation | None:
    """The generation that an equal call with this key made. Raises Refusal (key_taken) for another call.

    Once its prompt and text are purged there is nothing to compare or to replay, so that the key is spent.
    """
    if call.client_key is None:
        return None
    earlier = Generation.objects.filter(user=call.user, client_key=call.client_key).defer("text").first()
    if earlier is None:
        return None
    is_equal = (
        earlier.model_id == call.model_id
        and bytes(earlier.prompt) == call.prompt
        and earlier.sampling == call.sampling
        and earlier.asked == call.asked
    )
    if not is_equal or Message.objects.filter(generation=earlier).exists():
        raise Refusal(
            "key_taken",
            "This Idempotency-Key was used for another call, or for one whose answer is gone; choose a new one.",
            param="Idempotency-Key",
        )
    return earlier
