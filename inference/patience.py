"""PURE: for how long an answer may go on that nobody follows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """Seconds without a follower. `chat_s`: of a chat, whose person may come back (0: for ever); `busy_s`: while it
    holds a slot that others wait for; `call_s`: of a call without a conversation, where only a retry could come.
    """

    chat_s: float
    busy_s: float
    call_s: float

    def for_how_long(self, *, is_chat: bool, is_running: bool, others_wait: bool) -> float | None:
        """Seconds; None: for ever. What waits holds no slot, so that those behind it lose nothing by patience."""
        if not is_chat:
            return self.call_s
        if not self.chat_s:
            return None
        return min(self.chat_s, self.busy_s) if is_running and others_wait else self.chat_s
