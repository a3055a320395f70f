"""What a dialogue consists of, before any model's template. Pure."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Turn:
    """One message of a dialogue, as a chat template sees it."""

    role: Role
    content: str
