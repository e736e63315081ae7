"""`fedpoint ui`: the page, and what it asks for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import logging
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, TypedDict, TypeVar

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import as_text
from fedpoint.show.facts import MOST_RUNS
from fedpoint.show.page import policy
from fedpoint.store.folder import RunFolder
from fedpoint.ui.computations import WAITING, Busy, Computations, Superseded
from fedpoint.ui.guard import Guard, is_loopback
from fedpoint.ui.lessons import lessons, lines
from fedpoint.ui.mathml import formula
from fedpoint.ui.outlook import Outlook
from fedpoint.ui.playground import Playground, playgrounds
from fedpoint.ui.runs import Curves, Runs

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
LOOK = 0.4  # seconds between looks at a folder that is followed
LONGEST = 600.0  # seconds of one stream; the page then asks again
STREAMS = 16  # open at a time
HEAD = 10.0  # seconds in which a request has to arrive
BEAT = 15.0  # seconds after which a silent stream says that it is there

Result = TypeVar("Result")
Event: TypeAlias = tuple[str, Any]  # of a stream: its name, and what JSON can write; without a name: look again later


class Page:
    """The page's parts: runs, playgrounds, lessons; `app` is what a server runs."""

    def __init__(self, runs: Path, host: str = "127.0.0.1", token: str | None = None, warm: bool = True):
        self.runs, self.computations = Runs(runs), Computations(playgrounds())
        self.outlook = Outlook(self.runs)
        self.stop = asyncio.Event()  # set when the server is told to end
        self._streams = 0
        routes = [Route("/", self._static("index.html"))]
        routes += [Route(f"/static/{name}", self._static(name)) for name in static_files()]
        routes += [
            Route("/api/state", self._state),
            Route("/api/compilation", self._compilation),
            Route("/api/lessons", lambda request: _json(lessons())),
            Route("/api/play/{name}", self._play),
            Route("/api/runs", self._list),
            Route("/api/run", self._run),
            Route("/api/follow", self._follow),
            Route("/api/forecast", self._forecast),
            Route("/api/report", self._report),
        ]

        @contextlib.asynccontextmanager
        async def life(app: Starlette) -> AsyncIterator[None]:
            if warm:
                self.computations.warm()
            yield
            self.end()

        inside = Starlette(routes=routes, lifespan=life)
        inside.add_exception_handler(HTTPException, _refused)
        inside.add_exception_handler(FedpointError, _mistake)
        inside.add_exception_handler(Exception, _failed)
        inside.router.redirect_slashes = False
        self.app = Guard(inside, host, token)

    def end(self) -> None:
        """Streams and what is computed for runs end, within a moment."""
        self.stop.set()  # read between looks, LOOK seconds apart at most
        self.outlook.close()

    @staticmethod
    def _static(name: str) -> Callable[[Request], Awaitable[Response]]:
        content, kind = static_files()[name], TYPES[Path(name).suffix]

        async def give(request: Request) -> Response:
            return Response(content, media_type=kind)

        return give

    async def _state(self, request: Request) -> Response:
        """What the page begins with."""
        return _json(
            {
                "playgrounds": [_described(p) for p in self.computations.playgrounds.values()],
                "compilation": self.computations.compilation,
                "folder": self.runs.root.name,
            }
        )

    async def _compilation(self, request: Request) -> Response:
        """A stream: how far compilation is, until it is done."""

        async def events() -> AsyncIterator[Event]:
            last = None
            while True:
                now = dict(self.computations.compilation)
                if now != last:
                    yield "compilation", now
                last = now
                if all(state in ("ready", "failed") for state in now.values()):
                    yield "end", {}
                    return
                yield "", None

        return self._stream(events())

    async def _play(self, request: Request) -> Response:
        """Two lines of JSON: the forecast at once, the simulation when it is there. A newer request ends an older."""
        name = request.path_params["name"]
        if name not in self.computations.playgrounds:
            raise HTTPException(404, f"There is no playground {name[:40]!r}.")
        given = dict(request.query_params)
        reader, number = given.pop("reader", ""), given.pop("number", "")
        if not re.fullmatch(r"[a-z0-9]{1,32}", reader) or not re.fullmatch(r"[0-9]{1,15}", number):
            raise HTTPException(400, "A request for a playground has a reader and a number.")
        values = self.computations.playgrounds[name].read(given)
        self.computations.note(reader, name, int(number))

        async def answers() -> AsyncIterator[bytes]:
            # Both begin at once, on different cores; the forecast is given first even where it takes longer.
            works = {
                what: asyncio.create_task(self.computations.compute(what, reader, name, int(number), values))
                for what in ("forecast", "simulate")
            }
            try:
                for what, work in works.items():
                    try:
                        found = {"kind": what, "values": values, **await work}
                    except Exception as error:  # the answer has begun, so that it has to end in its own form
                        yield _line(_failure(error, f"{what} of {name} with {values}"))
                        return
                    yield _line(found)
            finally:
                for work in works.values():
                    work.cancel()
                await asyncio.gather(*works.values(), return_exceptions=True)

        return StreamingResponse(answers(), media_type="application/x-ndjson")

    async def _list(self, request: Request) -> Response:
        return _json(await asyncio.to_thread(self.runs.list))

    async def _run(self, request: Request) -> Response:
        name = self._named(request)
        return _json(await asyncio.to_thread(self._curves, name))

    def _named(self, request: Request) -> str:
        name = request.query_params.get("name", "")
        if not name:
            raise HTTPException(400, "Which run? Give name=.")
        return name

    def _curves(self, name: str) -> Curves:
        try:
            return self.runs.curves(name)
        except FedpointError as error:
            raise HTTPException(404, str(error)) from None

    async def _follow(self, request: Request) -> Response:
        """A stream: the curves of a run after each commit, until it is finished."""
        name = self._named(request)
        try:
            path = await asyncio.to_thread(self.runs.folder, name)
        except FedpointError as error:
            raise HTTPException(404, str(error)) from None

        async def events() -> AsyncIterator[Event]:
            last = None
            while True:
                now = await asyncio.to_thread(lambda: self.runs.standing(RunFolder.open(path)))
                if now != last:
                    yield "curves", await asyncio.to_thread(self._curves, name)
                last = now
                if now["state"] != "running":
                    yield "end", {}
                    return
                yield "", None

        return self._stream(events())

    async def _forecast(self, request: Request) -> Response:
        """What a run must do, and whether it did: when it has been computed."""
        name = self._named(request)
        return _json(await self._computed(self.outlook.of(name)))

    async def _report(self, request: Request) -> Response:
        """The report of one run or more, made now: no file of a folder is ever given out."""
        names = list(dict.fromkeys(request.query_params.getlist("name")))
        if not 1 <= len(names) <= MOST_RUNS:
            raise HTTPException(400, f"A report is of 1 to {MOST_RUNS} runs: give name=, once for each.")
        text = await self._computed(self.outlook.report(names))
        headers = {"content-security-policy": f"{policy()}; frame-ancestors 'none'"}
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)

    async def _computed(self, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except FedpointError as error:
            raise HTTPException(404, str(error)) from None
        except Busy:
            raise HTTPException(503, "Several runs are being computed: try again in a minute.") from None

    def _stream(self, events: AsyncIterator[Event]) -> Response:
        """Server-sent events."""
        if self._streams >= STREAMS:
            raise HTTPException(503, f"More than {STREAMS} streams are open: close a page.")

        async def text() -> AsyncIterator[str]:
            self._streams += 1
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
                self._streams -= 1

        return StreamingResponse(text(), media_type="text/event-stream")


def static_files() -> dict[str, bytes]:
    """Everything that is given out as a file, by name: nothing else can be asked for."""
    own = resources.files("fedpoint.ui") / "static"
    found = {entry.name: entry.read_bytes() for entry in own.iterdir() if Path(entry.name).suffix in TYPES}
    curves = resources.files("fedpoint.show") / "assets"  # the drawer of reports draws here too
    return found | {name: (curves / name).read_bytes() for name in ("curves.js", "curves.css")}


class Described(TypedDict):
    """A playground for the page."""

    name: str
    title: str
    about: str
    formulas: list[str]
    rounds: int
    controls: list[dict[str, str | float | tuple[float, ...]]]


def _described(playground: Playground) -> Described:
    return {
        "name": playground.name,
        "title": playground.title,
        "about": playground.about,
        "formulas": [formula(part) for part in lines(playground.formula)],
        "rounds": playground.rounds,
        "controls": [dataclasses.asdict(control) for control in playground.controls],
    }


def _json(content: Any) -> Response:
    return Response(json.dumps(content, allow_nan=False), media_type="application/json")


def _line(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False).encode() + b"\n"


def _failure(error: Exception, what: str) -> dict[str, str]:
    """Why there is no answer, for the page."""
    if isinstance(error, Superseded):
        return {"kind": "superseded"}
    if isinstance(error, Busy):
        return {"kind": "busy", "message": f"More than {WAITING} computations wait: this one is tried again."}
    if isinstance(error, TimeoutError):
        return {"kind": "error", "message": "This took too long: try again."}
    logging.getLogger(__name__).error("%s", what, exc_info=error)
    return {"kind": "error", "message": "The computation failed; see the terminal for details."}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{as_text(error.detail)}\n", error.status_code)


async def _mistake(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{as_text(str(error))}\n", 400)


async def _failed(request: Request, error: Exception) -> Response:
    return PlainTextResponse("The request failed; see the terminal of `fedpoint ui` for details.\n", 500)


class _TimedProtocol(H11Protocol):
    """Closes a connection on which no whole request comes in time: uvicorn would wait for ever."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """The time runs from the first byte of a request to the end of its head."""
        if self.conn.their_state is not h11.IDLE:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD, self.transport.close)


class _Server(uvicorn.Server):
    """Tells open streams to end when it is told to, so that it does not wait for them."""

    def __init__(self, config: uvicorn.Config, page: Page):
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


def serve(
    runs: Path,
    host: str = "127.0.0.1",
    port: int = 8642,
    tell: Callable[[str], None] = print,
    warm: bool = True,
    started: Callable[[_Server], None] = lambda server: None,
) -> bool:
    """Serve the page until Ctrl-C. Whether all computations have ended by then: one that compiles does so later."""
    if runs.exists() and not runs.is_dir():
        raise FedpointError(f"--runs {runs} is not a folder")
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    door = listen(host, port)
    page = Page(runs, host, token, warm)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{door.getsockname()[1]}/" + (f"?token={token}" if token else "")
    config = uvicorn.Config(
        page.app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        http=_TimedProtocol,
        loop="asyncio",
        h11_max_incomplete_event_size=8192,  # of a request's head
        limit_concurrency=64,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )
    server = _Server(config, page)
    tell(f"fedpoint ui: {address}")
    tell(f"Runs: {runs}. The playground compiles in the background. Ctrl-C ends it.")
    started(server)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[door])
    finally:
        door.close()
        calm = page.computations.close()
    tell("ended")
    return calm
