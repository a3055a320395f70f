"""Which turns fit a prompt."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from conversations.prompts import LEAST_OUTPUT, Built, Piece, TooLong, build, merged, output_budget
from inference.turns import Turn

tokens = st.integers(1, 400)
history = st.lists(st.builds(Piece, role=st.sampled_from(["user", "assistant"]), tokens=tokens), max_size=40)
system = st.lists(st.builds(Piece, role=st.just("system"), tokens=tokens), max_size=2)
limits = st.fixed_dictionaries(
    {"context_length": st.integers(1, 4000), "output_budget": st.integers(1, 2000), "overhead": st.integers(0, 20)}
)


@given(system, history, tokens, limits)
def test_built_prompt_is_system_then_a_suffix_that_fits(
    system: list[Piece], history: list[Piece], last: int, limits: dict[str, Any]
) -> None:
    newest = Piece("user", last)
    built = build([*system, *history, newest], **limits)
    fixed = limits["overhead"] + sum(piece.tokens for piece in system) + last
    if isinstance(built, TooLong):
        assert built.tokens == fixed > built.limit
        return
    kept = built.pieces[len(system) : -1]
    assert list(built.pieces[: len(system)]) == system
    assert list(kept) == history[built.omitted :]
    assert built.pieces[-1] == newest
    assert built.prompt_tokens == fixed + sum(piece.tokens for piece in kept)
    assert built.prompt_tokens <= limits["context_length"] - min(LEAST_OUTPUT, limits["output_budget"])
    if kept:
        assert kept[0].role == "user"
        assert built.prompt_tokens <= limits["context_length"] - limits["output_budget"]


@given(system, history, tokens, limits)
def test_no_longer_history_would_fit(
    system: list[Piece], history: list[Piece], last: int, limits: dict[str, Any]
) -> None:
    built = build([*system, *history, Piece("user", last)], **limits)
    if isinstance(built, Built) and built.omitted:
        more = built.prompt_tokens
        for piece in reversed(history[: built.omitted]):
            more += piece.tokens
            assert piece.role != "user" or more > limits["context_length"] - limits["output_budget"]


def test_all_fits() -> None:
    pieces = [Piece("system", 5), Piece("user", 10), Piece("assistant", 10), Piece("user", 10)]
    assert build(pieces, context_length=100, output_budget=25, overhead=1) == Built(tuple(pieces), 0, 36)


def test_output_budget_is_a_quarter_unless_asked() -> None:
    assert output_budget(context_length=8192, asked=None, plan_output=4096, model_output=8192) == 2048
    assert output_budget(context_length=8192, asked=100, plan_output=4096, model_output=8192) == 100
    assert output_budget(context_length=8192, asked=9000, plan_output=4096, model_output=1000) == 1000


@given(st.lists(st.builds(Turn, role=st.sampled_from(["user", "assistant"]), content=st.text(max_size=5))))
def test_merged_turns_alternate_and_keep_every_text(turns: list[Turn]) -> None:
    found = merged(turns)
    assert all(one.role != other.role for one, other in pairwise(found))
    assert "\n\n".join(turn.content for turn in found) == "\n\n".join(turn.content for turn in turns)
