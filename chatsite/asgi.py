"""The ASGI entry point: `uvicorn chatsite.asgi:application`."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")

from chatsite.checks import require_secret_key
from chatsite.routing import application
from inference import heap

require_secret_key()
heap.settle()

__all__ = ["application"]
