"""The small HTTP endpoint of a process that serves no pages: /healthz, /readyz and /metrics (PROBE_PORT)."""

import json
import logging
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client.exposition import ThreadingWSGIServer

from chatsite.exposition import CONTENT_TYPE, exposition, has_token

log = logging.getLogger(__name__)

Check = Callable[[], tuple[bool, dict[str, Any]]]  # whether it holds, and what to say of it
STATUS = {200: "200 OK", 404: "404 Not Found", 405: "405 Method Not Allowed", 503: "503 Service Unavailable"}


class _Server(ThreadingWSGIServer):
    def server_bind(self) -> None:
        """Without the look at the name service that HTTPServer takes, which may last."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = 5  # seconds; a client that says nothing holds a thread no longer

    def log_message(self, format: str, *arguments: Any) -> None:
        """Who asks every few seconds needs no line."""


def serve(host: str, port: int, *, alive: Check, ready: Check) -> int:
    """Answer in a thread of its own until the process ends; the port. Raises OSError when it cannot listen there."""

    def answer(request: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, kind, body = _answer(request, {"/healthz": alive, "/readyz": ready})
        start_response(STATUS[status], [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    server = make_server(host, port, answer, _Server, _Handler)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return int(server.server_port)


def _answer(request: dict[str, Any], checks: dict[str, Check]) -> tuple[int, str, bytes]:
    path = request["PATH_INFO"]
    if request["REQUEST_METHOD"] != "GET":
        return _json(405, {"error": "Only GET is possible here."})
    if path == "/metrics" and has_token(request.get("HTTP_AUTHORIZATION", "")):
        return 200, CONTENT_TYPE, exposition()
    if path not in checks:
        return _json(404, {"error": "There is nothing at this address."})
    try:
        holds, facts = checks[path]()
    except Exception:
        log.exception("the probe %s failed", path)
        holds, facts = False, {"error": "The check itself failed; see the log."}
    return _json(200 if holds else 503, facts)


def _json(status: int, body: dict[str, Any]) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(body).encode()
