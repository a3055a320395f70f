"""The ASGI entry point: `uvicorn chatsite.asgi:application`."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")

from chatsite import routing
from chatsite.checks import require_secret_key
from chatsite.edge import nothing_is_open, observed
from inference import heap

require_secret_key()
application = observed(routing.application)
nothing_is_open()
heap.settle()

__all__ = ["application"]
