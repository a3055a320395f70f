"""The pages under /settings/."""

from django.urls import path

from conversations import settings_pages as pages
from conversations import usage_pages

urlpatterns = [
    path("", pages.account, name="settings"),
    path("usage/", usage_pages.usage, name="settings-usage"),
    path("keys/", pages.keys, name="settings-keys"),
    path("keys/<uuid:key_id>/revoke/", pages.revoke, name="settings-key-revoke"),
    path("delete/", pages.delete, name="settings-delete"),
]
