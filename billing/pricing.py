"""What an answer costs. Pure; integers of micro-units only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prices:
    """Micro-units per million tokens."""

    prompt: int = 0
    completion: int = 0


def cost(prices: Prices, prompt_tokens: int, completion_tokens: int) -> int:
    """Micro-units, rounded half up once per generation."""
    millionths = prices.prompt * prompt_tokens + prices.completion * completion_tokens
    return (millionths + 500_000) // 1_000_000
