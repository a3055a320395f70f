"""Celery tasks of the side worker: titles in the background."""

from uuid import UUID

from celery import shared_task

from conversations import naming


@shared_task(name=naming.ASK)
def ask_for_title(conversation_id: str) -> bool:
    """A first exchange has ended."""
    return naming.ask_for_title(UUID(conversation_id))


@shared_task(name="conversations.settle_titles")
def settle_titles() -> int:
    """What lost messages and missing workers left behind."""
    return naming.settle_titles()
