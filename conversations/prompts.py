"""Which turns of a branch an answer gets to see. Pure: token counts in, a choice out.

Summaries of what was left out belong here: `build` is the one place that knows which turns those are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from inference.turns import Role, Turn

LEAST_OUTPUT = 16  # tokens: a message that leaves less room than this for its answer is too long


@dataclass(frozen=True)
class Piece:
    """One turn's cost in tokens, the template's markers included. `message` is None for the system prompt."""

    role: Role
    tokens: int
    message: UUID | None = None


@dataclass(frozen=True)
class Built:
    """The turns to send, in order; how many older ones were left out; tokens of the whole prompt."""

    pieces: tuple[Piece, ...]
    omitted: int
    prompt_tokens: int


@dataclass(frozen=True)
class TooLong:
    """The newest message cannot be answered: with the system prompt it has `tokens`, and `limit` is the most."""

    tokens: int
    limit: int


def output_budget(*, context_length: int, asked: int | None, plan_output: int, model_output: int) -> int:
    """Tokens kept free for the answer: what was asked for, or a quarter of the context; at least 1."""
    return max(1, min(asked or context_length // 4, plan_output, model_output, context_length))


def build(pieces: Sequence[Piece], *, context_length: int, output_budget: int, overhead: int) -> Built | TooLong:
    """Choose from a branch, root first, whose last piece is the user turn to be answered.

    System pieces at the start and the last piece are always kept. Before the last as many of the newest turns
    as leave `output_budget` free are kept, from a user turn on. The last turn alone may use the output's budget
    up to LEAST_OUTPUT. `overhead`: tokens of the prompt that belong to no turn.
    """
    start = next((i for i, piece in enumerate(pieces) if piece.role != "system"), len(pieces))
    system, history, last = pieces[:start], pieces[start:-1], pieces[-1]
    tokens = overhead + sum(piece.tokens for piece in system) + last.tokens
    limit = context_length - min(LEAST_OUTPUT, output_budget)
    if tokens > limit:
        return TooLong(tokens, limit)
    kept, tokens = _newest_that_fit(history, tokens, context_length - output_budget)
    return Built((*system, *kept, last), len(history) - len(kept), tokens)


def _newest_that_fit(history: Sequence[Piece], tokens: int, limit: int) -> tuple[Sequence[Piece], int]:
    """The newest turns, from a user turn on, that bring `tokens` to at most `limit`; and the tokens then."""
    first, total = len(history), tokens
    for index in range(len(history) - 1, -1, -1):
        total += history[index].tokens
        if total > limit:
            break
        if history[index].role == "user":
            first, tokens = index, total
    return history[first:], tokens


def merged(turns: Sequence[Turn]) -> list[Turn]:
    """Neighbours of one role as one turn: many chat templates refuse two user turns in a row.

    That happens when an answer failed, or was stopped before its first token, and so is no turn.
    """
    return [
        Turn(role, "\n\n".join(turn.content for turn in same)) for role, same in groupby(turns, lambda turn: turn.role)
    ]
