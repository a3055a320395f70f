"""A GPU worker whose messages are of another version: `celery -A tests.town.old_worker worker`."""

from chatsite.celery import app
from inference import protocol

protocol.VERSION = 0

__all__ = ["app"]
