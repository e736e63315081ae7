"""Server optimisers: the mean change is treated as a gradient by any optax optimiser at the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.algorithms import fedavg
from fedpoint.algorithms.fedavg import local_descent
from fedpoint.algorithms.references import HSU, REDDI
from fedpoint.closed import linear
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.settings import counts, nonnegative, positive
from fedpoint.core.steps import LocalSteps, Step, at
from fedpoint.core.types import Form, Message, Model, Optimiser, State, Tree
from fedpoint.core.vector import unwrap, wrap
from fedpoint.problems.base import Problem
from fedpoint.timing.participation import Who

SERVERS = ("sgd", "momentum", "adam", "yogi", "adagrad")


class Optimised(NamedTuple):
    """A model and the server optimiser's state."""

    w: Model
    state: State


class FedOpt(Algorithm):
    r"""Federated averaging with an optimiser at the server.

    $$\Delta = \sum_k v_k (y_k - w), \qquad w^+ = w + \text{server}(-\Delta)$$

    Args:
        step: the local step itself: a number, one per agent, or a schedule.
        local_steps: $E_k$, local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.
        server: "sgd", "momentum" (FedAvgM), "adam" (FedAdam), "yogi" (FedYogi), "adagrad" (FedAdagrad), or any optax
            optimiser (then `server_step` is a factor on its updates).
        server_step: the server's learning rate.
        momentum: first-moment factor (FedAvgM's momentum, Adam's and Yogi's b1).
        second: the factor b2 of the second moment, below 1.
        adaptivity: Reddi et al.'s tau, added to the root of the second moment.
        optimiser: an optax transformation for the local steps, as in FedAvg.

    Adam and Yogi are optax's, with bias correction, which Reddi et al.'s algorithm 2 leaves out.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> fp.run(fp.FedAdam(step=0.1, server_step=0.3), quad, rounds=300).model[0].round(3)
    array([1.])

    References: Reddi et al. (2021); Hsu et al. (2019) for FedAvgM.
    """

    card = Card(
        name="fedopt",
        title="FedOpt",
        summary="any optax optimiser at the hub, fed with the mean change: FedAvgM, FedAdam, FedYogi, FedAdagrad",
        lecture="",
        references=(REDDI, HSU),
        limit="FedAvg's, when it converges",
        fails="near the optimum: adaptive steps keep oscillating, and no floor is forecast; FedAvg's bias remains",
    )
    exact_moments = True

    step: Step = positive(per_agent=True, scheduled=True)
    local_steps: LocalSteps = counts()
    server: str | Optimiser = "sgd"
    server_step: float = positive(default=1.0)
    momentum: float = nonnegative(default=0.9, below=1.0)
    second: float = nonnegative(default=0.99, below=1.0)
    adaptivity: float = positive(default=1e-3)
    optimiser: Optimiser | None = None

    def check(self) -> None:
        if isinstance(self.server, str) and self.server not in SERVERS:
            raise FedpointError(f"FedOpt: unknown server {self.server!r}: {nearest(self.server, SERVERS)}")

    def _server(self) -> Optimiser:
        import optax  # here, because importing it takes longer than importing fedpoint

        rate, tau = self.server_step, self.adaptivity
        if not isinstance(self.server, str):
            return optax.chain(self.server, optax.scale(rate))
        return {
            "sgd": lambda: optax.sgd(rate),
            "momentum": lambda: optax.sgd(rate, momentum=self.momentum),
            "adam": lambda: optax.adam(rate, b1=self.momentum, b2=self.second, eps=tau),
            "yogi": lambda: optax.yogi(rate, b1=self.momentum, b2=self.second, eps=tau),
            "adagrad": lambda: optax.GradientTransformation(*_adagrad(rate, tau)),
        }[self.server]()

    @property
    def merges(self) -> bool:  # type: ignore[override]
        return self.server in ("sgd", "momentum")

    def adaptive(self) -> bool:
        return self.optimiser is not None or self.server not in ("sgd", "momentum")

    def alike(self) -> bool:
        return self.optimiser is None

    def init(self, w: Model) -> tuple[State, State]:
        return Optimised(w, self._server().init(unwrap(w))), ()

    def say(self, hub: Optimised, row: Row) -> Model:
        return hub.w

    def begun_from(self, w: Model, memory: State) -> Model:
        return w

    def local(self, w: Model, memory: State, agent: Agent) -> tuple[Message, State]:
        return local_descent(self, w, agent, lambda e, steps: at(self.step, agent.round * steps + e)) - w, memory

    def combine(self, hub: Optimised, inbox: Inbox) -> Optimised:
        gradient = unwrap(-inbox.mean)
        update, state = self._server().update(gradient, hub.state, unwrap(hub.w))
        return Optimised(hub.w + wrap(update), state)

    def read(self, hub: Optimised, memory: State) -> Model:
        return hub.w

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "bias": bias, "rate": rate, "floor": floor}


def _adagrad(rate: float, tau: float) -> tuple[Callable[[Tree], State], Callable[..., tuple[Tree, State]]]:
    """v <- v + g^2 from tau^2 on, then -rate g / (sqrt(v) + tau): optax's Adagrad adds its eps under the root."""

    def init(model: Tree) -> State:
        return jax.tree.map(lambda a: jnp.full_like(a, tau**2), model)

    def update(gradient: Tree, v: State, model: Tree = None) -> tuple[Tree, State]:
        v = jax.tree.map(lambda g, s: s + g * g, gradient, v)
        return jax.tree.map(lambda g, s: -rate * g / (jnp.sqrt(s) + tau), gradient, v), v

    return init, update


class Rest(TypedDict, total=False):
    """The other arguments of `FedOpt`."""

    second: float
    adaptivity: float
    optimiser: Optimiser | None


class RestAndMomentum(Rest, total=False):
    momentum: float


@checked
def FedAvgM(
    step: Step, local_steps: LocalSteps = 1, server_step: float = 1.0, momentum: float = 0.9, **rest: Unpack[Rest]
) -> FedOpt:
    """FedAvg with momentum at the server (Hsu et al., 2019).

    Args:
        step: the local step: a number, one per agent, or a schedule over gradient steps (`fp.steps`).
        local_steps: local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.
        server_step: the hub's step, 1 by default.
        momentum: at the hub: 0 is none; below 1.
        rest: the other arguments of `fp.FedOpt`.
    """
    return FedOpt(step, local_steps, "momentum", server_step, momentum=momentum, **rest)


@checked
def FedAdam(
    step: Step, local_steps: LocalSteps = 1, server_step: float = 0.1, **rest: Unpack[RestAndMomentum]
) -> FedOpt:
    """FedOpt with Adam at the server (Reddi et al., 2021).

    Args:
        step: the local step: a number, one per agent, or a schedule over gradient steps (`fp.steps`).
        local_steps: local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.
        server_step: the hub's step, 0.1 by default.
        rest: the other arguments of `fp.FedOpt`: `momentum`, `second` and `adaptivity`.
    """
    return FedOpt(step, local_steps, "adam", server_step, **rest)


@checked
def FedYogi(
    step: Step, local_steps: LocalSteps = 1, server_step: float = 0.1, **rest: Unpack[RestAndMomentum]
) -> FedOpt:
    """FedOpt with Yogi at the server (Reddi et al., 2021).

    Args:
        step: the local step: a number, one per agent, or a schedule over gradient steps (`fp.steps`).
        local_steps: local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.
        server_step: the hub's step, 0.1 by default.
        rest: the other arguments of `fp.FedOpt`: `momentum`, `second` and `adaptivity`.
    """
    return FedOpt(step, local_steps, "yogi", server_step, **rest)


@checked
def FedAdagrad(
    step: Step, local_steps: LocalSteps = 1, server_step: float = 0.1, **rest: Unpack[RestAndMomentum]
) -> FedOpt:
    """FedOpt with Adagrad at the server (Reddi et al., 2021).

    Args:
        step: the local step: a number, one per agent, or a schedule over gradient steps (`fp.steps`).
        local_steps: local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.
        server_step: the hub's step, 0.1 by default.
        rest: the other arguments of `fp.FedOpt`: `momentum`, `second` and `adaptivity`.
    """
    return FedOpt(step, local_steps, "adagrad", server_step, **rest)


# What theory says, in closed form: a server that stands still only where the mean change vanishes ends as FedAvg does.


def plain(algorithm: FedOpt) -> fedavg.FedAvg | None:
    """FedAvg with the same local steps; None where the server is the user's own, and may end elsewhere."""
    if not isinstance(algorithm.server, str):
        return None
    return fedavg.FedAvg(algorithm.step, algorithm.local_steps, normalise=False, optimiser=algorithm.optimiser)


def fixed_point(algorithm: FedOpt, problem: Problem, participation: Who = None) -> np.ndarray | None:
    """FedAvg's, for the servers by name: each moves unless the mean change is zero.

    For everyone; under sampling only for "sgd" and "momentum", which are linear in the mean change.
    """
    same = plain(algorithm)
    if same is None or not (algorithm.server in ("sgd", "momentum") or linear.everyone(participation)):
        return None
    return fedavg.fixed_point(same, problem)


def bias(algorithm: FedOpt, problem: Problem, participation: Who = None) -> np.ndarray | None:
    """The fixed point minus w*."""
    return linear.away(fixed_point(algorithm, problem, participation), problem)


def rate(algorithm: FedOpt, problem: Problem) -> float | None:
    r"""The factor of the mean per round for "sgd" and "momentum".

    With $G = \sum_k p_k (I - (I - s_k H_k)^{E_k})$, of eigenvalues $\lambda$, server step $\eta$ and momentum $m$: the
    largest modulus of the roots of $z^2 - (1 + m - \eta\lambda) z + m$, which is $|1 - \eta\lambda|$ for m = 0.
    """
    same = plain(algorithm)
    round = None if same is None else fedavg.expected_round(same, problem, False)
    if round is None or algorithm.server not in ("sgd", "momentum") or not np.isfinite(round.progress()).all():
        return None
    momentum = algorithm.momentum if algorithm.server == "momentum" else 0.0
    middle = 1 + momentum - algorithm.server_step * np.linalg.eigvals(round.progress())
    root = np.sqrt(middle.astype(complex) ** 2 - 4 * momentum)
    return float(max(np.abs(middle + root).max(), np.abs(middle - root).max()) / 2)


def floor(algorithm: FedOpt, problem: Problem, participation: Who = None) -> float | None:
    """FedAvg's, when the server is "sgd" with step 1: then it is FedAvg."""
    same = plain(algorithm)
    if same is None or algorithm.server != "sgd" or algorithm.server_step != 1:
        return None
    return fedavg.floor(same, problem, participation)
