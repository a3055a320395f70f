"""The project: settings, processes, routes."""

from chatsite.celery import app as celery_app

__all__ = ("celery_app",)

SERVES = "web process {pid} serves"  # the line by which a web process says so
