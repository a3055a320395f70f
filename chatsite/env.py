"""Typed reading of environment variables, each with one line of documentation.

Every variable that the project reads is declared through these functions, so that the table in
README.md can be held against the code (tests/test_readme.py).
"""

import os
from dataclasses import dataclass


class ImpossibleSetting(SystemExit):
    """An environment variable holds what cannot be meant; ends the process with one line."""


@dataclass(frozen=True)
class Variable:
    """One documented environment variable."""

    name: str
    default: str
    meaning: str


VARIABLES: dict[str, Variable] = {}


def text(name: str, default: str, meaning: str) -> str:
    """The variable's text, or `default` where it is unset or empty."""
    VARIABLES[name] = Variable(name, default, meaning)
    return os.environ.get(name) or default


def integer(name: str, default: int, meaning: str, *, minimum: int = 0) -> int:
    """A whole number of at least `minimum`."""
    raw = text(name, str(default), meaning)
    try:
        value = int(raw)
    except ValueError:
        raise ImpossibleSetting(f"{name} must be a whole number, not {raw!r}.") from None
    if value < minimum:
        raise ImpossibleSetting(f"{name} must be at least {minimum}, not {value}.")
    return value


def seconds(name: str, default: float, meaning: str) -> float:
    """A duration in seconds, zero or more."""
    raw = text(name, f"{default:g}", meaning)
    try:
        value = float(raw)
    except ValueError:
        raise ImpossibleSetting(f"{name} must be a number of seconds, not {raw!r}.") from None
    if not 0 <= value < float("inf"):
        raise ImpossibleSetting(f"{name} must be a number of seconds ≥ 0, not {raw!r}.")
    return value


def flag(name: str, default: bool, meaning: str) -> bool:
    """1/0, true/false, yes/no, on/off."""
    raw = text(name, "1" if default else "0", meaning).lower()
    if raw in {"1", "true", "yes", "on"}:
        return True
    if raw in {"0", "false", "no", "off"}:
        return False
    raise ImpossibleSetting(f"{name} must be 1 or 0, not {raw!r}.")


def choice(name: str, default: str, options: tuple[str, ...], meaning: str) -> str:
    """One of `options`."""
    value = text(name, default, meaning)
    if value not in options:
        raise ImpossibleSetting(f"{name} must be one of {', '.join(options)}; not {value!r}.")
    return value


def words(name: str, default: str, meaning: str) -> list[str]:
    """A comma-separated list."""
    return [word.strip() for word in text(name, default, meaning).split(",") if word.strip()]
