"""What the site is compared with: an ASGI application that streams the same chunks, and does nothing else.

`uvicorn bench.bare:application`, with the order as query: /?n=…&itl=…&ttft=…, in milliseconds.
"""

import asyncio
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

from conversations.frames import OPENAI_DONE, Chunks


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    order = {name: float(value) for name, value in parse_qsl(scope["query_string"].decode())}
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    chunks = Chunks(uuid4(), "bare", 0, has_usage=False)
    loop = asyncio.get_running_loop()
    due = loop.time() + order["ttft"] / 1000
    for k in range(int(order["n"])):
        await asyncio.sleep(due - loop.time())
        await send({"type": "http.response.body", "body": chunks.delta(k, f"t{k:05d} "), "more_body": True})
        due += order["itl"] / 1000
    await send({"type": "http.response.body", "body": chunks.finish(0, "stop") + OPENAI_DONE})
