"""How is a live page given out? Files by name, streams of events, a server that ends when it is told to.

A page is bound to loopback, or asks everyone for a random token; `guard.py` refuses all else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Lifespan
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import as_text
from fedpoint.ui.guard import Guard, is_loopback

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
LOOK = 0.4  # seconds between looks at what is followed
LONGEST = 600.0  # seconds of one stream; the page then asks again
STREAMS = 16  # open at a time
HEAD = 10.0  # seconds in which a request has to arrive
END_OF_HEAD = re.compile(rb"\n\r?\n")
BEAT = 15.0  # seconds after which a silent stream says that it is there

Event: TypeAlias = tuple[str, Any]  # of a stream: its name, and what JSON can write; without a name: look again later


class Served(Protocol):
    """A page: what answers requests, and how it ends."""

    app: Guard

    def end(self) -> None: ...


def static_files() -> dict[str, bytes]:
    """Everything that is given out as a file, by name: nothing else can be asked for."""
    own = resources.files("fedpoint.ui") / "static"
    found = {entry.name: entry.read_bytes() for entry in own.iterdir() if Path(entry.name).suffix in TYPES}
    curves = resources.files("fedpoint.show") / "assets"  # the drawer of reports draws here too
    return found | {name: (curves / name).read_bytes() for name in ("curves.js", "curves.css")}


def _static(name: str) -> Callable[[Request], Awaitable[Response]]:
    content, kind = static_files()[name], TYPES[Path(name).suffix]

    async def give(request: Request) -> Response:
        return Response(content, media_type=kind)

    return give


def application(index: str, routes: Sequence[Route], life: Lifespan[Starlette] | None = None) -> Starlette:
    """A page whose first file is `index`, with routes of its own; mistakes are answered in words."""
    files = [Route("/", _static(index)), *(Route(f"/static/{name}", _static(name)) for name in static_files())]
    made = Starlette(routes=[*files, *routes], lifespan=life)
    made.add_exception_handler(HTTPException, _refused)
    made.add_exception_handler(FedpointError, _mistake)
    made.add_exception_handler(Exception, _failed)
    made.router.redirect_slashes = False
    return made


def as_json(content: object) -> Response:
    return Response(json.dumps(content, allow_nan=False), media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{as_text(error.detail)}\n", error.status_code)


async def _mistake(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{as_text(str(error))}\n", 400)


async def _failed(request: Request, error: Exception) -> Response:
    return PlainTextResponse("The request failed; see the terminal for details.\n", 500)


class Streams:
    """Server-sent events, a few at a time; `stop` ends them all."""

    def __init__(self) -> None:
        self.stop, self.open = asyncio.Event(), 0

    def answer(self, events: AsyncIterator[Event]) -> Response:
        """Server-sent events."""
        if self.open >= STREAMS:
            raise HTTPException(503, f"More than {STREAMS} streams are open: close a page.")

        async def text() -> AsyncIterator[str]:
            self.open += 1
            begun = said = time.monotonic()
            try:
                yield "retry: 1000\n\n"
                async for name, data in events:
                    if name:
                        yield f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n"
                        said = time.monotonic()
                        continue
                    if time.monotonic() - said > BEAT:
                        yield ": still here\n\n"
                        said = time.monotonic()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.stop.wait(), LOOK)
                    if self.stop.is_set() or time.monotonic() - begun > LONGEST:
                        return
            except (HTTPException, FedpointError) as error:
                message = error.detail if isinstance(error, HTTPException) else str(error)
                yield f"event: problem\ndata: {json.dumps({'message': message})}\n\n"
            finally:
                self.open -= 1

        return StreamingResponse(text(), media_type="text/event-stream")


class _Timely(asyncio.Protocol):
    """uvicorn's protocol behind a clock: where the head of a request does not come in time, for which uvicorn would
    wait for ever, the connection is closed."""

    def __init__(self, **given: Any):
        self.inner = H11Protocol(**given)
        self.rest = b""  # what has come of a head, its end at least
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.inner.connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        *heads, rest = END_OF_HEAD.split(self.rest + data)
        self.rest = rest[-3:]
        if heads:
            self._stop()
        if rest:
            self._begin()
        self.inner.data_received(data)

    def eof_received(self) -> None:
        self.inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def _begin(self) -> None:
        if self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(HEAD, self.transport.close)

    def _stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None


class PageServer(uvicorn.Server):
    """Tells open streams to end when it is told to, so that it does not wait for them."""

    def __init__(self, config: uvicorn.Config, page: Served):
        super().__init__(config)
        self.page = page

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.page.end()
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """A socket there, or one clear message."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(64)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise FedpointError(f"port {port} is in use: choose another with --port, or --port 0 for any") from None
        raise FedpointError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None
    return made


def serve_page(
    make: Callable[[str | None], Served],
    host: str,
    port: int,
    names: tuple[str, str],
    tell: Callable[[str], None] = print,
    started: Callable[[PageServer], None] = lambda server: None,
) -> None:
    """Serve a page until Ctrl-C. make: the page, for its token; names: its name, and a line about it."""
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    door = listen(host, port)
    page = make(token)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{door.getsockname()[1]}/" + (f"?token={token}" if token else "")
    config = uvicorn.Config(
        page.app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        http=_Timely,
        loop="asyncio",
        h11_max_incomplete_event_size=8192,  # of a request's head
        limit_concurrency=64,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )
    server = PageServer(config, page)
    tell(f"{names[0]}: {address}")
    tell(names[1])
    started(server)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[door])
    finally:
        door.close()
