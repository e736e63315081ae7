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
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.algorithm import samples_per_round
from fedpoint.theory.krylov import Krylov, solve
from fedpoint.theory.mail_system import MailSystem, Masks, Nodes
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Law, Outlook, Path
from fedpoint.theory.steady import LARGE, decay, perron, rate_of
from fedpoint.timing.tick_law import Laws, TickLaw

if TYPE_CHECKING:
    from scipy import sparse

LARGEST = 2500  # numbers of nodes and of what is under way, whose second moments are followed
WORK = 2e9  # numbers of second moments that are handled for all cases of what is drawn once
SETTLED = 1e-15  # of the start, below which a mean deviation counts as gone
FEWEST, MOST = 16, 256  # of those cases
LONG = 256  # ticks of a curve that are gone through one by one; beyond, Krylov's approximation tells it


def why_not(setting: Setting) -> str:
    """Why a network's ticks have no law of jumps that could be followed; empty where they have."""
    s = setting
    if not s.topology.by_node:
        return "rounds of a fusion center do not leave mail behind"
    if s.scheduled:
        return "decaying steps and running means have no steady state"
    if s.adaptive:
        return "adaptive optimisers rescale changes by their history"
    if s.own_kind:
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
    """Of a network's nodes that work and hear by chance, around the state x; `origin` is where runs start."""

    def __init__(self, setting: Setting, x: np.ndarray, gauge: Gauge, origin: np.ndarray):
        self.setting, self.x, self.gauge = setting, x, gauge
        laws = setting.timing.laws(setting.agents, 1)
        assert not isinstance(laws, str)
        self.system = MailSystem(Nodes(setting, x, origin), len(laws.each[0].arrives))
        self.laws = self._laws()
        self.how = "sampled" if self.laws.drawn else "exact"

    def _laws(self) -> Laws:
        most = int(np.clip(WORK / (self.system.size**2 * 200), FEWEST, MOST))
        laws = self.setting.timing.laws(self.setting.agents, most)
        assert not isinstance(laws, str)
        return laws

    @cached_property
    def turns(self) -> list[Turns]:
        return [Turns(self.system, law, self._reading) for law in self.laws.each]

    @cached_property
    def _reading(self) -> Reading:
        return Reading(self.system, self.setting, self.gauge, self.setting.read(self.x))

    # Answers

    @property
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x)

    @cached_property
    def mean_rate(self) -> float:
        """Factor per tick of the mean's deviation, asymptotically: of the slowest case."""
        return max(turns.mean_rate for turns in self.turns)

    @cached_property
    def rate(self) -> float:
        if self.laws.certain and not self.system.nodes.random:
            return self.mean_rate**2
        return max(max(turns.rate for turns in self.turns), self.mean_rate**2)

    @cached_property
    def _variances(self) -> np.ndarray:
        return np.array([turns.variance for turns in self.turns])

    @property
    def variance(self) -> float:
        if self.rate >= 1:
            return math.inf
        return float(self._variances.mean())

    @property
    def error(self) -> float | None:
        if not self.laws.drawn or self.rate >= 1:
            return None
        return float(self._variances.std(ddof=1) / math.sqrt(len(self._variances)))

    def path(self, rounds: int) -> Path:
        each = [turns.path(rounds) for turns in self.turns]
        total = np.mean([total for total, _ in each], axis=0)
        mean = (np.mean([mean for _, mean in each], axis=0) ** 2).sum(1)
        return Path(mean, np.maximum(total - mean, 0.0))

    def law(self, round: int | None) -> Law | None:
        if round is None and self.rate >= 1:
            return None
        each = [turns.moments(round) for turns in self.turns]
        gap = np.mean([gap for gap, _ in each], axis=0)
        second = np.mean([covariance + np.outer(one, one) for one, covariance in each], axis=0)
        return Law.of(gap, second - np.outer(gap, gap))


class Reading:
    """What is measured of x: models as the gauge has them, of nodes that are idle or have listened for their turn."""

    def __init__(self, system: MailSystem, setting: Setting, gauge: Gauge, limit: np.ndarray):
        from scipy import sparse

        K, d = system.nodes.count, system.nodes.read.shape[1]
        order = _order(setting, K)
        root = np.eye(K * d) if gauge.root is None else gauge.root
        self.node = np.repeat(np.arange(K), d)
        self.L = sparse.csr_matrix(root[:, order] / math.sqrt(gauge.models))
        idle, turn = system.reading
        gap = np.zeros((K * d, system.size))
        gap[:, 0] = (limit - gauge.target)[order]
        self.idle = (idle + sparse.csr_matrix(gap)).tocsr()
        self.change = (turn - idle).tocsr()
        self.change.eliminate_zeros()

    def mean(self, x: np.ndarray, masks: Masks | None) -> np.ndarray:
        """E L(w - target)."""
        models = self.idle @ x
        if masks is not None:
            models = models + masks.nodes[self.node] * (self.change @ x)
        return self.L @ models

    def second(self, S: np.ndarray, masks: Masks | None) -> np.ndarray:
        """E of the outer product of L(w - target)."""
        A = self.idle
        half = A @ S
        square = A @ half.T
        if masks is not None and self.change.nnz:
            cross = masks.nodes[self.node][:, None] * (self.change @ half.T)
            both = masks.pairs[np.ix_(self.node, self.node)] * (self.change @ (self.change @ S).T)
            square = square + cross + cross.T + both
        return self.L @ (self.L @ square).T

    def weight(self, masks: Masks | None) -> sparse.csr_matrix:
        """W with <W, S> the trace of that."""
        square = self.L.T @ self.L
        W = self.idle.T @ square @ self.idle
        if masks is not None and self.change.nnz:
            from scipy import sparse

            q = sparse.diags(masks.nodes[self.node])
            cross = self.idle.T @ square @ q @ self.change
            pairs = square.multiply(masks.pairs[np.ix_(self.node, self.node)])
            W = W + cross + cross.T + self.change.T @ pairs @ self.change
        return W.tocsr()


def _order(setting: Setting, nodes: int) -> np.ndarray:
    """Where the numbers of a node's model are among the flattened models of all, node by node."""
    import jax

    sizes = [int(np.prod(np.shape(a)[1:])) for a in jax.tree.leaves(setting.start)]
    first = nodes * np.concatenate([[0], np.cumsum(sizes)])
    place = [first[i] + np.arange(nodes)[:, None] * n + np.arange(n) for i, n in enumerate(sizes)]
    return np.concatenate(place, axis=1).ravel()


class Turns:
    """Ticks of one law: what is drawn once for the whole run is known."""

    def __init__(self, system: MailSystem, law: TickLaw, reading: Reading):
        self.system, self.law, self.reading = system, law, reading

    @cached_property
    def masks(self) -> list[Masks]:
        return [self.system.masks(self.law, t) for t in range(self.law.period)]

    def at(self, tick: int) -> Masks:
        return self.masks[tick % self.law.period]

    def _mean(self, x: np.ndarray) -> np.ndarray:
        """Deviations after a period."""
        for masks in self.masks:
            x = self.system.mean(x, masks)
        return x

    def _second(self, S: np.ndarray) -> np.ndarray:
        for masks in self.masks:
            S = self.system.second(S, masks)
        return S

    @cached_property
    def mean_rate(self) -> float:
        n = self.system.size - 1

        def product(v: np.ndarray) -> np.ndarray:
            return self._mean(np.concatenate([np.zeros((1, *v.shape[1:])), v]))[1:]

        return _radius(product, n) ** (1 / self.law.period)

    @cached_property
    def _source(self) -> np.ndarray:
        """The covariance that a period adds, started at the point."""
        S = np.zeros((self.system.size,) * 2)
        S[0, 0] = 1.0
        Q = self._second(S)
        Q[0], Q[:, 0] = 0.0, 0.0
        return Q

    @cached_property
    def _settled(self) -> np.ndarray:
        """Second moments once settled, at the beginning of a period."""
        S = solve(self._second, self._source, 1e-12, most=300)[0]
        S[0, 0] = 1.0
        return S

    @cached_property
    def rate(self) -> float:
        r = np.random.default_rng(1).normal(size=(self.system.size, 8))
        r[0] = 0.0
        space, last = Krylov(self._second, self._second(r @ r.T) + self._source), -1.0
        while True:
            space.extend(space.steps + 10, 1e-14)
            top = perron(space)
            if space.closed or abs(top - last) <= 1e-9 * top or space.steps >= min(space.most, 200):
                return top ** (1 / self.law.period)
            last = top

    @cached_property
    def variance(self) -> float:
        """Once settled, a mean over the ticks of a period."""
        if not self._source.any():
            return 0.0
        S, found = self._settled, []
        for masks in self.masks:
            found.append(np.trace(self.reading.second(S, masks)) - (self.reading.mean(S[:, 0], masks) ** 2).sum())
            S = self.system.second(S, masks)
        return float(np.mean(found))

    def path(self, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """(rounds + 1,) and (rounds + 1, d): E|L(w - target)|^2 and E L(w - target) after each tick."""
        total = self._one_by_one(rounds) if rounds <= LONG else self._far(rounds)
        return total, self._mean_path(rounds)

    def _mean_path(self, rounds: int) -> np.ndarray:
        x, found = self.system.start, []
        for t in range(rounds + 1):
            found.append(self.reading.mean(x, self.at(t) if t else None))  # before the first tick nobody has listened
            x = self.system.mean(x, self.at(t), t == 0)
            if t % self.law.period == 0 and np.abs(x[1:]).max(initial=0.0) <= SETTLED * np.abs(self.system.start).max():
                break
        settled = [self.reading.mean(np.eye(1, self.system.size)[0], self.at(0))] * (rounds + 1 - len(found))
        return np.array(found + settled)

    def _one_by_one(self, rounds: int) -> np.ndarray:
        S, found = np.outer(self.system.start, self.system.start), []
        for t in range(rounds + 1):
            found.append(float(self._weights(t).multiply(S).sum()))
            S = self.system.second(S, self.at(t), t == 0) if t < rounds else S
        return np.array(found)

    def _far(self, rounds: int) -> np.ndarray:
        """By the ticks at each place of a period, whose second moments go on by the same map."""
        S, period = np.outer(self.system.start, self.system.start), self.law.period
        total = np.empty(rounds + 1)
        total[0] = float(self._weights(0).multiply(S).sum())
        S = self.system.second(S, self.at(0), True)
        rest = self._settled if self.rate < 1 else None
        rest = None if rest is None else self.system.second(rest, self.at(0))
        for first in range(1, 1 + period):

            def on(S: np.ndarray, first: int = first) -> np.ndarray:
                for t in range(first, first + period):
                    S = self.system.second(S, self.at(t))
                return S

            W = self._weights(first)
            end = 0.0 if rest is None else float(W.multiply(rest).sum())
            count = len(total[first::period])
            total[first::period] = end + decay(on, S if rest is None else S - rest, W.toarray(), count - 1)
            S = self.system.second(S, self.at(first))
            rest = None if rest is None else self.system.second(rest, self.at(first))
        return total

    @cached_property
    def _each_weight(self) -> list[sparse.csr_matrix]:
        return [self.reading.weight(masks) for masks in self.masks]

    @cached_property
    def _first_weight(self) -> sparse.csr_matrix:
        return self.reading.weight(None)

    def _weights(self, tick: int) -> sparse.csr_matrix:
        return self._each_weight[tick % self.law.period] if tick else self._first_weight

    def moments(self, tick: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of L(w - target) after a tick; None: once settled, at the beginning of a period."""
        masks: Masks | None
        if tick is None:
            S = self._settled
            x, masks = S[:, 0], self.at(0)
        else:
            x = self.system.start
            S = np.outer(x, x)
            for t in range(tick):
                x, S = self.system.mean(x, self.at(t), t == 0), self.system.second(S, self.at(t), t == 0)
            masks = self.at(tick) if tick else None
        gap = self.reading.mean(x, masks)
        return gap, self.reading.second(S, masks) - np.outer(gap, gap)


def _radius(product: Callable[[np.ndarray], np.ndarray], n: int) -> float:
    """The largest modulus of an eigenvalue, conserved directions left out."""
    if n <= LARGE:
        return rate_of(product(np.eye(n)))
    r = np.random.default_rng(0).normal(size=n)
    for _ in range(2):
        r = r - product(r)
    space, last = Krylov(product, r, rounding=1e-10), 0.0
    while True:
        space.extend(space.steps + 20)
        values = space.ritz()
        top = float(np.abs(values[np.abs(values - 1) > 1e-7]).max(initial=0.0))
        if space.closed or abs(top - last) <= 1e-9 * top or space.steps >= min(space.most, 400):
            return top
        last = top
