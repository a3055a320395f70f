"""Tickets and the host of a worker."""

from inference.tasks import ticket
from inference.worker import hosts


def test_a_ticket_that_comes_while_the_worker_drains_is_dropped() -> None:
    """Its host is gone by then; other workers have tickets of their own."""
    assert hosts() == ()
    assert ticket() is None
