"""Which sites may work? Those that have answered the questions before their first round: at the start, or later.

A site is asked "columns", "moments" (of a table) and "ready", in this order. A study begins when all have answered, or
when the quorum has and the deadline after that is over. Who was not there then has a share all the same, which never
changes, so that sums over all sites (SCAFFOLD's c = sum p_k c_k) hold: it is a site that has not answered yet. It is
asked on, and takes part from the round after its last answer.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.federation import preparation, wire
from fedpoint.federation.hub import statements, validate
from fedpoint.federation.hub.first_answers import FirstAnswers
from fedpoint.federation.hub.shares import absent_note, joined_note, rows_of_all, too_late
from fedpoint.federation.installed import InstalledProblem
from fedpoint.federation.preparation import Setup
from fedpoint.federation.site_table import SiteTable
from fedpoint.federation.transport import Arrival, Event, NoAnswerYet
from fedpoint.problems.base import check_weights

if TYPE_CHECKING:
    from fedpoint.federation.hub.hub import StudyHub

FIRST = 120.0  # seconds at least for each of these questions: sites start, read their data and compile
AGAIN = 1.0  # seconds before a site that could not answer is asked again
FATAL = (
    "version",
    "study",
    "data",
    "memory",
    "statement",
    "terms",
    "stopped",
    "floor",
    "rows",
)  # what no waiting mends


class Preparing:
    """The questions of a hub before a site's first round."""

    def __init__(self, hub: StudyHub):
        self.hub, self.study, self.terms = hub, hub.study, hub.terms
        self.kinds = ("columns", "ready") if hub.study.table is None else ("columns", "moments", "ready")
        self.answers = FirstAnswers(hub.ledger.folder, hub.study)
        self.at = dict.fromkeys(hub.sites, "columns")  # the question that a site is to answer; who may work is not here
        self.excluded: dict[str, str] = {}  # who cannot take part, and why
        self.rows: dict[str, int] = {}
        self.due: dict[str, float] = {}  # when a site is asked (again)
        self.tries: Counter[str] = Counter()
        self.unscaled: list[wire.Written] | None = None  # how columns are written when moments are asked for
        self.classes: wire.Classes = None
        self.told = Event()
        for kind in self.kinds[:-1]:  # what was said to a hub that is started again
            for site, packet in self.answers.of(kind).items():
                self.rows.setdefault(site, packet.header.get("rows", 0))
                self._advance(site, kind)

    def go_on(self, setup: Setup) -> None:
        """From a setup that was made before: who was there then need only be ready."""
        self.unscaled, self.classes = setup["unscaled"], setup["classes"]
        self.rows = {} if setup["rows"] is None else dict(zip(self.study.sites, setup["rows"], strict=True))
        self.at = {site: "columns" if site in setup["absent"] else "ready" for site in self.study.sites}

    def may_work(self, site: str) -> bool:
        return site not in self.at and site not in self.excluded

    # Asking, whatever else the hub waits for.

    def ask(self) -> None:
        """Whoever is due, if what it is asked is known already."""
        now, most = self.hub.engine.now(), max(self.terms.deadline, FIRST)
        for site, kind in self.at.items():
            known = kind == "columns" or (self.hub.own if kind == "ready" else self.unscaled)
            if not known or self.due.get(site, now) > now or not self.hub.engine.reaches(site):
                continue
            more = wire.Header(recipe=self.unscaled) if kind == "moments" and self.unscaled else wire.Header()
            self.due[site] = now + most
            self.hub.order(site, kind, deadline=most, more=more)

    def took(self, arrival: Arrival) -> bool:
        """Whether this is of a site that may not work yet: it is dealt with then."""
        site = arrival.site
        if site not in self.at:
            return site in self.excluded
        kind = self.at[site]
        try:
            packet = self.hub.packet(arrival)
            if packet.header["kind"] != kind:
                raise validate.Invalid("twice")
            self._look_at(site, kind, packet)
        except validate.Invalid as error:
            self.hub.note(site, error.reason)
            if error.reason in FATAL:
                self._exclude(site, _fatal(site, error))
            elif error.reason not in validate.STALE:
                self.tries[site] += 1
                rest = AGAIN if self.tries[site] < self.terms.patience else self.terms.deadline
                self.due[site] = self.hub.engine.now() + rest
            return True
        self.due.pop(site, None)
        if site in self.at:
            self._advance(site, kind)
        return True

    def _look_at(self, site: str, kind: str, packet: wire.Packet) -> None:
        """What an answer says of the site's data must make sense, and fit what is fixed already."""
        table = self.study.table
        if self.study.of_files and kind == "columns":
            statements.rows(packet) if table is None else statements.columns(packet, table)
            claim = self.study.too_many_or_few(site, packet.header["rows"])
            if claim:
                raise validate.Invalid("rows", claim)
            late = too_late(self.study, site, self.hub.setup, packet.header["rows"]) if self.hub.own else ""
            if late:
                return self._exclude(site, late)
            self.rows[site] = packet.header["rows"]
            if table is not None and self.unscaled is not None:
                why = preparation.misfit(preparation.features(self.unscaled), self.classes, packet.header)
                if why:
                    return self._exclude(site, f"{site} cannot take part (data): {why}")
        if kind == "moments":
            statements.encoded(packet, preparation.features(self.unscaled or []), self.rows[site])
        if kind != "ready" and not self.hub.own:
            self.answers.keep(kind, site, packet)
        return None

    def _advance(self, site: str, kind: str) -> None:
        rest = self.kinds[self.kinds.index(kind) + 1 :]
        if rest:
            self.at[site] = rest[0]
            return
        del self.at[site]
        self.hub.silent.discard(site)
        if site in self.hub.setup["absent"]:
            self._joined(site)

    def _joined(self, site: str) -> None:
        """A late site may work from now on. Its share stays: what it would have been is said."""
        setup = self.hub.setup
        setup["absent"].remove(site)
        if setup["rows"] is not None and site in self.rows:
            setup["rows"][self.study.sites.index(site)] = self.rows[site]
        self._note(joined_note(self.study, site, setup["weights"], self.hub.round, self.rows))

    def _note(self, text: str) -> None:
        notes = self.hub.setup["notes"]
        if text not in notes:
            notes.append(text)
        self.hub.save()

    def _exclude(self, site: str, why: str) -> None:
        """The others go on, if they are enough; the site hears why. Its share is no longer by what it says it has."""
        del self.at[site]
        self.rows.pop(site, None)
        self.excluded[site] = why
        self.hub.silent.add(site)
        if len(self.study.sites) - len(self.excluded) < self.needed:
            raise FedpointError(why) from None
        self.hub.order(site, "excluded", more=wire.Header(why=why))
        if self.hub.own:
            self._note(why)

    # At the start.

    @property
    def needed(self) -> int:
        """Sites without which a study does not begin."""
        return self.terms.quorum or len(self.study.sites)

    def gather(self, kind: str, needed: int) -> list[str]:
        """The sites that have answered a question: all, or enough within the deadline after that."""
        hub, begun = self.hub, self.hub.engine.now()
        end = begun + self.terms.patience * max(self.terms.deadline, FIRST)
        while True:
            answered = [site for site in hub.sites if self._past(site, kind)]
            enough = len(answered) >= needed
            missing = [site for site in self.at if self._missing(site, kind, enough)]
            if enough and not missing:
                break
            self._tell(kind, missing)
            if enough:
                end = min(end, hub.engine.now() + self.terms.deadline)
            if hub.receive(end, preparing=True) is None:
                break
        if not enough:
            passed = hub.engine.now() - begun
            raise NoAnswerYet(
                f"no answer to {kind!r} from {', '.join(missing)} in {passed:.0f} seconds; "
                f"{counted(needed, 'site')} needed; run the study again when they are there"
            )
        hub.silent |= set(self.at)
        return answered

    def _tell(self, kind: str, missing: list[str]) -> None:
        event = Event({"waiting": kind, "for": missing})
        if event != self.told:
            self.hub.tell(event)
        self.told = event

    def _missing(self, site: str, kind: str, enough: bool) -> bool:
        """Whether a site is waited for: for this answer; before the rounds begin, if it is there, for any."""
        late = kind == self.kinds[-1] and self.hub.engine.reaches(site)
        return self.at[site] == kind or late or not (enough or self._past(site, kind))

    def _past(self, site: str, kind: str) -> bool:
        at = self.at.get(site)
        if at is None:
            return site not in self.excluded
        return self.kinds.index(at) > self.kinds.index(kind)

    def setup(self) -> Setup:
        """What all sites together say of their data, and what follows."""
        if self.study.installed is not None:
            made = self._counted(self.study.installed)
        else:
            made = self._generated() if self.study.table is None else self._tabulated(self.study.table)
        silent = [site for site, at in self.at.items() if at == "columns"]
        made["absent"] = [site for site in self.study.sites if self.at.get(site) != "ready"]
        made["notes"] += [absent_note(self.study, site, made["weights"]) for site in silent]
        made["notes"] += self.excluded.values()
        return made

    def _settled(self, kind: str) -> list[wire.Packet]:
        """The answers that the setup is made of: the same ones for a hub that is started again."""
        sites = self.answers.settled(kind)
        if sites is None:
            sites = self.gather(kind, self.needed)
            self.answers.settle(kind, sites)
        said = self.answers.of(kind)
        return [said[site] for site in sites]

    @contextlib.contextmanager
    def _fresh_if_they_differ(self) -> Iterator[None]:
        """Sites whose data do not go together must change them, and are asked anew then."""
        try:
            yield
        except FedpointError:
            self.answers.forget()
            self.hub.ledger.end_run()
            raise

    def _generated(self) -> Setup:
        """Of a trial: everybody makes the data."""
        self._settled("columns")
        problem = self.study.generated()
        rows = problem.local_rows()
        counts = None if rows is None else rows.tolist()
        weights = problem.weights.tolist()
        return Setup(weights=weights, rows=counts, notes=[], recipe=[], unscaled=[], classes=None, absent=[])

    def _counted(self, model: InstalledProblem) -> Setup:
        """Of a model that sites have installed: nothing but the number of their rows is asked."""
        self._settled("columns")
        rows = rows_of_all(self.study, self.rows)
        weights = check_weights(model.weights, len(rows), default=np.array(rows, float)).tolist()
        return Setup(weights=weights, rows=rows, notes=[], recipe=[], unscaled=[], classes=None, absent=[])

    def _tabulated(self, table: SiteTable) -> Setup:
        """In two questions to every site: rows and categories, then moments."""
        columns = self._settled("columns")
        with self._fresh_if_they_differ():
            recipe, self.classes, notes = preparation.first_recipe(table, columns)
        self.unscaled = preparation.written(recipe)
        moments = self._settled("moments")
        notes += statements.strange([packet.header["site"] for packet in moments], recipe, moments)
        with self._fresh_if_they_differ():
            recipe, more = preparation.last_recipe(table, recipe, moments)
        rows = rows_of_all(self.study, self.rows)
        weights = check_weights(table.site_weights, len(rows), default=np.array(rows, float))
        return Setup(
            weights=weights.tolist(),
            rows=rows,
            notes=notes + more,
            recipe=preparation.written(recipe),
            unscaled=self.unscaled,
            classes=self.classes,
            absent=[],
        )


def _fatal(site: str, error: validate.Invalid) -> str:
    advice = {
        "study": "it has consented to another study: give it this one's kit",
        "data": "its data do not fit the study; its own log says why",
        "memory": "it has lost its memory of this study: restore its folder, or begin a new study",
        "statement": "what it says about its data is impossible",
        "terms": "the study does not allow what was asked, a run too many perhaps; its records/refusals.jsonl says",
        "stopped": "it has stopped itself after orders that the study does not allow; the person there can lift that",
        "rows": "it has more or fewer rows than the study allows it; its own screen says which",
        "floor": "it has too few rows, of a category or class perhaps, to speak of them; its own screen says which",
    }
    return f"{site} cannot take part ({error.reason}): {error.advice or advice[error.reason]}"
