"""Who is whose neighbour, as a file says it: a name, or a table. Nodes are the problem's agents.

    network = "ring"                                              also "star", "complete"
    network = {kind = "grid", rows = 4, columns = 5, weight = 2.0}
    network = {kind = "random", degree = 6, seed = 1}
    network = {kind = "clusters", count = 3, degree = 4, between = 0.01}
    network = {kind = "clusters", labels = ["a", "a", "b"], inside = 1.0}
    network = {kind = "knn", k = 5, of = "gradients"}             also "statistics", "models"
    network = {kind = "knn", k = 3, points = [[0.0, 1.0], [2.0, 3.0]], weight = "gaussian"}
    network = {edges = [["a", "b"], ["b", "c"]], weights = [1.0, 2.0]}
    network = {edges = [[0, 1], [1, 2], [2, 0]], directed = true, mixing = "metropolis"}     1 hears 0, and so on
    network = {file = "edges.csv"}                                columns a, b and, if wanted, weight
    network = {kind = "ring", mixing = "metropolis"}              weights to average with: also "laplacian", "fastest"

Nodes are called as agents are: by name where rows have groups, else by number, from 0.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

import numpy as np
from pydantic import Field, ValidationInfo, model_validator

from fedpoint.config.kinds import Count, Positive, Seed, Table
from fedpoint.config.lines import Path as Where
from fedpoint.config.mistakes import FileMistake, validated
from fedpoint.config.records import only
from fedpoint.config.text import read_text
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted, there_are
from fedpoint.core.types import Plain
from fedpoint.graphs.network import Network
from fedpoint.problems.base import Problem

Chance = Annotated[float, Field(ge=0, le=1)]
Degree = Annotated[int, Field(ge=0)]
EdgeList = tuple[list[tuple[str, str]], list[float]]  # pairs of names, and weights
EVEN = {"ring": Network.ring, "star": Network.star, "complete": Network.complete}
TOLD = 5  # lines of a file that are wrong, and said


class Agents(Protocol):
    """What a network must know of a problem; of one whose data are elsewhere there may be no more."""

    @property
    def agents(self) -> int: ...

    @property
    def names(self) -> list[str]: ...


class NetworkTable(Table, ABC):
    """A network, whose nodes are the agents of the problem.

    Args:
        kind: how the network is made.
        mixing: average with these weights instead of the network's own.
        lazy: halve the weights of the mixing: each node keeps half of its own value.
        weight: A_ij of every edge.
        seed: of the draw.
    """

    mixing: Literal["metropolis", "laplacian", "fastest"] | None = None
    lazy: bool = False

    @model_validator(mode="after")
    def _lazy_mixing(self) -> Self:
        if self.lazy and self.mixing is None:
            raise ValueError('lazy halves the weights of a mixing: give mixing = "metropolis" too')
        return self

    @abstractmethod
    def build(self, problem: Agents) -> Network:
        """With the agents of a problem as its nodes."""

    def own_mistakes(self, where: Where) -> list[FileMistake]:
        """What is wrong whatever the agents are."""
        return []


class Even(NetworkTable):
    """Everyone in the same place: `nodes` are as many as there are agents."""

    kind: Literal["ring", "star", "complete"]
    weight: Positive = 1.0

    def build(self, problem: Agents) -> Network:
        return EVEN[self.kind](problem.agents, self.weight)


class Grid(NetworkTable):
    """A grid of rows and columns, each node joined to the next ones.

    Args:
        rows: rows x columns are the number of agents.
        columns: see `rows`.
    """

    kind: Literal["grid"]
    rows: Count
    columns: Count
    weight: Positive = 1.0

    def build(self, problem: Agents) -> Network:
        if self.rows * self.columns != problem.agents:
            raise FedpointError(
                f"{counted(self.rows * self.columns, 'node')}, but the problem has {counted(problem.agents, 'agent')}"
            )
        return Network.grid(self.rows, self.columns, self.weight)


class Random(NetworkTable):
    """A random graph of a mean degree.

    Args:
        degree: the mean number of neighbours.
    """

    kind: Literal["random"]
    degree: Degree
    weight: Positive = 1.0
    seed: Seed = 0

    def build(self, problem: Agents) -> Network:
        return Network.random(problem.agents, self.degree, self.weight, self.seed)


class Clusters(NetworkTable):
    """Dense clusters, sparsely joined.

    Args:
        labels: the cluster of each agent.
        count: of clusters: agents in their order, cut into so many.
        inside: the probability of an edge between two agents of a cluster.
        between: the probability of an edge between two agents of different clusters.
        degree: the mean number of neighbours in a cluster, in place of `inside`.
    """

    kind: Literal["clusters"]
    labels: Annotated[list[int | str], Field(min_length=1)] | None = None
    count: Count | None = None  # of clusters: agents in their order, cut into so many
    inside: Chance = 1.0
    between: Chance = 0.0
    degree: Degree | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.labels is None) == (self.count is None):
            raise ValueError("give labels, one for each agent, or count, the number of clusters")
        if self.degree is not None and "inside" in self.model_fields_set:
            raise ValueError("inside and degree say the same thing: give one of them")
        return self

    def build(self, problem: Agents) -> Network:
        if self.count is not None and self.count > problem.agents:
            raise FedpointError(f"count = {counted(self.count, 'cluster')}, but {there_are(problem.agents, 'agent')}")
        if self.count is not None:
            cut = np.arange(problem.agents) * self.count // problem.agents
            return Network.clusters(cut, self.inside, self.between, self.degree, self.seed)
        labels = [str(label) for label in self.labels or []]
        if len(labels) != problem.agents:
            raise FedpointError(
                f"{counted(len(labels), 'label')}, but {there_are(problem.agents, 'agent')}: give one each"
            )
        return Network.clusters(labels, self.inside, self.between, self.degree, self.seed)


class Knn(NetworkTable):
    """Each node joined to those that are most like it.

    Args:
        k: how many neighbours each agent is joined to.
        of: what must be alike: gradients, statistics or models of the agents' data.
        points: one for each agent, in place of `of`: near points are joined.
        weight: "equal": every edge weighs 1; "gaussian": near ones weigh more.
    """

    kind: Literal["knn"]
    k: Count
    of: Literal["gradients", "statistics", "models"] | None = None
    points: Annotated[list[list[float]], Field(min_length=1)] | None = None
    weight: Literal["equal", "gaussian"] = "equal"

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.of is None) == (self.points is None):
            raise ValueError('give of = "gradients", "statistics" or "models", or points, one for each agent')
        if self.points is not None and len({len(point) for point in self.points}) > 1:
            raise ValueError("points must all have the same length")
        return self

    def build(self, problem: Agents) -> Network:
        if self.of is not None:
            if not isinstance(problem, Problem):
                raise FedpointError(f"of = {self.of!r} needs the data of all agents: give points, or edges")
            return Network.similarity(problem, self.k, self.of, self.weight)
        points = self.points or []
        if len(points) != problem.agents:
            raise FedpointError(
                f"{counted(len(points), 'point')}, but {there_are(problem.agents, 'agent')}: give one each"
            )
        return Network.knn(points, self.k, problem.names, self.weight)


class Edges(NetworkTable):
    """The edges themselves.

    Args:
        edges: pairs of agents, by name or number.
        weights: A_ij, one for each edge; left out: 1.
        directed: an edge leads from the first agent to the second only.
    """

    edges: list[Annotated[list[int | str], Field(min_length=2, max_length=2)]]
    weights: list[float] | None = None
    directed: bool = False

    def own_mistakes(self, where: Where) -> list[FileMistake]:
        try:
            self._make(self.edges, self.weights)
        except FedpointError as error:
            return [FileMistake(where, _bare(error))]
        return []

    def build(self, problem: Agents) -> Network:
        return self._make(self.edges, self.weights, names=problem.names)

    @property
    def _make(self) -> Callable[..., Network]:
        return Network.directed if self.directed else Network.from_edges


class NetworkFile(NetworkTable):
    """Edges from a CSV file.

    Args:
        file: the path, from the TOML file's folder on; each line has two agents and, if you like, a weight.
    """

    file: Annotated[str, Field(min_length=1)]
    _wrong: list[str] = []
    _found: EdgeList = ([], [])

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        *self._found, self._wrong = read_edges(self.file, (info.context or {}).get("base"))  # type: ignore[assignment]
        return self

    def own_mistakes(self, where: Where) -> list[FileMistake]:
        return [FileMistake((*where, "file"), said, self.file) for said in self._wrong]

    def build(self, problem: Agents) -> Network:
        return Network.from_edges(*self._found, names=problem.names)


KINDS: dict[str, type[NetworkTable]] = {
    **dict.fromkeys(EVEN, Even),
    "grid": Grid,
    "random": Random,
    "clusters": Clusters,
    "knn": Knn,
}


def mistakes(text: Plain, where: Where, base: Path | None) -> list[FileMistake]:
    """What is wrong with a network by itself."""
    return [] if text is None else _table(text, where, base)[1]


def network_of(text: Plain, base: Path | None, problem: Agents) -> Network | None:
    """The network that a file's text stands for, its nodes in the order of the agents; None for none."""
    return None if text is None else only(read(text, ("network",), base, problem))


def read(text: Plain, where: Where, base: Path | None, problem: Agents) -> tuple[Network | None, list[FileMistake]]:
    """The network of these agents, or what is wrong with it."""
    table, wrong = _table(text, where, base)
    if table is None or wrong:
        return None, wrong
    try:
        made = table.build(problem).aligned(problem.names)
        return made if table.mixing is None else made.mixing(table.mixing, lazy=table.lazy), []
    except FedpointError as error:
        return None, [FileMistake(where, _bare(error))]


def _table(text: Plain, where: Where, base: Path | None) -> tuple[NetworkTable | None, list[FileMistake]]:
    try:
        model = _class_of(text)
    except FedpointError as error:
        if isinstance(text, Mapping) and "kind" in text:
            return None, [FileMistake((*where, "kind"), str(error), text["kind"])]
        return None, [FileMistake(where, str(error), text)]
    table, wrong = validated(model, {"kind": text} if isinstance(text, str) else text, where, base=base)
    return table, wrong if table is None else table.own_mistakes(where)


def _class_of(text: Plain) -> type[NetworkTable]:
    if not isinstance(text, str | Mapping):
        raise FedpointError("must be the name of a network, or a table")
    table = {"kind": text} if isinstance(text, str) else text
    ways = [way for way in ("kind", "edges", "file") if way in table]
    if len(ways) != 1:
        raise FedpointError(f"give one of kind, edges and file; kinds are {', '.join(KINDS)}")
    if ways != ["kind"]:
        return Edges if ways == ["edges"] else NetworkFile
    found = KINDS.get(table["kind"]) if isinstance(table["kind"], str) else None
    if found is None:
        raise FedpointError(f"unknown kind; {nearest(str(table['kind']), KINDS)}")
    return found


def _bare(error: FedpointError) -> str:
    return str(error).removeprefix("network: ")


def read_edges(name: str, base: Path | None) -> tuple[list[tuple[str, str]], list[float], list[str]]:
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
            filled = counted(len([c for c in row if c]), "value")
            wrong.append(f"line {number} of the file: {filled} for {counted(len(head), 'column')}")
            continue
        try:
            weights.append(1.0 if w is None else float(row[w]))
        except ValueError:
            wrong.append(f"line {number} of the file: the weight {row[w or 0]!r} is not a number")
            continue
        edges.append((row[a], row[b]))
    if len(wrong) > TOLD:
        wrong = [*wrong[:TOLD], f"and {counted(len(wrong) - TOLD, 'more line')} of the file"]
    if not wrong:
        try:
            Network.from_edges(edges, weights)
        except FedpointError as error:
            wrong = [_bare(error)]
    return edges, weights, wrong
