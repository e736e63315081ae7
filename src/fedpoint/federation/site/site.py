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
from fedpoint.engine.cpu import cache
from fedpoint.federation import preparation, protocol, wire
from fedpoint.federation.holding import Holding
from fedpoint.federation.measurement import rounded
from fedpoint.federation.shapes import tree_of
from fedpoint.federation.site import audit, disclosure, stop
from fedpoint.federation.site.answers import Answers
from fedpoint.federation.site.chain import Entry
from fedpoint.federation.site.consent import Consent
from fedpoint.federation.site.disclosure import Floor
from fedpoint.federation.site.memory import Memories
from fedpoint.federation.site.order import Order, read_order
from fedpoint.federation.site.refusal import COUNTED, Refused
from fedpoint.federation.study import Study
from fedpoint.federation.wire import NEVER
from fedpoint.store.disk import canonical

log = logging.getLogger(__name__)
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


class Site:
    """Answers orders, bytes to bytes, if its study allows them. `folder` is where it keeps its records; `floor` is what
    it discloses at least rows of."""

    def __init__(
        self,
        study: Study,
        name: str,
        folder: str | Path,
        data: str | Path | None = None,
        floor: Floor = disclosure.DEFAULT,
    ):
        self.release = protocol.OWN
        if name not in study.sites:
            raise FedpointError(f"{name} is not a site of {study.name}: {', '.join(study.sites)}")
        if study.table is not None and data is None:
            raise FedpointError(f"{name} has no data: pass --data FILE")
        self.study, self.name, self.folder, self.data, self.floor = study, name, Path(folder), data, floor
        self.folder.mkdir(parents=True, exist_ok=True)
        self.answers = Answers(self.folder, study.fingerprint)
        self.consent = Consent(study, name, self.answers, lambda: self.statement)
        self.audit = audit.Audit(self.folder, study.fingerprint, name)
        self.memories = Memories(self.folder, study.fingerprint)
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
        assert order.setup is not None  # of all other kinds
        held = self._holding(order.setup)
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
            return {"weight": held.own.share, "seconds": took}, message
        start = held.problem.start()
        self.consent.check_arrays(order, start, arrays)
        # A loss that is not finite is left out. A failure would be another answer, as often as the server likes.
        found = held.measure(tree_of(start, arrays))
        self.memories.remember(held, order.run, kept, None)
        return {"measures": rounded(found)}, {}

    @cached_property
    def statement(self) -> wire.Packet:
        """What this site says of its columns."""
        table = self.study.table
        return wire.Packet(*(({"rows": 0}, {}) if table is None else preparation.columns_of(table, self.columns)))

    @cached_property
    def columns(self) -> dict[str, Column]:
        """What the file holds, if that is enough to speak of; read once."""
        table = self.study.table
        if table is None or self.data is None:
            raise Refused("order", "this site has no file")
        found = table.read(self.data)
        below = disclosure.below(self.study, self.name, found, self.floor)
        if below:
            raise Refused("floor", "; ".join(below))
        claim = self.study.too_many_or_few(self.name, len(found[table.target].values))
        if claim:
            raise Refused("rows", claim)
        return found

    def _holding(self, setup: wire.OwnSetup) -> Holding:
        key = canonical(setup)
        if self._held is None or self._held[0] != key:
            columns = None if self.study.table is None else self.columns
            self._held = key, Holding(self.study, setup, columns)
        return self._held[1]
