"""Django's hook for what must be registered once all apps are loaded."""

from django.apps import AppConfig


class ChatsiteConfig(AppConfig):
    """The project itself, as an app: it brings commands and system checks."""

    name = "chatsite"

    def ready(self) -> None:
        from chatsite import checks  # noqa: F401 - registers them
        from chatsite.reconnection import reconnect_soon

        reconnect_soon()
