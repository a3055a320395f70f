"""Chat template and tokenizer of a model, for web processes and workers: no torch, no transformers, no vllm.

A model's chat template separates turns with control tokens. Text that merely looks like one
("<|im_end|><|im_start|>system …") must stay text: the template is rendered with placeholders instead of the
contents, split at the control tokens that the template itself wrote, and every other piece is encoded, with
the contents put in, as plain text (notes: docs/architecture.md).
"""

import json
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

from django.conf import settings
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from inference.turns import Role, Turn

ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
ECHO = "echo"  # the echo engine's model, which needs no files
ECHO_MARKER = "ECHO"  # a file in a model's folder: the echo engine serves it

# Tokens by which pieces encoded one by one may exceed the same text encoded as one; per turn.
SEAM_TOKENS = 2


class ModelFilesMissing(Exception):
    """The model's tokenizer or chat template is not on this machine; the message says what to do."""


class TemplateRefused(ValueError):
    """The model's chat template does not accept these turns, for example two user turns in a row."""


class Template(Protocol):
    """How a dialogue becomes a model's token ids."""

    @property
    def overhead(self) -> int:
        """Tokens of a prompt beyond its turns: generation prompt, default system prompt, begin of text."""
        ...

    def encode(self, turns: Sequence[Turn]) -> list[int]:
        """Prompt ids, ready for the assistant's answer; control tokens are the template's only.

        Raises TemplateRefused.
        """
        ...

    def count(self, text: str) -> int:
        """Tokens of plain text."""
        ...

    def turn_tokens(self, turn: Turn) -> int:
        """Tokens that a turn adds, markers included.

        An estimate from above: for usual templates len(encode(turns)) ≤ overhead + Σ turn_tokens. Whoever must
        be sure measures encode(turns).
        """
        ...


@lru_cache(maxsize=16)
def load_template(model: str) -> Template:
    """The template of a served model, loaded once per process (about 0.2 s). Raises ModelFilesMissing."""
    folder = Path(settings.MODEL_DIR) / model
    if model == ECHO or (folder / ECHO_MARKER).exists():
        return ByteTemplate()
    return HfTemplate(folder)


class ByteTemplate:
    """The echo engine's template: ids 0 to 255 are UTF-8 bytes, a marker opens and END closes each turn."""

    MARKERS: ClassVar[dict[Role, int]] = {"system": 256, "user": 257, "assistant": 258, "tool": 259}
    END = 260
    overhead = 1

    def encode(self, turns: Sequence[Turn]) -> list[int]:
        ids: list[int] = []
        for turn in turns:
            ids += (self.MARKERS[turn.role], *_utf8(turn.content), self.END)
        return [*ids, self.MARKERS["assistant"]]

    def count(self, text: str) -> int:
        return len(_utf8(text))

    def turn_tokens(self, turn: Turn) -> int:
        return self.count(turn.content) + 2

    @classmethod
    def last_user_text(cls, ids: Sequence[int]) -> str:
        """The content of the last user turn in encoded ids; empty where there is none."""
        user = cls.MARKERS["user"]
        start = max((i + 1 for i, token in enumerate(ids) if token == user), default=len(ids))
        end = next((i for i in range(start, len(ids)) if ids[i] > 255), len(ids))
        return bytes(ids[start:end]).decode("utf-8", "replace")


class HfTemplate:
    """A model in Hugging Face's layout: tokenizer.json, tokenizer_config.json, chat_template.jinja."""

    def __init__(self, folder: Path) -> None:
        """Read the files in `folder`. Raises ModelFilesMissing."""
        config = _read_json(folder, "tokenizer_config.json")
        raw = _read_json(folder, "tokenizer.json")
        self._tokenizer = _plain_text_tokenizer(raw)
        self._special = {
            name: value["content"] if isinstance(value, dict) else value
            for name, value in config.items()
            if name.endswith("_token") and isinstance(value, dict | str)
        }
        self._template = _environment().from_string(_chat_template(folder, config))
        controls = [token for token in raw["added_tokens"] if _is_control(token)]
        self._control_ids: dict[str, int] = {token["content"].strip(): token["id"] for token in controls}
        self._inert_ids = frozenset(self._control_ids.values())
        self._control = _control_pattern(controls)
        self._trimmed = {role for role in ROLES if self._trims(role)}
        self.overhead, self._markers = self._measure()

    def encode(self, turns: Sequence[Turn]) -> list[int]:
        places = {f"p{secrets.token_hex(8)}p": self._content(turn) for turn in turns}
        rendered = self._render([turn.role for turn in turns], list(places))
        place = re.compile("|".join(places) or r"(?!)")
        ids: list[int] = []
        for index, piece in enumerate(self._control.split(rendered)):
            if index % 2:
                ids.append(self._control_ids[piece.strip()])
            else:
                ids += self._plain(place.sub(lambda found: places[found[0]], piece))
        return ids

    def count(self, text: str) -> int:
        return len(self._plain(text))

    def turn_tokens(self, turn: Turn) -> int:
        return self._markers[turn.role] + self.count(turn.content) + SEAM_TOKENS

    def _content(self, turn: Turn) -> str:
        return turn.content.strip() if turn.role in self._trimmed else turn.content

    def _plain(self, text: str) -> list[int]:
        """Ids of text in which nothing is a control token."""
        text = text.encode("utf-8", "replace").decode()  # lone surrogates
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if self._inert_ids.isdisjoint(ids):
            return ids
        # Not marked special, or in the vocabulary of a unigram model: taken apart behind its first letter.
        cuts = [found.end() - len(found[0].lstrip()) + 1 for found in self._control.finditer(text)]
        return [
            token
            for start, end in pairwise([0, *cuts, len(text)])
            for token in self._tokenizer.encode(text[start:end], add_special_tokens=False).ids
            if token not in self._inert_ids
        ]

    def _render(self, roles: Sequence[Role], contents: Sequence[str]) -> str:
        messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._special
            )
        except TemplateError as error:
            raise TemplateRefused(f"The model's chat template refuses these messages: {error}") from error

    def _trims(self, role: Role) -> bool:
        """Whether the template strips the contents of this role."""
        roles: list[Role] = ["user", role] if role in ("assistant", "tool") else [role, "user"]
        try:
            return "\n content \n" not in self._render(roles, ["\n content \n" if r == role else "-" for r in roles])
        except TemplateRefused:
            return False

    def _measure(self) -> tuple[int, dict[Role, int]]:
        """(overhead, tokens of each role's markers), from prompts with contents of one known cost."""

        def cost(*roles: Role) -> int:
            return len(self.encode([Turn(role, "x") for role in roles])) - len(roles) * self.count("x")

        one, two = cost("user"), cost("user", "assistant")
        user = max(cost("user", "assistant", "user") - two, 0)
        markers: dict[Role, int] = {"user": user, "assistant": max(two - one, 0), "system": user, "tool": user}
        optional: list[tuple[Role, tuple[Role, ...], int]] = [
            ("system", ("system", "user"), one),  # may cost nothing here, in the place of a default system prompt
            ("system", ("user", "system"), one),
            ("tool", ("user", "assistant", "tool"), two),
        ]
        for role, roles, before in optional:
            with suppress(TemplateRefused):
                markers[role] = max(markers[role], cost(*roles) - before)
        return one - user, markers


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the assistant's text for training: only its body."""

    tags = {"generation"}  # noqa: RUF012  (an instance variable in the base class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up for chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Unlike Jinja's own filter, this one does not escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFilesMissing(
            f"{folder / name} is missing. Run: manage.py prepare_model --model {folder.name}"
        ) from None
    return found


def _chat_template(folder: Path, config: dict[str, Any]) -> str:
    """The template's text: its own file, or tokenizer_config.json's only or default one."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    if not found:
        raise ModelFilesMissing(f"{folder} holds no chat template: put one into {path.name}, or take a chat model.")
    return str(found)


def _plain_text_tokenizer(raw: dict[str, Any]) -> Tokenizer:
    """The tokenizer for pieces between control tokens: special tokens in its input are plain text."""
    before = raw.get("pre_tokenizer") or {}
    for step in (before, *before.get("pretokenizers", ())):
        if step.get("prepend_scheme") == "first":  # no piece of ours is the first: a control token is
            step["prepend_scheme"] = "never"
    tokenizer: Tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _is_control(token: dict[str, Any]) -> bool:
    """Special tokens, and others in brackets like <think>; not the runs of spaces that some models add."""
    return bool(token["special"] or re.fullmatch(r"\s*(<.+>|\[.+\])\s*", token["content"]))


def _control_pattern(controls: list[dict[str, Any]]) -> re.Pattern[str]:
    """Matches a control token and the white space that it swallows; capturing, for re.split."""
    longest_first = sorted(controls, key=lambda token: -len(token["content"]))
    return re.compile(
        "("
        + "|".join(
            (r"\s*" if token["lstrip"] else "") + re.escape(token["content"]) + (r"\s*" if token["rstrip"] else "")
            for token in longest_first
        )
        + ")"
        if controls
        else r"((?!))"
    )


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
