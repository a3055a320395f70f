"""/v1 over a real site: the client leaves, cancels, or comes again."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inference.models import Generation
from tests.end_to_end.calls import body, chunks, lines, text_of
from tests.people import Person, numbers
from tests.site import Site, raw_request, wait_until

# -- leaving and cancelling -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stream", [True, False])
def test_cut_connection_cancels_within_a_second(site: Site, person: Person, is_stream: bool) -> None:
    """Case 12."""
    worker = site.row(site.workers[0])
    content = json.dumps(body("n=10000 itl=20 ttft=1", stream=is_stream)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {person.key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection = raw_request(site.webs[0].port, head.encode() + content)
    person.wait_for_status("RUNNING")
    connection.close()
    person.wait_for_status("CANCELLED", timeout_s=1.0)
    assert person.newest().finish_reason == "cancelled"

    def is_idle() -> bool:
        worker.refresh_from_db()
        return worker.running == 0

    wait_until(is_idle, "the engine runs nothing", 3.0)


@pytest.mark.parametrize("named", ["path", "body"])
def test_cancel_before_the_first_token_from_another_web_process(site: Site, person: Person, named: str) -> None:
    """Cases 8 and 9."""
    request = body("n=10 ttft=60000", stream=True)
    with person.http(site.webs[0].url).stream("POST", "/v1/chat/completions", json=request) as response:
        request_id = response.headers["x-request-id"]
        other = person.http(site.webs[1].url)
        if named == "path":
            answer = other.post(f"/v1/chat/completions/{request_id}/cancel")
        else:
            answer = other.post("/v1/chat/completions/cancel", json={"generation_id": request_id})
        assert answer.json() == {"request_id": request_id, "status": "CANCELLED"}
        found = chunks(list(response.iter_lines()))
    assert found[-1]["error"]["code"] == "cancelled"
    person.wait_for_status("CANCELLED")
    assert numbers(text_of(chunks(lines(person, site.webs[0].url, body("n=2 itl=1", stream=True))))) == [0, 1]


def test_stranger_can_neither_cancel_nor_continue(site: Site, person: Person, stranger: Person) -> None:
    """Cases 6 and 7."""
    chat = person.chat()
    request = body("n=10 ttft=60000", stream=True)
    with person.http(site.webs[0].url).stream("POST", "/v1/chat/completions", json=request) as response:
        request_id = response.headers["x-request-id"]
        http = stranger.http(site.webs[1].url)
        assert http.post(f"/v1/chat/completions/{request_id}/cancel").status_code == 404
        assert http.post("/v1/chat/completions/cancel", json={"generation_id": request_id}).status_code == 404
        assert person.newest().is_open and not person.newest().cancel_requested
        continued = http.post("/v1/chat/completions", json=body("n=1", conversation_id=str(chat)))
        assert (continued.status_code, continued.json()["error"]["code"]) == (404, "not_found")
    person.wait_for_status("CANCELLED")


def test_conversation_that_is_being_answered_is_never_409(site: Site, person: Person) -> None:
    """The official client would send it again and again."""
    chat = str(person.chat())
    http = person.http(site.webs[0].url)
    with http.stream("POST", "/v1/chat/completions", json=body("n=9 ttft=60000", conversation_id=chat, stream=True)):
        second = http.post("/v1/chat/completions", json=body("n=1", conversation_id=chat))
        assert (second.status_code, second.json()["error"]["code"]) == (400, "answer_running")
    person.wait_for_status("CANCELLED")


def test_conversation_is_continued_and_keeps_the_answer(site: Site, person: Person) -> None:
    chat = person.chat()
    request = body("n=3 itl=1", conversation_id=str(chat), stream=True)
    assert numbers(text_of(chunks(lines(person, site.webs[0].url, request)))) == [0, 1, 2]
    messages = person.http(site.webs[0].url).get(f"/api/v1/conversations/{chat}/messages").json()["items"]
    assert [message["sender_role"] for message in messages] == ["user", "assistant"]
    assert numbers(messages[1]["content"]) == [0, 1, 2]


# -- repeats ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_conversation", [False, True])
def test_same_idempotency_key_is_one_generation(site: Site, person: Person, has_conversation: bool) -> None:
    """Case 22: at the same time at two web processes, and afterwards."""
    fields = {"conversation_id": str(person.chat())} if has_conversation else {}
    request = body("n=20 itl=10", stream=True, **fields)
    headers = {"Idempotency-Key": "once"}
    urls = [site.webs[0].url, site.webs[1].url] * 2
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda url: chunks(lines(person, url, request, **headers)), urls))
    answers.append(chunks(lines(person, urls[0], request, **headers)))
    assert {chunk["id"] for answer in answers for chunk in answer} == {str(person.newest().pk)}
    assert all(numbers(text_of(answer)) == list(range(20)) for answer in answers)
    assert Generation.objects.filter(user=person.user).count() == 1


def test_same_key_for_another_call_is_refused(site: Site, person: Person) -> None:
    http = person.http(site.webs[0].url)
    headers = {"Idempotency-Key": "once"}
    assert http.post("/v1/chat/completions", json=body("n=1 ttft=1"), headers=headers).status_code == 200
    for other in (body("n=2 ttft=1"), body("n=1 ttft=1", temperature=0.5), body("n=1 ttft=1", max_tokens=7)):
        response = http.post("/v1/chat/completions", json=other, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "key_taken")


def leave(person: Person, url: str, request: dict[str, Any], key: str) -> str:
    """Begin a stream with an Idempotency-Key and hang up; the request's id."""
    headers = {"Idempotency-Key": key}
    with person.http(url).stream("POST", "/v1/chat/completions", json=request, headers=headers) as response:
        return response.headers["x-request-id"]


def test_leaving_with_a_key_cancels_later_unless_a_retry_attaches(site: Site, person: Person) -> None:
    request = body("n=400 itl=50", stream=True)
    alone = leave(person, site.webs[0].url, request, "alone")
    retried = leave(person, site.webs[0].url, request, "retried")
    headers = {"Idempotency-Key": "retried"}
    generations = Generation.objects.filter(user=person.user)
    # The retry comes to another web process than the one that will ask whether somebody reads.
    with person.http(site.webs[1].url).stream("POST", "/v1/chat/completions", json=request, headers=headers) as again:
        assert again.headers["x-request-id"] == retried
        assert generations.get(pk=alone).is_open
        wait_until(lambda: not generations.get(pk=alone).is_open, "the other is cancelled", 15)
        assert generations.get(pk=retried).is_open and not generations.get(pk=retried).cancel_requested
        person.http(site.webs[0].url).post(f"/v1/chat/completions/{retried}/cancel")
        assert chunks(list(again.iter_lines()))[-1]["error"]["code"] == "cancelled"
