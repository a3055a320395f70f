"""The ASGI entry point: `uvicorn chatsite.asgi:application`."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")

from chatsite.routing import application

__all__ = ["application"]
