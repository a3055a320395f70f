"""The project: settings, processes, routes."""

from chatsite.celery import app as celery_app

__all__ = ("celery_app",)
