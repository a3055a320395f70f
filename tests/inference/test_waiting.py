"""The queue as the scheduler reads it: cost with many waiting rows, places, and what is ahead."""

import json
from uuid import UUID, uuid4

import pytest
from django.db import connection

from inference import waiting
from inference.models import Generation, Served, Worker

pytestmark = pytest.mark.django_db

# Waiting rows of so many users, and ten times as many that have ended.
FILL = """
INSERT INTO inference_generation (id, model_id, user_id, organization_id, purpose, prompt, prompt_tokens, sampling,
    "grant", status, finish_reason, cancel_requested, band, weight, floor, boost_s, price_multiplier, attempt, deaths,
    is_suspect, completion_tokens, cached_tokens, frames, text, error_code, error_message, created_at)
SELECT gen_random_uuid(), %(model)s, (ARRAY(SELECT id FROM billing_user ORDER BY id))[1 + n %% %(users)s],
    gen_random_uuid(), 'chat', '', 10, '{}', 100, %(status)s, %(reason)s, false, 0, 1, 0, 20, 1, 1, 0, false, 0, 0, 0,
    '', '', '', now() - make_interval(secs => n * 0.01)
FROM generate_series(1, %(rows)s) AS n
"""
USERS = """
INSERT INTO billing_user (id, email, password, organization_id, plan_id, plan_is_own, theme, time_zone, is_active,
    is_staff, is_superuser, date_joined)
SELECT gen_random_uuid(), n || '@many.example.org', '', u.organization_id, u.plan_id, true, 'system', 'UTC', true,
    false, false, now()
FROM generate_series(1, %s) AS n, (SELECT * FROM billing_user LIMIT 1) AS u
"""


def fill(model, users, rows):
    with connection.cursor() as cursor:
        cursor.execute(USERS, [users])
        for status, reason, count in (("WAITING", None, rows), ("FINISHED", "stop", rows)):
            values = {"model": model.pk, "users": users, "rows": count, "status": status, "reason": reason}
            cursor.execute(FILL, values)
        cursor.execute("ANALYZE inference_generation")


def explain(statement, values):
    """Pages touched and rows read from tables and indexes, by the statement as it runs.

    For the second time: the first one meets the rows that other tests rolled back, and takes them out of the index.
    """
    with connection.cursor() as cursor:
        for _ in range(2):
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}", values)
        found = cursor.fetchone()[0]
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]

    def rows(node):
        own = node["Actual Rows"] * node["Actual Loops"] if "Relation Name" in node else 0
        return own + sum(rows(child) for child in node.get("Plans", []))

    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], rows(plan)


def test_a_claim_reads_one_row_per_user_of_ten_thousand(user, echo_model):
    users = 20
    fill(echo_model, users, 10_000)
    values = {"model": echo_model.pk, "heads": waiting.HEADS_PER_BAND, "aged": waiting.AGED_HEADS}
    pages, rows = explain(waiting.HEADS, values)
    assert rows <= 3 * users  # the row, its counter, its user
    assert pages <= 20 * users
    everything, _ = explain("SELECT count(*) FROM inference_generation WHERE status = 'WAITING'", {})
    assert pages < 10 * everything


def test_heads_are_the_oldest_of_each_user_and_band(user, stranger, echo_model):
    worker = Worker(id=uuid4(), model=echo_model)
    rows = [make(user, echo_model), make(user, echo_model), make(user, echo_model, band=1), make(stranger, echo_model)]
    make(stranger, echo_model, cancel_requested=True)
    make(stranger, echo_model, status="RUNNING")
    found = waiting.heads(worker, frozenset())
    assert {head.id for head in found} == {rows[0].pk, rows[2].pk, rows[3].pk}


def test_what_a_deleted_account_asked_is_not_offered(user, echo_model):
    Generation.objects.filter(pk=make(user, echo_model).pk).update(user_id=uuid4())
    assert waiting.heads(Worker(id=uuid4(), model=echo_model), frozenset()) == []


def make(user, model, **facts):
    values = {"prompt_tokens": 10, "grant": 100, "band": 0} | facts
    return Generation.objects.create(user=user, organization_id=user.organization_id, model=model, **values)


def test_places_follow_band_and_counter_and_users_take_turns(user, stranger, echo_model):
    mine = [make(user, echo_model) for _ in range(3)]
    theirs = make(stranger, echo_model)
    paid = make(stranger, echo_model, band=1)
    ids: list[UUID] = [row.pk for row in (*mine, theirs, paid)]
    assert waiting.places(echo_model.pk, ids) == dict(zip(ids, (2, 4, 5, 3, 1), strict=True))
    Served.objects.create(user_id=user.pk, model=echo_model, tokens=100)
    assert waiting.places(echo_model.pk, ids) == dict(zip(ids, (3, 4, 5, 2, 1), strict=True))


def test_what_is_ahead_of_one_more_request(user, stranger, echo_model):
    for _ in range(5):
        make(stranger, echo_model)
    make(stranger, echo_model, band=1)
    queue = waiting.queue_before
    assert queue(echo_model.pk, 0, user.pk) == waiting.Queue(waiting=6, ahead=2)  # the paid one, one of five
    assert queue(echo_model.pk, 0, stranger.pk) == waiting.Queue(waiting=6, ahead=6)
    make(user, echo_model)
    assert queue(echo_model.pk, 0, user.pk) == waiting.Queue(waiting=7, ahead=4)
    assert queue(echo_model.pk, 2, user.pk) == waiting.Queue(waiting=0, ahead=0)
