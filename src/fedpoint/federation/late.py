"""How does a study go on when nobody waits for the slowest? Answers are merged as they come.

Who was merged is asked again; how old an answer was is noted, so that a simulation can do the same.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.federation import validate
from fedpoint.federation.engine import Arrival, Waiting
from fedpoint.federation.shapes import arrays_of
from fedpoint.federation.state import Star

AGAIN = 1.0  # seconds before a site that was refused is asked again


class _Late:
    """The asynchronous rounds of a hub."""

    def __init__(self, hub: Any):
        self.hub, self.study, self.how = hub, hub.study, hub.study.late()
        self.star = isinstance(hub.state, Star)
        self.versions: dict[str, int] = {}  # the round in which a site was asked
        self.told: dict[str, Any] = {}  # what it heard then
        self.until: dict[str, float] = {}  # when its answer is due; who is not here has answered
        self.resting: set[str] = set()  # refused a moment ago
        self.here: list[tuple[int, dict[str, np.ndarray]]] = []  # good answers that are not merged yet
        self.refused: dict[str, str] = {}
        self.last = hub.engine.now()
        self.begun = 0.0  # of the round at hand

    def ask(self, site: str) -> None:
        hub, k = self.hub, self.hub.sites.index(site)
        said = hub.state.say(hub.round)
        if not self.star:
            said = jax.tree.map(lambda a: a[k], said)
        self.told[site] = said if self.star else (said, jax.tree.map(lambda a: a[k], hub.state.heard))
        self.versions[site], self.until[site] = hub.round, hub.engine.now() + self.study.deadline
        self.resting.discard(site)
        hub.order(site, "work", hub.round, {"setup": hub.own[k]}, arrays_of(said))

    def refuse(self, site: str, reason: str) -> None:
        self.hub.note(site, reason)
        self.refused[site] = reason

    def wait(self) -> None:
        """For the next arrival, or the next that is due and does not come."""
        arrival = self.hub.receive(min(self.until.values()))
        now = self.hub.engine.now()
        if arrival is not None:
            self.take(arrival, now)
        else:
            for site in [site for site, end in self.until.items() if end <= now]:
                if site not in self.resting:
                    self.refuse(site, "deadline")
                self.ask(site)
        if now - self.last > self.study.patience * self.study.deadline:
            raise Waiting(
                f"no good answer for {now - self.last:.0f} seconds; the model of round {self.hub.round} is kept; "
                "run the study again when sites are back"
            )

    def take(self, arrival: Arrival, now: float) -> None:
        site = arrival.site
        try:
            packet = self.hub.packet(arrival)
            if site not in self.until or site in self.resting:
                raise validate.Invalid("twice")
            k = self.hub.sites.index(site)
            share = float(self.hub.outline.weights[k])
            message = validate.message(packet, self.hub.shapes.message, share, self.study.norm_cap)
        except validate.Invalid as error:
            self.refuse(site, error.reason)
            if error.reason not in validate.STALE and site in self.until:
                self.until[site] = now + min(AGAIN, self.study.deadline)
                self.resting.add(site)
        else:
            del self.until[site]
            self.here.append((k, message))
            self.last = now

    def merge(self) -> list[str]:
        """What is here; returns the sites it is from."""
        hub, like = self.hub, self.hub.shapes.message
        agents = [k for k, _ in self.here]
        names = [hub.sites[k] for k in agents]
        ages = np.array([hub.round - self.versions[name] for name in names])
        if self.star:
            weights = self.how.mixing * self.study.staleness().weight(ages) * hub.outline.weights[agents]
            answers = [(k, message, self.told[hub.sites[k]]) for k, message in self.here]
            now = hub.state.say(hub.round)
            hub.state.merge_late(like, answers, weights * (len(hub.sites) / self.how.buffer), now)
        else:
            self.merge_node(*self.here[0])
        for name in names:
            hub.merged[name] = self.versions[name]
        event = {"merged": True, "answered": names, "ages": ages.tolist(), "refused": self.refused}
        self.here, self.refused = [], {}
        hub.end(event, {}, self.begun)
        return names

    def merge_node(self, k: int, message: dict[str, np.ndarray]) -> None:
        """On a network a tick is one node's update, from what its hub was when it was asked."""
        hub = self.hub
        said, own = self.told[hub.sites[k]]
        with jax.enable_x64(True):
            heard = jax.tree.map(lambda all_, one: all_.at[k].set(one), hub.state.heard, own)
            every = jax.tree.map(lambda one: jnp.broadcast_to(one, (len(hub.sites), *jnp.shape(one))), said)
        hub.state.merge(hub.shapes.message, {k: message}, heard, every)

    def run(self) -> None:
        hub = self.hub
        asked = list(hub.sites)
        while hub.round < self.study.rounds:
            hub.bytes, self.begun = [0, 0], time.perf_counter()
            for site in asked:
                self.ask(site)
            while len(self.here) < self.how.buffer:
                self.wait()
            asked = self.merge()


def run(hub: Any) -> None:
    _Late(hub).run()
