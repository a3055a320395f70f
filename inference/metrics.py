"""Every metric of every process, but for billing's. Names, labels and units are those of docs/operations.md, which a
test holds to this.

With PROMETHEUS_MULTIPROC_DIR (`make run` sets it) the processes of one host write into files of that folder, and any
of them can answer for all: several web processes share a socket, and a worker may have none. Without it each tells
only its own. Labels are bounded: models, bands, codes of ours; never a person, a generation or free text.

An observation in a file costs 2 µs, so nothing here is called for each token: see Gaps.
"""

import random

from billing.metrics import Counter, Gauge, Histogram  # which prepares the folder before it imports them

GAPS_KEPT = 128  # of one worker and second


WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
FIRST_TOKENS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 30, 60, 300)
TOKENS = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
STEPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
CHECKPOINTS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 10)

# -- web processes ----------------------------------------------------------------------------------

http_requests = Counter(
    "chatsite_http_requests_total", "Requests that were answered, by kind of route.", ["route", "status"]
)
http_response_start = Histogram(
    "chatsite_http_response_start_seconds", "From a request to the beginning of its response.", ["route"], buckets=WAITS
)
open_streams = Gauge(
    "chatsite_open_streams", "Streams and WebSockets that are open.", ["transport"], multiprocess_mode="livesum"
)
reader_first_token = Histogram(
    "chatsite_reader_time_to_first_token_seconds",
    "As a client sees it, from its request (native API: from when it begins to follow) to the first text written.",
    ["api"],
    buckets=FIRST_TOKENS,
)
reader_repairs = Counter(
    "chatsite_reader_repairs_total",
    "What pushes did not bring: gap (read from the log), slow (a full buffer, whose frames merge), snapshot (the whole"
    " text again), check (log and row looked at after silence).",
    ["kind"],
)
readers_let_go = Counter(
    "chatsite_readers_let_go_total", "Readers that a process which was told to stop sent to another one."
)

# -- any process --------------------------------------------------------------------------------------

hints_lost = Counter(
    "chatsite_hints_lost_total", "Messages between processes that could not be sent in time.", ["hint"]
)
generations_ended = Counter(
    "chatsite_generations_ended_total",
    "Generations that ended; code: of a failure, else none.",
    ["model", "finish_reason", "code"],
)
tokens = Counter(
    "chatsite_tokens_total", "Tokens of ended generations; cached ones are among the prompt's.", ["model", "direction"]
)
abandoned = Counter("chatsite_abandoned_total", "Generations that were cancelled because nobody followed them.")
failovers = Counter(
    "chatsite_failovers_total",
    "Generations taken from a worker to run elsewhere: lease_lapsed (it died or froze), handed_back (it drained),"
    " engine_dead.",
    ["model", "reason"],
)

# -- GPU workers ----------------------------------------------------------------------------------------

queue_wait = Histogram(
    "chatsite_queue_wait_seconds", "From a request's row to its first start.", ["model", "band"], buckets=WAITS
)
first_token = Histogram(
    "chatsite_time_to_first_token_seconds",
    "As the worker sees it: from a generation's start there to the engine's first token.",
    ["model"],
    buckets=FIRST_TOKENS,
)
inter_token = Histogram(
    "chatsite_inter_token_latency_seconds",
    f"Between two chunks of one generation from the engine; a random sample, at most {GAPS_KEPT} a second and worker.",
    ["model"],
    buckets=TOKENS,
)
engine_step = Histogram(
    "chatsite_engine_step_seconds", "Between two steps of a busy vLLM engine.", ["model"], buckets=STEPS
)
checkpoint = Histogram(
    "chatsite_checkpoint_seconds", "A worker's renewal of its leases, once a second.", ["model"], buckets=CHECKPOINTS
)
checkpoints_missed = Counter(
    "chatsite_checkpoints_missed_total",
    "Renewals that were late (by over a second), overdue (the lease had lapsed) or failed (no database).",
    ["model", "how"],
)
prefix_queries = Counter(
    "chatsite_prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", ["model"]
)
prefix_hits = Counter("chatsite_prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", ["model"])

# -- side worker ----------------------------------------------------------------------------------------

windows_drifted = Counter(
    "chatsite_limit_windows_drifted_total", "Windows of limits that counted something else than the ledger; repaired."
)
reservations_swept = Counter(
    "chatsite_reservations_swept_total", "Reservations that nobody had settled; settled by the sweep."
)
rows_purged = Counter("chatsite_generations_purged_total", "Generations whose prompt and text were forgotten.")
jobs = Counter("chatsite_jobs_total", "Runs of the side worker's jobs.", ["job", "result"])
job_succeeded = Gauge(
    "chatsite_job_last_success_timestamp_seconds",
    "When a job last succeeded, Unix time.",
    ["job"],
    multiprocess_mode="max",
)


class Gaps:
    """Pauses between the chunks of a worker's generations: gathered per token at 0.1 µs, observed once a second."""

    def __init__(self) -> None:
        self._gaps: list[float] = []
        self.add = self._gaps.append

    def observe(self, model: str) -> None:
        """Put a sample of what was added into the histogram, and begin anew."""
        gaps, self._gaps = self._gaps, []
        self.add = self._gaps.append
        histogram = inter_token.labels(model)
        for gap in random.sample(gaps, min(GAPS_KEPT, len(gaps))):
            histogram.observe(gap)
