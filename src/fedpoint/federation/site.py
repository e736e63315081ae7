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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint import __version__
from fedpoint.core.algorithm import per_agent_fields
from fedpoint.core.errors import FedpointError
from fedpoint.core.random import Key, Stream
from fedpoint.core.record import with_leaves
from fedpoint.core.steps import Epochs
from fedpoint.core.vector import wrap
from fedpoint.data.column import Column
from fedpoint.data.tables import Feature, read_own
from fedpoint.engine.cpu import cache
from fedpoint.engine.round import agent_round
from fedpoint.engine.session import cast
from fedpoint.engine.state import AGENTS
from fedpoint.federation import preparation, wire
from fedpoint.federation.shapes import Shapes, arrays_of, misfit, named, shapes_of, tree_of
from fedpoint.federation.study import Study
from fedpoint.problems.base import Mine
from fedpoint.store.disk import append_line, canonical, read_npz, write_npz

log = logging.getLogger(__name__)
RUNS = 4  # of which memories are kept
NEVER = -1  # the round that was merged last, before any was


class Refused(FedpointError):
    """An order that a site does not carry out. The reason travels, the details stay."""

    def __init__(self, reason: str, details: str):
        super().__init__(details)
        self.reason = reason


@partial(jax.jit, static_argnames=("oracle", "exact"))
def _work(oracle, exact, algorithm, own, common, heard, memory, world, share, key, round, index):
    stream = Stream(Key(*key), round, index)
    message, memory, _, world = agent_round(
        oracle, exact, algorithm, Mine(own, common), stream, heard, memory, share, world
    )
    return message, memory, world


@partial(jax.jit, static_argnames=("oracle",))
def _begin(oracle, own, common, key, index):
    return oracle.begin(Mine(own, common), Stream(Key(*key), jnp.int32(-1), index))


@partial(jax.jit, static_argnames=("oracle",))
def _loss(oracle, own, common, w):
    return oracle.loss(Mine(own, common), w)


def own_method(study: Study, index: int, rows: int | None, dtype: Any) -> Any:
    """The study's algorithm with the numbers of one site: nobody else has a say in them."""
    algorithm, own = study.method(), dict[str, Any]()
    for name in per_agent_fields(algorithm):
        value = getattr(algorithm, name)
        if isinstance(value, Epochs):
            batch = study.problem.get("batch")
            own[name] = np.int32(value.count * (1 if batch is None or rows is None else -(-rows // batch)))
        elif np.ndim(value) == 1:
            own[name] = np.asarray(value[index], np.int32 if name == "local_steps" else dtype)
    return cast(with_leaves(algorithm, **own) if own else algorithm, dtype)


class Holding:
    """One site's part of the problem, ready to work."""

    def __init__(self, study: Study, setup: Mapping[str, Any], columns: Mapping[str, Column] | None):
        self.index, self.share, table = int(setup["index"]), float(setup["share"]), study.table
        if table is None:
            problem, at = study.generated(), self.index
        else:
            recipe = [Feature(**feature) for feature in setup["recipe"]]
            problem, at = preparation.problem_of(table, columns or {}, recipe, setup["classes"]), 0
        self.problem, self.at = problem, at
        model = problem.start()
        dtype = np.result_type(*jax.tree.leaves(model))
        with jax.enable_x64(True):
            rows = problem.local_rows()
            self.algorithm = own_method(study, self.index, None if rows is None else int(rows[at]), dtype)
            self.exact = study.exact or self.algorithm.full
            self.oracle = problem.prepare(self.algorithm)
            self.own = jax.device_put(jax.tree.map(lambda a: np.asarray(a)[at], problem.own_for(self.algorithm)))
            self.common = jax.device_put(problem.common)
            self.key = tuple(Key.of(study.seed, 0, AGENTS))
            self.shapes: Shapes = shapes_of(self.algorithm, model, study.network is not None)
            self.start = jax.tree.map(jnp.asarray, self.algorithm.init(wrap(jax.tree.map(jnp.asarray, model)))[1])
            self.world: Any = ()
            if self.oracle.moves and not self.exact:
                self.world = _begin(self.oracle, self.own, self.common, self.key, jnp.int32(self.index))
        self.remembers = bool(jax.tree.leaves((self.start, self.world)))

    def work(self, heard: Mapping[str, np.ndarray], kept: Kept, round: int) -> tuple[dict[str, np.ndarray], Kept]:
        with jax.enable_x64(True):
            message, memory, world = _work(
                self.oracle,
                self.exact,
                self.algorithm,
                self.own,
                self.common,
                tree_of(self.shapes.heard, heard),
                kept.memory,
                kept.world,
                self.share,
                self.key,
                jnp.int32(round),
                jnp.int32(self.index),
            )
            return arrays_of(message), Kept(round, *jax.tree.map(np.asarray, (memory, world)))

    def silence(self) -> dict[str, np.ndarray]:
        """Something to hear that says nothing."""
        return {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in named(self.shapes.heard).items()}

    def measure(self, model: Any) -> dict[str, float]:
        """The loss of a model here, and for classes the share of rows that it gets right."""
        found = {}
        if self.problem.has_loss:
            with jax.enable_x64(True):
                found["loss"] = float(_loss(self.oracle, self.own, self.common, jax.tree.map(jnp.asarray, model)))
        label = getattr(self.problem, "label", None)
        if label is not None and self.problem.agents == 1:
            scores = self.problem.X @ np.asarray(model).T
            right = (scores > 0) == (label == 1) if scores.ndim == 1 else scores.argmax(1) == label
            found["accuracy"] = float(right.mean())
        return found


class Kept(NamedTuple):
    """What an agent remembers, and the round in which it came about."""

    round: int
    memory: Any
    world: Any


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
        about: dict[str, Any] = {"fedpoint": __version__, "study": self.study.fingerprint, "site": self.name}
        try:
            packet = wire.decode(order)
            about |= {key: packet.header.get(key) for key in ("run", "kind", "round")}
            self._check(packet.header)
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

    def _failed(self, about: Mapping[str, Any], reason: str, error: Exception) -> bytes:
        log.warning("%s: %s", reason, error)
        self._audit(about, {"failure": reason}, {}, 0)
        return wire.encode({**about, "failure": reason})

    def _audit(self, about: Mapping, said: Mapping, arrays: Mapping[str, np.ndarray], size: int) -> None:
        """What left, before it leaves: names, shapes and a hash, not the numbers."""
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        sha = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())).hexdigest()
        line = {"time": when, **{k: about.get(k) for k in ("run", "kind", "round")}, "bytes": size}
        append_line(self.folder / "audit.jsonl", canonical({**line, **said, "arrays": shapes, "sha256": sha}))

    def _check(self, header: Mapping[str, Any]) -> None:
        if header.get("fedpoint") != __version__:
            raise Refused("version", f"the hub runs fedpoint {header.get('fedpoint')}, this site {__version__}")
        if header.get("study") != self.study.fingerprint:
            raise Refused("study", "the order is of another study than the one consented to")
        whole = all(type(header.get(key)) is int for key in ("round", "merged"))
        if not whole or not isinstance(header.get("run"), str) or not header["run"].isalnum():
            raise Refused("order", "the order has no run, round or merged round")

    def _carry_out(self, packet: wire.Packet) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        header = packet.header
        match header.get("kind"):
            case "columns":
                if self.study.table is None:
                    return {"rows": 0}, {}
                return preparation.columns_of(self.study.table, self.columns)
            case "moments":
                recipe = [Feature(**feature) for feature in header["recipe"]]
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

    def _local_work(self, packet: wire.Packet) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
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
        return {"weight": held.share, "seconds": took}, message

    @cached_property
    def columns(self) -> dict[str, Column]:
        """What the file holds; read once."""
        table: Any = self.study.table
        assert self.data is not None
        return read_own(self.data, table.target, table.features, table.categorical, table.missing, table.separator)

    def _holding(self, setup: Mapping[str, Any]) -> Holding:
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
            return Kept(merged, held.start, held.world)
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
            return Kept(NEVER, held.start, held.world), None
        arrays, about = read_npz(self._file(run), "memory")
        found: list[Kept | None] = []
        for which in ("kept", "pending"):
            if about.get(which) is None:
                found.append(None)
                continue
            like = (held.start, held.world)
            own = {name: arrays[f"{which}{name}"] for name in named(like)}
            found.append(Kept(about[which], *tree_of(like, own)))
        assert found[0] is not None
        return found[0], found[1]

    def _remember(self, held: Holding, run: str, kept: Kept, pending: Kept | None) -> None:
        """On disk before the answer leaves: a site that is killed takes part again as if nothing had been."""
        if not held.remembers:
            return
        self._memories = {run: (kept, pending)}
        arrays = {f"kept{name}": value for name, value in arrays_of((kept.memory, kept.world)).items()}
        about: dict[str, Any] = {"study": self.study.fingerprint, "kept": kept.round, "pending": None}
        if pending is not None:
            arrays |= {f"pending{name}": value for name, value in arrays_of((pending.memory, pending.world)).items()}
            about["pending"] = pending.round
        new = not self._file(run).exists()
        write_npz(self._file(run), "memory", arrays, about)
        if new:
            files = sorted(self.folder.glob("memory-*.npz"), key=lambda path: path.stat().st_mtime)
            for old in files[:-RUNS]:
                old.unlink()
