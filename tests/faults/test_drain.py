"""An operator drains a worker from the admin: it ends what it has, takes nothing new, and leaves."""

import pytest
from django.test import Client
from django.urls import reverse

from billing.models import User
from tests.faults.streams import ask, read_to_end
from tests.site import wait_until

pytestmark = pytest.mark.faults


def test_a_drained_worker_ends_its_answer_and_leaves(make_site, person):
    site = make_site(webs=1, workers=1, environment={"DRAIN": "20"})
    (worker,) = site.workers
    User.objects.filter(pk=person.user.pk).update(is_staff=True, is_superuser=True)
    operator = Client()
    operator.force_login(User.objects.get(pk=person.user.pk))
    readings = ask(person, site.webs[0].url, "[[n=60 itl=30 ttft=20]]")
    next(reading for reading in readings if len(reading.numbers) >= 5)
    row = site.row(worker)
    path = reverse("admin:inference_worker_changelist")
    assert operator.post(path, {"action": "drain", "_selected_action": [row.pk]}).status_code == 302
    reading = read_to_end(readings)
    assert reading.numbers == list(range(60)) and reading.last["finish_reason"] == "stop"
    wait_until(lambda: not worker.is_alive, "the worker has left")
    assert worker.popen.returncode == 0 and site.row(worker).state == "GONE"
