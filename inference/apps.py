"""The inference app."""

from django.apps import AppConfig


class InferenceConfig(AppConfig):
    name = "inference"

    def ready(self) -> None:
        from billing.truth import open_grants_from
        from inference.grants import open_grants

        open_grants_from(open_grants)
