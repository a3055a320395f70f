from django.apps import AppConfig


class ConversationsConfig(AppConfig):
    name = "conversations"

    def ready(self) -> None:
        from django.contrib.auth.signals import user_logged_out

        from conversations import notices, receivers
        from inference.signals import generation_finished

        generation_finished.connect(receivers.write_answer, dispatch_uid="conversations.write_answer")
        user_logged_out.connect(notices.tell_logged_out, dispatch_uid="conversations.tell_logged_out")
