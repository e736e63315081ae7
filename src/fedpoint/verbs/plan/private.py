r"""Which private rounds reach a target? Clip, noise, participants and rounds chosen together, from forecasts.

The noise that an epsilon asks for grows with the number of rounds that it is spent on, so that a run is planned as a
whole: with T rounds the error is about

$$ e_T = a_T + (z_T C)^2 u_T, $$

a the curve without that noise, u what noise of deviation 1 on a clip of 1 adds to it, z_T the multiplier that T rounds
need, C the length of the longest message that is seen: a clip that cuts (nearly) nothing. Runs verify what was chosen,
with the clip.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.channel.base import Channel, Clips
from fedpoint.channel.chain import Chain
from fedpoint.channel.clip import Clip
from fedpoint.channel.gaussian import Gaussian
from fedpoint.core.agent import Agent
from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.precision import double
from fedpoint.core.types import Message, Number, State, Tree
from fedpoint.engine.session import Session
from fedpoint.experiment import Experiment
from fedpoint.privacy import Privacy
from fedpoint.privacy.accounting import Account
from fedpoint.privacy.spent import least_noise
from fedpoint.results.labels import short
from fedpoint.results.plan import Choice, Goal
from fedpoint.theory.affine_rounds import Powers
from fedpoint.theory.planning import Trial, Uncomputable, best_step, thinned
from fedpoint.timing.schemes import Participation
from fedpoint.verbs.plan.search import Method, Search

LONGEST = 1 << 10  # rounds that a private run may have, unless more are asked for
METHODS = ("fedavg", "gradient_exchange")
LOUDEST = 1e4  # a noise multiplier that is enough for everything
LOOKS = 10  # steps that are tried
SEEN = 64  # rounds in which the lengths of messages are looked at
ROOM = 1.05  # by how much a clip is longer than what was seen
ANCHORS = 4  # rounds whose noise is computed are so many times apart; between them it is interpolated


class Assumed(Clips):
    """Messages that are taken to be no longer than this, without cutting any: what forecasts of a clip that does not
    bind need."""

    lossless = embeds = True

    norm: float

    def longest(self, message: Message) -> Number:
        return self.norm


class Lengths(Channel):
    """Messages as they are; every agent keeps the length of its longest."""

    def init(self, message: Message) -> State:
        return jnp.zeros((), jnp.result_type(*jax.tree.leaves(message)))

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        square = sum(jnp.sum(a * a) for a in jax.tree.leaves(message))
        return message, jnp.maximum(memory, jnp.sqrt(square))


class Nearest(NamedTuple):
    """The setting that comes nearest to a target that none reaches: with noise of this multiplier it would."""

    part: float  # of the multiplier that is needed for privacy
    multiplier: float
    rounds: int
    scheme: Participation


class Lowest(NamedTuple):
    """The least error that any setting reaches with the privacy that is asked for."""

    error: float
    rounds: int
    scheme: Participation


class PrivateSearch(Search):
    """The search for a plan that spends at most a given privacy."""

    @classmethod
    def default(cls, experiment: Experiment, goal: Goal) -> Sequence[str]:
        return METHODS

    def __init__(self, experiment: Experiment, goal: Goal, most: int):
        super().__init__(experiment, goal, most)
        assert goal.privacy is not None
        self.privacy: Privacy = goal.privacy
        self.noises: dict[tuple[int, int], float] = {}  # multipliers by scheme and rounds
        self.lengths: dict[tuple[str, int, float], float] = {}
        self.nearest: Nearest | None = None
        self.lowest: Lowest | None = None
        self.unprotected = math.inf  # the least error that is reached without noise for privacy

    def multiplier(self, scheme: Participation, rounds: int) -> float:
        """What so many rounds need, or a little more: by divergences alone where losses as distributions take long."""
        key, delta = (id(scheme), rounds), self.privacy.delta
        if key not in self.noises:
            bound = self.timing(self.experiment.algorithm, scheme)
            spends = partial(Account, scheme=bound, agents=self.experiment.problem.agents)
            self.noises[key] = least_noise(lambda z: spends(z).roughly(rounds, delta), self.privacy.epsilon, LOUDEST)
        return self.noises[key]

    def multipliers(self, scheme: Participation, most: int) -> np.ndarray:
        """(most + 1,): what 0, 1, ... rounds need, about."""
        anchors = np.unique(np.geomspace(1, most, 1 + math.ceil(math.log(most, ANCHORS))).round().astype(int))
        known = [math.log(self.multiplier(scheme, int(t))) for t in anchors]
        return np.exp(np.interp(np.log(np.maximum(np.arange(most + 1), 1)), np.log(anchors), known))

    @double
    def length(self, method: Method, E: int, step: float) -> float:
        """Of the longest message in a short run."""
        key = method.title, E, step
        if key not in self.lengths:
            asked = self.experiment.replace(algorithm=method(step, E), participation=None, channel=Lengths())
            session = Session(asked.bind(), SEEN)
            session.segment(SEEN)
            self.lengths[key] = ROOM * float(np.max(session.whole().wire))
        return self.lengths[key]

    def errors(self, method: Method, E: int, scheme: Participation, step: float, most: int) -> np.ndarray:
        """(2, most + 1): the expected error without noise for privacy, and what noise of deviation 1 adds."""
        known = self.known(method, E, scheme)
        if known is not None and not self.work(method, E, step).remembers:
            scale = self.timing(method(step, E), scheme).weight_scale(self.experiment.problem.weights)
            assert scale is not None  # noise is scaled by fixed weights, or refused
            work = self.work(method, E, step)
            unit = float(scale * self.experiment.problem.weights.max())  # of the largest weight
            base, noisy = (Powers(work, known.moments, known.gauge, n).path(most) for n in (None, 1 / scale))
            return np.stack([base, unit**2 * np.maximum(noisy - base, 0.0)])
        noise = dataclasses.replace(method, channel=Chain((Assumed(1.0), Gaussian(1.0))))
        base, noisy = (self.forecast(m, step, E, scheme).curve(most) for m in (method, noise))
        return np.stack([base, np.maximum(noisy - base, 0.0)])

    def setting(
        self, method: Method, E: int, scheme: Participation, guess: float, most: float
    ) -> tuple[Choice | None, list[Trial]]:
        use = self.use(method, method(guess, E), scheme, E)
        cost = self.goal.cost(use)
        limit = self.rounds_within(most, cost, LONGEST if self.goal.rounds is None else self.goal.rounds)
        if limit < 1:
            return None, [Trial(guess, math.inf, "slow")]
        z = self.multipliers(scheme, limit)

        def evaluate(step: float) -> Trial:
            try:
                base, unit = self.errors(method, E, scheme, step, limit)
                clip = self.length(method, E, step)
            except Diverged:
                return Trial(step, math.inf, "diverges")
            except FedpointError as error:
                raise Uncomputable(f"no forecast of private rounds: {error}") from None
            return self._trial(step, base, clip**2 * unit, z, scheme)

        trial, trials = best_step(evaluate, guess, self.target, LOOKS, self.late)
        if trial.why:
            return None, trials
        norm = self.length(method, E, trial.step)
        noise = Gaussian(self.multiplier(scheme, int(trial.rounds)))
        assumed = dataclasses.replace(method, channel=Chain((Assumed(norm), noise)))
        found = self.choice(assumed, E, scheme, trial, use)
        return dataclasses.replace(found, channel=Chain((Clip(norm), noise)), promise="not verified"), trials

    def _trial(self, step: float, base: np.ndarray, unit: np.ndarray, z: np.ndarray, scheme: Participation) -> Trial:
        """base, unit: the error without noise for privacy, and what a multiplier of 1 adds to it, by rounds."""
        aim = self.aim(False)
        with np.errstate(all="ignore"):
            error = base + z**2 * unit
            could = np.sqrt(np.maximum(aim - base, 0.0) / unit) / z  # of the noise that is needed
        if not np.isfinite(error).all() or error[-1] > 4 * error[0]:
            return Trial(step, math.inf, "diverges")
        self.unprotected = min(self.unprotected, float(base.min()))
        least = 1 + int(error[1:].argmin())
        if self.lowest is None or error[least] < self.lowest.error:
            self.lowest = Lowest(float(error[least]), least, scheme)
        could[0] = 0.0
        best = int(np.nanargmax(could))
        if self.nearest is None or could[best] > self.nearest.part:
            self.nearest = Nearest(float(could[best]), float(could[best] * z[best]), best, scheme)
        below = np.flatnonzero(error[1:] <= aim)
        early = error[1:9]
        if not len(below):
            lowest = int(error.argmin())
            why = "slow" if lowest == len(error) - 1 else "floor"
            level, last = float(error.min()), float(error[-1])
            return Trial(step, math.inf, why, level, ahead=len(error) - 1, early=early, last=last)
        rounds = 1 + int(below[0])
        times = thinned(rounds)
        return Trial(
            step,
            float(rounds),
            level=float(error.min()),
            value=float(error[rounds]),
            before=float(error[rounds - 1]),
            times=times,
            values=error[times],
            target=aim,
            early=early,
        )

    def advice(self) -> str:
        """What epsilon would reach the target, or what target epsilon reaches; empty where nothing was seen."""
        if self.nearest is None or self.lowest is None:
            return ""
        near, low = self.nearest, self.lowest
        # What is promised is a little more than what is forecast.
        reached = low.error * self.target / self.aim(False)
        target = (
            f"with epsilon {self.privacy.epsilon:g} the least target is about {reached:.2g}: "
            f"{counted(low.rounds, 'round')} with {short(low.scheme)}"
        )
        if not near.part > 0:
            floor = self.unprotected * self.target / self.aim(False)
            return f"no epsilon does, as without noise for privacy the least target is about {floor:.2g}; {target}"
        account = Account(near.multiplier, near.scheme, self.experiment.problem.agents)
        needed, _ = account.epsilon(near.rounds, self.privacy.delta)
        return (
            f"within what was looked at, the least epsilon that reaches it is about {needed:.2g}: "
            f"{counted(near.rounds, 'round')} with {short(near.scheme)}; {target}"
        )
