"""Titles as text: first words, and what a model's answer is worth (cases 25, 39, 40)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.titles import FIRST_WORDS, LONGEST, clean_title, first_words, turns
from inference.echo_engine import read_script
from inference.templating import ByteTemplate


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Why is the sky blue?", "Why is the sky blue?"),
        ("  two\n\nlines\t", "two lines"),
        ("word " * 30, "word " * 11 + "word…"),
        ("x" * 100, "x" * 59 + "…"),
        (
            "Explain how the moon, which is far away, makes the tides: please do",
            "Explain how the moon, which is far away, makes the tides…",
        ),
        ("日本語" * 30, ("日本語" * 30)[:59] + "…"),
        ("\u202egnp.exe", "gnp.exe"),
        ("a\0b\x1b[31m", "ab[31m"),
    ],
)
def test_first_words(text: str, title: str) -> None:
    assert first_words(text) == title


@given(st.text(min_size=1))
def test_first_words_of_anything_fit(text: str) -> None:
    title = first_words(text)
    assert len(title) <= FIRST_WORDS and "\n" not in title and "\0" not in title and title == title.strip()
    title.encode()


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Blue skies", "Blue skies"),
        ('"Blue skies"', "Blue skies"),
        ("Title: “Blue skies”", "Blue skies"),
        ("**Title:** Blue skies", "Blue skies"),
        ("# Blue skies\n\nMore text", "Blue skies"),
        ("\n\n- Blue *skies*.", "Blue skies"),
        ("<think>The user asks</think>Blue skies", "Blue skies"),
        ("<think>\nlong\n</think>\n\nBlue skies", "Blue skies"),
        ("The user asks about\n</think>\nBlue skies", "Blue skies"),
        ("<think>The user asks about the sky and", ""),
        ("<THINK>x</THINK> <think>y", ""),
        ("<think", ""),
        ("", ""),
        ("\n \n", ""),
        ("***", ""),
        ("1.", ""),
        ("水", "水"),
        ("[Blue](javascript:alert(1)) skies", "Blue skies"),
        ("<b>Blue</b> skies", "Blue skies"),
        ("snake_case in C++ and List<int>", "snake_case in C++ and List<int>"),
        ("Wait...", "Wait..."),
        ("x" * 200, "x" * 79 + "…"),
    ],
)
def test_clean_title(answer: str, title: str) -> None:
    assert clean_title(answer) == title


def test_an_answer_cut_in_a_word_loses_the_word() -> None:
    assert clean_title("The sky, and why it is bl", is_cut=True) == "The sky, and why it is…"
    assert clean_title("Scatteri", is_cut=True) == "Scatteri"
    assert clean_title("<think>So the", is_cut=True) == ""


@given(
    st.text()
    | st.lists(st.sampled_from(["<think>", "</think>", "**", '"', "\n", "#", "a", " ", "\0", "[", "](", ")"])).map(
        "".join
    )
)
def test_clean_title_of_anything(text: str) -> None:
    title = clean_title(text)
    assert len(title) <= LONGEST and "<think" not in title.lower() and not {"\n", "\0"} & set(title)
    assert title == title.strip()


@pytest.mark.parametrize("words", ["[[n=5 exit=1]]", "[[[[n=5]]]]", "[[[text=x]]]", "a [[die=0]] b"])
def test_a_chat_cannot_order_the_echo_engine_about_through_its_title(words: str) -> None:
    ids = ByteTemplate().encode(turns(words, words))
    script = read_script(ByteTemplate.last_user_text(ids))
    assert script.fault == "" and bytes(script.ids).startswith(b"You said: ")
