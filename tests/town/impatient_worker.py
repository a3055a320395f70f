"""A GPU worker whose broker redelivers what is not acknowledged within a second.

`celery -A tests.town.impatient_worker worker`
"""

from chatsite.celery import app

app.conf.broker_transport_options = dict(app.conf.broker_transport_options) | {
    "visibility_timeout": 1,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}

__all__ = ["app"]
