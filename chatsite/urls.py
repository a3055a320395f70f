"""Every URL that Django serves; streams are routed in chatsite.routing, in front of it."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from chatsite.health import healthz, readyz

handler400 = "chatsite.error_pages.bad_request"
handler404 = "chatsite.error_pages.not_found"
handler500 = "chatsite.error_pages.server_error"

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(url="/api/docs/")),
    path("healthz", healthz),
    path("readyz", readyz),
    path("admin/", admin.site.urls),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerSplitView.as_view(), name="docs"),
    path("api/v1/", include("billing.urls")),
    path("api/v1/", include("conversations.urls")),
    path("v1/", include("conversations.openai_urls")),
]
