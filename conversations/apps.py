from django.apps import AppConfig


class ConversationsConfig(AppConfig):
    name = "conversations"

    def ready(self) -> None:
        from conversations import receivers
        from inference.signals import generation_finished

        generation_finished.connect(receivers.write_answer, dispatch_uid="conversations.write_answer")
