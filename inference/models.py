"""How an answer is made: models, workers, and the generation row that is the truth about each job."""

import uuid
from array import array
from decimal import Decimal
from typing import TYPE_CHECKING, ClassVar

from django.db import models
from django.utils import timezone

from billing.limits import WindowState
from billing.models import User

if TYPE_CHECKING:
    from inference.queueing import QueueRoom


class ServedModel(models.Model):
    """A model that people may choose. Its files are at MODEL_DIR/<name> on every machine."""

    name = models.CharField(max_length=128, primary_key=True)
    engine = models.CharField(max_length=16, default="vllm")
    context_length = models.PositiveIntegerField(help_text="Tokens, input and output together.")
    max_output_tokens = models.PositiveIntegerField(help_text="Tokens that one answer may have.")
    is_enabled = models.BooleanField(default=True)
    is_default = models.BooleanField(default=False)
    price_prompt_micro = models.PositiveBigIntegerField(default=0, help_text="Micro-units per million prompt tokens.")
    price_completion_micro = models.PositiveBigIntegerField(
        default=0, help_text="Micro-units per million completion tokens."
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("name",)
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["is_default"], condition=models.Q(is_default=True), name="servedmodel_one_default"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def follows_schemas(self) -> bool:
        """Whether its answers can be held to a JSON Schema."""
        return self.engine == "vllm"


class Worker(models.Model):
    """One GPU worker process, from its start to the end of its last lease. Renewed once a second."""

    class State(models.TextChoices):
        STARTING = "STARTING"  # the engine loads
        READY = "READY"
        DRAINING = "DRAINING"  # finishes what it has, takes nothing new
        GONE = "GONE"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=255)
    model = models.ForeignKey(ServedModel, on_delete=models.CASCADE, related_name="workers")
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    engine_pid = models.IntegerField(null=True)
    channel = models.CharField(max_length=255, blank=True, help_text="Where messages for this worker go.")
    state = models.CharField(max_length=16, choices=State, default=State.STARTING)
    slots = models.PositiveIntegerField(default=0)
    kv_tokens = models.PositiveBigIntegerField(default=0)
    running = models.PositiveIntegerField(default=0)
    waiting = models.PositiveIntegerField(default=0)
    kv_usage = models.FloatField(default=0)
    prefix_queries = models.PositiveBigIntegerField(default=0)
    prefix_hits = models.PositiveBigIntegerField(default=0)
    service_s = models.FloatField(null=True, help_text="Slot seconds per ended generation, over the last minute.")
    lease_until = models.DateTimeField()
    started_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Generation(models.Model):
    """One job for an engine. WAITING → RUNNING → FINISHED | CANCELLED | FAILED, by conditional updates only.

    `user_id`, `organization_id`, `api_key_id` and `affinity` are opaque: no constraint, so that the row (and
    with it the ledger entry) outlives what it names. Prompt and text are transient and purged after the replay
    window; the counts stay.
    """

    # Of the request that made it; not stored.
    limit_states: tuple[WindowState, ...] = ()
    queue_room: "QueueRoom | None" = None

    class Status(models.TextChoices):
        WAITING = "WAITING"
        RUNNING = "RUNNING"
        FINISHED = "FINISHED"
        CANCELLED = "CANCELLED"
        FAILED = "FAILED"

    OPEN: ClassVar = (Status.WAITING, Status.RUNNING)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model = models.ForeignKey(ServedModel, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    user = models.ForeignKey(
        User, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="generations"
    )
    instead_of = models.CharField(
        max_length=128, blank=True, default="", db_default="", help_text="The model asked for, if it was too busy."
    )
    organization_id = models.UUIDField()
    api_key_id = models.UUIDField(null=True)
    affinity = models.UUIDField(null=True, help_text="The conversation, whose prefix may be warm on a worker.")
    client_key = models.CharField(max_length=255, null=True, help_text="Idempotency-Key or client-chosen id.")
    purpose = models.CharField(max_length=16, default="chat")
    request_id = models.CharField(
        max_length=100, blank=True, default="", db_default="", help_text="Of the HTTP request, for logs."
    )

    prompt = models.BinaryField(default=b"", help_text="Token ids, unsigned 32 bit each.")
    prompt_tokens = models.PositiveIntegerField()
    sampling = models.JSONField(default=dict)
    grant = models.PositiveIntegerField(help_text="Output tokens it may produce.")
    asked = models.PositiveIntegerField(null=True, help_text="Output tokens that the caller asked for.")
    admitted_at = models.DateTimeField(null=True, help_text="When it was reserved, by the counters' clock.")
    epoch = models.BigIntegerField(null=True, help_text="Of the counters: a row of an earlier one is refused.")
    renews_at = models.DateTimeField(null=True, help_text="When the limit that made the grant smaller renews.")
    price_multiplier = models.DecimalField(max_digits=8, decimal_places=4, default=Decimal(1))

    status = models.CharField(max_length=16, choices=Status, default=Status.WAITING)
    cancel_requested = models.BooleanField(default=False)
    band = models.SmallIntegerField(default=0)
    weight = models.FloatField(default=1, help_text="Its plan's weight: a share of service in its band.")
    boost_s = models.FloatField(null=True, default=20, help_text="Seconds of waiting until it is aged; NULL: never.")
    floor = models.FloatField(default=0, help_text="The queue's clock when it arrived; lifts its user's counter.")
    wait_until = models.DateTimeField(null=True, help_text="When it ends if it has not started; NULL: never.")
    attempt = models.PositiveSmallIntegerField(default=1)
    deaths = models.PositiveSmallIntegerField(default=0, help_text="Deaths of its own worker.")
    is_suspect = models.BooleanField(default=False, help_text="Was aboard a dead engine: runs alone next time.")
    worker = models.ForeignKey(Worker, null=True, on_delete=models.SET_NULL, related_name="generations")
    lease_until = models.DateTimeField(null=True)

    completion_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    frames = models.PositiveIntegerField(default=0, help_text="Length of its token log when it ended.")
    text = models.TextField(blank=True, default="")
    finish_reason = models.CharField(max_length=32, null=True)
    error_code = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")

    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    purged_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["user", "client_key"],
                condition=models.Q(client_key__isnull=False),
                name="generation_client_key",
            ),
            # A finish_reason if and only if ended: a stream never ends without one.
            models.CheckConstraint(
                condition=models.Q(status__in=("WAITING", "RUNNING"), finish_reason__isnull=True)
                | models.Q(status__in=("FINISHED", "CANCELLED", "FAILED"), finish_reason__isnull=False),
                name="generation_finish_reason",
            ),
        ]
        indexes: ClassVar = [
            # For inference.waiting: the head of each user's queue is one descent.
            models.Index(
                fields=["model", "band", "user", "created_at"],
                condition=models.Q(status="WAITING", cancel_requested=False),
                name="generation_queue",
            ),
            models.Index(fields=["wait_until"], condition=models.Q(status="WAITING"), name="generation_wait_until"),
            models.Index(fields=["worker"], condition=models.Q(status="RUNNING"), name="generation_running"),
            models.Index(
                fields=["user"], condition=models.Q(status__in=("WAITING", "RUNNING")), name="generation_open"
            ),
            models.Index(
                fields=["finished_at"],
                condition=models.Q(finished_at__isnull=False, purged_at__isnull=True),
                name="generation_unpurged",
            ),
            # For the operator's page: what failed or moved of late.
            models.Index(
                fields=["finished_at"],
                condition=models.Q(status="FAILED") | models.Q(attempt__gt=1),
                name="generation_troubled",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.status}"

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The prompt's token ids."""
        return tuple(array("I", bytes(self.prompt)))

    @staticmethod
    def pack(token_ids: list[int]) -> bytes:
        """Token ids as `prompt` stores them."""
        return array("I", token_ids).tobytes()

    @property
    def is_open(self) -> bool:
        return self.status in self.OPEN


class Served(models.Model):
    """Virtual token counter of one user in one band of a model: weighted tokens served so far over the plan's weight.

    Shared by all workers (see inference.scheduling). One per band, for only users of the same band are compared: who
    changes plans would otherwise carry the other band's count.
    """

    user_id = models.UUIDField()
    model = models.ForeignKey(ServedModel, on_delete=models.CASCADE)
    band = models.SmallIntegerField(default=0)
    tokens = models.FloatField(default=0)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user_id", "model", "band"], name="served_user_model_band")
        ]

    def __str__(self) -> str:
        return f"{self.user_id} on {self.model_id}: {self.tokens:.0f}"


class QueueClock(models.Model):
    """Virtual time of one band of a model: the least counter among those who waited at the latest start.

    A request takes it along when it arrives, so that a pause is no credit.
    """

    model = models.ForeignKey(ServedModel, on_delete=models.CASCADE)
    band = models.SmallIntegerField()
    tokens = models.FloatField(default=0)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["model", "band"], name="queueclock_model_band")]

    def __str__(self) -> str:
        return f"{self.model_id}, band {self.band}: {self.tokens:.0f}"
