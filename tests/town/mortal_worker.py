"""A GPU worker that is killed at a certain point, once: `celery -A tests.town.mortal_worker worker`.

DIES_AT names the point, HAS_DIED a file that says that it happened. Points: claimed (a row is taken, no token made),
last-token (all are made and logged, the end is not written), finished (it is written, nobody is told), handing-back
(told to stop, before the rows are handed back).
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django

from chatsite.celery import app

django.setup()

from inference import claims, endings  # noqa: E402

__all__ = ["app"]
FLAG = Path(os.environ["HAS_DIED"])


def _die_once(*_: Any) -> None:
    try:
        FLAG.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _before(act: Callable[..., Any]) -> Callable[..., Any]:
    def acting(*arguments: Any, **named: Any) -> Any:
        _die_once()
        return act(*arguments, **named)

    return acting


def _after_a_claim(*arguments: Any) -> claims.Claimed:
    claimed = _claim(*arguments)
    if claimed.generations:
        _die_once()
    return claimed


_claim = claims.claim
match os.environ["DIES_AT"]:
    case "claimed":
        claims.claim = _after_a_claim
    case "last-token":
        claims.finish = _before(claims.finish)
    case "finished":
        endings._announce = _before(endings._announce)
    case "handing-back":
        claims.hand_back = _before(claims.hand_back)
    case other:
        raise SystemExit(f"no such point: {other}")
