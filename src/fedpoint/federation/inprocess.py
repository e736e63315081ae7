"""Sites in this process, on a virtual clock: every byte is serialised, and faults happen when they are told to.

engine = InProcess({"a": Site(...).answer, "b": ...}, seconds={"b": 5.0}, faults=[Fault("a", 3, "lost")])
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fedpoint.federation.transport import Arrival

Seconds = float | Mapping[str, float] | Callable[[str, int], float]  # of a site's orders


class Fault(NamedTuple):
    """What happens to a site's order of this number (from 0): "lost" (it never arrives), "unheard" (the site works, its
    answer gets lost), "late" (by `seconds`), "dead" (the engine notices that the site is gone), "twice" (the answer
    comes two times), or a function of the answer's bytes."""

    site: str
    number: int
    what: str | Callable[[bytes], bytes]
    seconds: float = 0.0


class InProcess:
    """An engine without a network. A site takes `seconds` (one number, by site, or a function) for an answer."""

    def __init__(
        self,
        sites: Mapping[str, Callable[[bytes], bytes]],
        seconds: Seconds = 1.0,
        faults: Iterable[Fault] = (),
    ):
        self.sites, self.seconds = sites, seconds
        self.faults = {(fault.site, fault.number): fault for fault in faults}
        self.time, self.sent = 0.0, dict.fromkeys(sites, 0)
        self.due: list[tuple[float, int, Arrival]] = []
        self.closed = False
        self._count = 0

    def send(self, site: str, order: bytes, deadline: float) -> None:
        number, self.sent[site] = self.sent[site], self.sent[site] + 1
        fault = self.faults.get((site, number), Fault(site, number, ""))
        took = self._seconds(site, number)
        if fault.what == "lost":
            return
        if fault.what == "dead":
            return self._post(took, Arrival(site, None, "lost"))
        answer = self.sites[site](bytes(order))
        if fault.what == "unheard":
            return
        if callable(fault.what):
            answer = fault.what(answer)
        self._post(took + fault.seconds, Arrival(site, answer))
        if fault.what == "twice":
            self._post(took + fault.seconds, Arrival(site, answer))

    def _seconds(self, site: str, number: int) -> float:
        if callable(self.seconds):
            return self.seconds(site, number)
        return self.seconds.get(site, 1.0) if isinstance(self.seconds, Mapping) else self.seconds

    def _post(self, after: float, arrival: Arrival) -> None:
        heapq.heappush(self.due, (self.time + after, self._count, arrival))
        self._count += 1

    def receive(self, timeout: float) -> Arrival | None:
        if not self.due or self.due[0][0] > self.time + timeout:
            self.time += timeout
            return None
        due, _, arrival = heapq.heappop(self.due)
        self.time = max(self.time, due)
        return arrival

    def reaches(self, site: str) -> bool:
        return True

    def now(self) -> float:
        return self.time

    def close(self) -> None:
        self.closed = True
