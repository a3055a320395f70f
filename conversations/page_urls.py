"""The chat's pages."""

from django.urls import path

from conversations import views

CHAT = "c/<uuid:conversation_id>"

urlpatterns = [
    path("", views.new_chat, name="new-chat"),
    path("chats", views.chats, name="chats"),
    path(CHAT, views.chat, name="chat"),
    path(f"{CHAT}/turns/<uuid:message_id>", views.turn, name="turn"),
    path(f"{CHAT}/rename", views.rename, name="rename"),
    path(f"{CHAT}/item", views.item, name="chat-item"),
    path(f"{CHAT}/archive", views.archive, name="archive"),
    path(f"{CHAT}/delete", views.delete, name="delete-chat"),
]
