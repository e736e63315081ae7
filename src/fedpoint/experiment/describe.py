"""How is an experiment written in plain types, and read back? The schema of files, folders, studies and labs.

    problem = {class = "Quadratic", agents = 2, total = 7.5, given = {...}}      as it was made, where that is little
    problem = {kind = "table", file = "loans.csv", ...}                         or as a file says it
    algorithm = {name = "fedavg", step = 0.1, ...}
    participation, schedule, channel, gather, attack = {class = "Uniform", count = 10}
    regions = {class = "Regions", of = 3, rounds = 4}
    network = {class = "Network", names = [...], edges = [...], weights = [...]}
    share = ["body"], or {class = "Only", ...}
    start = {values = [...]}, metrics = {drift = {python = "my_metrics.drift"}}
    exact, seed, repeats, record_every, memories

Large data are told by their shapes and SHA-256. `not_rebuildable` lists what is only named, and why.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import jax
import numpy as np

from fedpoint.channel import Channel
from fedpoint.core.describe import (
    Allow,
    Table,
    Unreadable,
    construct,
    describe,
    describe_record,
    find_class,
    fingerprint,
    named,
    rebuild,
    unreadable,
    word_of,
)
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.made import INLINE
from fedpoint.core.selection import Only, selection
from fedpoint.core.types import Plain, Tree
from fedpoint.gather import WeightedSums
from fedpoint.problems.any_model import AnyModel
from fedpoint.problems.base import Problem
from fedpoint.timing import staleness, timed, trace, turns  # noqa: F401 - whose records can be named
from fedpoint.timing.base import Timing
from fedpoint.timing.schemes import Participation

if TYPE_CHECKING:
    from fedpoint.experiment.experiment import Experiment
    from fedpoint.graphs.network import Network

KINDS = (
    "fedpoint.config.problems"  # where problems of files are made: found by its name, as all code in descriptions is
)
MISSING = "not_rebuildable"


def timing_key(timing: Timing) -> str:
    """The argument by which a timing is given."""
    return "participation" if isinstance(timing, Participation) and not timing.on_clock else "schedule"


def describe_experiment(e: Experiment, data: bool = True, facts: Table | None = None) -> dict[str, Plain]:
    """An experiment in plain types.

    data: False tells the problem by its facts alone. facts: those of the problem, where they are known already.
    """
    found: dict[str, Plain] = {
        "seed": e.seed,
        "repeats": e.repeats,
        "record_every": e.record_every,
        "exact": e.exact,
        "memories": None if e.memories == "memory" else e.memories,
        "algorithm": describe_record(e.algorithm),
        timing_key(e.timing): describe_record(e.timing),
        "network": describe_network(e.network) if e.network else None,
        "regions": None if e.regions is None else describe_record(e.regions),
        "channel": None if type(e.channel) is Channel else describe_record(e.channel),
        "gather": None if type(e.gather) is WeightedSums else describe_record(e.gather),
        "attack": None if e.attack is None else describe_record(e.attack),
        "share": None if e.share is None else describe_share(selection(e.share)),
        "start": None if e.start is None else describe(jax.tree.map(np.asarray, e.start)),
        "metrics": {name: describe(function) for name, function in e.metrics.items()} or None,
        "problem": describe_problem(e.problem, data, facts),
    }
    found = {key: item for key, item in found.items() if item is not None}
    missing = list(missing_parts(found))
    return found | ({MISSING: missing} if missing else {})


def missing_parts(table: Table) -> Iterator[str]:
    """What a description only names, and why."""
    for key, item in table.items():
        if key != "problem":
            yield from unreadable(item, key)
    network, problem = table.get("network"), table.get("problem")
    if isinstance(network, dict) and "edge_count" in network:
        yield f"network: its {network['edge_count']} edges are too many to be written down"
    if isinstance(problem, dict) and "kind" not in problem:
        given = problem.get("given")
        yield from unreadable({"class": problem["class"]}, "problem")
        if given is None:
            yield "problem: its data are not written down, only their fingerprint"
        yield from unreadable(given, "problem")


def facts_of(problem: Problem) -> dict[str, Plain]:
    """What identifies a problem without its data. This reads all of them."""
    oracle = problem.oracle
    arrays = {name: array for part, tree in problem.content().items() for name, array in named(part, tree).items()}
    fields: list[str] = [f.name for f in dataclasses.fields(oracle)] if dataclasses.is_dataclass(oracle) else []
    return {
        "class": type(problem).__name__,
        "agents": problem.agents,
        "oracle": {name: describe(vars(oracle)[name]) for name in fields},
        "shapes": {name: list(np.shape(array)) for name, array in arrays.items()},
        "sha256": fingerprint(arrays),
    }


def describe_problem(problem: Problem | AnyModel, data: bool = True, facts: Table | None = None) -> dict[str, Plain]:
    """A problem: what identifies it, and, with `data`, what makes it again where that is known."""
    if isinstance(problem, AnyModel):
        return {"class": "AnyModel", "agents": problem.agents}
    if data and problem.source is not None:
        return {**problem.source, "total": total_of(problem)}
    if data and problem.given is not None:
        given = {key: describe(item) for key, item in problem.given.items()}
        return {"class": word_of(type(problem)), "agents": problem.agents, "total": total_of(problem), "given": given}
    return dict(facts_of(problem) if facts is None else facts)


def describe_share(share: Only) -> Plain:
    """Names as a list, else a table."""
    return list(share.names) if share.plain else describe_record(share)


def describe_network(network: Network) -> dict[str, Plain]:
    """A network: all of a small one, of a large one its fingerprint."""
    size: dict[str, Plain] = {"class": "Network", "nodes": network.nodes}
    if network.one_way:
        size["directed"] = True
    if network.nodes + 3 * len(network.edges) > INLINE:
        arrays = {"edges": network.edges, "weights": network.weights, "names": np.array(network.names, dtype="S")}
        return {**size, "edge_count": len(network.edges), "sha256": fingerprint(arrays)}
    weights = network.weights.tolist()
    return {**size, "names": list(network.names), "edges": network.edges.tolist(), "weights": weights}


# Back.


Kind = TypeVar("Kind", bound="Experiment")


def rebuild_experiment(kind: type[Kind], table: Table, allow: Allow, given: Mapping[str, Tree]) -> Kind:
    """The experiment that a description stands for, with these parts in place of the described ones."""
    known = [f.name for f in dataclasses.fields(kind) if f.init]
    for key in table:
        if key not in (*known, MISSING):
            raise FedpointError(f"a description of an experiment has no {key!r}: {nearest(key, known)}")
    parts = dict(given)
    for key in (key for key in table if key not in (*given, MISSING)):
        try:
            parts[key] = rebuild_part(key, table[key], allow)
        except Unreadable as error:
            raise Unreadable(f"{key}: {error}; give Experiment.from_dict(..., {key}=...)") from None
    for key in ("algorithm", "problem"):
        if key not in parts:
            raise FedpointError(f"a description of an experiment needs its {key}")
    return kind(**parts)


def rebuild_part(key: str, text: Plain, allow: Allow = ()) -> Tree:
    """One argument of an experiment; `Unreadable` where it is only named."""
    if key == "problem":
        return rebuild_problem(text, allow)
    if key == "network":
        return rebuild_network(text)
    if key == "share":
        return rebuild_share(text, allow)
    if key == "metrics" and isinstance(text, Mapping):
        return {name: rebuild(function, allow) for name, function in text.items()}
    return rebuild(text, allow)


def rebuild_share(text: Plain, allow: Allow = ()) -> Only | str | Sequence[str]:
    """Names, or a table of a selection, in which `class` may be left out."""
    if isinstance(text, Mapping) and "class" not in text:
        names = text.get("names", [])
        text = {"class": "Only", **text, "names": {"tuple": [names] if isinstance(names, str) else names}}
    found = rebuild(text, allow)
    selection(found)  # refuses anything else
    return found


def rebuild_problem(table: Plain, allow: Allow = ()) -> Problem:
    """The problem of a description, checked to hold the data that it says."""
    if not isinstance(table, Mapping) or not {"class", "kind"} & set(table):
        raise FedpointError(f'problem must be a table with its kind, for instance kind = "quadratic"; got {table!r}')
    if "kind" in table:
        return importlib.import_module(KINDS).build(table)
    if not isinstance(table.get("given"), Mapping):
        raise Unreadable("its data are not written down")
    made = construct(find_class(table["class"], (Problem,), allow), rebuild({"dict": table["given"]}, allow))
    check_total(made, table.get("total"))
    return made


def total_of(problem: Problem) -> float:
    """The sum of |x| over all numbers of a problem: it tells data apart, and not the rounding of another machine."""
    leaves = jax.tree.leaves((problem.own, problem.common, problem.weights))
    return float(sum(np.abs(np.asarray(a, dtype=float)).sum() for a in leaves))


def check_total(problem: Problem, total: Plain) -> None:
    """Refuse a problem with other data than those that were described."""
    if isinstance(total, float) and not math.isclose(total_of(problem), total, rel_tol=1e-9):
        raise FedpointError("the data of the problem have changed since it was described: describe it again")


def rebuild_network(table: Plain) -> Network:
    from fedpoint.graphs.directed import DirectedNetwork  # with scipy: only where there is one
    from fedpoint.graphs.network import Network

    if not isinstance(table, Mapping) or "nodes" not in table:
        raise FedpointError(f"network must be a table as Experiment.describe() writes it, got {table!r}")
    if "edges" not in table:
        raise Unreadable(f"a network of {table['nodes']} nodes is not stored")
    kind = DirectedNetwork if table.get("directed") else Network
    return construct(kind, {key: table.get(key) for key in ("edges", "weights", "names")})
