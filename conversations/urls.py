"""The native API's part about conversations. Streams are routed in chatsite.routing."""

from django.urls import path

from conversations import api

CONVERSATION = "conversations/<uuid:conversation_id>"

urlpatterns = [
    path("conversations", api.ConversationsView.as_view(), name="conversations"),
    path(CONVERSATION, api.ConversationView.as_view(), name="conversation"),
    path(f"{CONVERSATION}/messages", api.MessagesView.as_view(), name="messages"),
    path(f"{CONVERSATION}/messages/<uuid:message_id>", api.MessageView.as_view(), name="message"),
    path(f"{CONVERSATION}/messages/<uuid:message_id>/regenerate", api.RegenerateView.as_view(), name="regenerate"),
    path(f"{CONVERSATION}/messages/<uuid:message_id>/edit", api.EditView.as_view(), name="edit"),
    path(f"{CONVERSATION}/cancel", api.CancelView.as_view(), name="cancel"),
    path("models", api.ModelsView.as_view(), name="models"),
]
