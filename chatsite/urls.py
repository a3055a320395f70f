"""Every URL that Django serves; streams are routed in chatsite.routing, in front of it."""

from csp.decorators import csp_update
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from billing.signup import ThrottledAdminLogin
from chatsite.health import healthz, readyz
from chatsite.metrics import metrics

handler400 = "chatsite.error_pages.bad_request"
handler404 = "chatsite.error_pages.not_found"
handler500 = "chatsite.error_pages.server_error"

admin.site.login_form = ThrottledAdminLogin
SWAGGER_CSP = {"style-src": ["'unsafe-inline'"]}  # Swagger UI writes style attributes

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("conversations.page_urls")),
    path("healthz", healthz),
    path("readyz", readyz),
    path("metrics", metrics),
    path("admin/", admin.site.urls),
    path("accounts/", include("chatsite.account_urls")),
    path("settings/", include("conversations.settings_urls")),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", csp_update(SWAGGER_CSP)(SpectacularSwaggerSplitView.as_view()), name="docs"),
    path("api/v1/", include("billing.urls")),
    path("api/v1/", include("conversations.urls")),
    path("v1/", include("conversations.openai_urls")),
]
