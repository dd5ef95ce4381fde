"""Run the server: bind, load, say that it is ready, drain on SIGTERM."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from kvtool.engine.serving.config import ServeConfig
from kvtool.engine.serving.connection import SHUTTING_DOWN, Connection
from kvtool.engine.serving.engine import Engine, build_engine
from kvtool.engine.serving.keys import LOOPBACK, Keys
from kvtool.engine.serving.metrics import Metrics
from kvtool.engine.serving.server import create_app
from kvtool.errors import KvtoolError

log = logging.getLogger("kvtool.serve")

KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than clients keep theirs, or they meet a closed one."""

TOLD = 1
"""Seconds after the drain for which connections stay open, so that whoever still waits reads why it ends."""

Ready = Callable[[str, Engine], None]
"""Told the server's address once it answers."""


def serve(config: ServeConfig, ready: Ready) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs. KvtoolError when it cannot start."""
    keys = Keys.load(config.api_key_file, config.host)
    if config.api_key_file is None and config.host not in LOOPBACK:
        log.warning("%s is open to others and no --api-key-file is given: /kv cannot be changed", config.host)
    listening = bind(config.host, config.port)
    metrics = Metrics()
    try:
        # In a thread that ends: OpenMP's workers end with theirs, and those of the scheduler's thread do not
        # spin, but sleep after every product, as long as the process has more of them than there are cores.
        with ThreadPoolExecutor(1) as loading:
            engine = loading.submit(build_engine, config, metrics).result()
    except BaseException:
        listening.close()
        raise
    app = create_app(engine, metrics, keys)
    port = listening.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    server = Server(app, config, lambda: ready(f"http://{host}:{port}", engine), engine)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises them again when it has drained
    server.run(sockets=[listening])
    if engine.lanes.busy:
        log.warning("a text that is still being tokenized is given up")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)  # all else is closed; a regular exit would wait for the tokenizer's thread


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. KvtoolError when the address is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        raise KvtoolError(
            f"cannot listen on {host}:{port}: {error}", "choose another --host or --port"
        ) from error
    return listening


class Server(uvicorn.Server):  # type: ignore[misc]
    """uvicorn that tells when it is ready, and drains for as long as the configuration says."""

    def __init__(self, app: Any, config: ServeConfig, ready: Callable[[], None], engine: Engine) -> None:
        super().__init__(
            uvicorn.Config(
                _ending_quietly(app),
                http=Connection,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
            )
        )
        self._ready = ready
        self._drain = config.drain
        self._engine = engine

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `ready`."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain; uvicorn alone would cut off what still runs, with 500 and a traceback."""
        self._engine.runtime.drain(self._drain)
        loop = asyncio.get_running_loop()
        ending = loop.call_later(self._drain, self._end)
        cutting = loop.call_later(self._drain + TOLD, self._cut)
        await super().shutdown(sockets)
        ending.cancel()
        cutting.cancel()

    def _end(self) -> None:
        """Whoever waits for an answer is told, and whoever still sends a request."""
        self._engine.end()
        for connection in list(self.server_state.connections):
            if connection.receiving:
                connection.refuse_rest(HTTPStatus.SERVICE_UNAVAILABLE, SHUTTING_DOWN)

    def _cut(self) -> None:
        """Whoever did not read that holds nothing up."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()


def _ending_quietly(app: ASGIApp) -> ASGIApp:
    """`app`, where uvicorn would log a traceback for each request that the server's end cancels."""

    async def quiet(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return quiet
