"""What does a site do? It answers orders about its own data, remembers what the hub has merged, and notes what left.

A site keeps two memories: the one that the hub is known to have merged, and the one that goes with its last answer.
Every order names the last round that was merged from this site: the pending memory is then taken over, or dropped.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import time
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint import __version__
from fedpoint.channel import Channel
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.precision import double
from fedpoint.core.random import Key, Stream
from fedpoint.core.record import one_agent
from fedpoint.core.types import Data, Model, State, Tree
from fedpoint.core.vector import wrap
from fedpoint.data.column import Column
from fedpoint.data.tables import read_own
from fedpoint.engine.cpu import cache
from fedpoint.engine.round import Place, agent_round, encoded
from fedpoint.engine.state import AGENTS
from fedpoint.federation import preparation, wire
from fedpoint.federation.shapes import Arrays, arrays_of, blank, elsewhere, misfit, named, shapes_of, tree_of
from fedpoint.federation.study import Study
from fedpoint.graphs.topology import Topology
from fedpoint.problems.base import Mine, Oracle
from fedpoint.problems.logistic import Logistic
from fedpoint.store.disk import append_line, canonical, read_npz, write_npz

log = logging.getLogger(__name__)
RUNS = 4  # of which memories are kept
NEVER = -1  # the round that was merged last, before any was


class Refused(FedpointError):
    """An order that a site does not carry out. The reason travels, the details stay."""

    def __init__(self, reason: str, details: str):
        super().__init__(details)
        self.reason = reason


class Kept(NamedTuple):
    """What an agent remembers, and the round in which it came about."""

    round: int
    memory: State  # the method's
    wire: State  # the channel's
    world: Data  # where its world is, where that goes on between rounds

    def arrays(self) -> dict[str, np.ndarray]:
        return arrays_of(tuple(self[1:]))


class Own(NamedTuple):
    """The numbers of one agent: traced."""

    algorithm: Algorithm
    channel: Channel
    mine: Mine
    share: float
    key: Key
    agent: np.ndarray  # its number


class Structure(NamedTuple):
    """What is compiled in."""

    oracle: Oracle
    exact: bool
    topology: Topology


@partial(jax.jit, static_argnames="structure")
def _work(
    structure: Structure, own: Own, heard: Tree, memories: tuple[State, State, Data], round: Array
) -> tuple[Tree, tuple[State, State, Data]]:
    """What is sent, and what is kept."""
    oracle, exact, topology = structure
    memory, wire, world = memories
    sends_difference = topology.by_node and not own.channel.lossless
    said, last = heard if sends_difference else (heard, None)
    place = Place(own.mine, Stream(own.key, round, own.agent), own.share, world)
    message, memory, agent, world = agent_round(oracle, exact, own.algorithm, place, said, memory)
    base = own.algorithm.base(said) if topology.by_node and not own.algorithm.at_agents else None
    code, (memory, wire) = encoded(own.algorithm, own.channel, message, (memory, wire), agent, base, last)
    return code, (memory, wire, world)


@partial(jax.jit, static_argnames="oracle")
def _begin(oracle: Oracle, own: Own) -> Data:
    return oracle.begin(own.mine, Stream(own.key, jnp.int32(-1), own.agent))


@partial(jax.jit, static_argnames="oracle")
def _loss(oracle: Oracle, mine: Mine, w: Model) -> Array:
    return oracle.loss(mine, w)


class Holding:
    """One site's part of the problem, ready to work."""

    @double
    def __init__(self, study: Study, setup: wire.OwnSetup, columns: Mapping[str, Column] | None):
        index, table = int(setup["index"]), study.table
        if table is None:
            self.problem, at = study.generated(), index
        else:
            recipe = preparation.features(setup["recipe"])
            self.problem, at = preparation.problem_of(table, columns or {}, recipe, setup["classes"]), 0
        rows = self.problem.local_rows()
        bound = study.experiment(
            study.outline(self.problem.start(), rows=None if rows is None else int(rows[at]))
        ).bind()
        inputs = elsewhere(bound)[1]
        algorithm = one_agent(inputs.algorithm, index)
        model = wrap(jax.tree.map(jnp.asarray, bound.topology.at(index, bound.start)))
        own = jax.tree.map(lambda a: np.asarray(a)[at], self.problem.own_for(algorithm))
        key, share = Key.of(bound.experiment.seed, 0, AGENTS), float(setup["share"])
        mine = Mine(*jax.device_put((own, self.problem.common)))
        self.structure = Structure(self.problem.prepare(algorithm), bound.exact, bound.topology)
        self.own = Own(algorithm, inputs.channel, mine, share, key, np.asarray(index, np.int32))
        self.shapes = shapes_of(bound)
        wire = inputs.channel.init(jax.tree.map(jnp.asarray, blank(self.shapes.message)))
        moves = self.structure.oracle.moves and not bound.exact
        world = _begin(self.structure.oracle, self.own) if moves else ()
        self.start = Kept(NEVER, *jax.tree.map(jnp.asarray, (algorithm.init(model)[1], wire, world)))
        self.remembers = bool(jax.tree.leaves(self.start[1:]))

    @double
    def work(self, heard: Arrays, kept: Kept, round: int) -> tuple[dict[str, np.ndarray], Kept]:
        told = tree_of(self.shapes.heard, heard)
        code, memories = _work(self.structure, self.own, told, kept[1:], jnp.int32(round))
        return arrays_of(code), Kept(round, *jax.tree.map(np.asarray, memories))

    def silence(self) -> dict[str, np.ndarray]:
        """Something to hear that says nothing."""
        return arrays_of(blank(self.shapes.heard))

    @double
    def measure(self, model: Model) -> dict[str, float]:
        """The loss of a model here, and for classes the share of rows that it gets right."""
        found = {}
        if self.problem.has_loss:
            found["loss"] = float(_loss(self.structure.oracle, self.own.mine, jax.tree.map(jnp.asarray, model)))
        if isinstance(self.problem, Logistic) and self.problem.agents == 1:
            label, scores = self.problem.label, self.problem.X @ np.asarray(model).T
            right = (scores > 0) == (label == 1) if scores.ndim == 1 else scores.argmax(1) == label
            found["accuracy"] = float(right.mean())
        return found


class Site:
    """Answers orders, bytes to bytes. `folder` is where it keeps its memories and its audit file."""

    def __init__(self, study: Study, name: str, folder: str | Path, data: str | Path | None = None):
        if name not in study.sites:
            raise FedpointError(f"{name} is not a site of {study.name}: {', '.join(study.sites)}")
        if study.table is not None and data is None:
            raise FedpointError(f"{name} has no data: say --data FILE")
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
            raise Refused("study", "the order is of another study than the one consented to")
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
        raise Refused("order", f"there is no order {header.get('kind')!r}")

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
            raise Refused("order", "there is no file here")
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
