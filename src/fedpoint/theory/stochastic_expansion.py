r"""What is a run's error made of? Lecture 001's stochastic expansion: transient, heterogeneity and noise.

On affine fields A(Z) th - b(Z) an agent that starts at th ends at

    th_c* + Gamma_c (th - th_c*) - eta sum_h Gamma_{c,h+1:H} eps_c(Z_h),   eps_c(Z) = (A(Z) - A_c) th_c* - (b(Z) - b_c),

with th_c* its own solution and Gamma_c the product of its I - eta A(Z_h). So a round with weights v_c is

    th+ - th* = [I - sum v_c (I - Gamma_c)] (th - th*) + sum v_c (I - Gamma_c)(th_c* - th*) - eta sum v_c Gamma eps,

and each of the three parts goes on by the matrix in brackets. (The lecture prints eta for the weights of the second
part, and plus in front of the third.) Nothing is stored in a run for it: random numbers are functions of their
coordinates, so the run is made again, by a hub that holds the parts beside the model. An agent's change from its own
solution is its noise, and the derivative of its change is Gamma_c - I.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.closed import linear
from fedpoint.core.agent import Agent
from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.settings import by_agent
from fedpoint.core.types import Message, Model, State
from fedpoint.core.wrapped import Wrapped
from fedpoint.engine.base import Engine
from fedpoint.engine.session import Session
from fedpoint.experiment.experiment import Experiment
from fedpoint.experiment.metric import Metric
from fedpoint.gather import WeightedSums
from fedpoint.problems.base import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST_PRODUCTS = 64  # numbers of a model whose products of matrices are kept


@runtime_checkable
class Run(Protocol):
    """What is asked here of a run; `fedpoint.results.run.Run` lies above."""

    @property
    def rounds(self) -> np.ndarray: ...

    @property
    def history(self) -> Model: ...

    @property
    def session(self) -> Engine: ...


class Terms(NamedTuple):
    """The model and the parts of its error, as the hub of a method holds models; as messages, their changes.

    gamma: the product of all rounds' matrices, row by row what it makes of the unit vectors; no rows if not asked for.
    """

    model: State
    transient: State
    heterogeneity: State
    noise: State
    gamma: State


class Expanded(Wrapped):
    """A method with the parts of its error beside its model. own: th_c*, one for each agent."""

    optimum: np.ndarray
    own: np.ndarray = by_agent(axes=2)
    products: bool = False

    def init(self, w: Model) -> tuple[State, State]:
        hub, memory = self.inner.init(w)
        zero, away = jnp.zeros_like(w), w - self.optimum
        unit = jnp.eye(len(w), dtype=w.dtype)[: len(w) if self.products else 0]
        return Terms(hub, *(self.inner.init(part)[0] for part in (away, zero, zero, unit))), memory

    def say(self, hub: Terms, row: Row) -> Terms:
        return Terms(*(self.inner.say(part, row) for part in hub))

    def local(self, heard: Terms, memory: State, agent: Agent) -> tuple[Message, State]:
        parts = jnp.stack([heard.transient, heard.heterogeneity, heard.noise, self.own - self.optimum])
        directions = jnp.concatenate([parts, heard.gamma])

        def expand(agent: Agent) -> tuple[Model, Model]:
            def change(y: Model) -> Message:
                return self.inner.local(y, memory, agent)[0]

            value, moved = jax.vmap(lambda u: jax.jvp(change, (self.own,), (u,)))(directions)
            return value[0], moved

        (message, memory), (at_own, moved) = agent.side_by_side(  # the same samples
            lambda agent: self.inner.local(heard.model, memory, agent), expand
        )
        return Terms(message, moved[0], moved[1] - moved[3], moved[2] + at_own, moved[4:]), memory

    def combine(self, hub: Terms, inbox: Inbox) -> Terms:
        each = zip(hub, inbox.mean, inbox.total, strict=True)
        parts = [self.inner.combine(part, inbox._replace(mean=mean, total=total)) for part, mean, total in each]
        return Terms(*parts)

    def read(self, hub: Terms, memory: State) -> Model:
        return self.inner.read(hub.model, memory)

    def sends_changes(self) -> bool:
        return False


@checked_methods
@dataclass(frozen=True)
class Expansion:
    """A run's error w_t - w*, in three parts that add up to it, at its recorded rounds: (repeats, n, d) each.

    Attributes:
        rounds: (n,) the recorded rounds.
        transient: what is left of the start.
        heterogeneity: what agents with solutions of their own add, the bias in the limit.
        noise: what samples add, zero on average.
        error: w_t - w* of the run itself.
        gamma: (repeats, n, d, d), the product of the matrices of all rounds so far, with transient_t = gamma_t (w_0 -
            w*); None unless asked for.
    """

    rounds: np.ndarray
    transient: np.ndarray
    heterogeneity: np.ndarray
    noise: np.ndarray
    error: np.ndarray  # w_t - w* of the run itself
    gamma: np.ndarray | None = None

    @property
    def residual(self) -> float:
        """The largest number by which the parts miss the error: rounding."""
        return float(np.abs(self.transient + self.heterogeneity + self.noise - self.error).max())

    @property
    def mean_squares(self) -> dict[str, np.ndarray]:
        """(n,): the mean over repeats of the squares of the parts, and of the error itself. They do not add up to its
        own: parts of one run are correlated."""
        parts = {"transient": self.transient, "heterogeneity": self.heterogeneity, "noise": self.noise}
        return {name: (part**2).sum(-1).mean(0) for name, part in (parts | {"error": self.error}).items()}

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.mean_squares.items()}
        parts = ", ".join(f"{name} {last[name]:.3g}" for name in ("transient", "heterogeneity", "noise"))
        return f"<expansion after {self.rounds[-1]} rounds: mean squares {parts}; error {last['error']:.3g}>"

    def plot(self, path: str | Path | None = None, title: str | None = None) -> Figure:
        """Above, the mean squares of error and parts over rounds; below, the parts' shares as stacked areas.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            title: above it.
        """
        from fedpoint.show.expansion import expansion_figure

        return expansion_figure(self, path, title)


def check_expandable(e: Experiment) -> None:
    """Refuse what the expansion does not hold for, or what cannot be made again."""
    method, problem, timing = e.algorithm, e.problem, e.timing
    if not isinstance(problem, Problem) or not problem.linear or problem.linear_fields() is None:
        raise FedpointError(f"the expansion is one of affine fields; those of {type(problem).__name__} are not")
    if not method.averages_descent() or method.own_kind():
        raise FedpointError(
            "the expansion is one of local steps and their mean (FedLSA, FedAvg, the exchanges), "
            f"not of {method.card.title}"
        )
    if timing.on_network or timing.on_clock or timing.late or e.network is not None:
        raise FedpointError("the expansion is one of rounds with a fusion center, in which nobody is late")
    if not e.channel.is_identity() or not isinstance(e.gather, WeightedSums) or e.attack is not None:
        raise FedpointError("the expansion is one of messages that arrive as they were sent, and of their weighted sum")
    if problem.solution() is None:
        raise FedpointError(f"the expansion is one of the distance to w*: {problem.why_no_solution()}")


def own_solutions(problem: Problem) -> np.ndarray:
    """(K, d): th_c* with A_c th_c* = b_c."""
    own, (A, b) = np.asarray(problem.local_solutions()), linear.fields_of(problem)
    left = np.abs(np.einsum("cij,cj->ci", A, own) - b).max(axis=1)
    for k in np.flatnonzero(left > 1e-8 * (1 + np.abs(b).max())):
        raise FedpointError(f"agent {problem.names[k]} has no solution of its own: its field vanishes nowhere")
    return own


def _model(part: State) -> Model:
    return jax.tree.leaves(part)[0]  # a hub may count rounds behind its model


METRICS: dict[str, Metric] = {  # by functions of this module: the program is compiled once
    "transient": lambda state: _model(state.hub.transient),
    "heterogeneity": lambda state: _model(state.hub.heterogeneity),
    "noise": lambda state: _model(state.hub.noise),
    "gamma": lambda state: _model(state.hub.gamma),
}


@checked
def expansion(run: Run, products: bool = False) -> Expansion:
    r"""The stochastic expansion of a run: transient, heterogeneity and noise, which add up to its error.

    For FedLSA, FedAvg and the exchanges, on problems with affine fields and one solution, with a fusion center; any
    participation, steps and numbers of local steps. The run is made again, at about six times its cost.

    Args:
        run: a run of one of these methods.
        products: also keep the products of matrices, `gamma`.

    >>> import fedpoint as fp
    >>> A, b = [[[1.0, 1.0], [-1.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]]], [[1, 0], [0, 1]]
    >>> run = fp.run(fp.FedLSA(0.1, 10), fp.problems.LinearSystem(A, b, noise=0.1), rounds=50, repeats=20)
    >>> parts = fp.theory.expansion(run)
    >>> parts.residual < 1e-12
    True
    >>> parts.heterogeneity[0, -1].round(4)  # exactly the bias, because only b is noisy
    array([0.0689, 0.0835])
    """
    e = run.session.experiment
    check_expandable(e)
    optimum = np.asarray(e.problem.solution())
    if products and optimum.size > LARGEST_PRODUCTS:
        raise FedpointError(f"products are kept of models of at most {LARGEST_PRODUCTS} numbers, not {optimum.size}")
    method = Expanded(e.algorithm, own=own_solutions(e.problem), optimum=optimum, products=products)
    replay = Session(e.replace(algorithm=method, metrics=METRICS).bind(), run.session.every)
    found = [replay.now()]
    replay.advance(int(run.rounds[-1]), keep=lambda rounds, records: found.append(records))
    if run.rounds[-1] % replay.every:
        found.append(replay.now())
    parts = {name: np.concatenate([records.metrics[name] for records in found], axis=1) for name in METRICS}
    error = np.asarray(run.history) - optimum
    gamma = np.swapaxes(parts.pop("gamma"), -1, -2) if products else None
    return Expansion(run.rounds, parts["transient"], parts["heterogeneity"], parts["noise"], error, gamma)
