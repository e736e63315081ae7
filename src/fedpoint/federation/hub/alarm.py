"""Does a site answer as its rows say it must? Watched answer by answer, with an alarm that names the site.

An answer that the hub reproduces from the expected rows with the study's own draws is nothing to talk about. From the
first that it cannot reproduce on, the hub bets against the site: every further answer is ranked among simulated ones
(`theory/betting.py`), and when the stake reaches K / 0.01 of K sites, an alarm is raised. So:

- A site that does the study's work on the expected rows is reproduced, and never accused.
- One that does so with draws of its own is accused with a chance of at most 1 % in a whole study, all sites together,
  however long it is watched, continued or looked at: whether to bet is decided before the answer comes.
- The reason is the one that fits best (`reasons.py`): likely, not proved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Message
from fedpoint.data.column import Column
from fedpoint.federation.held_out import divide
from fedpoint.federation.hub import reasons
from fedpoint.federation.hub.center import Center
from fedpoint.federation.hub.expectation import Expectation, Order, Simulated, as_vector, tolerance
from fedpoint.federation.hub.reasons import Compared, Explanation, Tally
from fedpoint.federation.study import Study
from fedpoint.federation.transport import Alarm
from fedpoint.federation.wire import Arrays, OwnSetup
from fedpoint.theory import betting

FALSE = 0.01  # the chance of a false alarm in a study, at most
OTHERS = 50  # sites whose rows may be taken for those of another, at most
ODDS = 1e12  # what is said at most: nobody reads larger ones
Files = Mapping[str, str | Path]  # by site; none where rows are generated
Expected = bool | Files  # True: the rows that the study generates; False: nobody knows

WORDS = {
    reasons.SCALED: "scaled (about {:.2g} times what its rows give)",
    reasons.FLIPPED: "sign-flipped (about {:.2g} times what its rows give)",
    reasons.LOST: "like those of a site that lost what it remembers of this study",
    reasons.FOREIGN: "like those of other rows than its own",
}


class Watched(TypedDict):
    """What is known of a site, in plain types."""

    since: int | None  # the round of its first answer that could not be reproduced
    stakes: dict[str, float]  # their logarithms, by statistic
    tally: Tally
    memory: dict[str, dict[str, int]]  # the rounds of the memories that are followed
    alarm: Alarm | None


def nothing_seen() -> Watched:
    return Watched(since=None, stakes={}, tally=reasons.nothing(), memory={}, alarm=None)


class Unwatched:
    """Nobody knows what to expect of the sites. What an earlier watch has seen is kept."""

    def __init__(self) -> None:
        self.seen: dict[str, Watched] = {}

    def asked(self, agent: int, order: Order) -> None:
        """A site was asked to work."""

    def heard(self, answers: Mapping[int, Message]) -> None:
        """Good answers to what sites were asked last, before they are merged."""

    def news(self) -> list[Alarm]:
        """The alarms since the last time."""
        return []

    @property
    def alarms(self) -> list[Alarm]:
        """All alarms so far."""
        return [seen["alarm"] for seen in self.seen.values() if seen["alarm"] is not None]

    def plain(self) -> dict[str, Watched]:
        return self.seen

    def arrays(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, plain: Mapping[str, Watched], arrays: Arrays) -> None:
        self.seen = {site: {**seen, "memory": {}} for site, seen in plain.items()}  # which nobody follows now


class Watch(Unwatched):
    """The watch over the sites of a study at its hub."""

    def __init__(self, study: Study, center: Center, own: Sequence[OwnSetup], expected: Files):
        super().__init__()
        self.sites, self.center, self.cap = study.sites, center, study.terms.norm_cap
        self.limit = betting.limit(len(self.sites), FALSE)
        self.expectations = [self._expectation(study, setup, expected) for setup in own]
        self.seen = {site: nothing_seen() for site in self.sites}
        self.shift: dict[str, np.ndarray] = {}  # the sum of deviations of each site that is bet against
        self.orders: dict[int, Order] = {}
        self._news: list[Alarm] = []
        if not all(one.shows for one in self.expectations):
            raise FedpointError(
                f"{study.name} cannot be watched: what a site remembers does not show in its messages, so that nobody "
                "else knows what it must answer"
            )

    def _expectation(self, study: Study, setup: OwnSetup, expected: Files) -> Expectation:
        site = study.sites[setup["index"]]
        try:
            return Expectation(study, setup, _columns(study, site, expected))
        except FedpointError as error:
            raise FedpointError(f"the expected rows of {site}: {error}") from None

    def asked(self, agent: int, order: Order) -> None:
        self.orders[agent] = order
        if not self.expectations[agent].settle(order.merged):
            raise FedpointError(
                f"{self.sites[agent]} cannot be watched any more: rounds went by without a watch, and what it "
                "remembers of them is not known; go on without a watch, or start over"
            )

    def heard(self, answers: Mapping[int, Message]) -> None:
        for agent in sorted(answers):
            self._look(agent, answers[agent])

    def _look(self, agent: int, message: Message) -> None:
        site, order, expects = self.sites[agent], self.orders[agent], self.expectations[agent]
        code, seen = expects.replayed(order, message), self.seen[site]
        answer, replay = as_vector(message), as_vector(self.center.decoded(agent, code))
        least = tolerance(code, order.heard, replay)
        if seen["since"] is None and np.abs(answer - replay).max(initial=0.0) <= least:
            return
        found = self._simulated(agent, answer, replay, least)
        if seen["since"] is not None:  # decided before this answer came, or the bet would not be fair
            seen["stakes"] = self._bet(seen, found)
        since = order.round if seen["since"] is None else seen["since"]
        seen["since"], seen["tally"] = since, reasons.tallied(seen["tally"], found.seen, found.noise, found.candidates)
        self.shift[site] = self.shift.get(site, 0.0) + found.deviation
        stake = betting.combined(seen["stakes"].values())
        if seen["alarm"] is None and stake >= math.log(self.limit):
            why = reasons.explained(seen["tally"], self.shift[site])
            alarm = seen["alarm"] = _alarm(site, why, stake, order.round, since)
            self._news.append(alarm)

    def _simulated(self, agent: int, answer: np.ndarray, replay: np.ndarray, least: float) -> Simulated:
        """An answer beside what it might be instead, among simulated ones."""
        site, order, expects = self.sites[agent], self.orders[agent], self.expectations[agent]
        others = {name: one.held for name, one in zip(self.sites, self.expectations, strict=True) if name != site}
        codes = expects.otherwise(order, dict(itertools.islice(others.items(), OTHERS)))
        rows = [as_vector(self.center.decoded(agent, code)) for code in codes.values()]
        shift = self.shift.get(site, np.zeros(answer.size))
        vectors = answer, replay, np.reshape(rows, (len(rows), answer.size)), shift
        return expects.simulated(order, vectors, list(codes), least)

    def _bet(self, seen: Watched, found: Simulated) -> dict[str, float]:
        """An answer is ranked among those that would not have been refused either."""
        among, a = found.among, reasons.factor(seen["tally"])
        if self.cap is not None:
            among = Compared(*(values[found.among.norm <= self.cap] for values in among))
        one, many = (reasons.statistics(some, found.noise, found.candidates, a) for some in (found.seen, among))
        return betting.wagered(seen["stakes"], {name: float(value) for name, value in one.items()}, many)

    def news(self) -> list[Alarm]:
        found, self._news = self._news, []
        return found

    # What is written down between rounds.

    def plain(self) -> dict[str, Watched]:
        pairs = zip(self.sites, self.expectations, strict=True)
        return {site: {**self.seen[site], "memory": one.rounds()} for site, one in pairs}

    def arrays(self) -> dict[str, np.ndarray]:
        found = {f"watch {site} shift": values for site, values in self.shift.items()}
        for site, one in zip(self.sites, self.expectations, strict=True):
            found |= {f"watch {site} {name}": values for name, values in one.arrays().items()}
        return found

    def restore(self, plain: Mapping[str, Watched], arrays: Arrays) -> None:
        for site, one in zip(self.sites, self.expectations, strict=True):
            if site not in plain:  # the study began without a watch
                continue
            self.seen[site] = plain[site]
            mark = f"watch {site} "
            own = {name.removeprefix(mark): values for name, values in arrays.items() if name.startswith(mark)}
            if "shift" in own:
                self.shift[site] = own.pop("shift")
            one.restore(plain[site]["memory"], own)


def files_of(study: Study, expected: Expected) -> Files | None:
    """The files by site, none for generated rows; None where nothing is expected."""
    if expected is False:
        return None
    if study.terms.secure or study.terms.privacy is not None:
        hidden = "the hub sees no single answer" if study.terms.secure else "answers carry noise"
        raise FedpointError(f"{study.name} cannot be watched: {hidden}")
    if study.installed is not None:
        raise FedpointError(f"{study.name} runs a model that sites have installed: a watch takes a table")
    if study.table is None:
        if expected is True:
            return {}
        raise FedpointError(f"the rows of {study.name} are generated: give expected=True, and no files")
    if expected is True:
        raise FedpointError(f"the rows of {study.name} are at its sites: give expected= a file for each of them")
    missing, unknown = sorted({*study.sites} - {*expected}), sorted({*expected} - {*study.sites})
    if missing or unknown:
        said = f"has none for {', '.join(missing)}" if missing else f"names {', '.join(unknown)}, not a site"
        raise FedpointError(f"expected {said}: give a file of expected rows for each of {', '.join(study.sites)}")
    return expected


def watch_of(study: Study, center: Center, own: Sequence[OwnSetup], expected: Files | None) -> Unwatched:
    return Unwatched() if expected is None else Watch(study, center, own, expected)


def _columns(study: Study, site: str, expected: Files) -> Mapping[str, Column] | None:
    table = study.table
    if table is None:
        return None
    if isinstance(table.held_out, float):
        raise FedpointError(
            f"held_out = {table.held_out:g}: only sites know which rows they hold out at random, so nobody can know "
            "what they must answer; hold out by a column to watch them"
        )
    return divide(table, table.read(expected[site]), b"").trained


def _alarm(site: str, why: Explanation, stake: float, round: int, since: int) -> Alarm:
    odds = min(math.exp(min(stake, 700.0)), ODDS)
    words = WORDS[why.reason].format(why.factor)
    if why.rows is not None:
        words = f"like those of the rows of site {why.rows}"
    text = f"site {site}: its answers look {words}; odds against chance {odds:,.0f} to 1, first seen in round {since}"
    return Alarm(site=site, reason=why.reason, factor=why.factor, e_value=odds, round=round, since=since, text=text)
