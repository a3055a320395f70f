"""One web process: uvicorn on the listening socket that supervisord hands down as fd 0."""

import os
import socket

import uvicorn

UVICORN_GRACE_S = 10  # seconds that open streams get; the whole site is going


def main() -> None:
    """Serve until told to stop.

    `uvicorn --fd 0` would take the socket for a Unix one, so that connections keep Nagle's algorithm: a stream's
    next frame then waits for the client's delayed ACK (measured: 16 ms, up to 40, on the first token).
    """
    listener = socket.socket(fileno=os.dup(0))
    config = uvicorn.Config(
        "chatsite.asgi:application",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,  # settings.LOGGING has them all
        backlog=4096,
        timeout_graceful_shutdown=UVICORN_GRACE_S,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
