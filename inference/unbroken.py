"""PURE: for how long something has been so at every look."""

from math import inf


class Unbroken:
    """`most_s`: two looks that lie further apart say nothing of what was between them. Times: seconds, one clock's."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._since = inf
        self._looked_at = -inf

    def look(self, holds: bool, now: float) -> float:
        """Seconds since it has held, now that it does or does not."""
        if not holds or now - self._looked_at > self._most_s:
            self._since = now
        self._looked_at = now if holds else -inf
        return now - self._since
