"""Calls of /v1/chat/completions, and what a stream of it holds."""

import json
from typing import Any

from tests.people import Person


def body(order: str, **fields: Any) -> dict[str, Any]:
    return {"model": "echo", "messages": [{"role": "user", "content": f"[[{order}]]"}], **fields}


def lines(person: Person, url: str, request: dict[str, Any], **headers: str) -> list[str]:
    """The lines of a streamed response."""
    with person.http(url).stream("POST", "/v1/chat/completions", json=request, headers=headers) as response:
        assert response.status_code == 200, response.read()
        return list(response.iter_lines())


def chunks(raw: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in raw if line.startswith("data: {")]


def text_of(found: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found if chunk.get("choices"))
