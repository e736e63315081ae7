"""The expected round as a smooth map of the state, to be differentiated; with a fusion center and on a network.

The state is (hubs, memories) flattened: u, the hubs' floats, and m, one row of floats for each agent, completed by
what the agent hears next (`settle`). One expected round is a map F(u, m). Nodes of a network all work in every round.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.precision import double
from fedpoint.core.types import Model, State
from fedpoint.core.vector import unwrap, wrap
from fedpoint.engine.cpu import cache
from fedpoint.engine.layout import Layout
from fedpoint.engine.session import cast
from fedpoint.engine.state import Inputs
from fedpoint.experiment.bound import Bound
from fedpoint.problems.rows import BLOCK
from fedpoint.theory import round_maps as maps
from fedpoint.theory.budget import Budget
from fedpoint.theory.expected_round import (
    Numbers,
    arriving,
    check_say,
    draws_of,
    draws_own,
    lossy,
    most_steps,
    template,
    trace_steps,
)
from fedpoint.theory.space import Space, fill, flat_on_host, is_real, kept_leaves, size_of
from fedpoint.timing.base import Moments
from fedpoint.timing.lineups import Lineups
from fedpoint.timing.schemes import Everyone

DENSE = 64  # numbers of a state, up to which products with F' are made from the whole matrix
PATH = 256  # rounds of a path that are computed at a time
ENOUGH = 1 << 14  # numbers of an agent's rows and model, above which agents work one after the other
RAGGED = 3  # times the mean that an agent has rows, from which on agents work one after the other
AT_ONCE = 1 << 26  # numbers of all agents' rows and models, above which they work one after the other
DEAR = 1 << 20  # numbers that an exact round handles, above which programs are compiled with care
ROUGH = 500  # numbers of a state, above which columns of noise are followed in single precision


class Setting:
    """A bound experiment, ready for theory: everything in double precision.

    coarse: for many forecasts of one problem: few programs for many numbers of local steps, up to so many in the first,
    and no drawn rounds to tell how far noise moves the mean of large models; 0: more programs, that compute no more
    than they need.
    merges_linearly: the answer where it is known from a setting of the same kind.
    """

    @double
    def __init__(self, bound: Bound, coarse: int = 0, merges_linearly: bool | None = None):
        cache.enable()
        self.bound, self.algorithm = bound, bound.algorithm
        self.problem, self.exact, self.coarse = bound.problem, bound.exact, coarse
        self._last: tuple[np.ndarray, np.ndarray] | None = None
        fresh = bound.in_step()
        self.timing = fresh.timing if bound.timing.on_clock else bound.timing
        self.topology, self.oracle = fresh.topology, fresh.oracle
        begin = jax.tree.map(lambda a: np.asarray(a, float), bound.start)
        self.start = begin if self.topology.by_node else self.topology.spread(begin, self.agents)  # as models are read
        models = wrap(begin)  # NumPy's: compiling small steps takes longer than they do
        model = self.topology.one(models)
        draws = draws_of(self.algorithm, symmetric=self.problem.has_loss)
        one = cast(self.algorithm if self.own_kind else trace_steps(self.algorithm), float)
        self.settles = _settles(one, model)
        self._check()
        check_say(one.given(draws.hub[1][0]) if draws.drawn.hub else one, model)
        layout = Layout(
            self.oracle, self.agents, self.agents, True, None, 1, self.large(exact=True), False, 1, self.topology
        )
        kept, most = kept_leaves(one, model, self.settles), most_steps(self.algorithm, draws, coarse)
        self.space = Space(layout, kept, most, self._alike(), self.settles, not self.exact, self._ragged())
        begun = maps.begin(self.topology, one, models, fresh.wires, self.agents)
        m = self.moments
        inputs = Inputs(
            one,
            bound.timing.on_average() or Everyone(),
            cast(self.problem.own_for(self.algorithm), float),
            cast(self.problem.common, float),
            cast(self.problem.weights, float),
            cast(arriving(bound.channel), float),
            cast(bound.gather, float),
            fresh.wires,
            attack=cast(bound.attack, float),
            branches=bound.branches,
        )
        self.numbers: Numbers = jax.device_put(
            Numbers(
                inputs,
                cast(m.mean, float),
                cast(m.heard, float),
                cast(m.merge, float),
                maps.cases(np.ones(1), m.mean[None], m.heard[None]),
                model,
                begun.hub,
                begun.mail,
                draws.hub,
                draws.late,
                draws.drawn,
            )
        )
        self.u0 = flat_on_host(begun.hub)
        self.m0 = maps.own_rows(self.space, one, begun.hub, begun.memory, self.agents)
        self.budget = Budget(self.size)
        self.lineups = None if merges_linearly else self._find_lineups()
        if self.lineups is not None:
            self.numbers = self.numbers._replace(cases=maps.cases(*self.lineups[:3]))

    def _check(self) -> None:
        """What has no expected round."""
        title, timing, bound = self.algorithm.card.title, self.timing, self.bound
        if reason := self.algorithm.why_no_forecast():
            raise FedpointError(reason)
        if bound.attack is not None and not bound.attack.repeats_itself:
            raise FedpointError(
                f"attack={type(bound.attack).__name__}: what it does to a round is not known beforehand; run it with "
                "and without the attack, and see how far it moves the model"
            )
        late = not (bound.timing.all_heard and bound.timing.depth(1) == 1)
        if bound.merged_by and self.topology.by_node and late:
            raise FedpointError(
                f"{bound.merged_by} does not merge linearly: on a network a forecast needs all nodes to work in every "
                "round, and no message to be late"
            )
        if self.topology.nested and self.algorithm.scheduled():
            raise FedpointError("regions= with steps that change: a forecast needs a constant step")
        if bound.loses_a_sum and not (self.exact and timing.everyone):
            raise FedpointError(f"{bound.loses_a_sum}: there is no limit to forecast")
        if self.settles and not timing.everyone:
            raise FedpointError(f"{title} completes memories with the merged model: a forecast needs everyone")
        if timing.links_fail and self.algorithm.divides():
            raise FedpointError(
                f"{title} divides one sum by another, and with {type(timing).__name__} both are random: their ratio is "
                "not affine, and its mean is not known beforehand. Run it, with repeats="
            )
        if bound.network is not None and not bound.channel.lossless:
            raise FedpointError(
                f"channel={type(bound.channel).__name__} loses a part of what nodes tell each other: with a lossy "
                "channel a forecast needs a fusion center"
            )

    def work(self, exact: bool) -> int:
        """About how many numbers are handled in a round, with exact fields or as they are sampled."""
        return self.size + self.timing.slots(self.agents) * self.space.most * self._met(exact)

    def _met(self, exact: bool) -> int:
        """The same of one agent's step."""
        held, batch = self.problem.local_rows(), self.problem.batch
        stored = 1 if held is None else int(np.max(held))
        met = stored if exact or batch is None else min(int(np.max(batch)), stored)
        return met * sum(np.size(a) for a in jax.tree.leaves(self.topology.one(self.bound.start)))

    @cached_property
    def dear(self) -> bool:
        """Rounds take so long that compiling them with care pays."""
        return self.work(exact=True) > DEAR

    @cached_property
    @double
    def rough(self) -> Numbers:
        """The numbers for what is asked for to a few digits only: in single precision where models are large."""
        return self.numbers if self.size <= ROUGH else jax.device_put(cast(self.numbers, np.float32))

    def large(self, exact: bool) -> bool:
        """Whether one agent's work keeps the processor busy, or that of all does not fit into memory at once."""
        work = self._met(exact)
        return work > ENOUGH or (self.agents > 256 and self.agents * work > AT_ONCE)

    def _ragged(self) -> bool:
        """Whether most of a batch of agents would wait for the one with the most rows."""
        held = self.problem.local_rows()
        return held is not None and bool(np.max(held) > max(BLOCK, RAGGED * np.mean(held)))

    @cached_property
    def moments(self) -> Moments:
        return self.timing.moments(self.problem.weights)

    @property
    def agents(self) -> int:
        return self.problem.agents

    @property
    def models(self) -> int:
        """How many models there are: one, or one for every node."""
        return self.topology.models(self.agents)

    @property
    def size(self) -> int:
        return self.u0.size + self.m0.size

    @property
    def origin(self) -> np.ndarray:
        return np.concatenate([self.u0, self.m0.ravel()])

    @double
    def blocks(self) -> list[np.ndarray]:
        """Where in a state the numbers of one kind are: of an array of the hub, or of all agents' memories."""
        hub = [size_of(a) for a in jax.tree.leaves(self.numbers.hub)]
        memory = jax.tree.leaves(jax.eval_shape(lambda n: n.algorithm.init(n.model)[1], self.numbers))
        kept = [size_of(memory[i]) for i in self.space.kept]
        own = np.repeat(len(hub) + np.arange(len(kept)), kept)
        kinds = np.concatenate([np.repeat(np.arange(len(hub)), hub), np.tile(own, self.agents)])
        return [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]

    def scales(self, x: np.ndarray, deviation: np.ndarray) -> np.ndarray:
        """(n,): numbers of one kind times this: by what the round around x makes of a deviation of them in the models.

        So controls, which are large and do little, do not hide the model.
        """
        blocks = self.blocks()
        if len(blocks) == 1:
            return np.ones(self.size)
        scale, slope = np.zeros(self.size), self.slope(x)
        for block in blocks:
            part = np.zeros(self.size)
            part[block] = deviation[block]
            seen = np.linalg.norm(self.readings(np.stack([part, slope(part)])))
            scale[block] = seen / max(float(np.linalg.norm(part)), 1e-300)
        return np.maximum(scale / max(scale.max(), 1e-300), 1e-6)

    @cached_property
    def own_kind(self) -> bool:
        return self.algorithm.own_kind()

    def _alike(self) -> bool:
        return bool(
            self.problem.linear and not self.own_kind and not self.algorithm.scheduled() and self.algorithm.alike()
        )

    @cached_property
    def scheduled(self) -> bool:
        """Steps change from round to round."""
        if self.algorithm.scheduled():
            return True
        if not self.own_kind:
            return False
        x = self.origin + 1.0
        return not np.allclose(self.step(x, 0), self.step(x, 1000), rtol=1e-12, atol=1e-12)

    @cached_property
    @double
    def counts_at_agents(self) -> bool:
        """Agents remember whole numbers, which an expected round leaves as they are."""
        memory = jax.eval_shape(lambda w: self.algorithm.init(w)[1], self.numbers.model)
        return any(not is_real(a) for a in jax.tree.leaves(memory))

    @cached_property
    def lucky(self) -> bool:
        """Agents draw random numbers of their own."""
        return draws_own(self.space, self.numbers)

    @property
    def silent(self) -> bool:
        """Fields have no noise: they are exact, of all rows, or sampled without any."""
        full = self.problem.batch is None and self.problem.local_rows() is not None
        return bool(self.exact or full or not self.oracle.noisy)

    @property
    def lossy(self) -> bool:
        """What arrives over the channel is random, or a hub adds something random to it."""
        return lossy(self.bound.channel)

    @cached_property
    @double
    def told_channel(self) -> bool:
        """The channel tells the second moments of what arrives, and of what a hub adds to it."""
        channel, message = self.numbers.inputs.channel, template(self.space, self.numbers)[0]
        size = 1 + size_of(message)
        parts = channel.scatter(jnp.zeros((size, size)), message, 1.0), channel.scatter_hub(message, jnp.ones(()))
        return all(part is not None for part in parts)

    @property
    def known_channel(self) -> bool:
        """The same, and what a hub adds is fresh in every round."""
        return len(self.bound.channel.noise_coefficients()) == 1 and self.told_channel

    @property
    def adaptive(self) -> bool:
        """The hub or the agents rescale changes by their history: near the limit they have no linear map."""
        return bool(self.algorithm.adaptive())

    @cached_property
    def straight(self) -> bool:
        """The expected round is affine."""
        x, h = self.origin, np.random.default_rng(0).normal(size=self.size)
        with np.errstate(all="ignore"):
            if self.topology.by_node:  # on what it reaches: hubs hold weights of edges too, which never change
                x, h = self.step(x), self.step(x + h) - self.step(x)
            there = self.step(x)
            bend = self.step(x + h) + self.step(x - h) - 2 * there
        return bool(np.abs(bend).max() <= 1e-9 * (1 + np.abs(x).max() + np.abs(there).max()))

    @cached_property
    def affine(self) -> bool:
        """The expected round is affine, and exactly the mean of the random round."""
        if not self.straight:
            return False
        drawn = self.lineups is not None and self.lineups.drawn
        return self.topology.by_node or not (drawn or self.multiplies_luck)

    @cached_property
    def multiplies_luck(self) -> bool:
        """The hub multiplies what depends on the luck of agents: on how many steps they took."""
        return self.numbers.drawn.agent and not self.combines_linearly

    @cached_property
    def surveys(self) -> bool:
        """Agents are asked more than once in a round: what they first say enters what they then do."""
        return self.algorithm.survey() is not None

    @property
    def merges_linearly(self) -> bool:
        """What the hub makes of the mean of what it may hear is the mean of what it makes of each."""
        return self.lineups is None

    @cached_property
    @double
    def combines_linearly(self) -> bool:
        """`combine` is affine in all it is given."""
        size = size_of(template(self.space, self.numbers)[0])
        centre, move = np.random.default_rng(0).normal(size=(2, 2 * size + 2))
        points = np.stack([centre - move, centre, centre + move])
        low, middle, high = np.asarray(maps.merges(self.space, self.numbers, points))
        return bool(np.abs(low + high - 2 * middle).max() <= 1e-9)

    def _find_lineups(self) -> Lineups | None:
        """Whom a round may hear, where the hub makes something else of the mean of it than of each."""
        if self.topology.by_node or self.timing.everyone or self.adaptive:
            return None
        if self.combines_linearly and not self.bound.merged_by and not self.surveys:
            return None
        found = self.timing.lineups(self.problem.weights)
        x, each = self.origin + np.random.default_rng(0).normal(size=self.size), maps.cases(*found[:3])
        mean = maps.cases(np.ones(1), *((found.chance @ a)[None] for a in (found.weight, found.heard)))
        apart, together = (
            np.asarray(maps.step(self.space, self.numbers._replace(cases=cases), x, jnp.int32(0)))
            for cases in (each, mean)
        )
        if np.isfinite(together).all() and not np.isfinite(apart).all():
            raise FedpointError(
                f"{self.algorithm.card.title} divides by the weight heard, and {type(self.timing).__name__} has rounds "
                "in which nobody is heard: the run would end in nan. Abandon such rounds, as fp.Answering does "
                "(merge=False in the tick)"
            )
        return None if np.allclose(apart, together, rtol=1e-9, atol=1e-9) else found

    @double
    def lineup_noise(self, x: np.ndarray) -> np.ndarray | None:
        """(n, n): the covariance of F(x) that is left where lineups are a sample; None where they are all."""
        if self.lineups is None or not self.lineups.drawn:
            return None
        each = np.asarray(maps.by_case(self.space, self.numbers, x))
        known = np.concatenate([np.ones((len(each), 1)), self.lineups.weight, self.lineups.heard], axis=1)
        rest = each - known @ np.linalg.lstsq(known, each, rcond=1e-9)[0]  # linear parts are exact
        return rest.T @ rest / len(rest) ** 2

    @double
    def step(self, x: np.ndarray, round: int = 0, rough: bool = False) -> np.ndarray:
        """F(x); rough: in single precision where models are large."""
        program, numbers = maps.step_with_care if self.dear else maps.step, self.rough if rough else self.numbers
        return np.asarray(program(self.space, numbers, x, jnp.int32(round)))

    def slope(self, x: np.ndarray, rough: bool = False) -> Callable[[np.ndarray], np.ndarray]:
        """v -> F'(x) v; rough: in single precision where models are large."""
        if self.size <= DENSE:  # the rate needs the matrix anyway: one program less
            M = self.matrix(x)
            return lambda v: M @ v
        program = maps.slope_with_care if self.dear else maps.slope
        numbers = self.rough if rough else self.numbers
        return double(lambda v: self.budget.count(lambda: np.asarray(program(self.space, numbers, x, v))))

    @double
    def matrix(self, x: np.ndarray) -> np.ndarray:
        """F'(x), dense; the last one is kept."""
        x = np.asarray(x)
        if self._last is None or not np.array_equal(self._last[0], x):
            self._last = x.copy(), np.asarray(maps.matrix(self.space, self.numbers, x))
        return self._last[1]

    @double
    def travel(self, x: np.ndarray, rounds: int, first: int = 0) -> np.ndarray:
        """The state after so many expected rounds."""
        return np.asarray(maps.travel(self.space, self.numbers, x, jnp.int32(first), jnp.int32(rounds)))

    def path(self, x: np.ndarray, rounds: int) -> np.ndarray:
        """(rounds + 1, d): the model along the expected path from x."""
        parts, first = [self.read(x)[None]], 0
        while first < rounds:
            models, x = self.stretch(x, first, PATH)
            parts.append(models[: rounds - first])
            first += PATH
        return np.concatenate(parts)

    @double
    def stretch(self, x: np.ndarray, first: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """(rounds, d): the model after each of the next rounds, and the state after them; compiled for their number."""
        models, x = maps.path(self.space, self.numbers, x, jnp.int32(first), rounds)
        return np.asarray(models), np.asarray(x)

    @double
    def read(self, x: np.ndarray) -> np.ndarray:
        """The model in a state, flattened; those of all nodes, one after the other."""
        return np.asarray(maps.read(self.space, self.numbers, x))

    @double
    def at(self, models: Model) -> np.ndarray:
        """The state in which a run begins that starts from these models."""
        n = self.numbers
        like = wrap(jax.tree.map(lambda a: np.asarray(a, float), models))
        begun = maps.begin(self.topology, n.algorithm, like, n.inputs.wires, self.agents)
        m = maps.own_rows(self.space, n.algorithm, begun.hub, begun.memory, self.agents)
        return np.concatenate([flat_on_host(begun.hub), m.ravel()])

    def moved_to(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The state x with its models moved to w, all else as it is."""
        at, moved = self._selection, np.array(x, float)
        if at is None:
            return moved + np.linalg.pinv(self.reading) @ (w - self.reading @ x)
        moved[at] = w
        return moved

    @double
    def curved(self, w: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Rows times the slope of the aggregate field at a flattened model."""
        return np.asarray(maps.curved(self.space, self.numbers, w, rows))

    @double
    def curvature(self, w: np.ndarray) -> np.ndarray:
        """(d, d): the slope of the aggregate field sum_k p_k g_k at a flattened model."""
        return np.asarray(maps.curvature(self.space, self.numbers, w))

    @cached_property
    @double
    def reading(self) -> np.ndarray:
        """(d, n): the models are this times the state's floats."""
        return np.asarray(maps.reading(self.space, self.numbers, self.origin))

    @double
    def reading_at(self, x: np.ndarray) -> np.ndarray:
        """(d, n): the derivative of the models by the state, at a state; another one elsewhere only where a model is a
        ratio, as in push-sum."""
        return self.reading if self._selection is not None else np.asarray(maps.reading(self.space, self.numbers, x))

    @double
    def reads(self, states: np.ndarray) -> np.ndarray:
        """(m, d): the models in states (m, n)."""
        at = self._selection
        return np.asarray(maps.reads(self.space, self.numbers, states)) if at is None else states[:, at]

    @cached_property
    def _selection(self) -> np.ndarray | None:
        """Where in a state the models are; None where they are not just read off."""
        at, some = self.read(np.arange(float(self.size))), np.random.default_rng(0).normal(size=self.size)
        at = np.clip(np.rint(at), 0, self.size - 1).astype(int)
        return at if np.array_equal(self.read(some), some[at]) else None

    def readings(self, rows: np.ndarray) -> np.ndarray:
        """(m, d): the models' parts of deviations of the state (m, n)."""
        at = self._selection
        if at is None:
            return rows @ self.reading.T
        return rows if len(at) == self.size and (np.diff(at) == 1).all() else rows[:, at]

    @double
    def model_of(self, vector: np.ndarray) -> Model:
        """Flattened models as the user wrote them."""
        return jax.tree.map(np.asarray, unwrap(fill(wrap(self.start), jnp.asarray(vector))))

    def flatten(self, model: Model) -> np.ndarray:
        return np.concatenate([np.ravel(np.asarray(a, float)) for a in jax.tree.leaves(model)])


def _settles(algorithm: Algorithm, model: Model) -> bool:
    """Whether memories are completed by the merged model, at any depth: the default hands back what it is given."""
    changed: list[bool] = []

    def settled(model: Model) -> State:
        hub, memory = algorithm.init(model)
        after = algorithm.settle(hub, memory)
        pairs = zip(jax.tree.leaves(after), jax.tree.leaves(memory), strict=True)
        changed.extend(after is not before for after, before in pairs)
        return after

    jax.eval_shape(settled, model)
    return any(changed)
