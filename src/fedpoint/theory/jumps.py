"""How fast and how noisy are nodes that do not wait for each other? Rates, floors and curves of a network whose nodes
take random turns, and whose messages come late or get lost.

Every tick is a linear map drawn anew (`theory/mail_system.py`), so that mean and second moments are followed exactly
where fields are affine, and around the limit otherwise. What is drawn once for a whole run (at which places of every B
ticks nodes work in any case) is gone through case by case where there are few cases, else by a sample of them, with its
standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import jax
import numpy as np

from fedpoint.core.algorithm import samples_per_round
from fedpoint.theory.krylov import Krylov, norm, solve
from fedpoint.theory.mail_nodes import Nodes
from fedpoint.theory.mail_system import MailSystem, Masks
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Law, Outlook, Path
from fedpoint.theory.steady import LARGE, decay, perron, rate_of
from fedpoint.timing.tick_law import Laws, TickLaw

LARGEST = 2500  # numbers of nodes and of what is under way, whose second moments are followed
CASES = 64  # of what is drawn once for a run, up to which all are gone through
SAMPLE = 16  # of them otherwise, and fewer where there is much to follow
RATES = 16  # cases whose rates are computed, likewise
SMOOTHED = 8  # periods before Krylov's process looks for the slowest direction
AT_ONCE = 1 << 20  # numbers of second moments of several cases that are followed together
CHUNK = 32  # ticks that are compiled together
LONG = 256  # ticks of a curve that are gone through one by one; beyond, Krylov's approximation tells it


def why_not(setting: Setting) -> str:
    """Why a network's ticks have no law of jumps that could be followed; empty where they have."""
    s = setting
    if not s.topology.by_node:
        return "rounds of a fusion center do not leave mail behind"
    if s.scheduled:
        return "decaying steps and running means have no steady state"
    if s.adaptive:
        return "changes are adaptive: they depend on ratios of their own history"
    if s.bound.merged_by:
        return f"{s.bound.merged_by} does not merge linearly"
    if s.own_kind and not s.exact:
        return "the algorithm is your own"
    if s.lossy:
        return "what the channel does is known from drawn rounds only"
    if any(s.numbers.drawn):
        return "the method draws how much is done in a round"
    laws = s.timing.laws(s.agents, 1)
    if isinstance(laws, str):
        return laws
    if not s.exact and not s.oracle.known_noise:
        return "the problem does not tell the covariance of its samples"
    if not s.exact and not s.oracle.independent and (s.oracle.moves or samples_per_round(s.algorithm) != 1):
        return "samples depend on each other"
    size = _size(s, len(laws.each[0].arrives))
    if size > LARGEST:
        return f"nodes and what is under way between them have {size:,} numbers: they are followed up to {LARGEST:,}"
    return ""


def _size(setting: Setting, lines: int) -> int:
    """About how many numbers there are."""
    network = setting.bound.network
    assert network is not None
    models = len(setting.flatten(setting.start))
    return models + len(network.arcs.says) * lines * (models // setting.agents)


class Jumps(Outlook):
    """Of a network's nodes that work and hear by chance, around the fixed point x; runs begin in the state `origin`."""

    def __init__(self, setting: Setting, x: np.ndarray, origin: np.ndarray, gauge: Gauge):
        assert gauge.root is None and gauge.models == setting.agents, "nodes are compared by their distances"
        self.setting, self.x, self.target = setting, x, gauge.target
        self.laws = _laws(setting)
        nodes = Nodes(setting, x, origin)
        gap = (self.limit - gauge.target)[_order(setting)].reshape(nodes.count, -1)
        self.system = MailSystem(nodes, len(self.laws.each[0].arrives), gap)
        straight = setting.problem.linear and setting.straight
        self.how = "sampled" if self.laws.drawn else "exact" if straight else "linearised"

    @cached_property
    def cases(self) -> list[Case]:
        return [Case(self.system, law) for law in self.laws.each]

    @property
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x)

    @property
    def certain(self) -> bool:
        """Every tick is known beforehand."""
        return self.laws.certain

    @property
    def drawn(self) -> bool:
        """What is drawn once for a run is known by a sample."""
        return self.laws.drawn

    @property
    def noiseless(self) -> bool:
        """Nothing is random but turns, delays and losses, which leave the limit where it is."""
        return not self.system.nodes.random

    @cached_property
    def mean_rate(self) -> float:
        """Factor per tick of the mean's deviation, asymptotically: of the slowest case."""
        return max(case.mean_rate for case in self._looked_at)

    @cached_property
    def rate(self) -> float:
        if self.laws.certain and self.noiseless:
            return self.mean_rate**2
        return max(self.mean_rate**2, *(case.rate for case in self._looked_at))

    @property
    def _looked_at(self) -> list[Case]:
        """Cases for rates, which hardly differ."""
        return self.cases[: int(np.clip((1 << 21) // self.system.size**2, 2, RATES))]

    @cached_property
    def _variances(self) -> np.ndarray:
        return np.array([case.variance for case in self.cases])

    @property
    def variance(self) -> float:
        if self.rate >= 1:
            return math.inf
        return 0.0 if self.noiseless else float(self._variances.mean())

    @property
    def error(self) -> float | None:
        if not self.laws.drawn or self.noiseless or self.rate >= 1:
            return None
        return float(self._variances.std(ddof=1) / math.sqrt(len(self._variances)))

    def path(self, rounds: int) -> Path:
        totals, means = self._paths(rounds)
        total, mean = totals.mean(0), (means.mean(0) ** 2).sum((1, 2)) / self.system.nodes.count
        return Path(mean, np.maximum(total - mean, 0.0))

    def path_error(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): the standard error of the path, where cases of what is drawn once are a sample; else 0."""
        if not self.laws.drawn:
            return np.zeros(rounds + 1)
        totals, _ = self._paths(rounds)
        return np.asarray(totals.std(0, ddof=1) / math.sqrt(len(totals)))

    @property
    def relative_error(self) -> float:
        """The largest standard error of the path over its value, over the first ticks."""
        return float((self.path_error(CHUNK) / np.maximum(self.path(CHUNK).total, 1e-300)).max())

    def mean_path(self, rounds: int) -> np.ndarray:
        """(rounds + 1, d): the mean of all nodes' models, flattened as the setting does."""
        means = self._paths(rounds)[1].mean(0).reshape(rounds + 1, -1)
        found = np.empty_like(means)
        found[:, _order(self.setting)] = means
        return found + self.target

    def _paths(self, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """(cases, rounds + 1) and (cases, rounds + 1, K, d): E|w - target|^2 and E w - target in every case."""
        near = self._near(min(rounds, LONG))
        if rounds <= LONG:
            return near
        far = [case.far(rounds) for case in self.cases]
        means = [case.far_means(rounds) for case in self.cases]
        return np.concatenate([near[0], far], axis=1), np.concatenate([near[1], means], axis=1)

    def _near(self, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """The same, tick by tick."""
        width = int(np.clip(AT_ONCE // self.system.size**2, 1, len(self.cases)))
        start = np.outer(self.system.start, self.system.start)
        found = []
        for i in range(0, len(self.cases), width):
            part = self.cases[i : i + width]
            filled = part + part[-1:] * (width - len(part))  # one shape, one program
            masks = jax.tree.map(lambda *a: np.stack(a), *(case.masks for case in filled))
            totals, means = self._follow(masks, np.broadcast_to(start, (width, *start.shape)), rounds)
            found.append((totals[: len(part)], means[: len(part)]))
        return np.concatenate([totals for totals, _ in found]), np.concatenate([means for _, means in found])

    def _follow(self, masks: Masks, S: np.ndarray | jax.Array, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        totals, means = [], []
        for first in range(0, rounds + 1, CHUNK):
            S, total, mean = self.system.walk(masks, S, first, CHUNK)
            totals.append(total)
            means.append(mean)
        return np.concatenate(totals, axis=1)[:, : rounds + 1], np.concatenate(means, axis=1)[:, : rounds + 1]

    def law(self, round: int | None) -> Law | None:
        if round is None and self.rate >= 1:
            return None
        each = [case.moments(round) for case in self.cases]
        gap = np.mean([gap for gap, _ in each], axis=0)
        second = np.mean([covariance + np.outer(one, one) for one, covariance in each], axis=0)
        return Law.of(gap, second - np.outer(gap, gap))


def _laws(setting: Setting) -> Laws:
    timing, agents = setting.timing, setting.agents
    found = timing.laws(agents, CASES)
    if not isinstance(found, str) and found.drawn:
        size = _size(setting, len(found.each[0].arrives))
        found = timing.laws(agents, int(np.clip((1 << 23) // size**2, SAMPLE // 2, SAMPLE)))
    assert not isinstance(found, str), found
    return found


def _order(setting: Setting) -> np.ndarray:
    """Where the numbers of a node's model are among the flattened models of all, node by node."""
    K, sizes = setting.agents, [int(np.prod(np.shape(a)[1:])) for a in jax.tree.leaves(setting.start)]
    first = K * np.concatenate([[0], np.cumsum(sizes)])
    place = [first[i] + np.arange(K)[:, None] * n + np.arange(n) for i, n in enumerate(sizes)]
    return np.concatenate(place, axis=1).ravel()


class Case:
    """Ticks of one law: what is drawn once for the whole run is known."""

    def __init__(self, system: MailSystem, law: TickLaw):
        self.system, self.law = system, law
        self._last = (0, np.outer(system.start, system.start))  # the tick that was last asked for, its second moments

    @cached_property
    def masks(self) -> Masks:
        return self.system.masks(self.law)

    @cached_property
    def mean_rate(self) -> float:
        n = self.system.size - 1

        def product(v: np.ndarray) -> np.ndarray:
            columns = v.reshape(n, -1)
            moved = self.system.mean_period(self.masks, np.concatenate([np.zeros((1, columns.shape[1])), columns]))
            return moved[1:].reshape(v.shape)

        return float(_radius(product, n) ** (1 / self.law.period))

    def _on(self, first: int) -> Callable[[np.ndarray], np.ndarray]:
        """Second moments after a period from a tick on."""
        return lambda S: self.system.period(self.masks, S, first)

    @cached_property
    def _source(self) -> np.ndarray:
        """The covariance that a period adds, started at the point."""
        Q = self._on(0)(np.diag(np.eye(1, self.system.size)[0]))
        Q[0], Q[:, 0] = 0.0, 0.0
        return Q

    @cached_property
    def rate(self) -> float:
        """Of second moments: their map preserves the cone of covariances, so that its radius is an eigenvalue."""
        r = np.random.default_rng(1).normal(size=(self.system.size, 8))
        r[0] = 0.0
        S = r @ r.T
        for _ in range(SMOOTHED):
            S = self._on(0)(S / norm(S))
            if not S.any():
                return 0.0
        space, last = Krylov(self._on(0), S), -1.0
        while True:
            space.extend(space.steps + 10, 1e-14)
            top = perron(space)
            if space.closed or abs(top - last) <= 1e-9 * top or space.steps >= min(space.most, self._most):
                return float(top ** (1 / self.law.period))
            last = top

    @property
    def _most(self) -> int:
        """Steps of Krylov's process that a rate is worth."""
        return 200 if self.system.size <= LARGE else 40

    @cached_property
    def settled(self) -> np.ndarray:
        """Second moments once settled, at the beginning of a period."""
        S = solve(self._on(0), self._source, 1e-12, most=300)[0]
        S[0, 0] = 1.0
        return S

    def _from(self, S: np.ndarray, first: int, ticks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Second moments after so many ticks, and what is read before each of them."""
        masks = jax.tree.map(lambda a: a[None], self.masks)
        after, total, mean = self.system.walk(masks, S[None], first, ticks)
        return np.asarray(after[0]), total[0], mean[0]

    @cached_property
    def variance(self) -> float:
        """Once settled, a mean over the ticks of a period."""
        period = self.law.period
        _, total, mean = self._from(self.settled, period, period)
        return float((total - (mean**2).sum((1, 2)) / self.system.nodes.count).mean())

    # Far ahead: the ticks at each place of a period go on by the same map.

    @cached_property
    def _begun(self) -> np.ndarray:
        """Second moments after LONG + 1 ticks."""
        return self._from(np.outer(self.system.start, self.system.start), 0, LONG + 1)[0]

    def far(self, rounds: int) -> np.ndarray:
        """E|w - target|^2 after the ticks LONG + 1, ..., rounds."""
        found, period, S = np.empty(rounds - LONG), self.law.period, self._begun
        rest = np.zeros_like(S)
        if self.rate < 1:
            rest = self.settled
            for tick in range((LONG + 1) % period):
                rest = self._from(rest, period + tick, 1)[0]
        for place in range(min(period, rounds - LONG)):
            tick = LONG + 1 + place
            W, count = self._weight(tick), len(found[place::period])
            found[place::period] = float((W * rest).sum()) + decay(self._on(tick), S - rest, W, count - 1)
            S, rest = (self._from(a, tick, 1)[0] for a in (S, rest))
        return found

    def far_means(self, rounds: int) -> np.ndarray:
        """(rounds - LONG, K, d): E w - target after the same ticks."""
        x, parts, first = self._begun[0], [], LONG + 1
        while first <= rounds and np.abs(x[1:]).max() > 1e-16 * np.abs(self.system.start).max():
            x, means = self.system.mean_walk(self.masks, x, first, LONG)
            parts.append(means[: rounds + 1 - first])
            first += LONG
        still = self.system.reading[0, :, :, 0]
        return np.concatenate([*parts, np.broadcast_to(still, (max(rounds + 1 - first, 0), *still.shape))])

    def _reading(self, tick: int) -> np.ndarray:
        """(2, K, d, size): parts of what is read after a tick, idle and listened, by the roots of their chances."""
        q = self.law.works[tick % self.law.period] * min(tick, 1)
        return np.asarray(np.sqrt(np.stack([1 - q, q]))[:, :, None, None] * self.system.reading)

    def _weight(self, tick: int) -> np.ndarray:
        """W with <W, S> = E|w - target|^2 after a tick."""
        parts = self._reading(tick).reshape(-1, self.system.size)
        return np.asarray(parts.T @ parts) / self.system.nodes.count

    def moments(self, tick: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of all models less the target, over the root of the nodes' number, after a tick; None:
        once settled, at the beginning of a period."""
        at, S = (self.law.period, self.settled) if tick is None else (tick, self._after(tick))
        idle, turn = (a.reshape(-1, self.system.size) for a in self.system.reading)
        d = self.system.reading.shape[2]
        q, both = (np.repeat(self.law.works[at % self.law.period], d) * min(at, 1), self.law.pairs(at) * min(at, 1))
        both = np.repeat(np.repeat(both, d, axis=0), d, axis=1)
        change = turn - idle
        cross = q[:, None] * (change @ S @ idle.T)
        second = idle @ S @ idle.T + cross + cross.T + both * (change @ S @ change.T)
        gap = idle @ S[0] + q * (change @ S[0])
        K = self.system.nodes.count
        return gap / math.sqrt(K), (second - np.outer(gap, gap)) / K

    def _after(self, tick: int) -> np.ndarray:
        """Second moments after so many ticks, by programs of 1, 2, 4, ... of them: a picture asks for many places."""
        first, S = self._last
        if first > tick:
            first, S = 0, np.outer(self.system.start, self.system.start)
        while first < tick:
            ticks = min(CHUNK, 1 << ((tick - first).bit_length() - 1))
            S, first = self._from(S, first, ticks)[0], first + ticks
        self._last = tick, S
        return S


def _radius(product: Callable[[np.ndarray], np.ndarray], n: int) -> float:
    """The largest modulus of an eigenvalue, conserved directions left out."""
    if n <= LARGE:
        return rate_of(product(np.eye(n)))
    r = np.random.default_rng(0).normal(size=n)
    for _ in range(2):  # twice: a conserved quantity may drive a direction that nothing else moves
        r = r - product(r)
    space, last = Krylov(product, r, rounding=1e-10), 0.0
    while True:
        space.extend(space.steps + 20)
        values = space.ritz()
        top = float(np.abs(values[np.abs(values - 1) > 1e-7]).max(initial=0.0))
        if space.closed or abs(top - last) <= 1e-9 * top or space.steps >= min(space.most, 400):
            return top
        last = top
