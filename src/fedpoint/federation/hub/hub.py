"""How does a study go on, round by round, whatever happens to the sites? The hub's half of a federation.

A round asks, waits until all have answered or the deadline is over, validates, merges what is good if the quorum holds,
and is written down before the next begins. A silent site is asked again, but not waited for, until it is heard.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn, TypeVar

import jax
import numpy as np

from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.types import Message
from fedpoint.engine.cpu import cache
from fedpoint.engine.session import flatten
from fedpoint.federation import preparation, protocol, wire
from fedpoint.federation.hub import statements, validate
from fedpoint.federation.hub.alarm import Expected, Order, Unwatched, files_of, watch_of
from fedpoint.federation.hub.center import Center
from fedpoint.federation.hub.examine import Answers, Examiner, Merge
from fedpoint.federation.hub.late import Late
from fedpoint.federation.hub.ledger import Ledger, StudyProgress
from fedpoint.federation.hub.masked import MaskedRound
from fedpoint.federation.hub.norms import Outliers, norm
from fedpoint.federation.hub.preparing import Preparing
from fedpoint.federation.hub.shares import shares_event
from fedpoint.federation.preparation import Setup
from fedpoint.federation.secure.identity import Trust
from fedpoint.federation.study import Study
from fedpoint.federation.transport import Arrival, Event, NoAnswerYet, Stopped, Tell, Transport
from fedpoint.federation.wire import NEVER, Arrays
from fedpoint.timing.base import Tick

NO_MORE = wire.Header()
Said = TypeVar("Said")
SEGMENT = 0.5  # seconds between looks at whether to stop


class StudyHub:
    """A study at its hub. `tell` hears of every round; `stop` is asked whether to; `trust` verifies what sites sign in
    secure sums."""

    def __init__(
        self,
        study: Study,
        engine: Transport,
        ledger: Ledger,
        tell: Tell = lambda event: None,
        stop: Callable[[], bool] = lambda: False,
        expected: Expected = False,
        trust: Trust | None = None,
    ):
        cache.enable()
        if study.terms.secure and trust is None:
            raise FedpointError(f"{study.name} has secure sums, which need the authority's certificate")
        self.study, self.terms, self.engine, self.ledger = study, study.terms, engine, ledger
        self.tell, self.stop, self.expected, self.trust = tell, stop, files_of(study, expected), trust
        self.sites: list[str] = study.sites
        self.round = 0
        self.merged = dict.fromkeys(self.sites, NEVER)  # the last round merged from each site
        self.refused: Counter[str] = Counter()  # "site reason": how often
        self.chains: dict[str, str] = {}  # the last seal of each site's record
        self.silent: set[str] = set()
        self.in_vain = 0  # rounds abandoned in a row
        self.own: list[wire.OwnSetup] = []  # what each site needs to know of all, once that is known
        self.measured: dict[str, dict[str, dict[str, float]]] = {}  # after so many rounds, by site
        self.tables: dict[str, dict[str, dict[str, list[list[float]]]]] = {}
        self.ended: list[str] = []  # sites that have heard of the end
        self.sent: dict[str, dict[str, list[int]]] = {}  # by site and kind: messages, bytes, numbers
        self.releases: dict[str, str] = {}  # of fedpoint, by site
        self.bytes = [0, 0]  # down, up, of this round
        self.watch = Unwatched()  # until it is known what to expect
        self._expected: dict[str, wire.Header] = {}  # of each site's order
        self.preparing = Preparing(self)
        self.examiner, self.outliers = Examiner(), Outliers()
        for event in ledger.events:
            self._learn(event)
        if ledger.begun is not None:
            about = ledger.begun[1]
            self.round, self.merged = about["round"], self.merged | about["merged"]
            self.refused.update(about["refused"])
            self.chains.update(about["chains"])
            self.measured, self.tables, self.ended = about["measured"], about["tables"], about["ended"]
            self.sent, self.releases = about["sent"], about["releases"]
            self._settle_in(about["setup"])
            self.state.restore(ledger.begun[0])
            self.preparing.go_on(about["setup"])
            self.watch.restore(about["watch"], ledger.begun[0])

    # Before the first round.

    def prepare(self) -> None:
        """What all sites together say of their data: rows, categories, moments. Then sites compile, before the first
        deadline runs."""
        if not self.own:
            self._settle_in(self.preparing.setup())
            self.ledger.record(0, flatten(self.state.model()))
            self.save()
            self.preparing.answers.forget()
        self.preparing.gather("ready", self.study.least)

    def _settle_in(self, setup: Setup) -> None:
        """All that follows from the study and what sites said of their data."""
        self.setup, study, table = setup, self.study, self.study.table
        if table is None:
            start = study.start()
        else:
            start = preparation.start_of(table, preparation.features(setup["recipe"]), setup["classes"])
        self.outline = study.outline(start, setup["weights"], setup["rows"])
        experiment = study.experiment(self.outline)
        late = study.terms.asynchronous
        self.state = Center(experiment.bind(), models=late is not None and late.models)
        self.own = [self._own(setup, k) for k in range(len(self.sites))]
        self.every = experiment.every(study.rounds)
        self.watch = watch_of(study, self.state, self.own, self.expected)

    def _own(self, setup: Setup, k: int) -> wire.OwnSetup:
        """What a site needs to know besides the study."""
        share, heaviest = float(self.outline.weights[k]), float(np.max(self.outline.weights))
        return wire.OwnSetup(index=k, share=share, heaviest=heaviest, recipe=setup["recipe"], classes=setup["classes"])

    # Asking.

    def order(
        self, site: str, kind: str, arrays: Arrays | None = None, deadline: float = 0.0, more: wire.Header = NO_MORE
    ) -> None:
        header = wire.Header(**protocol.OWN.plain(), study=self.study.fingerprint, run=self.ledger.run, kind=kind)
        header |= {"order": secrets.token_hex(8), "round": self.round, "merged": self.merged[site], **more}
        if self.own and kind in ("ready", "work", "measure", "end"):
            header["setup"] = self.own[self.sites.index(site)]
        if kind == "work" and arrays is not None:
            self.watch.asked(self.sites.index(site), Order(header["round"], header["merged"], arrays))
        self._expected[site] = header
        order = wire.encode(header, arrays)
        self.bytes[0] += len(order)
        self.engine.send(site, order, max(self.terms.deadline, deadline))

    def packet(self, arrival: Arrival) -> wire.Packet:
        """What arrived, as the answer to what this site was asked last."""
        if arrival.site not in self._expected:
            raise validate.Invalid("unasked")
        if arrival.data is None:
            raise validate.Invalid(arrival.failure or "lost")
        self.bytes[1] += len(arrival.data)
        packet = validate.opened(arrival.data, arrival.site, self._expected[arrival.site])
        self.chains[arrival.site] = packet.header["chain"]
        self._count(arrival.site, packet, len(arrival.data))
        validate.willing(packet)
        return packet

    def _count(self, site: str, packet: wire.Packet, size: int) -> None:
        """What has come from a site so far."""
        numbers = sum(array.size for array in packet.arrays.values())
        kinds = self.sent.setdefault(site, {})
        before = kinds.get(packet.header["kind"], [0, 0, 0])
        kinds[packet.header["kind"]] = [a + b for a, b in zip(before, (1, size, numbers), strict=True)]
        self.releases[site] = protocol.Release.named_in(packet.header).fedpoint

    def receive(self, until: float, preparing: bool = False) -> Arrival | None:
        """The next arrival before a moment; None after it. Sites that may not work yet are asked and heard meanwhile;
        `preparing`: whoever calls waits for them."""
        while True:
            if self.stop():
                raise Stopped(f"stopped after round {self.round}; run it again to continue")
            self.preparing.ask()
            left = until - self.engine.now()
            if left <= 0:
                return None
            arrival = self.engine.receive(min(left, SEGMENT))
            if arrival is not None and (not self.preparing.took(arrival) or preparing):
                return arrival

    def ask_all(
        self, kind: str, check: Callable[[wire.Packet], object], arrays: Mapping[str, Arrays]
    ) -> dict[str, wire.Packet]:
        """The answers of all who may work to one question, as far as they come in time."""

        def checked(site: str, packet: wire.Packet) -> wire.Packet:
            check(packet)
            return packet

        return self.ask(kind, checked, {site: arrays[site] for site in self.sites if self.preparing.may_work(site)})[0]

    def ask(
        self, kind: str, read: Callable[[str, wire.Packet], Said], arrays: Mapping[str, Arrays]
    ) -> tuple[dict[str, Said], dict[str, str]]:
        """What these sites answer to one question, as far as that comes in time; and why others are missing."""
        found: dict[str, Said] = {}
        missing: dict[str, str] = {}
        waiting, until = set(arrays), self.engine.now() + self.terms.deadline
        for site in sorted(waiting):
            self.order(site, kind, arrays[site])
        while waiting:
            self.tell({"waiting": kind, "for": sorted(waiting)})
            arrival = self.receive(until)
            if arrival is None:
                break
            try:
                said = read(arrival.site, self.packet(arrival))
            except validate.Invalid as error:
                self.note(arrival.site, error.reason)
                if error.reason not in validate.STALE:
                    waiting.discard(arrival.site)
                    missing[arrival.site] = error.reason
                continue
            if arrival.site in waiting:
                waiting.discard(arrival.site)
                found[arrival.site] = said
        return found, missing | dict.fromkeys(sorted(waiting), "deadline")

    def note(self, site: str, reason: str) -> None:
        self.refused[f"{site} {reason}"] += 1

    # Rounds.

    def run(self) -> None:
        """From where the ledger stands to the last round."""
        self.prepare()
        self.tell(shares_event(self.study, self.setup))
        if self.terms.asynchronous is not None:
            Late(self, self.terms.asynchronous).run()
        self.measure()  # where a hub ended between a round and its measurement
        if self.terms.secure and self.ledger.begun is not None and self.round < self.study.rounds:
            # Sites may have begun a sum that this hub knows nothing of, and begin no other in the same round.
            nobody = Event(merged=False, answered=[], norms={}, refused={})
            self.end(nobody, {}, time.perf_counter())
        while self.round < self.study.rounds:
            self._round()
            self.measure()
        self.announce_end()
        self.save()  # the seals of answers that changed nothing, too

    def message(self, k: int, packet: wire.Packet) -> Message:
        """What an agent says in its answer, looked at and decoded."""
        share, cap, plain = float(self.outline.weights[k]), self.terms.norm_cap, self.state.inputs.channel.is_identity()
        arrays = validate.message(packet, self.state.shapes.code, share, cap if plain else None)
        message = self.state.decoded(k, arrays)
        if not plain:  # what is sent may be longer, or no vector at all
            validate.finite(jax.tree.leaves(message))
            validate.norm(message, cap)
        return message

    def _collect(
        self, asked: set[str], absent: set[str], read: Callable[[int, wire.Packet], Said]
    ) -> tuple[dict[int, Said], dict[str, str], float]:
        """What is read in the good answers, by agent, why others were refused, and the seconds of the slowest site. Who
        is silent is not waited for if there are enough others; nor is who is absent, and so was not even asked."""
        good: dict[int, Said] = {}
        bad: dict[str, str] = dict.fromkeys(sorted(absent), "absent")
        waiting, slowest, until = set(asked), 0.0, self.engine.now() + self.terms.deadline
        while waiting - self.silent or ((waiting or absent) and len(good) < self.study.least):
            arrival = self.receive(until)
            if arrival is None:
                break
            site = arrival.site
            try:
                packet = self.packet(arrival)
                if site not in waiting:
                    raise validate.Invalid("twice")
                k = self.sites.index(site)
                good[k] = read(k, packet)
                slowest = max(slowest, _seconds(packet))
                self.silent.discard(site)
                waiting.discard(site)
            except validate.Invalid as error:
                self.note(site, error.reason)
                bad[site] = error.reason
                if error.reason in validate.STALE:
                    self.silent.discard(site)  # it is there, though late
                else:
                    waiting.discard(site)
        bad |= dict.fromkeys(sorted(waiting), "deadline")
        for site in sorted(waiting | absent):
            self.note(site, bad[site])
        self.silent |= waiting
        return good, bad, slowest

    def _round(self) -> None:
        begun, self.bytes = time.perf_counter(), [0, 0]
        tick = self.state.ask(self.round)
        asked = self.state.agents_of(tick)
        absent = {self.sites[k] for k in asked if not self.preparing.may_work(self.sites[k])}
        there = [k for k in asked if self.sites[k] not in absent]
        for k in there:
            self.order(self.sites[k], "work", self.state.tell(k, self.round))
        sent = time.perf_counter()
        if self.trust is not None and self.terms.secure:
            event, bad, slowest = self._masked_round(self.trust, tick, asked, absent)
        else:
            event, bad, slowest = self._plain_round(tick, asked, absent)
        came = time.perf_counter()
        if event["merged"]:
            self.merged |= dict.fromkeys(event["answered"], self.round)
        event["refused"] = bad
        self.end(event, {"down": sent - begun, "wait": came - sent, "site": slowest}, begun)

    def _plain_round(self, tick: Tick, asked: list[int], absent: set[str]) -> tuple[Event, dict[str, str], float]:
        """Answers are looked at one by one, and merged."""
        there = {self.sites[k] for k in asked} - absent
        good, bad, slowest = self._collect(there, absent, self.message)
        good = dict(sorted(good.items()))
        enough = len(good) >= min(self.study.least, len(asked))
        event = self.merge(good, partial(self.state.merge, self.round, tick) if enough else None)
        return event, bad, slowest

    def _masked_round(
        self, trust: Trust, tick: Tick, asked: list[int], absent: set[str]
    ) -> tuple[Event, dict[str, str], float]:
        """Of the answers only the sum is seen."""
        masked = MaskedRound(self, trust)
        there = {self.sites[k] for k in asked} - absent
        keys, bad, slowest = self._collect(there, absent, masked.keys)
        found = masked.sum({self.sites[k]: one for k, one in sorted(keys.items())}, self.state.tell(0, self.round))
        bad |= masked.lost
        if found is None:
            return Event(merged=False, answered=[], norms={}), bad, slowest
        total, agents = found
        event = self.examiner.merge(
            self.state, self.round, {}, {}, lambda _: self.state.merge_sum(self.round, tick, agents, total)
        )
        return event | Event(answered=[self.sites[k] for k in agents]), bad, slowest

    def merge(self, answers: Answers, how: Merge | None) -> Event:
        """Answers merged, if what comes of it may stand; None: they are not enough."""
        self.watch.heard(answers)
        norms = {self.sites[k]: norm(message) for k, message in answers.items()}
        if how is None:
            return Event(merged=False, answered=list(norms), norms=norms)
        event = self.examiner.merge(self.state, self.round, norms, answers, how)
        return event | Event(answered=list(norms))

    def _learn(self, event: Event) -> None:
        """What a round says about those to come."""
        self.examiner.note(event)
        self.outliers.note(event)

    def end(self, event: Event, seconds: dict[str, float], begun: float) -> None:
        """A round is over: written down, told; enough of them in a row without a merge are the end."""
        number, self.round = self.round, self.round + 1
        event["marks"] = self.outliers.marks(event["norms"])
        self._learn(event)
        if self.round % self.every == 0 or self.round == self.study.rounds:
            self.ledger.record(self.round, flatten(self.state.model()))
        seconds["all"] = time.perf_counter() - begun
        down, up = self.bytes
        event |= {"round": number, "down": down, "up": up, "seconds": {k: round(v, 6) for k, v in seconds.items()}}
        alarms = self.watch.news()
        if alarms:
            event["alarms"] = alarms
        seals = {site: self.chains[site] for site in event["answered"]}
        self.ledger.note(event | Event(seals=seals))  # which nobody needs to hear of
        self.save()
        self.tell(event)
        if alarms and self.terms.on_alarm == "stop":
            raise Stopped(f"{'; '.join(alarm['text'] for alarm in alarms)}: stopped; run the study again to go on")
        self.in_vain = 0 if event["merged"] else self.in_vain + 1
        if self.in_vain >= self.terms.patience:
            self._give_up(event)

    def _give_up(self, last: Event) -> NoReturn:
        rounds, kept = counted(self.in_vain, "round"), f"the model of round {self.round} is kept"
        if "abandoned" in last:
            raise Diverged(
                f"{rounds} in a row were abandoned, the last because {last['abandoned']}; {kept}. Look at that site's "
                "data; if they are right, the step is too large for them: take a smaller one",
                last["round"],
            )
        refused = last["refused"]
        if set(refused.values()) == {"finite"} and (self.examiner.diverging or len(refused) > len(last["answered"])):
            whose = ", ".join(refused)
            raise Diverged(
                f"{rounds} in a row had answers that were not finite ({whose}); {kept}. Take a smaller step",
                last["round"],
            )
        raise NoAnswerYet(
            f"{rounds} in a row had fewer than {counted(self.study.least, 'good answer')} "
            f"(last: {', '.join(f'{s}: {r}' for s, r in refused.items()) or 'none refused'}); {kept}; run the study "
            "again when the sites are back"
        )

    # Measurements.

    def measure(self) -> None:
        """After the rounds that the study names: sites hear what was merged last, and say how good the model is."""
        known = self.measured.get(str(self.round), {})
        if self.round not in self.study.measured_after or len(known) == len(self.sites):
            return
        asked = self.terms.measures
        found = self.ask_all("measure", lambda packet: statements.measures(packet, asked), self._models())
        after = str(self.round)
        self.measured[after] = known | {site: statements.measures(packet, asked) for site, packet in found.items()}
        tables = {site: statements.tables(packet, asked) for site, packet in found.items()}
        self.tables[after] = self.tables.get(after, {}) | {site: said for site, said in tables.items() if said}
        self.save()

    def _models(self) -> dict[str, dict[str, np.ndarray]]:
        """The model as each site has it."""
        model, topology = self.state.model(), self.state.topology
        return {site: flatten(topology.at(k, model)) for k, site in enumerate(self.sites)}

    def announce_end(self) -> None:
        """Sites hear that the study has ended, with the model where it shares that."""
        if set(self.ended) == set(self.sites):
            return
        arrays = self._models() if self.terms.share_model else {site: {} for site in self.sites}
        self.ended = sorted({*self.ended, *self.ask_all("end", validate.willing, arrays)})
        self.save()

    def save(self) -> None:
        progress = StudyProgress(
            round=self.round,
            merged=self.merged,
            refused=dict(self.refused),
            setup=self.setup,
            measured=self.measured,
            tables=self.tables,
            ended=self.ended,
            sent=self.sent,
            releases=self.releases,
            chains=self.chains,
            watch=self.watch.plain(),
        )
        self.ledger.save(self.state.arrays() | self.watch.arrays(), progress)


def _seconds(packet: wire.Packet) -> float:
    """What a site says it worked; only to be shown."""
    took = packet.header.get("seconds")
    return took if type(took) is float and 0 <= took < 1e6 else 0.0


__all__ = ["StudyHub"]
