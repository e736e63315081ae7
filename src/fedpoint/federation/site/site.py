"""What does a site do? It answers orders about its own data, remembers what the hub has merged, and notes what left.

A site keeps two memories: the one that the hub is known to have merged, and the one that goes with its last answer.
Every order names the last round that was merged from this site: the pending memory is then taken over, or dropped.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import time
from functools import cached_property
from pathlib import Path

import numpy as np

from fedpoint import __version__
from fedpoint.core.errors import FedpointError
from fedpoint.data.column import Column
from fedpoint.data.tables import read_own
from fedpoint.engine.cpu import cache
from fedpoint.federation import preparation, wire
from fedpoint.federation.shapes import Arrays, misfit, named, tree_of
from fedpoint.federation.site.holding import Holding, Kept
from fedpoint.federation.study import Study
from fedpoint.federation.wire import NEVER
from fedpoint.store.disk import append_line, canonical, read_npz, write_npz

log = logging.getLogger(__name__)
RUNS = 4  # of which memories are kept


class Refused(FedpointError):
    """An order that a site does not carry out. The reason travels, the details stay."""

    def __init__(self, reason: str, details: str):
        super().__init__(details)
        self.reason = reason


class Site:
    """Answers orders, bytes to bytes. `folder` is where it keeps its memories and its audit file."""

    def __init__(self, study: Study, name: str, folder: str | Path, data: str | Path | None = None):
        if name not in study.sites:
            raise FedpointError(f"{name} is not a site of {study.name}: {', '.join(study.sites)}")
        if study.table is not None and data is None:
            raise FedpointError(f"{name} has no data: pass --data FILE")
        self.study, self.name, self.folder, self.data = study, name, Path(folder), data
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "audit.jsonl").touch()
        self._held: tuple[bytes, Holding] | None = None
        self._memories: dict[str, tuple[Kept, Kept | None]] = {}
        cache.enable()

    def answer(self, order: bytes) -> bytes:
        """The answer to an order, or a failure with its reason. Why exactly, the site's own log says."""
        about = wire.Header(fedpoint=__version__, study=self.study.fingerprint, site=self.name)
        try:
            packet = wire.decode(order)
            asked = packet.header
            about |= wire.Header(run=asked.get("run", ""), kind=asked.get("kind", ""), round=asked.get("round", NEVER))
            self._check(asked)
            said, arrays = self._carry_out(packet)
        except wire.Garbage as error:
            return self._failed(about, "order", error)
        except Refused as error:
            return self._failed(about, error.reason, error)
        except FedpointError as error:
            return self._failed(about, "data", error)
        except Exception as error:
            log.exception("order failed")
            return self._failed(about, "error", error)
        sent = wire.encode({**about, **said}, arrays)
        self._audit(about, said, arrays, len(sent))
        return sent

    def _failed(self, about: wire.Header, reason: str, error: Exception) -> bytes:
        log.warning("%s: %s", reason, error)
        self._audit(about, {"failure": reason}, {}, 0)
        return wire.encode({**about, "failure": reason})

    def _audit(self, about: wire.Header, said: wire.Header, arrays: Arrays, size: int) -> None:
        """What left, before it leaves: names, shapes and a hash, not the numbers."""
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        sha = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())).hexdigest()
        asked = {"run": about.get("run"), "kind": about.get("kind"), "round": about.get("round")}
        append_line(
            self.folder / "audit.jsonl",
            canonical({"time": when, **asked, "bytes": size, **said, "arrays": shapes, "sha256": sha}),
        )

    def _check(self, header: wire.Header) -> None:
        if header.get("fedpoint") != __version__:
            raise Refused("version", f"the hub runs fedpoint {header.get('fedpoint')}, this site {__version__}")
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
                held.work(held.silence(), self._settled(held, header["run"], header["merged"]), 0)  # compiles; not kept
                return {}, {}
            case "work":
                return self._local_work(packet)
            case "measure":
                held = self._holding(header["setup"])
                self._remember(held, header["run"], self._settled(held, header["run"], header["merged"]), None)
                model = tree_of(held.problem.start(), packet.arrays)
                return {"measures": held.measure(model)}, {}
        raise Refused("order", f"unknown order {header.get('kind')!r}")

    def _local_work(self, packet: wire.Packet) -> tuple[wire.Header, dict[str, np.ndarray]]:
        header = packet.header
        held = self._holding(header["setup"])
        wrong = misfit(held.shapes.heard, packet.arrays)
        if wrong:
            raise Refused("order", f"what the hub said does not fit: {wrong}")
        kept = self._settled(held, header["run"], header["merged"])
        begun = time.perf_counter()
        message, pending = held.work(packet.arrays, kept, header["round"])
        took = round(time.perf_counter() - begun, 6)
        self._remember(held, header["run"], kept, pending)  # before the answer leaves
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

    # Memory.

    def _settled(self, held: Holding, run: str, merged: int) -> Kept:
        """The memory that the hub has merged; a pending one is taken over or dropped."""
        if not held.remembers:
            return held.start._replace(round=merged)
        if run not in self._memories:
            self._memories = {run: self._recalled(held, run)}
        kept, pending = self._memories[run]
        if pending is not None and pending.round == merged:
            return pending
        if kept.round != merged:
            raise Refused("memory", f"the hub has merged round {merged}, but round {kept.round} is remembered here")
        return kept

    def _file(self, run: str) -> Path:
        return self.folder / f"memory-{run}.npz"

    def _recalled(self, held: Holding, run: str) -> tuple[Kept, Kept | None]:
        if not self._file(run).exists():
            return held.start, None
        arrays, about = read_npz(self._file(run), "memory")

        def found(which: str) -> Kept:
            like = tuple(held.start[1:])
            return Kept(about[which], *tree_of(like, {name: arrays[f"{which}{name}"] for name in named(like)}))

        return found("kept"), None if about["pending"] is None else found("pending")

    def _remember(self, held: Holding, run: str, kept: Kept, pending: Kept | None) -> None:
        """On disk before the answer leaves: a site that is killed takes part again as if nothing had been."""
        if not held.remembers:
            return
        self._memories = {run: (kept, pending)}
        both = {"kept": kept} if pending is None else {"kept": kept, "pending": pending}
        arrays = {f"{which}{name}": a for which, one in both.items() for name, a in one.arrays().items()}
        about = {"study": self.study.fingerprint, "pending": None, **{which: one.round for which, one in both.items()}}
        new = not self._file(run).exists()
        write_npz(self._file(run), "memory", arrays, about)
        if new:
            files = sorted(self.folder.glob("memory-*.npz"), key=lambda path: path.stat().st_mtime)
            for old in files[:-RUNS]:
                old.unlink()
