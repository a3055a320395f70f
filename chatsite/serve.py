"""One web process: uvicorn on the listening socket that its supervisor hands down as fd 0, or on HOST and PORT."""

import asyncio
import fcntl
import os
import socket
import stat
import sys
import termios
from time import monotonic
from typing import Any

import uvicorn

from chatsite.asgi import application  # isort: skip - sets Django up, before anything that imports models

from django.conf import settings

from chatsite import SERVES, draining
from conversations.http import detached_done

LAST_REQUESTS_S = 1.0  # requests that are on their way when the process is told to stop are answered
FIRST_REQUEST_S = 5.0  # and so is one on a connection that has only been opened, if it comes by then
BACKLOG = 4096
KEEP_ALIVE_S = 75  # longer than clients and proxies (nginx: 60) keep an idle connection: they must not meet its end
CUT_S = 5.0  # streams that are ended get this long to say so


class WebServer(uvicorn.Server):
    """uvicorn that says when it serves, and that stops without failing a request (chatsite.draining)."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(SERVES.format(pid=os.getpid()), flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Other processes accept from the same socket: only our copy closes.
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in self.server_state.connections:
            if _answers(connection):
                connection.shutdown()  # closes it after this response
        draining.begin()
        await self._answer_last_requests()
        cutting = asyncio.create_task(draining.cut_after(settings.WEB_DRAIN_S))
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()
        await detached_done(CUT_S)  # uvicorn then ends the process by the signal it got

    async def _answer_last_requests(self) -> None:
        """Wait for requests on their way, then close what idles. Each response from now on closes its connection."""
        began = monotonic()
        while not self.force_exit:
            await asyncio.sleep(0.05)
            past = monotonic() - began
            connections = list(self.server_state.connections)
            if past > LAST_REQUESTS_S:
                for connection in connections:
                    if _idles(connection) and not _has_unread(connection):
                        connection.shutdown()
            awaited = any(_is_fresh(connection) or _idles(connection) for connection in connections)
            if past > (FIRST_REQUEST_S if awaited else LAST_REQUESTS_S):
                return


def _is_fresh(connection: Any) -> bool:
    """Whether a connection of uvicorn's awaits its first request, or the end of its WebSocket handshake."""
    if hasattr(connection, "handshake_complete"):
        return not connection.handshake_complete
    return connection.cycle is None


def _idles(connection: Any) -> bool:
    """Whether an HTTP connection has answered all that it was asked."""
    return bool(getattr(connection, "cycle", None) and connection.cycle.response_complete)


def _answers(connection: Any) -> bool:
    """Whether an HTTP connection has a response under way."""
    return bool(getattr(connection, "cycle", None) and not connection.cycle.response_complete)


def _has_unread(connection: Any) -> bool:
    """Whether the kernel holds a request that this busy process has not come to read."""
    transport = connection.transport
    if transport.is_closing():
        return False
    waiting = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(waiting, sys.byteorder) > 0


def main() -> None:
    """Serve until told to stop.

    `uvicorn --fd 0` would take the socket for a Unix one, so that connections keep Nagle's algorithm: a stream's
    next frame then waits for the client's delayed ACK (measured: 16 ms, up to 40, on the first token).
    """
    listener = _take_listener()
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Connections inherit it: the kernel ends one whose client takes nothing, or is gone, for this long.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(settings.READER_TIMEOUT_S * 1000))
    config = uvicorn.Config(
        application,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_ping_interval=settings.HEARTBEAT_S,  # like the comments on a silent SSE stream
        lifespan="off",
        access_log=False,
        log_config=None,  # settings.LOGGING has them all
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(settings.WEB_DRAIN_S + CUT_S),
    )
    WebServer(config).run(sockets=[listener])


def _take_listener() -> socket.socket:
    """The listening socket that fd 0 is, else one of our own on HOST and PORT."""
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        return socket.create_server((settings.HOST, settings.PORT), backlog=BACKLOG)
    listener = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # else connections would go on to queue there once we have closed ours
    return listener


if __name__ == "__main__":
    main()
