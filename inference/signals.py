"""The one signal that flows up: sent inside the finishing transaction, with `generation`."""

from django.dispatch import Signal

generation_finished = Signal()
