"""Answers that nobody follows any more: the keeper of a worker judges those it runs, the side worker those that wait.

Following is being in the viewer set (inference.viewers), which a process that died leaves by itself. While Valkey is
away nobody is judged, and what it forgot begins anew.
"""

import logging
from collections.abc import Sequence

from django.conf import settings

from inference import metrics, operations, relay, viewers
from inference.models import Generation
from inference.patience import Patience
from inference.waiting import count_waiting

log = logging.getLogger(__name__)

ABANDONED = "abandoned"  # error_code of what was cancelled here


def cancel_unfollowed(generations: Sequence[Generation]) -> int:
    """Cancel those of `generations`, all open, that nobody has followed for long enough; returns how many.

    The site's own (titles) have no followers and are left alone.
    """
    ours = [generation for generation in generations if generation.purpose == "chat"]
    unfollowed = relay.call(viewers.look([generation.pk for generation in ours])) if ours else None
    if not unfollowed:
        return 0
    patience = Patience(settings.ABANDON_S, settings.ABANDON_BUSY_S, settings.RETRY_S)
    others_wait: dict[str, bool] = {}
    cancelled = 0
    for generation in ours:
        idle_s, model, is_chat = unfollowed[generation.pk], generation.model_id, generation.affinity is not None
        is_running = generation.status == Generation.Status.RUNNING
        if is_chat and is_running and idle_s >= settings.ABANDON_BUSY_S and model not in others_wait:
            others_wait[model] = count_waiting(model, 1) > 0
        limit = patience.for_how_long(is_chat=is_chat, is_running=is_running, others_wait=others_wait.get(model, False))
        if limit is not None and idle_s >= limit:
            log.info("%s cancelled: nobody has followed it for %.0f s", generation.pk, idle_s)
            # By its id alone: what a worker holds of its attempt must stay as it is.
            operations.cancel(generation=Generation(pk=generation.pk), code=ABANDONED)
            cancelled += 1
    metrics.abandoned.inc(cancelled)
    return cancelled
