"""What does a site do? It answers orders about its own data, remembers what the hub has merged, and notes what left."""

from __future__ import annotations

import logging
import time
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.data.column import Column
from fedpoint.data.floor import DEFAULT, Floor
from fedpoint.engine.cpu import cache
from fedpoint.federation import preparation, protocol, wire
from fedpoint.federation.exported import about_model
from fedpoint.federation.held_out import Divided, divide, draw_luck
from fedpoint.federation.holding import Holding
from fedpoint.federation.measurement import rounded, rounded_tables
from fedpoint.federation.secure.identity import Identity
from fedpoint.federation.secure.letters import STAGES
from fedpoint.federation.shapes import tree_of
from fedpoint.federation.site import audit, disclosure, stop
from fedpoint.federation.site.answers import Answers
from fedpoint.federation.site.chain import Entry
from fedpoint.federation.site.consent import Consent
from fedpoint.federation.site.masked import MaskedSums
from fedpoint.federation.site.memory import Memories
from fedpoint.federation.site.order import Order, read_order
from fedpoint.federation.site.refusal import COUNTED, Refused
from fedpoint.federation.study import Study
from fedpoint.federation.wire import NEVER
from fedpoint.problems.base import Problem
from fedpoint.store.disk import canonical, write_npz
from fedpoint.store.folder import export_model

log = logging.getLogger(__name__)
MODEL = "model.npz"  # in a site's records: what the study ended with
STOPPED = f"this site has stopped itself: it takes part again when it is started with {stop.LIFT}"


def _echo(header: wire.Header) -> wire.Header:
    """What an answer repeats of its order, whatever that held."""
    words, asked = {"run": "", "order": "", "kind": "", "round": NEVER}, cast(Entry, header)
    return cast(wire.Header, {key: asked[key] if type(asked.get(key)) is type(w) else w for key, w in words.items()})


def _why(error: Exception) -> tuple[str, str]:
    """The reason that travels, and the detail that the record keeps; of the data, only the log may tell."""
    match error:
        case Refused():
            return error.reason, str(error)
        case wire.Garbage():
            return "order", str(error)
        case protocol.Mismatch():
            return "version", str(error)
        case FedpointError():
            return "data", audit.UNSAID
    return "error", audit.UNSAID


def _rows_of(problem: Problem) -> int:
    rows = problem.local_rows()
    return 0 if rows is None else int(rows[0])


class Site:
    """Answers orders, bytes to bytes, if its study allows them. `folder` is where it keeps its records; `floor` is what
    it discloses at least rows of, `identity` by what others know it in secure sums."""

    def __init__(
        self,
        study: Study,
        name: str,
        folder: str | Path,
        data: str | Path | None = None,
        floor: Floor = DEFAULT,
        identity: Identity | None = None,
    ):
        self.release = protocol.OWN
        if name not in study.sites:
            raise FedpointError(f"{name} is not a site of {study.name}: {', '.join(study.sites)}")
        if study.of_files and data is None:
            raise FedpointError(f"{name} has no data: pass --data FILE")
        self.study, self.name, self.folder, self.data, self.floor = study, name, Path(folder), data, floor
        self.folder.mkdir(parents=True, exist_ok=True)
        self.answers = Answers(self.folder, study.fingerprint)
        self.consent = Consent(study, name, self.answers, lambda: self.statement)
        self.audit = audit.Audit(self.folder, study.fingerprint, name)
        self.memories = Memories(self.folder, study.fingerprint)
        self.sums = MaskedSums(study, identity) if study.terms.secure else None
        self._held: tuple[bytes, Holding] | None = None
        cache.enable()

    def answer(self, order: bytes) -> bytes:
        """The answer to an order, or a failure with its reason. Why exactly, the site's own log says."""
        about, asked = wire.Header(**self.release.plain(), study=self.study.fingerprint, site=self.name), Entry()
        try:
            packet = wire.decode(order)
            about |= _echo(packet.header)
            asked = audit.read(packet, len(order))
            self._check(packet.header)
            read = read_order(packet)
            before = self.consent.permit(read)
            said, arrays = self._carry_out(read, packet.arrays) if before is None else wire.decode(before)
        except Exception as error:
            reason, detail = ("stopped", STOPPED) if self._stopped() else _why(error)
            log.warning("%s: %s", reason, error, exc_info=reason == "error")
            if reason in COUNTED:
                self._count(detail)
            return self.audit.seal(asked or audit.unread(order), about, wire.Header(failure=reason), detail=detail)
        sent = self.audit.seal(asked, about, said, arrays)
        if before is None:
            self.consent.keep(read, wire.encode(said, arrays))
        return sent

    def _count(self, text: str) -> None:
        """A refusal more; the last of several in a row stops the site."""
        stop.note_refusal(self.folder, text)
        if self.answers.refuse() >= stop.STRIKES:
            stop.note_stop(self.folder, f"{stop.STRIKES} orders in a row were refused, the last one because {text}")

    def _check(self, header: wire.Header) -> None:
        protocol.check("this site", self.release, "the hub", protocol.Release.named_in(header))
        if header.get("study") != self.study.fingerprint:
            raise Refused("study", "the order belongs to another study than the one this site consented to")
        if self._stopped():
            raise Refused("stopped", STOPPED)

    def _stopped(self) -> bool:
        return stop.why_stopped(self.folder) is not None or self.answers.all["refused"] >= stop.STRIKES

    def _carry_out(self, order: Order, arrays: wire.Arrays) -> tuple[wire.Header, dict[str, np.ndarray]]:
        if order.kind == "excluded":
            log.warning("the study goes on without this site: %s", order.why)
            return {}, {}
        if order.kind == "columns":
            return self.statement
        if order.kind == "moments":
            count, moments = preparation.moments_of(self.columns, preparation.features(order.recipe))
            return {"count": count}, moments
        if self.sums is not None and order.kind in STAGES:
            return {}, self.sums.answer(order, arrays)
        assert order.setup is not None  # of all other kinds
        held = self._holding(order.setup)
        if order.kind == "end":
            self.consent.check_shared(order, held.problem.start(), arrays)
            self._save_model(order.setup, arrays)
            return {}, {}
        kept = self.memories.settled(held, order.run, order.merged)
        if order.kind == "ready":
            held.work(held.silence(), kept, 0)  # compiles; not kept
            return {}, {}
        if order.kind == "work":
            self.consent.check_arrays(order, held.shapes.heard, arrays)
            begun = time.perf_counter()
            message, pending = held.work(arrays, kept, order.round)
            took = round(time.perf_counter() - begun, 6)
            self.memories.remember(held, order.run, kept, pending)  # before the answer leaves
            if self.sums is not None:
                rows = self.statement.header["rows"]
                return {"seconds": took}, self.sums.begin(order, arrays, message, order.setup, held.encoding, rows)
            return {"weight": held.own.share, "seconds": took}, message
        start = held.problem.start()
        self.consent.check_arrays(order, start, arrays)
        # A loss that is not finite is left out. A failure would be another answer, as often as the server likes.
        found = held.measure(tree_of(start, arrays), self.study.terms.measures, self.floor.rows, self.floor.per_class)
        self.memories.remember(held, order.run, kept, None)
        said = wire.Header(measures=rounded(found.numbers))
        if found.tables:
            said["tables"] = rounded_tables(found.tables)
        if held.rows_held_out:
            said["count"] = held.rows_held_out
        return said, {}

    def _save_model(self, setup: wire.OwnSetup, arrays: wire.Arrays) -> None:
        """The model that the study ends with, for `fedpoint predict` where its rows are those of a table."""
        if not arrays:
            return
        if self.study.table is None:
            write_npz(self.folder / MODEL, "model-of-round", dict(arrays), {"round": self.study.rounds})
        else:
            about = about_model(self.study, self.study.table, setup, arrays["model"], self.study.rounds)
            export_model(self.folder / MODEL, arrays, about)

    @cached_property
    def statement(self) -> wire.Packet:
        """What this site says of its columns; of an installed model's data the number of rows."""
        table = self.study.table
        if self.own_problem is not None:
            return wire.Packet({"rows": _rows_of(self.own_problem)}, {})
        return wire.Packet(*(({"rows": 0}, {}) if table is None else preparation.columns_of(table, self.columns)))

    @property
    def columns(self) -> dict[str, Column]:
        """What the file holds to train on."""
        return self.divided.trained

    @cached_property
    def divided(self) -> Divided:
        """The rows to train on and those that are held out, if both are enough to speak of; read once."""
        table = self.study.table
        if table is None or self.data is None:
            raise Refused("order", "this site has no file")
        found = divide(table, table.read(self.data), draw_luck(self.folder))
        below = disclosure.below(self.study, self.name, found.trained, self.floor, found.held)
        if below:
            raise Refused("floor", "; ".join(below))
        claim = self.study.too_many_or_few(self.name, table.rows_of(found.trained))
        if claim:
            raise Refused("rows", claim)
        return found

    @cached_property
    def own_problem(self) -> Problem | None:
        """What a model that is installed here makes of the file, if its rows are enough; None in other studies."""
        model = self.study.installed
        if model is None or self.data is None:
            return None
        found = model.problem([self.data])
        rows = _rows_of(found)
        below = disclosure.below_rows(self.study, self.name, rows, self.floor)
        if below:
            raise Refused("floor", "; ".join(below))
        claim = self.study.too_many_or_few(self.name, rows)
        if claim:
            raise Refused("rows", claim)
        return found

    def _holding(self, setup: wire.OwnSetup) -> Holding:
        key = canonical(setup)
        if self._held is None or self._held[0] != key:
            table = self.study.table
            columns, held = (None, None) if table is None else self.divided
            if table is not None and columns is not None:
                recipe = preparation.features(setup["recipe"])
                below = disclosure.few_of_a_design(table, columns, recipe, self.floor)
                below += disclosure.few_by_filling(columns, recipe, self.floor)
                if below:
                    raise Refused("floor", "; ".join(below))
            more = [] if self.own_problem is None else [self.own_problem]
            self._held = key, Holding(self.study, setup, columns, held, *more)
        return self._held[1]
