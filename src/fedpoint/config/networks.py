"""Who is whose neighbour, as a file says it: a name, or a table. Nodes are the problem's agents.

    network = "ring"                                              also "star", "complete"
    network = {kind = "grid", rows = 4, columns = 5, weight = 2.0}
    network = {kind = "random", degree = 6, seed = 1}
    network = {kind = "clusters", count = 3, degree = 4, between = 0.01}
    network = {kind = "clusters", labels = ["a", "a", "b"], inside = 1.0}
    network = {kind = "knn", k = 5, of = "gradients"}             also "statistics", "models"
    network = {kind = "knn", k = 3, points = [[0.0, 1.0], [2.0, 3.0]], weight = "gaussian"}
    network = {edges = [["a", "b"], ["b", "c"]], weights = [1.0, 2.0]}
    network = {file = "edges.csv"}                                columns a, b and, if wanted, weight

Nodes are called as agents are: by name where rows have groups, else by number, from 0.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from fedpoint.config.lines import Path as Where
from fedpoint.config.methods import must
from fedpoint.config.mistakes import Mistake
from fedpoint.config.problems import Count, Positive, Seed, Table
from fedpoint.config.text import read_text
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.graphs.network import Network

Chance = Annotated[float, Field(ge=0, le=1)]
Degree = Annotated[int, Field(ge=0)]
TOLD = 5  # lines of a file that are wrong, and said


class Even(Table):
    """Everyone in the same place: `nodes` are as many as there are agents."""

    kind: Literal["ring", "star", "complete"]
    weight: Positive = 1.0

    def build(self, problem: Any) -> Network:
        return getattr(Network, self.kind)(problem.agents, self.weight)


class Grid(Table):
    kind: Literal["grid"]
    rows: Count
    columns: Count
    weight: Positive = 1.0

    def build(self, problem: Any) -> Network:
        if self.rows * self.columns != problem.agents:
            raise FedpointError(f"{self.rows * self.columns} nodes, but the problem has {problem.agents} agents")
        return Network.grid(self.rows, self.columns, self.weight)


class Random(Table):
    kind: Literal["random"]
    degree: Degree
    weight: Positive = 1.0
    seed: Seed = 0

    def build(self, problem: Any) -> Network:
        return Network.random(problem.agents, self.degree, self.weight, self.seed)


class Clusters(Table):
    kind: Literal["clusters"]
    labels: Annotated[list[int | str], Field(min_length=1)] | None = None
    count: Count | None = None  # of clusters: agents in their order, cut into so many
    inside: Chance = 1.0
    between: Chance = 0.0
    degree: Degree | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _one_way(self) -> Any:
        if (self.labels is None) == (self.count is None):
            raise ValueError("give labels, one for each agent, or count, the number of clusters")
        if self.degree is not None and "inside" in self.model_fields_set:
            raise ValueError("inside and degree say the same thing: give one of them")
        return self

    def build(self, problem: Any) -> Network:
        labels: Any = self.labels
        if self.count is not None:
            if self.count > problem.agents:
                raise FedpointError(f"count = {self.count} clusters, but there are {problem.agents} agents")
            labels = np.arange(problem.agents) * self.count // problem.agents
        elif len(labels) != problem.agents:
            raise FedpointError(f"{len(labels)} labels, but there are {problem.agents} agents: give one each")
        else:
            labels = [str(label) for label in labels]
        return Network.clusters(labels, self.inside, self.between, self.degree, self.seed)


class Knn(Table):
    kind: Literal["knn"]
    k: Count
    of: Literal["gradients", "statistics", "models"] | None = None
    points: Annotated[list[list[float]], Field(min_length=1)] | None = None
    weight: Literal["equal", "gaussian"] = "equal"

    @model_validator(mode="after")
    def _one_way(self) -> Any:
        if (self.of is None) == (self.points is None):
            raise ValueError('give of = "gradients", "statistics" or "models", or points, one for each agent')
        if self.points is not None and len({len(point) for point in self.points}) > 1:
            raise ValueError("points must all have the same length")
        return self

    def build(self, problem: Any) -> Network:
        if self.of is not None:
            return Network.similarity(problem, self.k, self.of, self.weight)
        points = self.points or []
        if len(points) != problem.agents:
            raise FedpointError(f"{len(points)} points, but there are {problem.agents} agents: give one each")
        return Network.knn(points, self.k, problem.names, self.weight)


class Edges(Table):
    edges: list[Annotated[list[int | str], Field(min_length=2, max_length=2)]]
    weights: list[float] | None = None

    def build(self, problem: Any) -> Network:
        return Network.from_edges(self.edges, self.weights, names=problem.names)


class File(Table):
    file: Annotated[str, Field(min_length=1)]


KINDS: dict[str, type[Any]] = {
    "ring": Even,
    "star": Even,
    "complete": Even,
    "grid": Grid,
    "random": Random,
    "clusters": Clusters,
    "knn": Knn,
}


def mistakes(text: Any, where: Where, base: Path | None) -> list[Mistake]:
    """What is wrong with a network by itself; whether it fits the agents is seen by `network_of`."""
    if text is None:
        return []
    try:
        kind = _class_of(text)
    except FedpointError as error:
        key = (*where, "kind") if isinstance(text, Mapping) and "kind" in text else where
        return [Mistake(key, str(error), text["kind"] if key != where else text)]
    try:
        made = kind.model_validate(_table(text))
    except ValidationError as error:
        return [_mistake(e, where, kind) for e in error.errors(include_url=False)]
    if isinstance(made, File):
        return [Mistake((*where, "file"), said, made.file) for said in _read(made.file, base)[2]]
    if isinstance(made, Edges):
        try:
            Network.from_edges(made.edges, made.weights)
        except FedpointError as error:
            return [Mistake(where, _bare(error))]
    return []


def network_of(text: Any, base: Path | None, problem: Any) -> Network | None:
    """The network that a file's text stands for, its nodes in the order of the agents; None for none."""
    if text is None:
        return None
    wrong = mistakes(text, ("network",), base)
    if wrong:
        raise FedpointError("; ".join(m.text({}) for m in wrong))
    made = _class_of(text).model_validate(_table(text))
    try:
        if isinstance(made, File):
            edges, weights, _ = _read(made.file, base)
            net = Network.from_edges(edges, weights, names=problem.names)
        else:
            net = made.build(problem)
    except FedpointError as error:
        raise FedpointError(_bare(error)) from None
    return net.aligned(problem.names)


def _table(text: Any) -> dict[str, Any]:
    return {"kind": text} if isinstance(text, str) else dict(text)


def _class_of(text: Any) -> Any:
    if not isinstance(text, str | Mapping):
        raise FedpointError("must be the name of a network, or a table")
    table = _table(text)
    ways = [way for way in ("kind", "edges", "file") if way in table]
    if len(ways) != 1:
        raise FedpointError(f"say one of kind, edges and file; kinds are {', '.join(KINDS)}")
    if ways != ["kind"]:
        return Edges if ways == ["edges"] else File
    found = KINDS.get(table["kind"]) if isinstance(table["kind"], str) else None
    if found is None:
        raise FedpointError(f"unknown kind; {nearest(str(table['kind']), KINDS)}")
    return found


def _mistake(error: Any, where: Where, kind: type[Table]) -> Mistake:
    """One of pydantic's errors in our words, at the key of the file."""
    loc = [part for part in error["loc"] if isinstance(part, int) or part not in ("int", "str")]
    path, value = (*where, *loc), error["input"]
    match error["type"]:
        case "extra_forbidden":
            return Mistake(path, f"unknown key; {nearest(str(loc[-1]), kind.model_fields)}", value)
        case "missing":
            return Mistake(path, "is missing")
        case "value_error":
            return Mistake(path, must(error["msg"]))
        case "too_short" | "too_long" if loc[:1] == ["edges"]:
            return Mistake(path, "an edge is a pair of nodes", value)
    return Mistake(path, must(error["msg"]), value)


def _bare(error: FedpointError) -> str:
    return str(error).removeprefix("network: ")


def _read(name: str, base: Path | None) -> tuple[list[tuple[str, str]], list[float], list[str]]:
    """Edges and weights of a file, and what is wrong with it."""
    path = (base or Path()) / name
    try:
        lines = read_text(path, encoding="utf-8-sig").splitlines()
    except FedpointError as error:
        return [], [], [str(error)]
    rows = [(number, [cell.strip() for cell in row]) for number, row in enumerate(csv.reader(lines), 1) if any(row)]
    if not rows:
        return [], [], ["the file is empty: it has columns a, b and, if wanted, weight"]
    (_, head), *rest = rows
    if sorted(head) not in (["a", "b"], ["a", "b", "weight"]):
        return [], [], [f"its first line names the columns: a,b or a,b,weight; got {','.join(head)}"]
    a, b, w = head.index("a"), head.index("b"), head.index("weight") if "weight" in head else None
    edges, weights, wrong = [], [], []
    for number, row in rest:
        if len(row) != len(head) or not all(row):
            wrong.append(f"line {number} of the file: {len([c for c in row if c])} values for {len(head)} columns")
            continue
        try:
            weights.append(1.0 if w is None else float(row[w]))
        except ValueError:
            wrong.append(f"line {number} of the file: the weight {row[w or 0]!r} is not a number")
            continue
        edges.append((row[a], row[b]))
    if len(wrong) > TOLD:
        wrong = [*wrong[:TOLD], f"and {len(wrong) - TOLD} more lines of the file"]
    if not wrong:
        try:
            Network.from_edges(edges, weights)
        except FedpointError as error:
            wrong = [_bare(error)]
    return edges, weights, wrong
