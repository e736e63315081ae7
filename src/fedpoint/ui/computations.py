"""What is computed now? Few things at a time, and for each reader only what the newest slider positions ask for."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fedpoint.ui.playground import Picture, Playground, Values

Result = TypeVar("Result")

WORKERS = 2  # simulations at a time
WAITING = 16  # computations asked for and not done
PATIENCE = 90.0  # seconds that an answer may take: compilation is part of the first
READERS = 256  # of whom the newest request is remembered


class Superseded(Exception):
    """A newer position of the sliders is there."""


class Busy(Exception):
    """Too much is being computed."""


class Computations:
    """Where the playgrounds' computations are done, in threads of their own."""

    def __init__(self, playgrounds: dict[str, Playground]):
        self.playgrounds = playgrounds
        # Forecasts have their own thread, so that they never wait for a simulation.
        self._pools = {"forecast": ThreadPoolExecutor(1), "simulate": ThreadPoolExecutor(WORKERS)}
        self._newest: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._asked: dict[asyncio.Future[Picture], tuple[tuple[str, str], int]] = {}  # not answered yet
        self._closed = threading.Event()
        self._calm = threading.Condition()  # and how many computations are under way
        self._working = 0
        self.compilation = dict.fromkeys(playgrounds, "waiting")

    def warm(self) -> None:
        """Compile in the background; `compilation` says how far that is."""
        self._pools["simulate"].submit(self._counted, self._warm)

    def _counted(self, work: Callable[[], Result]) -> Result:
        with self._calm:
            self._working += 1
        try:
            return work()
        finally:
            with self._calm:
                self._working -= 1
                self._calm.notify_all()

    def _warm(self) -> None:
        for name, playground in self.playgrounds.items():
            if self._closed.is_set():
                return
            self.compilation[name] = "compiling"
            try:
                playground.warm()
                self.compilation[name] = "ready"
            except Exception:  # the page says so, and everything else goes on
                logging.getLogger(__name__).exception("the playground %s cannot be compiled", name)
                self.compilation[name] = "failed"

    def note(self, reader: str, name: str, number: int) -> None:
        """A request has come: older ones of the same reader are void."""
        key = (reader, name)
        self._newest[key] = max(number, self._newest.get(key, 0))
        self._newest.move_to_end(key)
        while len(self._newest) > READERS:
            self._newest.popitem(last=False)
        for future, (whose, old) in list(self._asked.items()):
            if whose == key and old < number:
                future.cancel()  # what has not begun never does; what has begun is not waited for

    def is_newest(self, reader: str, name: str, number: int) -> bool:
        return number >= self._newest.get((reader, name), 0)

    async def compute(self, what: str, reader: str, name: str, number: int, values: Values) -> Picture:
        """ "forecast" or "simulate", with how long it took; `Superseded` when it is not wanted any more."""
        if len(self._asked) >= WAITING:
            raise Busy
        playground = self.playgrounds[name]
        function = playground.forecast if what == "forecast" else playground.simulate

        def work() -> Picture:
            if self._closed.is_set() or not self.is_newest(reader, name, number):
                raise Superseded
            begun = time.perf_counter()
            found = function(values)
            return {**found, "seconds": round(time.perf_counter() - begun, 4)}

        future = asyncio.get_running_loop().run_in_executor(self._pools[what], self._counted, work)
        self._asked[future] = ((reader, name), number)
        try:
            return await asyncio.wait_for(future, PATIENCE)
        except asyncio.CancelledError:
            if self.is_newest(reader, name, number):
                raise  # the reader is gone
            raise Superseded from None
        finally:
            del self._asked[future]

    def close(self, patience: float = 1.0) -> bool:
        """Nothing else begins. Whether all that was under way has ended: nothing can stop a compilation."""
        self._closed.set()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        with self._calm:
            return self._calm.wait_for(lambda: self._working == 0, patience)
