"""A GPU worker that is killed at certain points: `celery -A tests.town.mortal_worker worker`.

POINTS names a file with the points that are left, of which each process dies at the first one. Points: claimed (a row
is taken, no token made), last-token (all are made and logged, the end is not written), finished (it is written, nobody
is told), handing-back (told to stop, before the rows are handed back).
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
LEFT = Path(os.environ["POINTS"])


def die() -> None:
    """At this very point; the next process dies at the next one."""
    LEFT.write_text(" ".join(LEFT.read_text().split()[1:]))
    os.kill(os.getpid(), signal.SIGKILL)


def before(act: Callable[..., Any]) -> Callable[..., Any]:
    def acting(*arguments: Any, **named: Any) -> Any:
        die()
        return act(*arguments, **named)

    return acting


def after_a_claim(*arguments: Any) -> claims.Claimed:
    claimed = claim(*arguments)
    if claimed.generations:
        die()
    return claimed


claim = claims.claim
match LEFT.read_text().split()[:1]:
    case ["claimed"]:
        claims.claim = after_a_claim
    case ["last-token"]:
        claims.finish = before(claims.finish)
    case ["finished"]:
        endings._announce = before(endings._announce)
    case ["handing-back"]:
        claims.hand_back = before(claims.hand_back)
