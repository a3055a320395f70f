"""The Celery application: tickets to GPU workers, and the side worker's jobs on the beat."""

import os
from typing import Any

from celery import Celery
from celery.signals import beat_init, celeryd_init, setup_logging, task_postrun, worker_shutting_down

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")

from chatsite import probes
from inference import metrics
from inference.tickets import TICKET
from inference.worker import HostStep

app = Celery("chatsite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["inference", "conversations", "billing"])
app.steps["worker"].add(HostStep)
app.steps["consumer"].add(probes.PulseStep)
app.conf.worker_consumer = "chatsite.consumer:PatientConsumer"
app.conf.beat_scheduler = "chatsite.beat:Scheduler"
app.conf.beat_schedule = {
    "expire unserved": {"task": "inference.expire_unserved", "schedule": 6.0, "options": {"expires": 10}},
    "cancel unfollowed": {"task": "inference.cancel_unfollowed_waiting", "schedule": 3.0, "options": {"expires": 4}},
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
    probes.serve_worker()
    Channel.do_restore = False
    options = dict(app.conf.broker_transport_options)
    patience = {"socket_timeout": 10, "socket_connect_timeout": 5, "max_retries": None}
    app.conf.broker_transport_options = options | patience


@worker_shutting_down.connect
def _drain(**_: Any) -> None:
    probes.life.is_draining = True


@beat_init.connect
def _prepare_beat(sender: Any, **_: Any) -> None:
    probes.serve_beat(sender.scheduler)


@setup_logging.connect
def _leave_logs_alone(**_: Any) -> None:
    """That somebody listens keeps Celery from adding handlers: settings.LOGGING has them all."""


@task_postrun.connect
def _count_job(task: Any, state: str, **_: Any) -> None:
    if task.name != TICKET:
        metrics.jobs.labels(task.name, "succeeded" if state == "SUCCESS" else "failed").inc()
        if state == "SUCCESS":
            metrics.job_succeeded.labels(task.name).set_to_current_time()
