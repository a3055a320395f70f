"""Calls against limits: a plan for one person, and many requests at one moment."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from billing.models import LedgerEntry, Plan, PlanWindow, User
from tests.people import Person

Limit = Callable[..., None]


@pytest.fixture
def limit(person: Person) -> Iterator[Limit]:
    """Put the person on a plan of their own with these windows (kind, amount, seconds)."""
    plan = Plan.objects.create(slug=f"p{person.user.pk.hex[:20]}", name="p", max_concurrent=100)

    def apply(*windows: tuple[str, int, int]) -> None:
        for kind, amount, seconds in windows:
            PlanWindow.objects.create(plan=plan, kind=kind, amount=amount, seconds=seconds)
        User.objects.filter(pk=person.user.pk).update(plan=plan, plan_is_own=True)
        person.user.plan = plan

    yield apply
    User.objects.filter(plan=plan).update(plan=Plan.objects.get(is_default=True))
    plan.delete()


def parallel(person: Person, urls: list[str], count: int, request: dict[str, Any]) -> list[httpx.Response]:
    """That many calls at the same moment."""
    barrier = threading.Barrier(count)

    def call(number: int) -> httpx.Response:
        with person.http(urls[number % len(urls)]) as http:
            barrier.wait(20)
            return http.post("/v1/chat/completions", json=request)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


def booked(person: Person) -> int:
    """Tokens in the person's ledger."""
    return sum(
        entry.prompt_tokens + entry.completion_tokens for entry in LedgerEntry.objects.filter(user_id=person.user.pk)
    )
