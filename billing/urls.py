from django.urls import path

from billing import api, usage_api

urlpatterns = [
    path("me", api.MeView.as_view(), name="me"),
    path("keys", api.KeysView.as_view(), name="keys"),
    path("keys/<uuid:key_id>", api.KeyView.as_view(), name="key"),
    path("limits", api.LimitsView.as_view(), name="limits"),
    path("usage", usage_api.UsageView.as_view(), name="usage"),
]
