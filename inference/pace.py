"""How fast a worker serves, measured. Pure: the time is an argument."""

from collections import deque

WINDOW_S = 60.0


class Pace:
    """Mean seconds that a generation holds its slot, over the last minute.

    By Little's law this is slot seconds over endings: right also while most of what runs is longer than the window,
    and the same at any load, so slots / service time is the rate at which a full worker starts what waits.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, int]] = deque()  # time, slot seconds until then, endings until then
        self._slot_seconds = 0.0

    def step(self, now: float, running: int, ended: int) -> float | None:
        """Note how many run and how many have ended so far; returns seconds per generation, None before one ended."""
        if self._steps:
            self._slot_seconds += running * (now - self._steps[-1][0])
        self._steps.append((now, self._slot_seconds, ended))
        while now - self._steps[0][0] > WINDOW_S:
            self._steps.popleft()
        _, seconds, count = self._steps[0]
        return (self._slot_seconds - seconds) / (ended - count) if ended > count else None
