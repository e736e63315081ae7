"""`fedpoint ui`: the page, and what it asks for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypedDict, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fedpoint.core.errors import FedpointError
from fedpoint.show.facts import MOST_RUNS
from fedpoint.show.page import policy
from fedpoint.store import disk
from fedpoint.store.folder import RunFolder
from fedpoint.ui.charts import Followed, of_lessons, of_playground, of_run, of_runs
from fedpoint.ui.computations import WAITING, Busy, Computations, Superseded
from fedpoint.ui.forms import content, form
from fedpoint.ui.guard import Guard
from fedpoint.ui.lessons import lessons, lines
from fedpoint.ui.mathml import formula
from fedpoint.ui.outlook import Outlook
from fedpoint.ui.playground import Picture, Playground, playgrounds
from fedpoint.ui.runs import Curves, Runs
from fedpoint.ui.serving import Event, PageServer, Streams, application, as_json, serve_page
from fedpoint.ui.starting import Starter

Result = TypeVar("Result")
SHOWN = ("says", "network", "history")  # of a playground, beside its charts
CHANGES = ("/api/start", "/api/stop")  # addresses that change something


class Page:
    """The page's parts: runs, playgrounds, lessons; `app` is what a server runs."""

    def __init__(self, runs: Path, host: str = "127.0.0.1", token: str | None = None, warm: bool = True):
        self.runs, self.computations = Runs(runs), Computations(playgrounds())
        self.outlook, self.starter = Outlook(self.runs), Starter(self.runs.root)
        self.streams = Streams()
        routes = [
            Route("/api/state", self._state),
            Route("/api/compilation", self._compilation),
            Route("/api/lessons", lambda request: as_json(lessons())),
            Route("/api/stages", self._stages),
            Route("/api/play/{name}", self._play),
            Route("/api/runs", self._list),
            Route("/api/run", self._run),
            Route("/api/compare", self._compare),
            Route("/api/follow", self._follow),
            Route("/api/forecast", self._forecast),
            Route("/api/report", self._report),
            Route("/api/form", lambda request: as_json(form())),
            Route("/api/file", self._file),
            Route("/api/start", self._start, methods=["POST"]),
            Route("/api/stop", self._stop, methods=["POST"]),
        ]

        @contextlib.asynccontextmanager
        async def life(app: Starlette) -> AsyncIterator[None]:
            if warm:
                self.computations.warm()
            yield
            self.end()

        self.app = Guard(application("index.html", routes, life), host, token, CHANGES)

    def end(self) -> None:
        """Streams and what is computed for runs end, within a moment."""
        self.streams.stop.set()  # read between looks, LOOK seconds apart at most
        self.outlook.close()
        self.starter.close()

    async def _state(self, request: Request) -> Response:
        """What the page begins with."""
        return as_json(
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

        return self.streams.answer(events())

    async def _play(self, request: Request) -> Response:
        """Two lines of JSON: the forecast at once, the simulation when it is there. A newer request ends an older."""
        name = request.path_params["name"]
        if name not in self.computations.playgrounds:
            raise HTTPException(404, f"There is no playground {name[:40]!r}.")
        given = dict(request.query_params)
        reader, number = given.pop("reader", ""), given.pop("number", "")
        if not re.fullmatch(r"[a-z0-9]{1,32}", reader) or not re.fullmatch(r"[0-9]{1,15}", number):
            raise HTTPException(400, "A request for a playground has a reader and a number.")
        play = self.computations.playgrounds[name]
        values = play.read(given)
        self.computations.note(reader, name, int(number))

        async def answers() -> AsyncIterator[bytes]:
            # Both begin at once, on different cores; the forecast is given first even where it takes longer.
            works = {
                what: asyncio.create_task(self.computations.compute(what, reader, name, int(number), values))
                for what in ("forecast", "simulate")
            }
            try:
                forecast: Picture | None = None
                for what, work in works.items():
                    try:
                        made = await work
                        charts = of_playground(play, forecast or made, made if forecast else None)
                        forecast = forecast or made
                        shown = {part: value for part, value in made.items() if part in SHOWN}
                        found = {"kind": what, "values": values, **shown, **charts}
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
        return as_json(await asyncio.to_thread(self.runs.list))

    async def _stages(self, request: Request) -> Response:
        """Charts of the chosen methods; a name that is none is passed over."""
        chosen = request.query_params.getlist("name")
        return as_json(of_lessons([lesson for lesson in lessons() if lesson["name"] in chosen]))

    async def _run(self, request: Request) -> Response:
        name = self._named(request)
        run = await asyncio.to_thread(self._curves, name)
        return as_json({**run, "stoppable": name in self.starter.running()})

    async def _compare(self, request: Request) -> Response:
        """Some runs beside each other."""
        names = self._several(request, "A comparison")
        runs = await asyncio.to_thread(lambda: [self._curves(name) for name in names])
        return as_json(await asyncio.to_thread(of_runs, runs))

    def _several(self, request: Request, what: str) -> list[str]:
        names = list(dict.fromkeys(request.query_params.getlist("name")))
        if not 1 <= len(names) <= MOST_RUNS:
            raise HTTPException(400, f"{what} is of 1 to {MOST_RUNS} runs: give name=, once for each.")
        return names

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

    def _followed(self, name: str) -> Followed:
        """A run for its page: with the forecast as soon as that has been computed."""
        run = self._curves(name)
        charts = of_run(run, self.outlook.known(name))
        run.pop("error", None)
        run.pop("loss", None)
        return {**run, "stoppable": name in self.starter.running(), "charts": charts}

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
                    yield "curves", await asyncio.to_thread(self._followed, name)
                last = now
                if now["state"] != "running":
                    yield "end", {}
                    return
                yield "", None

        return self.streams.answer(events())

    async def _forecast(self, request: Request) -> Response:
        """What a run must do, and whether it did: when it has been computed."""
        name = self._named(request)
        expected = await self._computed(self.outlook.of(name))
        run = await asyncio.to_thread(self._curves, name)
        charts = await asyncio.to_thread(of_run, run, expected)
        return as_json({"says": expected["says"], "good": expected["good"], "charts": charts})

    async def _report(self, request: Request) -> Response:
        """The report of one run or more, made now: no file of a folder is ever given out."""
        names = self._several(request, "A report")
        text = await self._computed(self.outlook.report(names))
        headers = {"content-security-policy": f"{policy()}; frame-ancestors 'none'"}
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)

    async def _file(self, request: Request) -> Response:
        """What a form describes, as the TOML file that `fedpoint run` takes."""
        made = await asyncio.to_thread(content, dict(request.query_params))
        return Response(disk.to_toml(made), media_type="text/plain; charset=utf-8")

    async def _start(self, request: Request) -> Response:
        return as_json({"name": await asyncio.to_thread(self.starter.start, dict(request.query_params))})

    async def _stop(self, request: Request) -> Response:
        self.starter.stop(self._named(request))
        return as_json({})

    async def _computed(self, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except FedpointError as error:
            raise HTTPException(404, str(error)) from None
        except Busy:
            raise HTTPException(503, "Several runs are being computed: try again in a minute.") from None


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


def _line(content: object) -> bytes:
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


def serve(
    runs: Path,
    host: str = "127.0.0.1",
    port: int = 8642,
    tell: Callable[[str], None] = print,
    warm: bool = True,
    started: Callable[[PageServer], None] = lambda server: None,
) -> bool:
    """Serve the page until Ctrl-C. Whether all computations have ended by then: one that compiles does so later."""
    if runs.exists() and not runs.is_dir():
        raise FedpointError(f"--runs {runs} is not a folder")
    page: Page | None = None

    def make(token: str | None) -> Page:
        nonlocal page
        page = Page(runs, host, token, warm)
        return page

    about = f"Runs: {runs}. The playground compiles in the background. Ctrl-C stops it."
    try:
        serve_page(make, host, port, ("fedpoint ui", about), tell, started)
    finally:
        calm = page is None or page.computations.close()
    tell("ended")
    return calm
