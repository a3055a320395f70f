"""Stop strings in a stream of text, the same for every engine and for any division of the text."""


class StopStrings:
    """Passes text on, except what may be the beginning of a stop string, and ends at the first whole one."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._held = ""
        self.stopped = False

    def feed(self, text: str, *, finished: bool) -> str:
        """The text that may be shown now; nothing from a stop string on. `finished` releases what is held."""
        if not self._stop:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            return text[: min(found)[1]]  # the one that is complete first
        held = 0 if finished else self._beginning(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _beginning(self, text: str) -> int:
        """Length of the longest end of `text` with which some stop string begins."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stop):
                return size
        return 0
