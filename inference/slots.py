"""The slots of an engine: what holds one, what may take the next, and who is called when one is free.

Claims of one worker are made under one lock. A ticket for which no slot is free costs no query.
"""

import logging
import random
import threading
from collections import OrderedDict, deque
from math import inf
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import InterfaceError, OperationalError, close_old_connections

from inference import claims, metrics
from inference.claims import Claimed
from inference.live import Live
from inference.models import Generation
from inference.scheduling import SUSPECT_WAIT_S, Capacity, Running
from inference.tickets import call_worker

if TYPE_CHECKING:
    from inference.host import EngineHost

log = logging.getLogger(__name__)

WARM = 512  # conversations remembered as having a warm prefix
PASS_ON_S = 0.01  # tickets that find no slot within this time are passed on together
PEERS_CALLED = 8
CLAIM_S = 0.2  # most are made in less
ANY_BAND = 2**15  # above every SmallIntegerField's value


class Slots:
    """One per host. `reserved` and `peers` are kept by the keeper."""

    def __init__(self, host: "EngineHost") -> None:
        self._host = host
        self.reserved: dict[int, float] = {}
        self.peers: list[str] = []  # names of the model's other workers
        self.ended = 0
        self.idle = threading.Event()
        self.idle.set()
        self.lock = threading.Lock()
        self._counting = threading.Lock()
        self._at_lock = 0  # threads that wait for the lock
        self._may_fill = False  # one of them may fill
        self._claimed: deque[Generation] = deque()  # for them, not for more than there are
        self._is_unheard = False  # whether a claim may have been made whose answer was lost
        self._running: dict[UUID, Running] = {}
        self._starts = 0
        self._suspect_ended_at = -inf
        self._called = 0  # tickets of our own that are under way
        self._missed: int | None = None  # highest band whose ticket found no slot
        self._warm: OrderedDict[UUID, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    def _capacity(self) -> Capacity:
        engine = self._host.engine
        # One of the model's workers empties for suspects that have waited for an empty one, and not for one after the
        # other: those who are not suspects go on.
        is_first = all(self._host.worker.name < peer for peer in self.peers)
        empties = is_first and monotonic() > self._suspect_ended_at + SUSPECT_WAIT_S
        return Capacity(engine.slots, engine.kv_tokens, self.reserved, empties)

    def has_room(self, band: int | None) -> bool:
        """Whether a slot is free for a band; None: for any."""
        running = list(self._running.values())
        capacity = self._capacity()
        return len(running) < capacity.slots if band is None else capacity.has_room(band, running)

    def take(self, *, may_fill: bool) -> tuple[Generation | None, bool]:
        """Claim the generation that goes next; also whether something waits that may not start here.

        `may_fill`: this is not the start that a new row's ticket is for, but follows an ending, say. Then more may
        fit than the one slot that became free (after a suspect, or a large one), and this worker calls itself.
        Threads that come at the same time, as when many answers end together, are served by one claim.
        """
        with self._counting:
            self._at_lock += 1
            self._may_fill = self._may_fill or may_fill
        with self.lock:
            with self._counting:
                self._at_lock -= 1
                wanted = 1 + self._at_lock
            if self._claimed:
                return self._claimed.popleft(), False
            may_fill, self._may_fill = may_fill or self._may_fill, False
            if not self._host.may_start() or not self.has_room(None):
                return None, True
            try:
                claimed = self._claim(wanted)
            except (OperationalError, InterfaceError) as error:
                log.warning("claim: %s", error)
                self._is_unheard = True
                return None, False
            finally:
                close_old_connections()
            for generation in claimed.generations:
                self._hold(generation)
            self._claimed.extend(claimed.generations)
            more = max(0, claimed.more - self._called) if may_fill else 0
            self._called += more
            mine = self._claimed.popleft() if self._claimed else None
        for _ in range(more):
            call_worker(self._host.worker.name)
        return mine, claimed.is_refused

    def return_unheard(self) -> None:
        """Hand back what a claim took whose answer was lost with the database; once that answers again.

        Nobody here knows of it: its lease would lapse, and count as a death.
        """
        if not self._is_unheard or not self.lock.acquire(timeout=CLAIM_S):
            return
        try:
            held = Generation.objects.filter(worker=self._host.worker, status=Generation.Status.RUNNING)
            unheard = list(held.exclude(pk__in=list(self._host.live)))
            if unheard:
                log.warning("%d claims were made without an answer, and are handed back", len(unheard))
                claims.hand_back(self._host.worker, unheard)
            self._is_unheard = False
        finally:
            self.lock.release()

    def _claim(self, count: int) -> Claimed:
        running = list(self._running.values())
        warm = frozenset(self._warm)
        return claims.claim(self._host.worker, running, self._capacity(), warm, self._starts, count)

    def _hold(self, generation: Generation) -> None:
        tokens = generation.prompt_tokens + generation.grant
        # Under the lock: a dying host hands back what is here.
        with self._counting:
            self._host.live[generation.pk] = Live(generation)
            self._running[generation.pk] = Running(generation.user_id, generation.band, tokens, generation.is_suspect)
            self.idle.clear()
        self._starts += 1
        if generation.attempt == 1 and generation.started_at is not None:
            waited = (generation.started_at - generation.created_at).total_seconds()
            metrics.queue_wait.labels(generation.model_id, generation.band).observe(max(0.0, waited))
        if generation.affinity is not None:
            self._warm[generation.affinity] = None
            self._warm.move_to_end(generation.affinity)
            if len(self._warm) > WARM:
                self._warm.popitem(last=False)

    def free(self, live: Live) -> None:
        """The engine has done with it; its end is still to be written."""
        with self._counting:
            if live.generation.is_suspect:
                self._suspect_ended_at = monotonic()
            if self._is_latest(live):
                self._running.pop(live.generation.pk, None)
            self.ended += 1

    def _is_latest(self, live: Live) -> bool:
        """False when this worker has lost the row and claimed it again: the next attempt is aboard in its place."""
        return self._host.live.get(live.generation.pk) is live

    def forget(self, live: Live) -> None:
        """Its end is written."""
        with self._counting:
            if self._is_latest(live):
                del self._host.live[live.generation.pk]
            if not self._host.live:
                self.idle.set()

    # -- calls ----------------------------------------------------------------------------------------------

    def call(self) -> None:
        """A ticket of this worker's own, once a second: if one was lost, this finds what waits."""
        self._called = 0
        if self._host.may_start() and self.has_room(None):
            self._called = 1
            call_worker(self._host.worker.name)

    def called(self) -> None:
        """Such a ticket has arrived."""
        with self.lock:
            self._called = max(0, self._called - 1)

    def pass_on(self, band: int | None) -> None:
        """A ticket found no slot here: peers may have one. Those that follow closely are passed on together."""
        if not self.peers:
            return
        with self.lock:
            is_first, missed = self._missed is None, ANY_BAND if band is None else band
            self._missed = missed if self._missed is None else max(self._missed, missed)
        if is_first:
            timer = threading.Timer(PASS_ON_S, self._call_peers)
            timer.daemon = True
            timer.start()

    def _call_peers(self) -> None:
        with self.lock:
            band, self._missed = self._missed, None
        peers = self.peers
        for name in random.sample(peers, min(PEERS_CALLED, len(peers))):
            call_worker(name, None if band == ANY_BAND else band)
