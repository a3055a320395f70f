"""A whole site that the faults strike in turn, every kind of process and its own stores; and what must hold after."""

import signal
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import UUID

import psutil
import pytest
import redis
from django.core.management import call_command
from django.db import close_old_connections, connection
from django.test import override_settings

from billing import counters
from billing.models import LedgerEntry, Plan, PlanWindow
from chatsite.doctor.examination import examine
from chatsite.doctor.findings import as_text
from chatsite.stores import answers
from conversations.models import Conversation, Message
from inference import leftovers, relay, tasks
from inference.models import Generation
from inference.operations import register_model
from tests.billing.limits import used
from tests.faults.own_stores import OwnStore, SmallDisk, own_postgres_in, own_valkey_in
from tests.inference import small_model
from tests.people import make_person
from tests.site import Process, Site, wait_until
from tests.town.crowd import Crowd, Told
from tests.vllm_site.model import MODEL, register

LONG, REAL = 50, 2
REAL_TOKENS = 80
APP = "tests.town.impatient_worker"  # in all tests: redelivered tickets must not matter
TOKENS_WINDOW = 10**9


class Town:
    """The site, its stores, and a person who owns all conversations."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.disk: SmallDisk | None = None
        self.why_no_disk = ""
        try:
            self.disk = SmallDisk(folder / "disk", 400)
            stack.callback(self.disk.unmount)
        except OSError as error:
            self.why_no_disk = str(error)
        self.valkey = own_valkey_in(folder, durable=True)
        stack.callback(self.valkey.kill)
        self.postgres = own_postgres_in(self.disk.folder if self.disk else folder)
        stack.callback(self.postgres.kill)
        stack.enter_context(_settings_of(self.postgres, self.valkey))
        call_command("migrate", verbosity=0)
        register_model(name="echo", engine="echo", context_length=8192)
        register()
        Plan.objects.update(max_concurrent=1000)
        PlanWindow.objects.all().delete()
        for seconds in (60, 3600):
            plan = Plan.objects.get(is_default=True)
            PlanWindow.objects.create(plan=plan, kind="tokens", seconds=seconds, amount=TOKENS_WINDOW)
        self.person = make_person()
        self.site = Site(
            folder,
            database_url=self.postgres.url,
            redis_url=self.valkey.url,
            webs=2,
            workers=2,
            slots=48,
            side=True,
            worker_app=APP,
        )
        for _ in range(2):
            self.site.add_real_worker(model=MODEL, slots=4, kv_cache_bytes=1 << 28)
        stack.enter_context(self.site)
        self._seen: set[psutil.Process] = set()

    @property
    def urls(self) -> list[str]:
        return [web.url for web in self.site.webs]

    def people(self, count: int = LONG, n: int = 90, itl: int = 40, real: int = REAL) -> Crowd:
        """So many who ask for `n` tokens, `itl` ms apart, `real` who ask vLLM, and some who ask for short answers."""
        self.restart_the_dead()
        self.person = make_person()  # with counters of their own
        crowd = Crowd(self.urls, self.person.headers)
        self.people_of(crowd, count, n, itl)
        orders = [f"Tell me a long story about {number} rivers." for number in range(real)]
        chats = self._chats(real, MODEL)
        crowd.long += [Told(chat, REAL_TOKENS, order, True) for chat, order in zip(chats, orders, strict=True)]
        self._seen = self._family()
        return crowd

    def people_of(self, crowd: Crowd, count: int, n: int, itl: int, extra: str = "") -> list[Told]:
        """More of them in a crowd; `extra` goes to the echo engine's order."""
        order = f"[[n={n} itl={itl} ttft=20 {extra}".strip() + "]]"
        more = [Told(chat, n, order) for chat in self._chats(count, "echo")]
        crowd.long += more
        return more

    def _chats(self, count: int, model: str) -> list[UUID]:
        chats = [Conversation(user=self.person.user, model_version=model, title="t") for _ in range(count)]
        return [chat.pk for chat in Conversation.objects.bulk_create(chats)]

    def busiest(self) -> Process:
        """The worker with most of the real answers."""
        return max(
            self.site.real_workers,
            key=lambda worker: self.site.row(worker).generations.filter(status="RUNNING").count(),
        )

    @contextmanager
    def other_worker(self, number: int, app: str = APP, **environment: str) -> Iterator[Process]:
        """In the block, this worker runs as another one: of another Celery application, in another environment."""
        open_rows = Generation.objects.filter(status__in=Generation.OPEN)
        wait_until(lambda: not open_rows.exists(), "nothing of an earlier test is left to take up", 30)
        worker = self.site.workers[number]
        usual = worker.argv, worker.environment
        if worker.is_alive:
            self.site.kill(worker, signal.SIGTERM)
        argv = [app if part == APP else part for part in worker.argv]
        worker.argv, worker.environment = argv, worker.environment | environment
        try:
            self.site.restart(worker)
            yield worker
        finally:
            if worker.is_alive:
                self.site.kill(worker, signal.SIGKILL)
            worker.argv, worker.environment = usual
            self.site.restart(worker)

    def start_postgres(self) -> None:
        """Again; this process's connections to the one before are of no use."""
        connection.close()
        connection.close_pool()
        self.postgres.start()

    def restart_the_dead(self) -> None:
        """As a supervisor does. A PostgreSQL that recovers on a disk that was full may yet find that it cannot."""

        def postgres_answers() -> bool:
            if self.postgres.child.poll() is not None:
                self.start_postgres()
            return answers(self.postgres.url)

        wait_until(postgres_answers, "PostgreSQL answers", 60)
        self.site.restart(*(process for process in self.site.processes if not process.is_alive))

    # -- what must hold afterwards ------------------------------------------------------------------------

    def must_be_whole(self, crowd: Crowd) -> None:
        """Everyone has their whole answer, and nothing is left."""
        broken = [told for told in crowd.all if not told.is_whole]
        assert not broken, f"{len(broken)} of {len(crowd.all)}: {broken[:5]}"
        self.must_be_settled(crowd)

    def must_be_settled(self, crowd: Crowd, *, lost: Collection[str] = ()) -> None:
        """Whatever became of the answers, rows, messages, books and stores agree on it, and nothing is left.

        `lost`: generations whose text the server has lost; they are charged for about as much as was said.
        """
        self.restart_the_dead()
        close_old_connections()
        mine = Generation.objects.filter(user=self.person.user)
        wait_until(lambda: not mine.filter(status__in=Generation.OPEN).exists(), "every generation has ended", 30)
        self._messages_are_there(crowd)
        self._books_are_right(crowd, lost)
        self._nothing_is_left()
        self._processes_are_as_before()

    def _messages_are_there(self, crowd: Crowd) -> None:
        """Each sent message once, each answer once and as it was shown."""
        rows = Message.objects.filter(conversation__user=self.person.user).select_related("conversation")
        answers = {str(row.generation_id): row for row in rows if row.generation_id}
        asked = Counter(row.pk for row in rows if row.sender_role == "user")
        assert asked == Counter(told.message for told in crowd.all)
        assert set(answers) == {told.generation for told in crowd.all}
        for told in crowd.all:
            answer = answers[told.generation]
            assert answer.content == told.text, told
            assert answer.finish_reason == told.end.get("finish_reason", "error"), told

    def _books_are_right(self, crowd: Crowd, lost: Collection[str]) -> None:
        """Prompt once, and the tokens that the reader got."""
        entries = {str(entry.generation_id): entry for entry in LedgerEntry.objects.filter(user_id=self.person.user.pk)}
        rows = {str(row.pk): row for row in Generation.objects.filter(user=self.person.user)}
        for told in crowd.all:
            entry, row = entries[told.generation], rows[told.generation]
            if told.generation in lost:
                assert 0 < entry.completion_tokens <= told.n
            else:
                assert entry.completion_tokens == tokens_of(told), told
            assert entry.prompt_tokens == row.prompt_tokens > 0, told

    def _nothing_is_left(self) -> None:
        """Counters are the ledger; no reservation, log or problem stays once the side worker's tasks have run."""
        with override_settings(REPLAY_S=0), pytest.MonkeyPatch.context() as patch:
            patch.setattr(tasks, "UNWRITTEN_S", -1.0)

            def swept() -> bool:
                tasks.sweep_reservations()
                return not counters.held(older_than_s=-1)

            wait_until(swept, "no reservation is left")
            wait_until(lambda: tasks.purge() == 0, "texts and logs are purged")
            assert tasks.reconcile_limits() == 0
        assert used(self.person.user)["tokens_per_hour"] == self.booked()
        with redis.Redis.from_url(self.valkey.url) as client:
            wait_until(lambda: not _keys(client, "log:*", "attempt:*", "viewers:*"), "no log is left")
        problems = [finding for finding in examine(grace=timedelta(0)) if finding.is_problem]
        assert not problems, as_text(problems)

    def booked(self) -> int:
        """Tokens in the person's ledger."""
        entries = LedgerEntry.objects.filter(user_id=self.person.user.pk, purpose="chat")
        return sum(entry.prompt_tokens + entry.completion_tokens for entry in entries)

    def _family(self) -> set[psutil.Process]:
        return {child for one in self.site.processes for child in psutil.Process(one.pid).children(recursive=True)}

    def _processes_are_as_before(self) -> None:
        """All live, none has more children, no connection of a client is open, no transaction idles."""
        assert all(process.is_alive for process in self.site.processes)
        wait_until(lambda: len(self._family()) <= len(self._seen), "no process is left over")
        wait_until(lambda: not self._client_connections(), "no stream is left open")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE state LIKE 'idle in transaction%' AND state_change < now() - interval '2 seconds'"
            )
            assert cursor.fetchone() == (0,)

    def _client_connections(self) -> int:
        ports = {web.port for web in self.site.webs}
        return sum(
            1
            for web in self.site.webs
            for one in psutil.Process(web.pid).net_connections("tcp")
            if one.status == psutil.CONN_ESTABLISHED and one.laddr.port in ports
        )


def tokens_of(told: Told) -> int:
    """What its reader got."""
    if not told.is_real:
        return len(told.numbers)
    used = told.end["usage"]["completion_tokens"]
    assert told.end["finish_reason"] != "length" or used == told.n, told
    # No piece of text is missing or twice: encoded anew it has as many tokens, but for the last, which has no text.
    in_text = len(small_model.tokenizer().encode(told.text, add_special_tokens=False).ids)
    assert abs(used - in_text) <= 2, (in_text, told, told.text)
    return used


def _keys(client: redis.Redis, *patterns: str) -> list[bytes]:
    return [key for pattern in patterns for key in client.scan_iter(match=pattern, count=1000)]


@contextmanager
def _settings_of(postgres: OwnStore, valkey: OwnStore) -> Iterator[None]:
    """This process uses the town's stores too."""
    parts = urlsplit(postgres.url)
    own = {
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "HOST": parse_qs(parts.query)["host"][0],
        "PORT": str(parts.port),
    }
    usual = {name: connection.settings_dict[name] for name in own}
    with override_settings(REDIS_URLS=[valkey.url], CELERY_BROKER_URL=valkey.url):
        try:
            _use(own)
            yield
        finally:
            _use(usual)
    _use(usual)


def _use(database: dict[str, str]) -> None:
    connection.close()
    connection.close_pool()
    connection.settings_dict.update(database)
    counters.store.cache_clear()
    leftovers.shards.cache_clear()
    relay._background.cache_clear()  # its clients are those of a loop
