"""What may an algorithm ask of an agent? Its field, its loss, its prox, its luck; nothing else of the data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NoReturn, Self, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpoint.core.errors import Misused, UnknownName
from fedpoint.core.random import Row, Stream, normal_like
from fedpoint.core.steps import Epochs, LocalSteps, Stragglers
from fedpoint.core.types import Data, Model, Number, Tree
from fedpoint.core.vector import unwrap, wrap

if TYPE_CHECKING:
    from fedpoint.problems.oracle import Mine, Oracle

STRAGGLER_ROW, OWN_ROW = 0xFFFFFFF0, 0xFFFFFFE0  # of an agent's stream; those from 0 on are the samples'
OUTSIDE = 0xFFFFFFFF  # the step of what is drawn outside of local steps

Advance: TypeAlias = Callable[[Tree, Number], Tree]  # one step from y, the e-th of them
Answer = TypeVar("Answer")


class Agent:
    """One agent in one round, as `local` sees it. The engine makes it; a method only asks it.

    Args:
        oracle: the problem's oracle, which answers what the agent asks of its data.
        mine: the data that the oracle may use: the agent's own, and what all share.
        stream: the agent's random numbers in this round.
        plan: what the oracle prepared for the round before it starts, such as an order of the rows.
        samples: samples drawn ahead of the round, one per step; None: drawn on the spot.
        exact: answer with exact fields, without sampling noise.
        share: $p_k$, the agent's weight in the objective.

    Arguments of methods:
        w: a model.
        like: arrays in whose shapes numbers are drawn.
    """

    def __init__(
        self, oracle: Oracle, mine: Mine, stream: Stream, plan: Data, samples: Data, exact: bool, share: Number
    ) -> None:
        self._oracle, self._mine, self._stream = oracle, mine, stream
        self._plan, self._samples, self._exact = plan, samples, exact
        self._step: Number = OUTSIDE  # what tells draws of an agent's own luck apart
        self._draws = 0
        self.round = stream.round
        self.share = share  # p_k, which the study knows
        self.evaluations: Number = 0  # counted while tracing: what run.cost reports
        self._repeated: Number = 0  # of these, on samples that another chain asked for too

    def __getattr__(self, name: str) -> NoReturn:
        raise UnknownName("agent", name, self.OFFERS, {"grad": "field", "gradient": "field", "data": "field"})

    OFFERS = (
        *("field", "hessian", "hessian_times", "key", "loss", "losses_along", "normal", "prox", "round", "share"),
        *("side_by_side", "steps", "uniform"),
    )

    @property
    def sampled(self) -> Number:
        """How many samples it has used."""
        return self.evaluations - self._repeated

    def _count(self, fields: int) -> None:
        """Work like that of so many fields, which uses no sample."""
        self.evaluations = self.evaluations + fields
        self._repeated = self._repeated + fields

    def field(self, w: Model, e: Number = 0) -> Model:
        """This agent's field at w: of its e-th sample in this round, or exact when the run says so.

        Args:
            e: which of the round's samples; exact fields do not depend on it.
        """
        self.evaluations = self.evaluations + 1
        model = unwrap(w)
        if self._exact:
            return wrap(self._oracle.mean_field(self._mine, model))
        if self._samples is None:
            z = self._oracle.draw(self._mine, self._plan, self._stream.row(e), e)
        else:
            z = jax.tree.map(lambda a: _sample(a, e), self._samples)
        return wrap(self._oracle.field(self._mine, model, z))

    def loss(self, w: Model) -> Array:
        """This agent's exact loss at w, in the model's precision."""
        model = unwrap(w)
        return self._oracle.loss(self._mine, model).astype(jnp.result_type(*jax.tree.leaves(model)))

    def losses_along(self, w: Model, move: Model, fractions: Array) -> Array:
        """(n,): this agent's exact losses at w + s move, for each of n numbers s.

        Args:
            move: a direction, built as a model.
            fractions: (n,) how far along it.
        """
        return jax.vmap(lambda s: self.loss(w + s * move))(fractions)

    def hessian(self, w: Model) -> Array:
        """(d, d): the derivative of this agent's exact field at w, in the order of `ravel_pytree`; for gradients it is
        symmetric. Counted as d fields."""
        self._count(sum(a.size for a in jax.tree.leaves(w)))
        return self._oracle.hessian(self._mine, unwrap(w))

    def hessian_times(self, w: Model, v: Model) -> Model:
        """The derivative of this agent's exact field at w along v, without a matrix: about the work of two fields, and
        counted as such.

        Args:
            v: a direction, built as a model.
        """
        self._count(2)
        return wrap(self._oracle.hessian_times(self._mine, unwrap(w), unwrap(v)))

    def prox(self, center: Model, weight: Number) -> Model:
        """argmin_v loss(v) + weight |v - center|^2, solved exactly (closed form, or Newton's method to rounding).

        Args:
            center: the model that the answer is drawn to.
            weight: how strongly.
        """
        return wrap(self._oracle.prox(self._mine, unwrap(center), weight))

    def steps(self, local_steps: LocalSteps) -> Number:
        """How many local steps this agent takes in this round.

        Args:
            local_steps: a number, or what decides it: `Epochs`, `Stragglers`.
        """
        if isinstance(local_steps, Stragglers):
            return local_steps.draw(self._stream.row(STRAGGLER_ROW))
        if isinstance(local_steps, Epochs):
            raise Misused("agent.steps cannot count epochs: make them a field of the method, and they are counted")
        return local_steps

    # An agent's own luck: independent of its samples, of other agents, rounds and local steps.

    def _row(self) -> Row:
        """A row of its own for every draw; inside `fp.descend` for every step of it too."""
        self._draws += 1
        own = self._stream.key.fold(self._stream.round, OWN_ROW).fold(self._step, self._draws)
        return own.row(self._stream.agent)

    def normal(self, like: Tree) -> Tree:
        """Standard normal numbers in the shapes of `like`."""
        return jax.tree.map(lambda a: normal_like(self._row(), a), like)

    def uniform(self, like: Tree) -> Tree:
        """Numbers uniform on (0, 1) in the shapes of `like`."""
        return jax.tree.map(lambda a: self._row().uniform(jnp.shape(a)).astype(jnp.result_type(a)), like)

    def key(self) -> Array:
        """A key for `jax.random`, another one at every call."""
        return self._row().jax()

    def side_by_side(self, *chains: Callable[[Self], Answer]) -> list[Answer]:
        """What several chains answer that share this agent's samples and luck; the evaluations of all are counted.

        Args:
            chains: functions of an agent, each called with one.
        """
        forks = [self._fork(i, len(chains)) for i in range(len(chains))]
        answers = [chain(fork) for chain, fork in zip(chains, forks, strict=True)]
        self._join(forks)
        return answers

    def _fork(self, chain: int, chains: int) -> Self:
        fork = copy.copy(self)
        fork.evaluations, fork._repeated = 0, 0
        return fork

    def _join(self, forks: Sequence[Self]) -> None:
        spent = sum(fork.evaluations for fork in forks)
        self._draws = max(fork._draws for fork in forks)  # what is drawn later is drawn afresh
        self._repeated = self._repeated + spent - reduce(_larger, (fork.sampled for fork in forks))
        self.evaluations = self.evaluations + spent

    def loop(self, start: Tree, steps: Number, advance: Advance) -> Tree:
        """How `descend` goes through its steps.

        Args:
            start: what the first step starts from.
            steps: how many.
            advance: one step: from y and the number of the step to the next y.
        """

        def step(y: Tree, e: Number) -> Tree:
            before, self._step = self._step, e
            try:
                return advance(y, e)
            finally:
                self._step = before

        if isinstance(steps, int) and steps <= 2:  # no loop to set up: short rounds are dominated by it
            y = start
            for e in range(steps):
                y = step(y, e)
            return y
        return lax.fori_loop(0, steps, lambda e, y: step(y, e), start)


def _larger(a: Number, b: Number) -> Number:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else jnp.maximum(a, b)


def _sample(a: Array, e: Number) -> Array:
    if isinstance(e, int):
        return lax.index_in_dim(a, e, keepdims=False)
    return lax.dynamic_index_in_dim(a, e, keepdims=False)


def descend(agent: Agent, start: Tree, steps: Number, advance: Advance) -> Tree:
    """Take an agent's local steps: y <- advance(y, e) for e = 0 .. steps-1.

    Args:
        agent: whose loop it is.
        start: y before the first step, in any pytree.
        steps: how many. It may be traced: the loop then costs what this agent takes, or the largest count among agents
            that are batched together.
        advance: a function (y, e) -> y, for the e-th step.
    """
    try:
        right = callable(agent.loop) and callable(advance) and not callable(steps)
    except AttributeError:
        right = False
    if not right:
        known = {Array: "array", Agent: "Agent"}
        named = [
            next((name for kind, name in known.items() if isinstance(a, kind)), type(a).__name__)
            for a in (agent, start, steps, advance)
        ]
        raise Misused(
            "fp.descend takes (agent, start, steps, advance): the agent, where its steps start, how many, and a "
            f"function (y, e) -> y; got ({', '.join(named)})"
        )
    before = agent.evaluations
    y = agent.loop(start, steps, advance)
    agent.evaluations = before + steps
    return y
