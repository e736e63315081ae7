"""Does a problem answer what a run will ask? Its parts, and its oracle's answers traced on shapes, once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import calling, check_arrays, check_like, layout
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK, Key
from fedpoint.core.types import Data, Model
from fedpoint.core.vector import take
from fedpoint.problems.base import Problem
from fedpoint.problems.oracle import Mine, Oracle

PARTS = {
    "oracle": "how an agent answers, an fp.problems.Oracle",
    "own": "what each agent holds, arrays that lead with the agents",
    "common": "arrays that all agents share, or ()",
    "weights": "the agents' weights p_k, which sum to one",
    "names": "the agents' names",
}
SUM = 1e-9  # how far from one the sum of weights may be


@double
def check_problem(problem: Problem) -> None:
    """One `FedpointError` where a problem cannot be run, with class, method, what was expected and what came."""
    if problem.fits:
        return
    _check_parts(problem)
    model = start_of(problem)
    _answers.eval_shape(problem.oracle, problem.own, problem.common, model, NO_LUCK)
    if problem.solved:
        with calling(f"{type(problem).__name__}.solution"):
            found = problem.solution()
        if found is not None:
            real = jax.tree.map(lambda a: np.asarray(a, float), model)
            check_like(f"{type(problem).__name__}.solution", "a model", jax.tree.map(np.asarray, found), real)
    problem.fits = True


def _check_parts(problem: Problem) -> None:
    """What a constructor has to set."""
    name = type(problem).__name__
    for part, what in PARTS.items():
        if part not in dir(problem):
            raise FedpointError(f"{name}.__init__ must set self.{part}: {what}")
    if not isinstance(problem.oracle, Oracle):
        raise FedpointError(f"{name}.oracle must be an fp.problems.Oracle; got {layout(problem.oracle)}")
    kind = type(problem.oracle).__name__
    try:
        hash(problem.oracle)
    except TypeError:
        raise FedpointError(
            f"{kind} must be hashable, a frozen dataclass without arrays: its fields say how a program is built. Put "
            f"arrays into {name}.own or {name}.common"
        ) from None
    p = np.asarray(problem.weights)
    if p.ndim != 1 or not len(p) or p.dtype.kind != "f" or not (p > 0).all() or abs(p.sum() - 1) > SUM:
        said = p if p.dtype.kind in "iuf" and p.size <= 8 else layout(problem.weights)
        raise FedpointError(f"{name}.weights must be positive numbers that sum to 1, one for each agent; got {said}")
    names = list(problem.names)
    if len(names) != len(p) or len(set(map(str, names))) < len(names):
        raise FedpointError(
            f"{name}.names must be {counted(len(p), 'different name')}, one for each weight; got {names[:8]}"
        )
    for part, tree in (("own", problem.own), ("common", problem.common)):
        check_arrays(f"{name}.{part}", "what is held", tree)
    if any(np.shape(leaf)[:1] != (len(p),) for leaf in jax.tree.leaves(problem.own)):
        raise FedpointError(
            f"{name}.own must hold arrays that lead with the {counted(len(p), 'agent')}; got {layout(problem.own)}"
        )


def start_of(problem: Problem) -> Model:
    """Where a run starts, checked to be a model."""
    where = f"{type(problem).__name__}.start"
    with calling(where):
        model = problem.start()
    check_arrays(where, "a model", model)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(model)]
    if not leaves or any(leaf.dtype.kind != "f" for leaf in leaves):
        raise FedpointError(f"{where} must return a model of real numbers; got {layout(model)}")
    if not all(np.isfinite(leaf).all() for leaf in leaves):
        raise FedpointError(f"{where} holds NaN or inf")
    return model


@partial(jax.jit, static_argnums=0)  # traced once for all problems of its kind
def _answers(oracle: Oracle, own: Data, common: Data, w: Model, key: Key) -> None:
    """What an oracle is asked in a round, each answer checked."""
    name, mine = type(oracle).__name__, Mine(take(own, 0), common)
    if type(oracle).field is not Oracle.field:
        check_like(f"{name}.field", "a model", _sampled_field(oracle, mine, w, key), w)
    with calling(f"{name}.mean_field"):
        exact = oracle.mean_field(mine, w)
    check_like(f"{name}.mean_field", "a model", exact, w)
    if type(oracle).loss is not Oracle.loss:
        with calling(f"{name}.loss"):
            loss = oracle.loss(mine, w)
        if not isinstance(loss, float | Array) or jnp.shape(loss) != () or jnp.result_type(loss).kind != "f":
            raise FedpointError(f"{name}.loss must return a number; got {layout(loss)}")
    if oracle.known_noise:
        _check_noise(oracle, mine, w)


def _sampled_field(oracle: Oracle, mine: Mine, w: Model, key: Key) -> Model:
    name = type(oracle).__name__
    with calling(f"{name}.{'begin' if oracle.moves else 'plan'}"):
        plan = oracle.walk(mine, key, oracle.begin(mine, key)) if oracle.moves else oracle.plan(mine, key)
    with calling(f"{name}.draw"):
        z = oracle.draw(mine, plan, key.row(0), jnp.int32(0))
    check_arrays(f"{name}.draw", "a sample", z)
    try:
        with calling(f"{name}.field"):
            return oracle.field(mine, w, z)
    except FedpointError as error:
        if type(oracle).draw is not Oracle.draw:
            raise
        raise FedpointError(f"{error}. The sample z is (), because {name} has no draw(mine, plan, row, e)") from error


def _check_noise(oracle: Oracle, mine: Mine, w: Model) -> None:
    """Covariance and scatter, where they are said to be known."""
    name, d = type(oracle).__name__, sum(jnp.size(a) for a in jax.tree.leaves(w))
    asked: list[tuple[Callable[..., Array], tuple]] = [(oracle.covariance, ()), (oracle.scatter, (jnp.eye(d),))]
    if oracle.known_cross_noise:  # of which these are made
        asked = [(oracle.cross_covariance, (w,)), (oracle.cross_scatter, (w, jnp.eye(d)))]
    for function, arguments in asked:
        with calling(f"{name}.{function.__name__}"):
            matrix = function(mine, w, *arguments)
        if jnp.shape(matrix) != (d, d):
            raise FedpointError(f"{name}.{function.__name__} must return a matrix {(d, d)}; got {layout(matrix)}")
