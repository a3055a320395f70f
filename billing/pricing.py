"""What an answer costs. Pure; integers of micro-units only."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal


@dataclass(frozen=True)
class Prices:
    """Micro-units per million tokens, and what the plan multiplies them by."""

    prompt: int = 0
    completion: int = 0
    multiplier: Decimal = Decimal(1)


def cost(prices: Prices, prompt_tokens: int, completion_tokens: int) -> int:
    """Micro-units, rounded half up once per generation."""
    millionths = prices.prompt * prompt_tokens + prices.completion * completion_tokens
    return int((millionths * prices.multiplier / 1_000_000).quantize(Decimal(1), ROUND_HALF_UP))
