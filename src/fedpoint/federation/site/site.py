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
from fedpoint.data.tables import read_own
from fedpoint.engine.cpu import cache
from fedpoint.federation import preparation, protocol, wire
from fedpoint.federation.holding import Holding
from fedpoint.federation.shapes import misfit, tree_of
from fedpoint.federation.site import audit
from fedpoint.federation.site.chain import Entry
from fedpoint.federation.site.memory import Memories
from fedpoint.federation.site.refusal import Refused
from fedpoint.federation.study import Study
from fedpoint.federation.wire import NEVER
from fedpoint.store.disk import canonical

log = logging.getLogger(__name__)


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
    """Answers orders, bytes to bytes. `folder` is where it keeps its memories and its audit file."""

    def __init__(self, study: Study, name: str, folder: str | Path, data: str | Path | None = None):
        self.release = protocol.OWN
        if name not in study.sites:
            raise FedpointError(f"{name} is not a site of {study.name}: {', '.join(study.sites)}")
        if study.table is not None and data is None:
            raise FedpointError(f"{name} has no data: pass --data FILE")
        self.study, self.name, self.folder, self.data = study, name, Path(folder), data
        self.folder.mkdir(parents=True, exist_ok=True)
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
            said, arrays = self._carry_out(packet)
        except Exception as error:
            reason, detail = _why(error)
            log.warning("%s: %s", reason, error, exc_info=reason == "error")
            return self.audit.seal(asked or audit.unread(order), about, wire.Header(failure=reason), detail=detail)
        return self.audit.seal(asked, about, said, arrays)

    def _check(self, header: wire.Header) -> None:
        protocol.check("this site", self.release, "the hub", protocol.Release.named_in(header))
        if header.get("study") != self.study.fingerprint:
            raise Refused("study", "the order belongs to another study than the one this site consented to")
        whole = all(type(header.get(key)) is int for key in ("round", "merged"))
        if not whole or not isinstance(header.get("run"), str) or not header["run"].isalnum():
            raise Refused("order", "the order has no run, round or merged round")

    def _carry_out(self, packet: wire.Packet) -> tuple[wire.Header, dict[str, np.ndarray]]:
        header = packet.header
        match header.get("kind"):
            case "columns":
                if self.study.table is None:
                    return {"rows": 0}, {}
                return preparation.columns_of(self.study.table, self.columns)
            case "moments":
                recipe = preparation.features(header["recipe"])
                count, arrays = preparation.moments_of(self.columns, recipe)
                return {"count": count}, arrays
            case "ready":
                held = self._holding(header["setup"])
                kept = self.memories.settled(held, header["run"], header["merged"])
                held.work(held.silence(), kept, 0)  # compiles; not kept
                return {}, {}
            case "work":
                return self._local_work(packet)
            case "measure":
                held = self._holding(header["setup"])
                kept = self.memories.settled(held, header["run"], header["merged"])
                self.memories.remember(held, header["run"], kept, None)
                model = tree_of(held.problem.start(), packet.arrays)
                return {"measures": held.measure(model)}, {}
            case "excluded":  # nothing is done and nothing leaves
                log.warning("the study goes on without this site: %s", str(header.get("why"))[:500])
                return {}, {}
        raise Refused("order", f"unknown order {header.get('kind')!r}")

    def _local_work(self, packet: wire.Packet) -> tuple[wire.Header, dict[str, np.ndarray]]:
        header = packet.header
        held = self._holding(header["setup"])
        wrong = misfit(held.shapes.heard, packet.arrays)
        if wrong:
            raise Refused("order", f"what the hub said does not fit: {wrong}")
        kept = self.memories.settled(held, header["run"], header["merged"])
        begun = time.perf_counter()
        message, pending = held.work(packet.arrays, kept, header["round"])
        took = round(time.perf_counter() - begun, 6)
        self.memories.remember(held, header["run"], kept, pending)  # before the answer leaves
        return {"weight": held.own.share, "seconds": took}, message

    @cached_property
    def columns(self) -> dict[str, Column]:
        """What the file holds; read once."""
        table = self.study.table
        if table is None or self.data is None:
            raise Refused("order", "this site has no file")
        return read_own(self.data, table.target, table.features, table.categorical, table.missing, table.separator)

    def _holding(self, setup: wire.OwnSetup) -> Holding:
        key = canonical(setup)
        if self._held is None or self._held[0] != key:
            if self.study.sites[int(setup["index"])] != self.name:
                raise Refused("order", "the order is for another site")
            columns = None if self.study.table is None else self.columns
            self._held = key, Holding(self.study, setup, columns)
        return self._held[1]
