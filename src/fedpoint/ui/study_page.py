"""`fedpoint federate page`: a study while it runs, for its leader or for one of its sites."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedpoint.ui.guard import Guard
from fedpoint.ui.serving import Event, PageServer, Streams, application, as_json, serve_page
from fedpoint.ui.study_views import Source, View


class StudyPage:
    """The page of a source; one look at a time, however many readers there are."""

    def __init__(self, source: Source, host: str = "127.0.0.1", token: str | None = None, every: float = 1.0):
        self.source, self.every = source, every
        self.streams, self.lock = Streams(), asyncio.Lock()
        self.seen: tuple[float, View] | None = None
        routes = [Route("/api/study", self._study), Route("/api/follow", self._follow)]
        self.app = Guard(application("study.html", routes), host, token)

    def end(self) -> None:
        self.streams.stop.set()

    async def look(self) -> View:
        async with self.lock:
            if self.seen is None or time.monotonic() - self.seen[0] > self.every:
                try:
                    view = await asyncio.to_thread(self.source.look)
                except Exception:
                    logging.getLogger(__name__).exception("the study could not be read")
                    raise
                self.seen = time.monotonic(), view
            return self.seen[1]

    async def _study(self, request: Request) -> Response:
        return as_json(await self.look())

    async def _follow(self, request: Request) -> Response:
        """A stream: the view, whenever it has changed."""

        async def events() -> AsyncIterator[Event]:
            last = None
            while True:
                now = await self.look()
                if now != last:
                    yield "study", now
                last = now
                yield "", None

        return self.streams.answer(events())


def serve(
    source: Source,
    host: str = "127.0.0.1",
    port: int = 8643,
    tell: Callable[[str], None] = print,
    started: Callable[[PageServer], None] = lambda server: None,
) -> None:
    """Serve the page until Ctrl-C."""
    about = "It changes nothing, and nothing leaves this machine. Ctrl-C stops it."
    try:
        serve_page(
            lambda token: StudyPage(source, host, token), host, port, ("fedpoint federate page", about), tell, started
        )
    finally:
        source.close()
    tell("ended")
