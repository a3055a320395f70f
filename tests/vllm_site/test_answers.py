"""A real vLLM engine behind the whole site: what a user of /v1 sees, and what happens when its worker dies."""

import signal

import httpx
import openai
import pytest

from billing.models import LedgerEntry
from conversations.operations import start
from inference.models import Generation, Worker
from tests.people import Person
from tests.site import Site, wait_until
from tests.vllm_site.model import MODEL

pytestmark = pytest.mark.vllm


def client(site: Site, person: Person) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{site.webs[0].url}/v1", api_key=person.key, max_retries=0, timeout=60)


def question(text: str, **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def idle(site: Site) -> bool:
    return all(site.row(worker).running == 0 and site.row(worker).kv_usage == 0 for worker in site.workers)


def test_the_official_client_streams_a_real_answer(site: Site, person: Person) -> None:
    asked = question("Write a long story.", max_tokens=40, stream=True, stream_options={"include_usage": True})
    chunks = list(client(site, person).chat.completions.create(**asked))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert len(text) > 40
    assert reasons == ["length"]
    assert len([chunk for chunk in chunks if chunk.choices]) > 5  # word by word
    assert chunks[-1].usage.completion_tokens == 40
    entry = LedgerEntry.objects.get(user_id=person.user.pk)
    assert (entry.prompt_tokens, entry.completion_tokens) == (chunks[-1].usage.prompt_tokens, 40)


def test_a_stored_conversation_is_continued_with_its_context(site: Site, person: Person) -> None:
    chat = str(start(user=person.user, model=MODEL).pk)
    ask = client(site, person).chat.completions.create
    first = ask(**question("My name is Ada.", max_tokens=12), extra_body={"conversation_id": chat})
    second = ask(**question("Say hello.", max_tokens=12), extra_body={"conversation_id": chat})
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + first.usage.completion_tokens


def test_closing_the_connection_frees_the_engine(site: Site, person: Person) -> None:
    body = question("Count to a million.", max_tokens=2000, stream=True)
    with httpx.stream("POST", f"{site.webs[0].url}/v1/chat/completions", json=body, headers=person.headers) as response:
        for line in response.iter_lines():
            if '"seq":3' in line:
                break
    person.wait_for_status("CANCELLED")
    wait_until(lambda: idle(site), "running count and KV usage return to 0")
    assert 0 < LedgerEntry.objects.get(user_id=person.user.pk).completion_tokens < 2000


def test_a_lost_workers_answer_goes_on_at_the_other_without_loss_or_repetition(site: Site, person: Person) -> None:
    """The seam: what was shown stays, what follows continues it, and each token is charged once."""
    asked = question("Tell me a long story about a river.", max_tokens=200, stream=True, temperature=0)
    killed, text, seqs = None, "", []
    for chunk in client(site, person).chat.completions.create(
        **asked, extra_body={"stream_options": {"include_usage": True}}
    ):
        if not chunk.choices:
            usage = chunk.usage
            continue
        text += chunk.choices[0].delta.content or ""
        seqs.append(chunk.seq)
        if len(seqs) == 8:
            killed = next(w for w in site.workers if w.pid == person.newest().worker.pid)
            site.kill(killed, signal.SIGKILL)
    row = Generation.objects.get(pk=person.newest().pk)
    assert (row.attempt, row.deaths, row.status) == (2, 1, "FINISHED")
    assert seqs == sorted(seqs)
    assert text == row.text
    assert usage.completion_tokens == row.completion_tokens <= 200
    assert LedgerEntry.objects.get(generation_id=row.pk).completion_tokens == row.completion_tokens
    assert "\N{REPLACEMENT CHARACTER}" not in text and "<|im_" not in text and "You are a helpful" not in text
    assert Worker.objects.get(pk=row.worker_id).pid != killed.pid
    site.restart(killed)
