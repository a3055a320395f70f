"""/metrics of the web: all processes of this host, and the whole site's queues and workers."""

from collections.abc import Iterable

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from chatsite.exposition import CONTENT_TYPE, exposition, has_token
from chatsite.health import in_time, valkey_answers
from inference.site_metrics import site_metrics


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """For whoever has METRICS_TOKEN, without a look at a store, and for staff who are logged in; 404 for others."""
    if not (has_token(request.headers.get("Authorization", "")) or _is_staff(request)):
        raise Http404
    return HttpResponse(exposition(_site), content_type=CONTENT_TYPE)


def _is_staff(request: HttpRequest) -> bool:
    return settings.SESSION_COOKIE_NAME in request.COOKIES and bool(request.user.is_active and request.user.is_staff)


def _site() -> Iterable[Metric]:
    """Without the site's own gauges while the database is away: then chatsite_store_up says so."""
    found, valkey = in_time(site_metrics), in_time(valkey_answers)
    up = GaugeMetricFamily("chatsite_store_up", "Whether a store answers, 1 or 0.", labels=["store"])
    up.add_metric(["database"], float(found is not None))
    up.add_metric(["valkey"], float(bool(valkey)))
    return [up, *(found or ())]
