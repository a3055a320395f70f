"""The inference app."""

from django.apps import AppConfig


class InferenceConfig(AppConfig):
    name = "inference"
