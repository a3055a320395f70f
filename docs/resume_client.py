"""Read one answer to its end, whatever happens to the connection or to the server that it led to.

python docs/resume_client.py http://localhost:8000 KEY CONVERSATION "Why is the sky blue?"
"""

import json
import sys
import time
import uuid

import httpx


def answer(http: httpx.Client, conversation: str, question: str) -> str:
    """Ask, and return the whole answer. Needs the `httpx` package; `http` has the address and the key."""
    path, text, position, end = f"/api/v1/conversations/{conversation}", "", "", None
    message = {"id": str(uuid.uuid4()), "content": question}  # a client-chosen id: asking twice asks once
    while end is None:
        try:
            if not position:
                sent = http.post(f"{path}/messages", json=message).raise_for_status()
                position = f"{sent.json()['generation']['id']}:0"
            with http.stream("GET", f"{path}/stream", headers={"Last-Event-ID": position}) as response:
                response.raise_for_status()
                for line in response.iter_lines():
                    if not line.startswith("data: "):
                        continue
                    event = json.loads(line[6:])
                    position = f"{event['generation']}:{event['seq']}"
                    text = event["text"] if event["event"] == "snapshot" else text + event.get("text", "")
                    end = event if event["event"] == "done" or "usage" in event else end
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
                raise
            time.sleep(0.5)  # the connection broke, or the server is away: go on from `position`
    if end["event"] == "error":
        raise RuntimeError(end["message"])
    return text


if __name__ == "__main__":
    address, key, conversation, question = sys.argv[1:]
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        print(answer(http, conversation, question))
