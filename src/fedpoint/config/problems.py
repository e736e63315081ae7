"""Which problem does a file describe? One class per kind: its fields are the keys, `build` makes the problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
from pydantic import Field, JsonValue, SkipValidation, model_validator

from fedpoint import problems
from fedpoint.config import generate
from fedpoint.config.data import TableFile
from fedpoint.config.kinds import Agents, Count, Kind, Positive, Rows, Sampling, Seed, Table, Variance
from fedpoint.config.lines import Path as Where
from fedpoint.config.mistakes import NOTHING, FileMistake, validated
from fedpoint.core.describe import Allow
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.memory_limits import check_memory
from fedpoint.core.types import Data, Plain
from fedpoint.data.columns import BadTable
from fedpoint.data.lending_club import lending_club
from fedpoint.data.partitions import partition
from fedpoint.experiment.describe import check_total, rebuild_problem
from fedpoint.problems.base import Problem

__all__ = ["KINDS", "Built", "Count", "Kind", "Positive", "Seed", "Table", "build", "read_problem"]


Numbers = SkipValidation[JsonValue]  # one for all, or arrays: looked at when the problem is built


class LinearStream(Kind):
    """Lecture 000, lab 1: fresh samples at every step.

    Args:
        dim: numbers of a regressor, which is the length of the model.
        spread: variance of the agents' own models around their mean.
        noise: variance of the noise on targets.
        variance: of the regressors.
    """

    kind: Literal["linear_stream"]
    agents: Agents = 100
    dim: Count = 10
    spread: Variance = 0.1
    noise: Variance = 0.01
    variance: Positive = 1.0
    seed: Seed = 0

    def numbers(self) -> int:
        return self.agents * self.dim

    def build(self) -> tuple[Problem, Data]:
        fields = self.model_dump(exclude={"kind", "total"})
        return problems.LinearStream.sample(**fields), None


class Stored(Kind):
    """What problems of generated, stored rows have in common.

    Args:
        rows: of each agent: a number, or [least, most] to draw it.
        dim: columns, which is the length of the model.
        heterogeneity: variance of the agents' own models.
    """

    agents: Agents = 20
    rows: Rows = 50
    dim: Count = 5
    heterogeneity: Variance = 0.1
    seed: Seed = 0
    batch: Count | None = None
    sampling: Sampling = "iid"
    weights: list[Positive] | None = None

    def numbers(self) -> int:
        rows = self.rows if isinstance(self.rows, int) else self.rows[-1]
        return self.agents * rows * (self.dim + 1)


class LeastSquares(Stored):
    """Rows ~ N(0, I), targets by the agent's own model ~ N(1, heterogeneity I) and noise of variance `noise`.

    Args:
        noise: variance of the noise on targets.
        mean: the mean over an agent's rows rather than their sum.
        half: 1/2 |A x - b|^2; false: |A x - b|^2, as lecture 003 has it.
    """

    kind: Literal["least_squares"]
    noise: Variance = 0.01
    mean: bool = False
    half: bool = True  # 1/2 |A x - b|^2; false: without the half, as lecture 003 has it

    def build(self) -> tuple[Problem, Data]:
        A, b = generate.regression(self.agents, self.rows, self.dim, self.heterogeneity, self.noise, self.seed)
        options = self.model_dump(include={"weights", "mean", "half", "batch", "sampling"})
        return problems.LeastSquares(A, b, **options), None


class Logistic(Stored):
    """Rows ~ N(0, I), classes drawn by the agent's own model; softmax with more than two classes.

    Args:
        classes: how many; more than two are softmax.
        ridge: rho of rho/2 |w|^2.
        intercept: append a column of ones.
    """

    kind: Literal["logistic"]
    classes: Annotated[int, Field(ge=2)] = 2
    ridge: Variance = 0.01
    intercept: bool = False

    def numbers(self) -> int:
        return super().numbers() * self.classes  # every row meets its agent's own model of all classes

    def build(self) -> tuple[Problem, Data]:
        drawn = self.agents, self.rows, self.dim, self.heterogeneity, self.classes, self.seed
        X, y, groups = generate.classification(*drawn)
        options = self.model_dump(include={"ridge", "weights", "intercept", "batch", "sampling"})
        return problems.Logistic(X, y, groups=groups, **options), None


class Digits(Kind):
    """Softmax regression on scikit-learn's digits, classes spread over agents by a Dirichlet distribution.

    Args:
        dirichlet: alpha of the classes' shares; a small one gives an agent few classes.
        ridge: rho of rho/2 |w|^2.
        intercept: append a column of ones.
        test: the share of rows that nobody trains on.
    """

    kind: Literal["digits"]
    agents: Annotated[int, Field(ge=1, le=1000)] = 20
    dirichlet: Positive = 0.5
    ridge: Variance = 0.01
    intercept: bool = True
    batch: Count | None = None
    sampling: Sampling = "iid"
    test: Annotated[float, Field(ge=0, le=0.9)] = 0.2
    seed: Seed = 0

    def build(self) -> tuple[Problem, Data]:
        X, y, held_out = generate.digits(self.test, self.seed)
        groups = partition(y, "dirichlet", self.agents, alpha=self.dirichlet, seed=self.seed)
        options = self.model_dump(include={"ridge", "intercept", "batch", "sampling"})
        return problems.Logistic(X, y, groups=groups, **options), held_out


class LendingClub(Kind):
    """Logistic regression: which loans turn bad? `fp.data.lending_club`, an agent for each state, columns scaled.

    Args:
        columns: by name; left out: all 23.
        ridge: rho of rho/2 |w|^2.
        intercept: append a column of ones.
    """

    kind: Literal["lending_club"]
    columns: list[str] | None = None  # by name; without it all 23
    ridge: Variance = 0.01
    intercept: bool = True
    batch: Count | None = None
    sampling: Sampling = "iid"

    def build(self) -> tuple[Problem, Data]:
        loans = lending_club()
        names = list(loans.features if self.columns is None else self.columns)
        for name in names:
            if name not in loans.features:
                raise FedpointError(f"lending_club has no column {name!r}: {nearest(name, loans.features)}")
        X = loans.X[:, [loans.features.index(name) for name in names]]
        options = self.model_dump(include={"ridge", "intercept", "batch", "sampling"})
        return problems.Logistic((X - X.mean(0)) / X.std(0), loans.y, groups=loans.groups, **options), None


class GivenOrDrawn(Kind):
    """What problems have in common whose arrays stand in the file, or are drawn.

    Args:
        dim: the length of the model.
        spread: variance of what differs between agents.
        noise: variance of the noise of a field.
    """

    given: ClassVar[tuple[str, str]]  # the keys of the arrays
    drawing: ClassVar[set[str]]  # the keys by which they are drawn
    weights: list[Positive] | None = None
    agents: Agents = 10
    dim: Count = 5
    spread: Variance = 1.0
    noise: Variance = 0.0
    seed: Seed = 0

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        said, names = self.model_fields_set & set(self.given), " and ".join(self.given)
        if len(said) == 1:
            raise ValueError(f"give both {names}, or neither: then they are drawn")
        drawn = self.drawing & self.model_fields_set
        if said and drawn:
            raise ValueError(f"{names} are given, so leave out what draws them: {', '.join(sorted(drawn))}")
        return self

    @property
    def written(self) -> bool:
        """Whether the arrays stand in the file."""
        return set(self.given) <= self.model_fields_set

    def content(self) -> dict[str, Plain]:
        return self.model_dump(exclude_unset=True, exclude={"total"}) if self.written else super().content()

    def numbers(self) -> int:
        return 0 if self.written else self.agents * self.dim**2


class Quadratic(GivenOrDrawn):
    """f_k(x) = 1/2 (x - c_k)' H_k (x - c_k): H and centers as given, or drawn.

    Args:
        H: curvatures: a number, one per agent, or matrices; left out: drawn.
        centers: (K, d) minima of the agents; left out: drawn.
        curvature: [least, largest] eigenvalue of drawn matrices.
    """

    given = ("H", "centers")
    drawing: ClassVar[set[str]] = {"agents", "dim", "curvature", "spread", "seed"}
    kind: Literal["quadratic"]
    H: Numbers | None = None
    centers: list[list[float]] | None = None
    curvature: Annotated[list[Positive], Field(min_length=2, max_length=2)] = [1.0, 10.0]

    def build(self) -> tuple[Problem, Data]:
        if self.centers is None:
            H, centers = generate.bowls(self.agents, self.dim, self.curvature, self.spread, self.seed)
        else:
            H, centers = _array("H", self.H), _array("centers", self.centers)
        return problems.Quadratic(H, centers, noise=self.noise, weights=self.weights), None


def _array(name: str, given: Plain) -> np.ndarray:
    try:
        array = np.asarray(given)
    except ValueError:
        raise FedpointError(f"{name} must have rows of the same length") from None
    if array.dtype.kind not in "iuf":
        raise FedpointError(f"{name} must hold numbers: one for all, one per agent, or matrices; got {given!r}")
    return array.astype(float)


class LinearSystem(GivenOrDrawn):
    """Fields A_k w - b_k that are no gradients: A and b as given, or drawn; noise by the variances of their entries.

    Args:
        A: (K, d, d) matrices; left out: drawn.
        b: (K, d) right sides; left out: drawn.
        curvature: [least, largest] eigenvalue of the symmetric parts of drawn matrices.
        rotation: size of their antisymmetric parts.
        heterogeneity: from 0 (all agents alike) to 1 (nothing in common).
        noise: variance of the entries of a sampled b.
        noise_A: variance of the entries of a sampled A.
    """

    given = ("A", "b")
    drawing: ClassVar[set[str]] = {"agents", "dim", "curvature", "rotation", "heterogeneity", "spread", "seed"}
    kind: Literal["linear_system"]
    A: Numbers | None = None
    b: Numbers | None = None
    curvature: Annotated[list[Positive], Field(min_length=2, max_length=2)] = [1.0, 3.0]
    rotation: Variance = 1.0
    heterogeneity: Annotated[float, Field(ge=0, le=1)] = 0.3
    noise_A: Variance = 0.0

    def build(self) -> tuple[Problem, Data]:
        if self.written:
            A, b = _array("A", self.A), _array("b", self.b)
        else:
            shape = self.agents, self.dim, self.curvature, self.rotation, self.heterogeneity, self.spread, self.seed
            A, b = generate.systems(*shape)
        noise = problems.Noise(b=self.noise, A=self.noise_A)
        return problems.LinearSystem(A, b, noise=noise, weights=self.weights), None


class Worlds(Kind):
    """What problems of temporal differences have in common.

    Args:
        gamma: the discount, below 1, or 1 where episodes end.
        sampling: "iid": every step draws afresh from the stationary distribution; "trajectory": each agent follows one.
    """

    gamma: Annotated[float, Field(ge=0, le=1)] = 0.95
    sampling: Literal["iid", "trajectory"] = "iid"
    weights: list[Positive] | None = None
    seed: Seed = 0

    make: ClassVar[Callable[..., Problem]]

    def build(self) -> tuple[Problem, Data]:
        return type(self).make(**self.model_dump(exclude={"kind", "total"})), None


class Garnet(Worlds):
    """Temporal differences on random MDPs that are alike up to `heterogeneity`."""

    make = staticmethod(problems.garnet)
    explained_by = (problems.garnet,)
    kind: Literal["garnet"]
    states: Count = 30
    actions: Count = 2
    branching: Count = 2
    dim: Count = 8
    agents: Annotated[int, Field(ge=1, le=100_000)] = 100
    heterogeneity: Annotated[float, Field(ge=0, le=1)] = 0.0

    def numbers(self) -> int:
        return self.states * (self.states * self.actions * self.agents + self.dim)


class FrozenLake(Worlds):
    """Temporal differences on Gymnasium's FrozenLake (extra rl): lakes and success rates differ between agents."""

    make = staticmethod(problems.frozen_lake)
    explained_by = (problems.frozen_lake,)
    kind: Literal["frozen_lake"]
    agents: Annotated[int, Field(ge=1, le=100_000)] = 10
    size: Annotated[int, Field(ge=2)] = 4
    success: float | list[float] = [0.5, 0.9]
    maps: Literal["random", "same"] = "random"
    features: Count | None = None

    def numbers(self) -> int:
        return 4 * self.size**4 * self.agents


class Built(NamedTuple):
    """A problem, what it is evaluated on, and the table that makes it again."""

    problem: Problem
    held_out: Data
    table: dict[str, Plain]


def read_problem(
    text: Plain, where: Where = ("problem",), base: Path | None = None, allow: Allow = ()
) -> tuple[Built | None, list[FileMistake]]:
    """The problem of a table, or what is wrong with it."""
    try:
        if isinstance(text, dict) and "class" in text:
            return Built(rebuild_problem(text, allow), None, text), []
        model = kind_of(text)
        kind, wrong = validated(model, text, where, base=base)
        if kind is None:
            return None, wrong
        check_memory(kind.numbers(), "it", "make it smaller")
        problem, held_out = kind.build()
        check_total(problem, kind.total)
        problem.source = kind.content()
        return Built(problem, held_out, dict(problem.source)), []
    except BadTable as error:
        return None, [_of_table(key, said, text, where) for key, said in error.shown()]  # type: ignore[arg-type]
    except UnknownKind as error:
        return None, [FileMistake((*where, "kind"), str(error), error.kind)]
    except FedpointError as error:
        return None, [FileMistake(where, str(error))]


class UnknownKind(FedpointError):
    def __init__(self, kind: Plain):
        super().__init__(f"unknown kind; {nearest(str(kind), KINDS)}")
        self.kind = kind


def kind_of(text: Plain) -> type[Kind]:
    """The class of a problem's table."""
    if not isinstance(text, dict) or "kind" not in text:
        raise FedpointError(f'missing "kind"; choose one of {", ".join(KINDS)}')
    if not isinstance(text["kind"], str) or text["kind"] not in KINDS:
        raise UnknownKind(text["kind"])
    return KINDS[text["kind"]]


def _of_table(key: str, said: str, table: dict[str, Plain], where: Where) -> FileMistake:
    """A mistake in the data, at the key that leads there."""
    if key in ("file", "files"):
        return FileMistake((*where, "files" if "files" in table else "file"), said)
    return FileMistake((*where, key), said, table.get(key, NOTHING))


def build(table: dict[str, Plain]) -> Problem:
    """The problem that a table of a file describes: what `Experiment.from_dict` asks for."""
    built, wrong = read_problem(table)
    if built is None:
        raise FedpointError("; ".join(m.text({}) for m in wrong))
    return built.problem


CLASSES: tuple[type[Kind], ...] = (
    LinearStream,
    LeastSquares,
    Logistic,
    Digits,
    LendingClub,
    TableFile,
    Quadratic,
    LinearSystem,
    Garnet,
    FrozenLake,
)
KINDS: dict[str, type[Kind]] = {get_args(cls.model_fields["kind"].annotation)[0]: cls for cls in CLASSES}
