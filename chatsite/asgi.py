"""The ASGI entry point: `uvicorn chatsite.asgi:application`."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")

from chatsite.checks import require_secret_key
from chatsite.routing import application

require_secret_key()

__all__ = ["application"]
