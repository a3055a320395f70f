"""URLs below /v1/."""

from django.urls import path, re_path

from conversations import openai_views as views

urlpatterns = [
    path("models", views.models),
    path("models/<str:name>", views.model),
    path("usage", views.usage),
    path("chat/completions", views.completions),
    path("chat/completions/cancel", views.cancel_named),
    path("chat/completions/<uuid:request_id>/cancel", views.cancel_completion),
    re_path("", views.no_such_path),
]
