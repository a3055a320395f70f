"""One attempt at a generation, on a worker's loop: from the claimed row and what the log holds to how it ended."""

import asyncio
import hashlib
import hmac
import logging
from contextlib import aclosing
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from django.conf import settings
from redis.exceptions import RedisError

from inference import metrics, relay, token_log
from inference.endings import Ending, failed
from inference.engine import Detokenizer, EngineDead, EngineFailed, Prompt, Sampling, SchemaRefused
from inference.live import UNSTORABLE, Live
from inference.models import Generation
from inference.protocol import Notice
from inference.rows import started_data
from inference.token_log import StaleAttempt

if TYPE_CHECKING:
    from inference.host import EngineHost

log = logging.getLogger(__name__)
Status = Generation.Status

SETTLE_S = 10.0
TEXT_LOST = "The server lost what it had written of this answer. Please ask again."
FORM_LOST = "The worker that wrote this answer is gone, and no other one can keep to its JSON Schema. Please ask again."


class Interrupted(Exception):
    """To go on would hide a seam; says why, to the reader."""


class Attempt:
    """Runs one Live for its host."""

    def __init__(self, host: "EngineHost", live: Live) -> None:
        self._host, self._live, self._generation = host, live, live.generation

    async def run(self, *, is_cancelled: bool) -> Ending | None:
        """How it ended; None when another worker is to go on, or does already. `is_cancelled`: before it began."""
        live, pk = self._live, self._generation.pk
        live.task = asyncio.ensure_future(self._generate())
        if is_cancelled:
            self._host.cancel(pk)
        try:
            return await live.task
        except asyncio.CancelledError:
            await self._settle()
            return live.ending(Status.CANCELLED, "cancelled") if live.is_cancelled else None
        except StaleAttempt:
            live.is_stale = True
            return None
        except SchemaRefused as error:
            why = str(error)[:200].translate(UNSTORABLE)
            log.info("schema of %s refused: %s", pk, why)
            return self._failed("schema_refused", f"The model's engine cannot follow this JSON Schema: {why}")
        except EngineFailed as error:
            log.warning("generation %s failed: %s", pk, error)
            await self._settle()
            return self._failed("engine_failed", "The model could not finish this answer.")
        except Interrupted as error:
            log.error("%s cannot go on: %s", pk, error)
            return self._failed("interrupted", str(error))
        except EngineDead:
            # The host sees it too: it hands the row back and ends this process.
            await asyncio.get_running_loop().create_future()
            return None

    def _failed(self, code: str, message: str) -> Ending:
        return failed(code, message, self._live.ending(Status.FAILED, "error"))

    async def _settle(self) -> None:
        """Wait until the log holds everything; for so long that a reader would rather have it from the row."""
        self._host.publisher.wake(self._live)
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._live.settled()
        except TimeoutError:
            log.warning("%s ends before its log is whole", self._generation.pk)

    async def _generate(self) -> Ending:
        live, generation = self._live, self._generation
        opened = await self._open()
        if len(opened.entries) < generation.frames:
            live.emitted = generation.completion_tokens
            raise Interrupted(TEXT_LOST)  # the worker that had it is gone, too
        sampling = Sampling.from_json(generation.sampling)
        detokenizer = self._host.engine.detokenizer(live.prompt_ids, sampling.stop)
        emitted = live.resume(opened.entries, detokenizer)
        await self._announce(len(opened.entries), opened.viewers)
        if live.finish is None:
            if emitted and sampling.json_schema:
                raise Interrupted(FORM_LOST)  # the grammar's state was in the engine
            await self._stream(detokenizer, emitted, sampling)
        await self._settle()
        assert live.finish is not None
        return live.ending(Status.FINISHED, live.finish)

    async def _open(self) -> token_log.Opened:
        """Fence earlier attempts; while the log's store is away, wait for it."""
        while True:
            try:
                return await token_log.open_log(self._generation.pk, self._generation.attempt)
            except (RedisError, OSError) as error:
                log.warning("log of %s cannot be opened: %s", self._generation.pk, error)
                await asyncio.sleep(settings.FRAME_S * 10)

    async def _stream(self, detokenizer: Detokenizer, emitted: list[int], sampling: Sampling) -> None:
        host, live, generation = self._host, self._live, self._generation
        left = generation.grant - len(emitted)
        if left < 1:
            live.mark_finished("length")  # died between its last token and the finish mark
            return
        prompt = Prompt(
            request_id=f"{generation.request_id}/{generation.pk}-{generation.attempt}",  # as engines log it
            token_ids=(*live.prompt_ids, *emitted),
            max_tokens=left,
            cache_salt=cache_salt(generation.organization_id),
            sampling=sampling,
            emitted=len(emitted),
        )
        last = 0.0
        async with aclosing(host.engine.generate(prompt)) as chunks:
            async for chunk in chunks:
                now = monotonic()
                if last:
                    host.gaps.add(now - last)
                elif not emitted:
                    metrics.first_token.labels(generation.model_id).observe(now - live.began_at)
                last = now
                reason = live.add(chunk, detokenizer)
                if reason is not None:
                    live.mark_finished(reason)
                host.publisher.wake(live)
                if reason is not None:
                    return
        raise EngineFailed("the engine ended without a finish reason")

    async def _announce(self, seq: int, viewers: list[str]) -> None:
        generation = self._generation
        if generation.attempt > 1:
            await relay.notify(Notice(generation.pk, seq, "status", {"moved": True}), viewers)
        else:
            started = started_data(generation.model_id, generation.instead_of)
            await relay.notify(Notice(generation.pk, seq, "started", started), viewers)


def cache_salt(organization_id: UUID) -> str:
    """Separates tenants in the prefix cache; cannot be guessed or chosen by a caller."""
    return hmac.new(settings.SECRET_KEY.encode(), organization_id.bytes, hashlib.sha256).hexdigest()
