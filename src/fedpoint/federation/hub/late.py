"""How does a study go on when nobody waits for the slowest? Answers are merged as they come.

Who was merged is asked again; how old an answer was is noted, so that a simulation can do the same.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.core.types import Message
from fedpoint.federation.hub import validate
from fedpoint.federation.study import Asynchronous
from fedpoint.federation.transport import Arrival, Event, NoAnswerYet

if TYPE_CHECKING:
    from fedpoint.federation.hub.hub import StudyHub

AGAIN = 1.0  # seconds before a site that was refused is asked again; twice as many before every further time


class Late:
    """The asynchronous rounds of a hub."""

    def __init__(self, hub: StudyHub, how: Asynchronous):
        self.hub, self.how, self.terms = hub, how, hub.terms
        self.versions: dict[str, int] = {}  # the round in which a site was asked
        self.until: dict[str, float] = {}  # when its answer is due; who is not here has answered
        self.resting: set[str] = set()  # refused a moment ago
        self.in_vain: Counter[str] = Counter()  # answers of a site that were refused in a row
        self.here: dict[int, Message] = {}  # good answers that are not merged yet
        self.refused: dict[str, str] = {}
        self.last = hub.engine.now()
        self.begun = 0.0  # of the round at hand

    def ask(self, site: str) -> None:
        hub, k = self.hub, self.hub.sites.index(site)
        self.versions[site], self.until[site] = hub.round, hub.engine.now() + self.terms.deadline
        self.resting.discard(site)
        hub.order(site, "work", hub.state.tell(k, hub.round))

    def _idle(self) -> list[str]:
        """Who may work, and has neither an order nor an answer that waits to be merged; a late site too."""
        here = {self.hub.sites[k] for k in self.here} | self.until.keys()
        return [site for site in self.hub.sites if site not in here and self.hub.preparing.may_work(site)]

    def refuse(self, site: str, reason: str) -> None:
        self.hub.note(site, reason)
        self.refused[site] = reason

    def wait(self) -> None:
        """For the next arrival, or the next that is due and does not come."""
        for site in self._idle():
            self.ask(site)
        arrival = self.hub.receive(min(self.until.values(), default=self.hub.engine.now() + self.terms.deadline))
        now = self.hub.engine.now()
        if arrival is not None:
            self.take(arrival, now)
        else:
            for site in [site for site, end in self.until.items() if end <= now]:
                if site not in self.resting:
                    self.refuse(site, "deadline")
                self.ask(site)
        if now - self.last > self.terms.patience * self.terms.deadline:
            raise NoAnswerYet(
                f"no good answer for {counted(round(now - self.last), 'second')}; the model of round "
                f"{self.hub.round} is kept; run the study again when sites are back"
            )

    def take(self, arrival: Arrival, now: float) -> None:
        site = arrival.site
        try:
            packet = self.hub.packet(arrival)
            if site not in self.until or site in self.resting:
                raise validate.Invalid("twice")
            k = self.hub.sites.index(site)
            self.here[k] = self.hub.message(k, packet)
        except validate.Invalid as error:
            self.refuse(site, error.reason)
            if error.reason not in validate.STALE and site in self.until:
                self.until[site] = now + min(AGAIN * 2.0 ** self.in_vain[site], self.terms.deadline)
                self.in_vain[site] += 1
                self.resting.add(site)
        else:
            del self.in_vain[site]
            del self.until[site]
            self.last = now

    def merge(self) -> None:
        """What is here."""
        hub, agents = self.hub, list(self.here)
        names = [hub.sites[k] for k in agents]
        ages = np.array([hub.round - self.versions[name] for name in names])
        p = hub.outline.weights
        weight = self.how.mixing * self.how.weight().weight(ages) * p[agents] * (len(p) / len(agents))
        event = hub.merge(self.here, lambda answers: hub.state.merge_late(hub.round, answers, weight))
        if event["merged"]:
            for name in names:
                hub.merged[name] = self.versions[name]
        event |= Event(ages=ages.tolist(), refused=self.refused)
        self.here, self.refused = {}, {}
        hub.end(event, {}, self.begun)

    def run(self) -> None:
        hub = self.hub
        while hub.round < hub.study.rounds:
            hub.bytes, self.begun = [0, 0], time.perf_counter()
            while len(self.here) < self.how.buffer:
                self.wait()
            self.merge()
