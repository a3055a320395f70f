"""Checks that are one question to the database each: the query names what must not be there."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from chatsite.doctor.findings import Finding

MOST = 300  # subjects of one finding


@dataclass(frozen=True)
class Question:
    """`query` selects the subjects of the finding; its parameters are those of `ask`."""

    check: str
    query: str
    what: str
    advice: str
    is_problem: bool = True


def ask(questions: Sequence[Question], *, grace: timedelta, since: timedelta) -> list[Finding]:
    """Findings of these questions. Nothing younger than `grace` is judged, and no ended thing older than `since`."""
    values: dict[str, Any] = {
        "grace": grace,
        "since": since,
        "lease": timedelta(seconds=settings.LEASE_S),
        "replay": timedelta(seconds=settings.REPLAY_S),
        "patience": timedelta(seconds=settings.WAIT_WITHOUT_WORKER_S),
    }
    found = []
    for question in questions:
        with connection.cursor() as cursor:
            query = f"SELECT found::text FROM ({question.query}) AS asked(found) LIMIT {MOST}"  # noqa: S608 - our own
            cursor.execute(query, values)
            subjects = tuple(row[0] for row in cursor.fetchall())
        if subjects:
            found.append(Finding(question.check, question.what, question.advice, subjects, question.is_problem))
    return found


GENERATIONS = (
    Question(
        "generation-not-started",
        """
        SELECT g.id FROM inference_generation g
        WHERE g.status = 'WAITING' AND NOT g.cancel_requested AND g.created_at < clock_timestamp() - %(grace)s
          AND EXISTS (
            SELECT 1 FROM inference_worker w
            WHERE w.model_id = g.model_id AND w.state = 'READY' AND w.lease_until > clock_timestamp()
              -- Free for its band beside what is reserved above it, for its tokens, and empty if it must be alone.
              AND (w.running = 0 OR NOT g.is_suspect)
              AND w.running < greatest(1, floor(w.slots * (1 - (
                SELECT coalesce(sum(share), 0) FROM (
                    SELECT max(reserved_share) AS share FROM billing_plan WHERE band > g.band GROUP BY band
                ) AS shares))))
              AND NOT EXISTS (
                SELECT 1 FROM inference_generation r WHERE r.worker_id = w.id AND r.status = 'RUNNING'
                HAVING bool_or(r.is_suspect) OR sum(r.prompt_tokens + r.grant) + g.prompt_tokens + g.grant > w.kv_tokens
              )
          )
        """,
        "Generations wait although a worker of their model has room.",
        "Workers look once a second: if these stay, see the workers' logs for errors of the keeper or of claims.",
    ),
    Question(
        "generation-unserved",
        """
        SELECT g.id FROM inference_generation g
        WHERE g.status = 'WAITING' AND g.created_at < clock_timestamp() - %(patience)s - %(grace)s
          AND NOT EXISTS (
            SELECT 1 FROM inference_worker w
            WHERE w.model_id = g.model_id AND w.lease_until > clock_timestamp() - %(patience)s
          )
        """,
        "Generations wait for a model without a worker, for longer than WAIT_WITHOUT_WORKER.",
        "The side worker or beat does not run: it would have ended them. Start both, and a worker for the model.",
    ),
    Question(
        "generation-overdue",
        """
        SELECT id FROM inference_generation
        WHERE status = 'WAITING' AND started_at IS NULL AND wait_until < clock_timestamp() - %(grace)s
        """,
        "Generations wait for longer than their plan allows.",
        "Workers end them once a second: see whether any worker lives.",
    ),
    Question(
        "generation-cancelled-waits",
        """
        SELECT id FROM inference_generation
        WHERE status = 'WAITING' AND cancel_requested AND created_at < clock_timestamp() - %(grace)s
        """,
        "Generations wait although they are cancelled: nobody will start or end them.",
        "Cancel them again in the admin.",
    ),
    Question(
        "lease-lapsed",
        """
        SELECT id FROM inference_generation
        WHERE status = 'RUNNING' AND lease_until < clock_timestamp() - %(lease)s - %(grace)s
        """,
        "Generations run on a worker whose lease has lapsed, and nobody takes them over.",
        "Any living worker does, or the side worker while there is none: start one.",
    ),
    Question(
        "generation-orphaned",
        """
        SELECT g.id FROM inference_generation g LEFT JOIN inference_worker w ON w.id = g.worker_id
        WHERE g.status = 'RUNNING' AND g.started_at < clock_timestamp() - %(grace)s
          AND (g.lease_until IS NULL OR w.id IS NULL OR w.state = 'GONE')
        """,
        "Generations count as running and no worker has them.",
        "They are taken over when their lease lapses; one without a lease never: set its status to WAITING by hand.",
    ),
    Question(
        "more-than-granted",
        'SELECT id FROM inference_generation WHERE completion_tokens > "grant" AND created_at > now() - %(since)s',
        "Generations have produced more tokens than they were granted.",
        "This is a bug of the engine or the host: please report it with the model's name and ENGINE_OPTIONS.",
    ),
    Question(
        "not-purged",
        """
        SELECT id FROM inference_generation
        WHERE purged_at IS NULL AND finished_at < clock_timestamp() - %(replay)s - interval '2 minutes'
        """,
        "Prompts and texts of ended generations are kept for longer than REPLAY_WINDOW.",
        "The side worker or beat does not run, or Valkey does not answer it: see their logs.",
    ),
    Question(
        "answer-without-end",
        """
        SELECT m.id FROM conversations_message m LEFT JOIN inference_generation g ON g.id = m.generation_id
        WHERE m.sender_role = 'assistant' AND m.finish_reason IS NULL
          AND m.created_at < clock_timestamp() - %(grace)s AND m.created_at > now() - %(since)s
          AND (g.id IS NULL OR g.finished_at < clock_timestamp() - %(grace)s)
        """,
        "Answers have no end although their generation has (or is gone).",
        "Their text could not be stored; the web logs an error for each. --repair marks how they ended.",
    ),
    Question(
        "answer-differs",
        """
        SELECT m.id FROM conversations_message m JOIN inference_generation g ON g.id = m.generation_id
        WHERE m.finish_reason IS NOT NULL AND m.created_at > now() - %(since)s
          AND (m.finish_reason IS DISTINCT FROM g.finish_reason OR m.token_count <> g.completion_tokens
               OR (g.purged_at IS NULL AND m.content <> g.text))
        """,
        "Answers say something else than their generations about how they ended, or what they are.",
        "Both are written in one transaction: someone has changed one of them by hand.",
    ),
)

BOOKS = (
    Question(
        "not-booked",
        """
        SELECT g.id FROM inference_generation g
        WHERE g.finished_at > now() - %(since)s
          AND NOT EXISTS (SELECT 1 FROM billing_ledgerentry e WHERE e.generation_id = g.id AND e.kind = 'usage')
        """,
        "Generations have ended and are not in the ledger.",
        "An end and its entry are one transaction: the row was changed by hand. Add a correction in the admin.",
    ),
    Question(
        "booked-twice",
        """
        SELECT generation_id FROM billing_ledgerentry
        WHERE kind = 'usage' AND created_at > now() - %(since)s GROUP BY generation_id HAVING count(*) > 1
        """,
        "Generations are in the ledger more than once.",
        "The constraint ledgerentry_one_usage is missing: apply the migrations, then add corrections in the admin.",
    ),
    Question(
        "booked-while-open",
        """
        SELECT g.id FROM inference_generation g JOIN billing_ledgerentry e ON e.generation_id = g.id
        WHERE g.status IN ('WAITING', 'RUNNING') AND e.kind = 'usage'
        """,
        "Generations are in the ledger and have not ended.",
        "An end and its entry are one transaction: the row was changed by hand. Cancel it, and correct the ledger.",
    ),
    Question(
        "booked-wrongly",
        """
        SELECT g.id FROM inference_generation g JOIN billing_ledgerentry e ON e.generation_id = g.id
        WHERE e.kind = 'usage' AND g.finished_at > now() - %(since)s
          AND (e.prompt_tokens, e.completion_tokens) IS DISTINCT FROM (
            CASE WHEN g.started_at IS NULL THEN 0 ELSE g.prompt_tokens END,
            CASE WHEN g.started_at IS NULL THEN 0 ELSE g.completion_tokens END
          )
        """,
        "The ledger has other token counts than the generations.",
        "Someone has changed rows by hand. Add corrections in the admin.",
    ),
    Question(
        "roll-up-differs",
        """
        SELECT day FROM (
            SELECT (created_at AT TIME ZONE 'UTC')::date AS day, count(*) FILTER (WHERE kind = 'usage')::bigint AS n,
                   sum(prompt_tokens)::bigint AS p, sum(completion_tokens)::bigint AS c, sum(cost_micro)::bigint AS m
            FROM billing_ledgerentry
            WHERE created_at >= date_trunc('day', now() - %(since)s, 'UTC') GROUP BY 1
        ) AS ledger FULL JOIN (
            SELECT day, sum(requests)::bigint AS n, sum(prompt_tokens)::bigint AS p,
                   sum(completion_tokens)::bigint AS c, sum(cost_micro)::bigint AS m
            FROM billing_usageday WHERE day >= ((now() - %(since)s) AT TIME ZONE 'UTC')::date GROUP BY 1
        ) AS rolled USING (day)
        -- Today's sums, and yesterday's just after midnight, are still to come.
        WHERE day < ((now() - interval '25 minutes') AT TIME ZONE 'UTC')::date
          AND (ledger.n, ledger.p, ledger.c, ledger.m) IS DISTINCT FROM (rolled.n, rolled.p, rolled.c, rolled.m)
        """,
        "Sums by day differ from the ledger.",
        "The side worker or beat did not run on those days. --repair sums them anew.",
    ),
)

WORKERS = (
    Question(
        "model-without-worker",
        """
        SELECT name FROM inference_servedmodel s
        WHERE is_enabled AND NOT EXISTS (
            SELECT 1 FROM inference_worker w
            WHERE w.model_id = s.name AND w.state = 'READY' AND w.lease_until > clock_timestamp()
        )
        """,
        "Models are offered that no ready worker serves.",
        "Start a worker for them, or disable them in the admin.",
    ),
    Question(
        "worker-died",
        """
        SELECT name || ' (' || host || ', pid ' || pid || ')' FROM inference_worker
        WHERE state <> 'GONE' AND lease_until < clock_timestamp() - %(lease)s - %(grace)s
        """,
        "Workers have died, or are frozen or cut off from the database: their leases have lapsed.",
        "Their work has gone on elsewhere. The rows go after an hour; see the workers' logs for why.",
        is_problem=False,
    ),
    Question(
        "worker-row-left",
        "SELECT name FROM inference_worker WHERE lease_until < clock_timestamp() - interval '70 minutes'",
        "Rows of workers that left long ago are still there.",
        "The side worker or beat does not run: start both.",
    ),
)
