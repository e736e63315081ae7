"""What is a problem? K agents, each with a weight and an oracle for its field; find w* with sum_k p_k g_k(w*) = 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.arrays import array_of, numbers, told_apart
from fedpoint.core.compiling import fairly_quickly
from fedpoint.core.errors import FedpointError
from fedpoint.core.made import Made
from fedpoint.core.numbers import counted, there_are
from fedpoint.core.precision import double
from fedpoint.core.selection import Split
from fedpoint.core.steps import most_steps
from fedpoint.core.types import Data, Model, Plain, Tree
from fedpoint.problems.models import at_model, at_models, check_each
from fedpoint.problems.oracle import Mine, Oracle


@dataclass(frozen=True)
class Constants:
    """The constants of the lectures, where they are defined for a problem (None where not).

    Attributes:
        nu: strong convexity of the aggregate.
        delta: its smoothness: the Lipschitz constant of its field.
        nu_k: (K,) strong convexity of each agent.
        delta_k: (K,) smoothness of each agent.
        beta2_k: (K,) with `sigma2_k`: E|noise|^2 <= beta2_k |w - w_k*|^2 + sigma2_k (lecture 000 (25)).
        sigma2_k: (K,) see `beta2_k`.
        heterogeneity: sum_k p_k |w_k* - w*|^2.
        gamma: f* - sum_k p_k f_k* (lecture 004).
    """

    nu: float | None = None
    delta: float | None = None
    nu_k: np.ndarray | None = None
    delta_k: np.ndarray | None = None
    beta2_k: np.ndarray | None = None
    sigma2_k: np.ndarray | None = None
    heterogeneity: float | None = None
    gamma: float | None = None


@checked
class Problem(Made):
    """K agents with weights p_k. Subclasses set `oracle`, `own` (arrays of K rows), `common`, `weights`, `names`.

    Numbers are NumPy arrays; the engine moves them to the device.

    Args:
        values: the subclass's own positional arguments.
        named: the subclass's own named arguments.

    Arguments of methods:
        w: a model.
        X: (n, features) held-out rows, as the problem takes them.
        y: (n,) their targets.
        models: models, each array led by their number n.
        algorithm: the method that is to be run.
        liars: (K,) whether each agent's labels are turned round.
    """

    oracle: Oracle
    own: Data
    common: Data
    weights: np.ndarray
    names: list[str]
    batch: int | None = None
    linear = False  # every field is affine in w
    classes: np.ndarray | None = None  # of what is predicted, where it is one of several
    predicts: str | None = None  # what x'w says of a row x: a "number", or by softmax its "class"; None: nothing
    carried: Split | None = None  # of a model: what is learnt, apart from the state that it carries along
    intercept: bool = False  # the last column is one of ones
    columns: list[dict[str, Plain]] | None = None  # how a table's columns became features
    notes: Sequence[str] = ()  # what was done to the data
    fits = False  # it was found to answer what a run will ask
    source: Mapping[str, Plain] | None = None  # the table of a file that makes it again

    def __repr__(self) -> str:
        name = type(self).__name__
        if "weights" not in dir(self):  # its constructor has failed, or has not got there
            return f"<{name}, not complete>"
        rows, model = self.local_rows(), () if type(self).start is Problem.start else self.start()
        counts = {
            "agent": self.agents,
            "row": 0 if rows is None else rows.sum(),
            "class": 0 if self.classes is None else len(self.classes),
            "parameter": sum(np.size(leaf) for leaf in jax.tree.leaves(model)),
        }
        said = [counted(count, noun) for noun, count in counts.items() if count]
        said += [] if self.batch is None else [f"batches of {self.batch}"]
        return f"<{name}: {', '.join(said)}>"

    @property
    def convex(self) -> bool | None:
        """Whether every agent's loss is convex (without a loss: its field monotone); None where that is not known."""
        return None

    @property
    def has_loss(self) -> bool:
        """Whether fields are gradients of losses."""
        return type(self.oracle).loss is not Oracle.loss

    def linear_fields(self) -> tuple[np.ndarray, np.ndarray] | None:
        """A (K, d, d) and b (K, d) with g_k(w) = A_k w - b_k, or None where fields are not affine."""
        return None

    @property
    def agents(self) -> int:
        return len(self.weights)

    @at_model
    def evaluate(self, w: Model, X: ArrayLike, y: ArrayLike) -> dict[str, float]:
        """Metrics of a model on held-out rows: their means."""
        return {name: float(values.mean()) for name, values in self.row_metrics(w, X, y).items()}

    def row_metrics(self, w: Model, X: ArrayLike, y: ArrayLike) -> dict[str, np.ndarray]:
        """The same of every row, (n,) each; the last is the loss."""
        raise FedpointError(
            f"{type(self).__name__} has no metrics of its own for held-out data: give evaluate= a function of the model"
        )

    def content(self) -> Data:
        """The arrays by which the data are known again."""
        return {"own": self.own, "common": self.common, "weights": self.weights}

    def prepare(self, algorithm: Algorithm) -> Oracle:
        """The oracle for an algorithm whose local steps are known."""
        return self.oracle

    def own_for(self, algorithm: Algorithm) -> Data:
        """`own`, with what is worth computing once for this algorithm."""
        return self.own

    def part(self, own: Data, bounds: np.ndarray, process: int) -> tuple[Data, Data]:
        """What the agents bounds[process] to bounds[process + 1] hold of `own`, and what all share without what is
        only of use to the others; what is shared has the same shapes on all processes.

        Args:
            own: arrays led by the agents.
            bounds: (processes + 1,) where the agents of each process begin.
            process: which of them.
        """
        begin, end = bounds[process : process + 2]
        return jax.tree.map(lambda a: a[begin:end], own), self.common

    def flipped(self, liars: np.ndarray) -> Problem:
        """The same with the labels of these agents (truth values) turned round: to be worked on, not to be solved."""
        raise FedpointError(f"{type(self).__name__} has no labels that could be flipped")

    def start(self) -> Model:
        """The model a run starts from when none is given."""
        raise FedpointError(
            f"{type(self).__name__} has no start(): define it to return the model that a run starts from"
        )

    def learnt(self, model: Tree) -> Model:
        """What is learnt of a model as its user wrote it: all of it, unless a problem says otherwise.

        Args:
            model: as its user wrote it.
        """
        return model

    def whole(self, learnt: Model) -> Tree:
        """The model as its user wrote it.

        Args:
            learnt: what is learnt of it.
        """
        return learnt

    def solution(self) -> Model | None:
        """w*, or None where it is not unique or not known."""
        return None

    def why_no_solution(self) -> str:
        """Why `solution` is None, for whoever asks for a distance to it."""
        if self.linear:
            return "w* is not unique: the agents' data together do not determine every parameter"
        return "w* is not known"

    @property
    def solved(self) -> bool:
        """Whether `solution` costs little: a formula gives it, or it was found before."""
        return True

    def local_solutions(self) -> Model | None:
        """w_k* of every agent, or None."""
        return None

    def constants(self) -> Constants:
        return Constants()

    def step_limits(self) -> np.ndarray | None:
        """(K,): the step at which an agent's own steps along its exact field begin to grow; None where not known."""
        smooth = self.constants().delta_k
        if smooth is None:
            return None
        return np.array([2.0 / s if s > 0 else np.inf for s in np.asarray(smooth, dtype=float)])

    def noise(self, w: Model) -> np.ndarray:
        """(K,): the trace of the covariance of one sampled field at w."""
        return np.zeros(self.agents)

    @double
    def slope_noise(self) -> np.ndarray | None:
        """(K, d, d): E[(A(z) - A)'(A(z) - A)] of affine fields A(z) w - b(z), A their mean; None: not known."""
        if not (self.linear and self.has_loss and self.oracle.known_noise):
            return None
        return np.asarray(_scatters(self.oracle, self.own, self.common, self.start()))

    def local_rows(self) -> np.ndarray | None:
        """(K,): how many rows each agent stores, or None for a stream."""
        return None

    def sampling_probabilities(self, algorithm: Algorithm, exact: bool = False) -> np.ndarray:
        """The variance-optimal q_k, proportional to p_k sqrt(noise_k / E_k + |g_k(w*)|^2); no noise in exact fields.

        Args:
            exact: whether fields are exact, without sampling noise.
        """
        w = self.solution()
        if w is None:
            raise FedpointError(
                "variance-optimal importance sampling needs the solution, which is not known for this problem: "
                "give Importance(count, probabilities=...)"
            )
        steps = most_steps(algorithm.local_steps).astype(float)
        fields = self.fields(w)
        noise = np.zeros(self.agents) if exact else self.noise(w) / steps
        q = self.weights * np.sqrt(noise + (fields**2).sum(axis=1))
        if not q.max() > 0:
            return self.weights.copy()
        return np.maximum(q, 1e-3 * q.max()) / np.maximum(q, 1e-3 * q.max()).sum()

    @at_model
    @double
    def fields(self, w: Model) -> np.ndarray:
        """(K, d): the exact field of every agent at w, flattened."""
        return np.asarray(_fields(self.oracle, self.own, self.common, w))

    @at_model
    @double
    def losses(self, w: Model) -> np.ndarray:
        """(K,): the exact loss of every agent at w."""
        return np.asarray(_losses(self.oracle, self.own, self.common, w))

    @at_models
    @double
    def objective(self, models: Model) -> np.ndarray:
        """(n,): sum_k p_k f_k at each of n models (leading axis), or the number at one model."""
        return np.asarray(_objective(self.oracle, self.own, self.common, self.weights, models))

    @double
    def own_losses(self, models: Model) -> np.ndarray:
        """(n, K): the exact loss of every agent at its own model, for n times K models (n, K, ...)."""
        models = check_each("models", self.start(), models, self.agents)
        return np.asarray(_own_losses(self.oracle, self.own, self.common, models))


def per_agent(function: Callable[[Data], Tree], own: Data, in_turn: bool = False) -> Tree:
    """function(own_k) for every agent: in batches, whose loops last as the longest does, or one after the other."""
    return lax.map(function, own, batch_size=None if in_turn else 256)


@partial(jax.jit, static_argnums=0)
def _fields(oracle: Oracle, own: Data, common: Data, w: Model) -> Array:
    return per_agent(lambda o: ravel_pytree(oracle.mean_field(Mine(o, common), w))[0], own)


@partial(jax.jit, static_argnums=0)
def _scatters(oracle: Oracle, own: Data, common: Data, w: Model) -> Array:
    """Gradients of losses: A(z) is symmetric."""
    eye = jnp.eye(ravel_pytree(w)[0].size)
    return per_agent(lambda o: oracle.scatter(Mine(o, common), w, eye), own)


@partial(fairly_quickly, static_argnums=0)
def _losses(oracle: Oracle, own: Data, common: Data, w: Model) -> Array:
    return per_agent(lambda o: oracle.loss(Mine(o, common), w), own)


@partial(jax.jit, static_argnums=0)
def _objective(oracle: Oracle, own: Data, common: Data, weights: Array, models: Model) -> Array:
    return lax.map(lambda w: weights @ per_agent(lambda o: oracle.loss(Mine(o, common), w), own), models)


@partial(jax.jit, static_argnums=0)
def _own_losses(oracle: Oracle, own: Data, common: Data, models: Model) -> Array:
    return lax.map(lambda w: per_agent(lambda a: oracle.loss(Mine(a[0], common), a[1]), (own, w)), models)


def check_finite(name: str, array: np.ndarray, agent: str | None = None) -> None:
    """Refuse NaN and inf, saying where."""
    array = np.asarray(array)
    name = f"{name} of agent {agent}" if agent else name
    if not np.issubdtype(array.dtype, np.number) and array.dtype != bool:
        raise FedpointError(f"{name} holds {array.dtype}, not numbers")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = ", ".join(f"{axis} {i}" for axis, i in zip(("row", "column", "axis 2"), bad[0], strict=False))
        more = f" and {counted(len(bad) - 1, 'more place')}" if len(bad) > 1 else ""
        value = array[tuple(bad[0])]
        raise FedpointError(f"{name} is {value} at {where or 'its only value'}{more}: remove or impute it")


def check_weights(weights: ArrayLike | None, agents: int, default: np.ndarray | None = None) -> np.ndarray:
    """Weights as p_k that sum to one."""
    if weights is None:
        weights = np.full(agents, 1.0) if default is None else default
    weights = numbers("weights", weights)
    if weights.shape != (agents,):
        raise FedpointError(f"weights have shape {weights.shape}, but {there_are(agents, 'agent')}")
    for k in np.flatnonzero(~np.isfinite(weights) | (weights <= 0)):
        raise FedpointError(f"the weight of agent {k} is {weights[k]:g}: weights must be above 0; leave the agent out")
    return weights / weights.sum()


def check_held_out(X: ArrayLike, y: ArrayLike, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Held-out rows, checked against the model."""
    X, y = array_of("held-out X", X), array_of("held-out y", y)
    if X.ndim != 2 or X.shape[1] != columns or y.shape != (len(X),):
        raise FedpointError(
            f"held-out data of shape {X.shape} and targets of shape {y.shape}; the model has "
            f"{counted(columns, 'column')}"
        )
    check_finite("held-out data", X)
    return X, y


def squared_error(w: Model, X: ArrayLike, y: ArrayLike) -> dict[str, np.ndarray]:
    """Squared errors of a linear model."""
    X, y = check_held_out(X, y, len(w))
    return {"mse": (X @ w - y) ** 2}


def check_agents(count: int) -> None:
    if count == 0:
        raise FedpointError("there are no agents: give at least one")


def by_agent(groups: ArrayLike, rows: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Order of rows by agent, rows per agent, and the agents' names in sorted order."""
    groups = array_of("groups", groups)
    if groups.shape != (rows,):
        raise FedpointError(f"groups has shape {groups.shape}, but {there_are(rows, 'row')}: one agent's name a row")
    if np.issubdtype(groups.dtype, np.floating):
        check_finite("groups", groups)
    names, inverse, counts = told_apart("groups", groups)
    return np.argsort(inverse, kind="stable"), counts, [str(n) for n in names]
