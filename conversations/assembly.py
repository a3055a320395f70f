"""From a branch of a conversation to a prompt's token ids, within the model's context."""

from dataclasses import dataclass, replace
from uuid import UUID

from billing.errors import Refusal, not_found
from billing.models import Plan
from conversations import branches, prompts
from conversations.models import Conversation
from inference.models import ServedModel
from inference.operations import context_of
from inference.templating import ModelFilesMissing, Template, TemplateRefused, load_template
from inference.turns import Turn


@dataclass(frozen=True)
class Assembled:
    """A prompt: its token ids, tokens of the new message's text, and how many old turns are not in it."""

    ids: list[int]
    new_tokens: int
    omitted: int


def assemble(
    *,
    conversation: Conversation,
    model: ServedModel,
    leaf: UUID | None,
    content: str | None,
    asked: int | None,
    plan: Plan,
) -> Assembled:
    """System prompt, the newest turns up to `leaf` that fit, and `content` (None: `leaf` is to be answered again).

    `asked`: output tokens, as in prompts.output_budget. Raises Refusal (context_length_exceeded,
    not_found, turns_refused, model_not_ready).
    """
    template = _template(model)
    new_tokens = template.count(content) if content is not None else 0
    pieces = _pieces(conversation, leaf, template, new_tokens if content is not None else None)
    own = {"system": conversation.system_prompt, "user": content or ""}
    context = context_of(model, plan)
    output = prompts.output_budget(
        context_length=context,
        asked=asked,
        plan_output=plan.max_output_tokens,
        model_output=model.max_output_tokens,
    )
    limit, omitted, is_measured = context, 0, False
    while True:
        built = prompts.build(pieces, context_length=limit, output_budget=output, overhead=template.overhead)
        if isinstance(built, prompts.TooLong):
            raise _too_long(built)
        turns = _turns(built, own)
        omitted += built.omitted
        ids = _encode(template, prompts.merged(turns))
        over = len(ids) + min(prompts.LEAST_OUTPUT, output) - context
        if over <= 0:
            return Assembled(ids, new_tokens, omitted)
        # The stored counts were too low (made with another model's tokenizer): measure what is left.
        limit -= over if is_measured else 0
        is_measured = True
        pieces = [
            replace(piece, tokens=template.turn_tokens(turn)) for piece, turn in zip(built.pieces, turns, strict=True)
        ]


def _template(model: ServedModel) -> Template:
    try:
        return load_template(model.name)
    except ModelFilesMissing as error:
        raise Refusal("model_not_ready", str(error), status=503, param="model", retry_after=30) from error


def _pieces(
    conversation: Conversation, leaf: UUID | None, template: Template, new_tokens: int | None
) -> list[prompts.Piece]:
    """The branch with its costs: system prompt, stored turns, the new message. Raises Refusal (not_found)."""
    nodes = branches.to_root(conversation.pk, leaf) if leaf else []
    if not nodes and new_tokens is None:
        raise not_found("message")  # deleted at this moment
    markers = {role: template.turn_tokens(Turn(role, "")) for role in {"user", *(node.role for node in nodes)}}
    pieces = [prompts.Piece(node.role, node.token_count + markers[node.role], node.id) for node in nodes]
    if new_tokens is not None:
        pieces.append(prompts.Piece("user", new_tokens + markers["user"]))
    if conversation.system_prompt:
        pieces.insert(0, prompts.Piece("system", template.turn_tokens(Turn("system", conversation.system_prompt))))
    return pieces


def _turns(built: prompts.Built, own: dict[str, str]) -> list[Turn]:
    """The chosen pieces with their texts; `own`: those that are no stored messages, by role."""
    texts = branches.texts([piece.message for piece in built.pieces if piece.message])
    return [
        Turn(piece.role, texts.get(piece.message, "") if piece.message else own[piece.role]) for piece in built.pieces
    ]


def _encode(template: Template, turns: list[Turn]) -> list[int]:
    try:
        return template.encode(turns)
    except TemplateRefused as error:
        raise Refusal("turns_refused", str(error)) from error


def _too_long(found: prompts.TooLong) -> Refusal:
    return Refusal(
        "context_length_exceeded",
        f"The message has {found.tokens} tokens (system prompt included); this model takes at most {found.limit}.",
        param="content",
        tokens=found.tokens,
        limit=found.limit,
    )
