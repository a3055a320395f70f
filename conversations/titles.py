"""PURE: titles of chats: the first words, what a model is asked, and what its answer is worth."""

import re
import unicodedata
from collections.abc import Sequence

from inference.turns import Turn

FIRST_WORDS = 60  # characters
LONGEST = 80  # characters of a model's title
EXCERPT = 600  # characters of question and answer that the model sees
OUTPUT_TOKENS = 16

ORDER = "Write a title for this chat, in its language: two to five words that name its subject, and nothing else."
ECHOED = re.compile("two to five words|name its subject", re.IGNORECASE)  # what small models make of the order
THINKING = re.compile(r"<(think|thinking|reasoning|thought)\b.*?(</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
UNOPENED = re.compile(r"\A.*</(think|thinking|reasoning|thought)\s*>", re.IGNORECASE | re.DOTALL)
LABEL = re.compile(r"\A(?:chat\s+)?(?:title|titel|titre|título|titolo)\s*[::]\s*", re.IGNORECASE)
LINK = re.compile(r"!?\[([^\]]*)\]\((?:[^()]|\([^()]*\))*\)")
TAG = re.compile(r"</?(?:b|i|u|em|strong|h[1-6]|p|br|div|span|title)\b[^>]*>", re.IGNORECASE)
MARKUP = re.compile(r"\A(?:#{1,6}\s+|>\s+|[-*+]\s+)|\*\*|__|[`*~]+|(?<!\w)_|_(?!\w)")
QUOTES = "\"'“”„‟‘’‚«»‹›「」『』"


def plain(text: str) -> str:
    """One line without control, format (bidi overrides) and surrogate characters; single spaces."""
    visible = (" " if char.isspace() else char for char in text)
    kept = (char for char in visible if unicodedata.category(char) not in ("Cc", "Cf", "Cs") or char == "\u200d")
    return " ".join("".join(kept).split())


def first_words(text: str) -> str:
    """How a message begins, in at most 60 characters, cut between words where there is a space to cut at."""
    line = plain(text[: FIRST_WORDS * 20])
    if len(line) <= FIRST_WORDS:
        return line
    head = line[: FIRST_WORDS - 1]
    if line[FIRST_WORDS - 1] != " ":
        head = head.rpartition(" ")[0] or head
    return head.rstrip(" ,;:.-–—\u200d") + "…"


def clean_title(text: str, *, is_cut: bool = False) -> str:
    """A model's answer as a title of at most 80 characters; empty when nothing of it is one.

    `is_cut`: the answer ends where its tokens ended, perhaps inside a word.
    """
    text = TAG.sub("", UNOPENED.sub("", THINKING.sub("", text)))
    line = next((found for found in map(plain, text.splitlines()) if found.strip("-*#=_ ")), "")
    line = MARKUP.sub("", LINK.sub(r"\1", LABEL.sub("", MARKUP.sub("", line))))
    line = LABEL.sub("", line.strip().strip(QUOTES)).strip().strip(QUOTES).strip()
    line = line.removesuffix(".") if not line.endswith("..") else line
    if not any(map(str.isalpha, line)) or ECHOED.search(line):
        return ""
    if is_cut and " " in line:
        line = line[: LONGEST - 1].rpartition(" ")[0].rstrip(" ,;:") + "…"
    return line if len(line) <= LONGEST else line[: LONGEST - 1].rstrip() + "…"


def turns(question: str, answer: str) -> Sequence[Turn]:
    """The prompt that asks for a title. Square brackets are kept apart: the echo engine obeys "[[…]]"."""
    talk = f"Question: {question[:EXCERPT]}\n\nAnswer: {answer[:EXCERPT]}\n\n{ORDER}"
    while "[[" in talk:
        talk = talk.replace("[[", "[ [")
    return [Turn("user", talk)]
