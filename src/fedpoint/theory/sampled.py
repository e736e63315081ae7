"""The floor of an algorithm about which nothing is known: from drawn rounds, one after the other from the limit on.

Some chains of states start at the limit x and go through rounds of their own. Once they have forgotten their start,
their distances to x tell the variance, and what they differ in tells its standard error. Beside each chain goes a small
deviation, multiplied by the slopes of the same rounds at x: how fast its mean square falls is the rate of the second
moment. That is no more than the work of some runs until they settle; where even these would take too long, nothing is
computed, and the reason is told.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.compiling import fairly_quickly
from fedpoint.core.precision import double
from fedpoint.core.types import State
from fedpoint.engine.round import Keys
from fedpoint.theory.drawn_rounds import DrawnRounds, drawn_round, wire_of
from fedpoint.theory.expected_round import Numbers
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Law, Outlook, Path
from fedpoint.theory.space import Space

CHUNK = 32  # rounds between two looks
LONGEST = 1 << 14  # rounds of a chain, at most
MOST, FEWEST = 64, 8  # chains
AT_ONCE = 1 << 21  # numbers that all chains handle in a round, above which there are fewer of them
WORK = 1 << 36  # numbers that the fewest chains may handle in all
FORGOTTEN, MEASURED = 3.0, 6.0  # time constants before chains are measured, and while they are
PATIENCE = 8  # times as long is waited for a spread that still changes
HOPELESS = 1 << 10  # rounds after which a rate that would take far too long is believed
SURE = 5.0  # standard errors by which a mean is elsewhere, or a spread another one
CHANGED = 0.2  # and by how much of itself
ROUNDING = 1e-12
FAINT, LOUD = 1e-12, 1e12  # mean squares of deviations between which their rate is read


class Sampled(NamedTuple):
    """What drawn rounds say. away: from the limit of the expected round to where the mean of states settles; zeros
    where they do not differ, as far as can be told."""

    variance: float
    error: float  # the standard error of the floor
    rate: float  # of the mean square of a deviation, per round
    away: np.ndarray
    away_error: float = 0.0  # its standard error, where the limit is known from drawn rounds alone


class Drawn(Outlook):
    """Rounds about which nothing is known, drawn one after the other from the fixed point x on."""

    how, on_the_way = "sampled", False

    def __init__(self, setting: Setting, x: np.ndarray, origin: np.ndarray, gauge: Gauge, found: Sampled):
        self.setting, self.x, self.origin, self.gauge, self.found = setting, x, origin, gauge, found

    @property
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x + self.found.away)

    @property
    def rate(self) -> float:
        return self.found.rate

    @property
    def variance(self) -> float:
        return self.found.variance

    @property
    def error(self) -> float | None:
        return self.found.error

    @property
    def limit_error(self) -> float:
        return self.found.away_error

    def path(self, rounds: int) -> Path:
        """The variance grows as if every round added the same noise, and the mean goes where it settles alongside."""
        left = self.rate ** np.arange(rounds + 1.0)
        moved = self.limit - self.setting.read(self.x)
        models = self.setting.path(self.origin, rounds) + (1 - np.sqrt(left))[:, None] * moved
        away = self.gauge(models - self.gauge.target)
        return Path((away**2).sum(1), self.variance * (1 - left))

    def law(self, round: int | None) -> Law | None:
        return None


def settling_rounds(rate: float) -> float:
    """How many rounds chains go through, where a deviation's mean square falls by this factor a round."""
    return CHUNK * math.ceil(max((FORGOTTEN + MEASURED) * _constant(rate), 4 * CHUNK) / CHUNK) if rate < 1 else math.inf


def _constant(rate: float) -> float:
    """Rounds in which a factor per round makes 1/e."""
    return 0.0 if rate <= 0 else -1 / math.log(rate)


def too_long(setting: Setting, rate: float) -> str:
    """Why chains would take longer than a run is worth, where the mean's deviation falls by this factor a round."""
    rounds = settling_rounds(rate**2)
    if rounds > LONGEST:
        return f"it settles slowly, by {rate:.8g} per round: more than {LONGEST:,} drawn rounds would be needed"
    if rounds * setting.work(setting.exact) * FEWEST > WORK:
        return f"{FEWEST} runs of {rounds:,.0f} drawn rounds, until it has settled, would take too long"
    return ""


@double
def sampled_floor(
    setting: Setting, x: np.ndarray, R: np.ndarray, gap: np.ndarray, rate: float, seed: int = 0
) -> Sampled | str:
    """What drawn rounds say of E|gap + R (state - x)|^2 once settled, or why they do not. gap: from what the run is
    after to the limit, as measured. rate: of the mean's deviation."""
    chains = Chains(setting, x, R, rate, seed)
    while chains.rounds < LONGEST:
        chains.advance()
        if chains.beyond:
            return Sampled(math.inf, 0.0, max(chains.rate, 1.0), np.zeros_like(x))
        needed = settling_rounds(chains.rate)
        if chains.rounds >= needed and not chains.moving:
            return chains.settled(gap)
        if chains.rounds >= PATIENCE * needed:
            return f"drawn rounds have not settled after {chains.rounds:,}, though their mean should have"
        if chains.rounds >= HOPELESS and needed > PATIENCE * LONGEST:
            break
    return (
        f"deviations do not die out within {chains.rounds:,} drawn rounds: whether it settles cannot be told from them"
    )


class Chains:
    """States that started at the limit x, after some rounds of their own, and what was seen of them.

    Where a channel has no slope, nothing tells whether the limit attracts: there they start where the run does.
    """

    def __init__(self, setting: Setting, x: np.ndarray, R: np.ndarray, rate: float, seed: int):
        self.x, self.R, self.least = jnp.asarray(x), jnp.asarray(R), rate**2
        self.bent = bool(setting.bound.merged_by)  # the mean of runs is surely elsewhere than the fixed point
        self.smooth = setting.bound.channel.lossless  # what a channel leaves out has no slope
        self.count = int(np.clip(AT_ONCE // setting.work(setting.exact), FEWEST, MOST))
        self.program = DrawnRounds.of(setting, seed)
        wire = wire_of(self.program)
        start = self.x if self.smooth else jnp.asarray(setting.origin)
        begun = start, wire, jnp.asarray(_moving(setting, x))
        self.state = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.count, *a.shape)), begun)
        self.fell = [1.0]  # the mean square of deviations after every round
        self.squares: list[np.ndarray] = []  # (chains,), means over the rounds of a chunk
        self.means: list[np.ndarray] = []  # (chains, n) likewise
        self.rounding = ROUNDING * (1 + float(np.linalg.norm(R @ x)))

    @property
    def rounds(self) -> int:
        return CHUNK * len(self.squares)

    def advance(self) -> None:
        first = jnp.int32(self.rounds)
        self.state, (fell, square, mean) = _chunk(*self.program, self.R, self.x, self.state, first)
        self.fell += np.asarray(fell).tolist()
        self.squares.append(np.asarray(square))
        self.means.append(np.asarray(mean))

    @property
    def beyond(self) -> bool:
        """They have left every bound."""
        return not np.isfinite(self.squares[-1]).all() or (self.smooth and self.fell[-1] > LOUD)

    @property
    def rate(self) -> float:
        """The factor per round of a deviation's mean square, from the later half of where it can be read."""
        if not self.smooth:
            return self.least
        values = np.array(self.fell)
        faint = np.flatnonzero(~(values > FAINT))
        values = values[: faint[0]] if len(faint) else values
        middle = len(values) // 2
        if len(values) < 3:
            return self.least
        return max(self.least, float((values[-1] / values[middle]) ** (1 / (len(values) - 1 - middle))))

    def _late(self, seen: list[np.ndarray]) -> np.ndarray:
        """What was seen once the start is forgotten; leads with chunks."""
        return np.stack(seen)[min(math.ceil(FORGOTTEN * _constant(self.rate) / CHUNK), len(seen) // 2) :]

    @property
    def moving(self) -> bool:
        """Their spread is another one in the later half of what is measured: beyond doubt, or it still falls."""
        early, late = (half.mean(0) for half in np.array_split(self._late(self.squares), 2))
        change, error = late - early, float((late - early).std(ddof=1)) / math.sqrt(self.count)
        beyond = abs(change.mean()) > max(SURE * error, CHANGED * early.mean()) or late.mean() < early.mean() / 2
        return bool(beyond and max(early.mean(), late.mean()) > self.rounding**2)

    def settled(self, gap: np.ndarray) -> Sampled | str:
        """Their means over time; what chains differ in tells the standard error."""
        squares, means = (self._late(seen).mean(0) for seen in (self.squares, self.means))
        nowhere = np.zeros(len(self.x))
        if squares.mean() <= self.rounding**2:
            return Sampled(0.0, 0.0, self.rate, nowhere)
        if np.ptp(squares) <= 1e-9 * squares.mean():
            return f"nothing is random, yet rounds stay {math.sqrt(squares.mean()):.2g} from the limit"
        seen = means @ np.asarray(self.R).T
        shift, error = seen.mean(0), math.sqrt(seen.var(0, ddof=1).sum() / self.count)
        moved = self.bent or float(np.linalg.norm(shift)) > max(SURE * error, self.rounding)  # it is not the limit
        floors = squares + 2 * seen @ gap if moved else squares
        spread = float(floors.std(ddof=1)) / math.sqrt(self.count)
        variance = float(squares.mean()) - (float(shift @ shift) if moved else 0.0)
        away = means.mean(0) if moved else nowhere
        return Sampled(variance, spread, self.rate, away, error if self.bent else 0.0)


def _moving(setting: Setting, x: np.ndarray) -> np.ndarray:
    """A deviation of length 1 without a conserved part."""
    product, v = setting.slope(x), np.random.default_rng(1).normal(size=setting.size)
    for _ in range(2):  # twice: a conserved quantity may drive a direction that nothing else moves
        v = v - product(v)
    return v / max(float(np.linalg.norm(v)), 1e-300)


@partial(fairly_quickly, static_argnums=0)
def _chunk(
    space: Space,
    numbers: Numbers,
    keys: Keys,
    R: Array,
    x: Array,
    state: tuple[Array, State, Array],
    first: Array,
) -> tuple[tuple, tuple]:
    """The next rounds of all chains. state: theirs, what the channel keeps, and the deviations. Beside it the mean
    square of deviations after every round, and each chain's means over rounds of |R (x_t - x)|^2 and x_t - x."""
    chains = jnp.arange(state[0].shape[0])

    def go(carry: tuple, round: Array) -> tuple[tuple, Array]:
        *state, sums = carry

        def one(chain: Array, at: Array, wire: State, deviation: Array) -> tuple[Array, State, Array]:
            move = drawn_round(DrawnRounds(space, numbers, keys), chain * LONGEST + round)
            return *move(at, wire), jax.jvp(lambda x: move(x, wire)[0], (x,), (deviation,))[1]

        states, wires, deviations = jax.vmap(one)(chains, *state)
        away = states - x
        total = jnp.sum((away @ R.T) ** 2, axis=1), away
        sums = jax.tree.map(jnp.add, sums, total)
        return (states, wires, deviations, sums), jnp.sum(deviations**2) / len(chains)

    none = jnp.zeros(len(chains)), jnp.zeros((len(chains), x.size))
    (*last, sums), fell = lax.scan(go, (*state, none), first + jnp.arange(CHUNK))
    return tuple(last), (fell, *(a / CHUNK for a in sums))
