"""The Celery application: tickets to GPU workers, and the side worker's jobs on the beat."""

import os
from typing import Any

from celery import Celery
from celery.signals import celeryd_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")

from inference.worker import HostStep

app = Celery("chatsite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["inference", "conversations", "billing"])
app.steps["worker"].add(HostStep)
app.conf.beat_schedule = {
    "expire unserved": {"task": "inference.expire_unserved", "schedule": 2.0, "options": {"expires": 10}},
    "cancel unfollowed": {"task": "inference.cancel_unfollowed_waiting", "schedule": 2.0, "options": {"expires": 4}},
    "reap without hosts": {"task": "inference.reap_without_hosts", "schedule": 3.0, "options": {"expires": 10}},
    "purge": {"task": "inference.purge", "schedule": 15.0, "options": {"expires": 60}},
    "settle titles": {"task": "conversations.settle_titles", "schedule": 20.0, "options": {"expires": 60}},
    "sweep reservations": {"task": "inference.sweep_reservations", "schedule": 60.0, "options": {"expires": 60}},
    "reconcile limits": {"task": "inference.reconcile_limits", "schedule": 300.0, "options": {"expires": 300}},
    "roll up usage": {"task": "billing.roll_up_usage", "schedule": 600.0, "options": {"expires": 600}},
}


@celeryd_init.connect
def _prepare_worker(**_: Any) -> None:
    """A worker needs the secret, for its salts; it waits for its broker, as only those who send hints must not.

    It does not put unacknowledged tickets back when the connection is lost: they are hints, and kombu 5.7 tries it
    over the lost connection, which ends the worker.
    """
    from kombu.transport.redis import Channel

    from chatsite.checks import require_secret_key

    require_secret_key()
    Channel.do_restore = False
    options = dict(app.conf.broker_transport_options)
    patience = {"socket_timeout": 10, "socket_connect_timeout": 5, "max_retries": None}
    app.conf.broker_transport_options = options | patience
