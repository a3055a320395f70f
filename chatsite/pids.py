"""Processes by number."""

import os


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number, be it of another user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
