"""Plain counts of what this process had to repair or drop. Whoever exports figures reads them here."""

from collections import Counter
from typing import Literal

What = Literal["gap_repairs", "slow_merges", "hints_lost", "readers_let_go", "abandoned"]
_counts: Counter[str] = Counter()


def count(what: What, n: int = 1) -> None:
    """`gap_repairs`: pushes missed and read from the log. `slow_merges`: a reader's buffer was full, its frames merge.
    `hints_lost`: messages not sent in time. `readers_let_go`: told to come back elsewhere. `abandoned`: generations
    cancelled because nobody followed them.
    """
    _counts[what] += n


def counted(what: What) -> int:
    """How often since this process started."""
    return _counts[what]
