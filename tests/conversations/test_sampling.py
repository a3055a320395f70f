"""Sampling fields: OpenAI's ranges, no coercion, and the name of what is wrong (case 48)."""

import math
from typing import Any

import pytest

from billing.errors import Refusal
from conversations.sampling import parse
from inference.engine import Sampling


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"), ("temperature", 999999), ("temperature", -0.1), ("temperature", True),
        ("temperature", math.nan), ("temperature", math.inf), ("temperature", [1]),
        ("top_p", 0), ("top_p", 1.01), ("top_p", "1"), ("top_p", math.nan),
        ("top_k", -1), ("top_k", 1.5), ("top_k", True),
        ("presence_penalty", 2.1), ("frequency_penalty", -2.1),
        ("seed", 1.0), ("seed", "1"), ("seed", True), ("seed", 2**63), ("seed", -(2**63) - 1),
        ("max_tokens", 0), ("max_tokens", -5), ("max_tokens", 1.0), ("max_tokens", True), ("max_tokens", "5"),
        ("max_completion_tokens", 0),
        ("n", 0), ("n", 2), ("n", 1000), ("n", "1"), ("n", True), ("n", 1.0),
        ("stop", 7), ("stop", ""), ("stop", ["a", ""]), ("stop", list("abcde")), ("stop", [1]), ("stop", "x" * 501),
        ("stop", "\0"), ("stop", "\ud800"),
    ],
)  # fmt: skip
def test_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(Refusal) as refusal:
        parse({name: value})
    assert refusal.value.status == 400
    assert (refusal.value.param or "").split(".")[0] == name


def test_accepted() -> None:
    data = {"temperature": 2, "top_p": 1, "top_k": 5, "seed": -1, "stop": ["a", "b"], "max_tokens": 9, "n": 1}
    expected = Sampling(temperature=2.0, top_p=1.0, top_k=5, seed=-1, stop=("a", "b"))
    assert parse({**data, "messages": "not ours"}) == (expected, 9)


def test_one_stop_string() -> None:
    assert parse({"stop": "END"})[0].stop == ("END",)


def test_null_is_the_default() -> None:
    names = ("temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens", "n")
    assert parse(dict.fromkeys(names)) == parse({}) == (Sampling(), None)


def test_newer_name_of_max_tokens_wins() -> None:
    assert parse({"max_tokens": 9, "max_completion_tokens": 5})[1] == 5
    assert parse({"max_tokens": 10**30})[1] == 2**31 - 1
