"""What must a stored run do, and did it? What needs its data: made once, in the background, by another process."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from fedpoint.show.expected import lines, note
from fedpoint.show.facts import readable
from fedpoint.show.from_data import ForecastPart, Parts, ask
from fedpoint.show.lines import ChartLine
from fedpoint.show.page import compose
from fedpoint.store.folder import RunFolder
from fedpoint.ui.computations import Busy
from fedpoint.ui.runs import Runs

PATIENCE = 60.0  # seconds for one run
WAITING = 8  # runs asked for and not done
KEPT = 64  # runs whose parts are kept


class Sentence(TypedDict):
    """A sentence about a run, and whether it is good news; None: neither."""

    says: str
    good: bool | None


class Expectation(Sentence):
    """What goes beside a run: lines for the chart of its error, and a sentence."""

    lines: list[ChartLine]
    note: str


class Outlook:
    """Forecasts, losses per agent and networks of runs, one run at a time."""

    def __init__(self, runs: Runs, patience: float = PATIENCE):
        self.runs, self.patience = runs, patience
        self._stop = threading.Event()
        self._one = asyncio.Lock()
        self._made: OrderedDict[tuple, asyncio.Task] = OrderedDict()

    async def parts(self, name: str) -> Parts:
        """See `show.from_data`. Made again when a run has ended, or has gone on since; not while it goes on."""
        path, key = await asyncio.to_thread(self._key, name)
        if key not in self._made:
            if sum(not task.done() for task in self._made.values()) >= WAITING:
                raise Busy
            self._made[key] = asyncio.create_task(self._make(path))
            while len(self._made) > KEPT:
                self._made.popitem(last=False)[1].cancel()
        self._made.move_to_end(key)
        return await asyncio.shield(self._made[key])  # a reader who leaves does not end it for the others

    def _key(self, name: str) -> tuple[Path, tuple]:
        path = self.runs.folder(name)
        folder = RunFolder.open(path)
        now = self.runs.standing(folder)
        return path, (name, None if now["state"] == "running" else now["reached"], folder.sha256)

    async def _make(self, path: Path) -> Parts:
        async with self._one:
            await asyncio.to_thread(readable, path)  # whatever has no rounds yet is refused, with the reason
            return (await asyncio.to_thread(ask, [path], self.patience, self._stop))[0]

    async def of(self, name: str) -> Expectation:
        """What must happen, and whether it did."""
        return _expectation((await self.parts(name))["forecast"])

    def known(self, name: str) -> Expectation | None:
        """What is known already of a run, be it of an earlier round."""
        for key, task in reversed(self._made.items()):
            if key[0] == name and task.done() and not task.cancelled() and task.exception() is None:
                return _expectation(task.result()["forecast"])
        return None

    async def report(self, names: Sequence[str]) -> str:
        """The report of these runs, as `fedpoint report` writes it."""
        paths = [await asyncio.to_thread(self.runs.folder, name) for name in names]  # before any work
        parts = [await self.parts(name) for name in names]
        return await asyncio.to_thread(lambda: compose([readable(path) for path in paths], parts))

    def close(self) -> None:
        """Ends what is under way, within a moment."""
        self._stop.set()


def _expectation(part: ForecastPart) -> Expectation:
    if "missing" in part:
        return {"lines": [], "note": "", "says": f"No forecast: {part['missing']}", "good": None}
    return {"lines": lines(part), "note": note(part), **_verdict(part)}


def _verdict(part: ForecastPart) -> Sentence:
    verdict = part.get("verdict")
    if part["diverges"]:
        return {"says": f"It must diverge: {part['reason']}.", "good": False}
    if verdict is None:
        return {"says": "", "good": None}
    return {"says": f"{verdict['headline']}.", "good": verdict["good"]}
