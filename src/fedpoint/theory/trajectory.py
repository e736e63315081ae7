r"""What do runs along trajectories do? Mean and covariance of the state beside the joint state of all agents' chains.

Samples of one trajectory depend on each other, and on what the model has become by earlier ones. Model and chains
together are a Markov jump linear system: with X = (1, x - x*), x the state, and s = (s_1, ..., s_K) where chains are,

$$ S_s = E[X X' 1(s)], \qquad S_s^+ = \sum_{\omega: s' \to s} P(\omega)\, J_\omega S_{s'} J_\omega', $$

over the ways omega that the chains may go, is closed and exact for affine rounds; moments beside each agent's own chain
alone are not, unless there is one. Agents work one after the other here: what agent k carries through its round is
appended to X, and each of its steps moves chain k by one, and what is carried by the affine map of what the step
brought. The maps are derivatives of the method's own `local`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import jax
import numpy as np

from fedpoint.core.precision import double
from fedpoint.problems.oracle import Jumps, Mine
from fedpoint.theory.course import ChainsCourse, Course
from fedpoint.theory.krylov import Krylov, solve
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Law, Outlook, Path
from fedpoint.theory.steady import Way, moving, perron
from fedpoint.theory.trajectory_work import DENSE, Local, NotJoint, Work, known_by, merge_of, stages_of, work_of

JOINT = 1 << 20  # numbers of the moments of all joint states, at most
WORK = 1 << 26  # multiplications of one round of them, at most: it is gone through some hundred times
CLOSED = 0.5  # of what the chains' states tell, that a closure may be wrong by


# A round of one agent beside its chain.


class Passage(NamedTuple):
    """What an agent's round makes of z = (1, u, m_k): the carried y, with where its chain begins (s) and ends (t)."""

    chance: np.ndarray  # (t, s): P(t | s)
    first: np.ndarray  # (t, y, s, z): E[y 1(t) | s] = first z
    second: np.ndarray  # (t, y, y, s, z, z): E[y y' 1(t) | s] of z z'

    @classmethod
    def of(cls, work: Work, chain: Jumps) -> Passage:
        S, z = len(chain.first), work.stages[0].start.shape[1] if work.stages else 1
        moves = chain.chance[:, None] * chain.after  # (outcome, t)
        made = cls(np.eye(S), np.zeros((S, 0, S, z)), np.zeros((S, 0, 0, S, z, z)))
        for stage in work.stages:
            y, start = made.first.shape[1], np.asarray(stage.start)
            A = np.concatenate([np.zeros((y, z)), start[:, :z]])
            B = np.concatenate([np.eye(y), start[:, z:]])
            made = cls(*(np.stack(part) for part in zip(*(made._moved(s, A, B) for s in range(S)), strict=True)))
            for maps in stage.maps:
                made = made._stepped(np.asarray(maps), chain.state, moves)
        return made

    def _stepped(self, maps: np.ndarray, state: np.ndarray, moves: np.ndarray) -> Passage:
        """A step more, of the stage that is the last so far."""
        z, y = self.first.shape[-1], self.first.shape[1]
        new, (A, B) = Passage(*(np.zeros_like(part) for part in self)), (np.zeros((y, z)), np.eye(y))
        for brought, s, chance in zip(maps, state, moves, strict=True):
            A[y - len(brought) :], B[y - len(brought) :] = brought[:, :z], brought[:, z:]
            moved = self._moved(s, A, B)
            for t in np.flatnonzero(chance):
                for total, part in zip(new, moved, strict=True):
                    total[t] += chance[t] * part
        return new

    def _moved(self, s: int, A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, ...]:
        """y <- A z + B y where the chain is in s now."""
        chance, first, second = (part[s] for part in self)
        (y, z), from_ = A.shape, len(chance)
        went = np.tensordot(B, first, axes=1)
        stays = A[:, None, :] * chance[:, None]
        cross = A[:, None, None, :, None] * (went + stays / 2)[None, :, :, None, :]
        inner = np.tensordot(B, second, axes=1)
        inner = (B @ inner.reshape(y, second.shape[1], from_ * z * z)).reshape(y, y, from_, z, z)
        return chance, went + stays, inner + cross + cross.transpose(1, 0, 2, 4, 3)


# All joint states.


class Lineup(NamedTuple):
    chance: float
    who: np.ndarray  # agents that work
    merge: np.ndarray


class Chains:
    """What all agents do in a round, each beside its own chain."""

    @double
    def __init__(self, setting: Setting, x: np.ndarray):
        self.chains = chains_of(setting)
        self.works = [work_of(setting, x, k, c.sample) for k, c in enumerate(self.chains)]
        self.passages = [Passage.of(work, chain) for work, chain in zip(self.works, self.chains, strict=True)]
        self.lineups = [
            Lineup(float(chance), np.flatnonzero(heard), merge_of(setting, x, self.works, weight, heard))
            for chance, weight, heard in zip(*setting.timing.lineups(setting.problem.weights)[:3], strict=True)
        ]
        n_u, n_m = setting.u0.size, setting.m0.shape[1]
        self._known = [np.r_[: 1 + n_u, 1 + n_u + k * n_m : 1 + n_u + (k + 1) * n_m] for k in range(setting.agents)]
        P = moving(setting.matrix(x))
        self._moving = (
            None if P is None else np.block([[np.ones((1, 1)), np.zeros((1, len(P)))], [np.zeros((len(P), 1)), P]])
        )

    def _conserved(self, moments: np.ndarray) -> np.ndarray:
        """Second moments without what rounding adds along conserved quantities."""
        return moments if self._moving is None else self._moving @ moments @ self._moving.T

    def _through(self, V: np.ndarray, axis: int, k: int) -> np.ndarray:
        """With what agent k carries at the end of its round appended, and its chain, along an axis, moved on."""
        passage, known = self.passages[k], self._known[k]
        at = np.moveaxis(V, axis, 0)
        at = at.reshape(len(at), -1, *at.shape[-2:])  # (s, other chains, D, D)
        y, (s, n, D, _) = passage.first.shape[1], at.shape
        new = np.empty((s, n, D + y, D + y))
        new[..., :D, :D] = (passage.chance @ at.reshape(s, -1)).reshape(at.shape)
        rows = np.tensordot(passage.first, at[:, :, known], axes=((2, 3), (0, 2)))  # (t, y, other chains, D)
        new[..., D:, :D] = rows.transpose(0, 2, 1, 3)
        new[..., :D, D:] = rows.transpose(0, 2, 3, 1)
        inner = at[:, :, known][..., known]
        new[..., D:, D:] = np.tensordot(passage.second, inner, axes=((3, 4, 5), (0, 2, 3))).transpose(0, 3, 1, 2)
        shape = (s, *np.delete(V.shape[:-2], axis), D + y, D + y)
        return np.moveaxis(new.reshape(shape), 0, axis)


class Joint(Chains):
    """S -> the moments after a round, of every joint state: (S_1, ..., S_K, 1 + n, 1 + n)."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(c.first) for c in self.chains)

    def total(self, moments: np.ndarray) -> np.ndarray:
        """Over all joint states."""
        return np.asarray(moments.sum(axis=tuple(range(len(self.chains)))))

    @cached_property
    def first(self) -> np.ndarray:
        """The probability of every joint state: chains are independent, and stationary from the beginning on."""
        together = np.ones(())
        for chain in self.chains:
            together = np.multiply.outer(together, chain.first)
        return together

    def __call__(self, S: np.ndarray) -> np.ndarray:
        S = (S + np.swapaxes(S, -1, -2)) / 2  # what rounding adds to it would grow
        new = np.zeros_like(S)
        for lineup in self.lineups:
            V = S
            for k in lineup.who:
                V = self._through(V, k, k)
            new += lineup.chance * (lineup.merge @ V @ lineup.merge.T)
        return self._conserved(new)

    def mean(self, X: np.ndarray) -> np.ndarray:
        """The same of E[X 1(s)]: (S_1, ..., S_K, 1 + n)."""
        new = np.zeros_like(X)
        for lineup in self.lineups:
            V = X
            for k in lineup.who:
                chance, first, _ = self.passages[k]
                at = np.moveaxis(V, k, 0)
                carried = np.tensordot(first, at[..., self._known[k]], axes=((2, 3), (0, at.ndim - 1)))
                stays = np.tensordot(chance, at, axes=1)
                V = np.moveaxis(np.concatenate([stays, np.moveaxis(carried, 1, -1)], axis=-1), 0, k)
            new += lineup.chance * (V @ lineup.merge.T)
        return new if self._moving is None else new @ self._moving.T


# Many chains: a closure.


class Apart(Chains):
    """The same beside each agent's own chain, (all states of all agents, 1 + n, 1 + n), where everyone takes part.

    While agent k's chain is followed through a round, all others begin it anew; what they add to the moments on average
    because they did not is added for agent k's states alike.
    """

    def __init__(self, setting: Setting, x: np.ndarray):
        super().__init__(setting, x)
        merge, m = self.lineups[0].merge, 1 + len(x)
        sizes = [work.carried for work in self.works]
        ends = m + np.cumsum([0, *sizes])
        self._blocks = [merge[:, a:b] for a, b in pairwise(ends)]
        self._cuts = np.cumsum([len(chain.first) for chain in self.chains])[:-1]
        self._mean = merge[:, :m].copy()  # the round that is expected
        self._without = []  # the same without what agent k carries
        self._noise = np.zeros((m, m, m, m))  # what agents' own luck adds to second moments
        self._own_noise = []
        for block, known, passage, chain in zip(self._blocks, self._known, self.passages, self.chains, strict=True):
            first = np.einsum("tysz,s->yz", passage.first, chain.first)
            second = np.einsum("tyxsab,s->yxab", passage.second, chain.first)
            spread = second - np.einsum("ya,xb->yxab", first, first)
            noise = np.einsum("iy,jx,yxab->ijab", block, block, spread, optimize=True)
            self._mean[:, known] += block @ first
            self._noise[:, :, known[:, None], known] += noise
            self._without.append(-block @ first)
            self._own_noise.append(noise)

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(len(chain.first) for chain in self.chains),)

    @cached_property
    def first(self) -> np.ndarray:
        return np.concatenate([chain.first for chain in self.chains])

    def total(self, moments: np.ndarray) -> np.ndarray:
        """Over the states of any agent: they all have the same sum."""
        return np.asarray(moments.sum(0) / len(self.chains))

    def _together(self, followed: list[np.ndarray], anew: list[np.ndarray]) -> np.ndarray:
        """What is found beside each chain, and what the others add. anew: the same had each begun anew."""
        added = [own.sum(0) - plain for own, plain in zip(followed, anew, strict=True)]
        every = np.sum(added, axis=0)
        return np.concatenate(
            [
                own + np.multiply.outer(chain.first, every - mine)
                for own, chain, mine in zip(followed, self.chains, added, strict=True)
            ]
        )

    def __call__(self, S: np.ndarray) -> np.ndarray:
        S = (S + np.swapaxes(S, -1, -2)) / 2
        followed, anew = [], []
        for k, C in enumerate(np.split(S, self._cuts)):
            V, known = self._through(C, 0, k), self._known[k]
            W = V[:, : S.shape[-1], : S.shape[-1]]
            merge = np.concatenate([self._mean, self._blocks[k]], axis=1)
            merge[:, known] += self._without[k]
            noise = np.tensordot(W, self._noise, axes=((1, 2), (2, 3)))
            noise -= np.tensordot(W[:, known][..., known], self._own_noise[k], axes=((1, 2), (2, 3)))
            followed.append(merge @ V @ merge.T + noise)
            plain = C.sum(0)
            anew.append(self._mean @ plain @ self._mean.T + np.tensordot(self._noise, plain, axes=2))
        return self._conserved(self._together(followed, anew))

    def mean(self, X: np.ndarray) -> np.ndarray:
        followed, anew = [], []
        for k, C in enumerate(np.split(X, self._cuts)):
            chance, first, _ = self.passages[k]
            stays, known = chance @ C, self._known[k]
            carried = np.tensordot(first, C[:, known], axes=((2, 3), (0, 1)))
            new = stays @ self._mean.T + stays[:, known] @ self._without[k].T + carried @ self._blocks[k].T
            followed.append(new)
            anew.append(self._mean @ C.sum(0))
        new = self._together(followed, anew)
        return new if self._moving is None else new @ self._moving.T


def chains_of(setting: Setting) -> list[Jumps]:
    """The chain of every agent's world, of the states where it is ever found."""
    own, chains = jax.tree.map(np.asarray, setting.numbers.inputs.own), []
    for k in range(setting.agents):
        chain = setting.oracle.jumps(Mine(jax.tree.map(itemgetter(k), own), setting.numbers.inputs.common))
        if chain is None:
            raise NotJoint("the world that goes on is no finite chain")
        found = np.flatnonzero(chain.first > 0)
        place = np.full(len(chain.first), -1)
        place[found] = np.arange(len(found))
        kept = place[chain.state] >= 0
        chains.append(
            Jumps(
                chain.first[found],
                place[chain.state[kept]],
                chain.chance[kept],
                chain.after[kept][:, found],
                chain.sample[kept],
            )
        )
    return chains


@double
def unsuited(setting: Setting) -> str:
    """Why the joint states of all chains are not followed; empty where they are."""
    s = setting
    if why := _unaffine(s):
        return why
    if s.timing.lineups(s.problem.weights).drawn:
        return f"the lineups of {type(s.timing).__name__} are not few"
    try:
        chains = chains_of(s)
        joint = math.prod(len(chain.first) for chain in chains)
        few = joint * (1 + s.size) ** 2 <= JOINT and _work(s, chains) <= WORK
    except NotJoint as error:
        return str(error)
    return "" if few else f"the {s.agents} chains have too many joint states"


@double
def unclosed(setting: Setting) -> str:
    """Why not even each agent's own chain is followed; empty where it is."""
    s = setting
    if why := _unaffine(s):
        return why
    if not s.timing.everyone:
        return unsuited(s) or "not everyone takes part in a round"
    try:
        chains, stages = chains_of(s), _stages(s)
    except NotJoint as error:
        return str(error)
    z, cells = 1 + s.u0.size + s.m0.shape[1], sum(len(chain.first) for chain in chains)
    each = (
        len(chain.first) * len(chain.chance) * count * (size * z) ** 2
        for chain, own in zip(chains, stages, strict=True)
        for count, size in own
    )
    few = s.size <= DENSE and cells * (1 + s.size) ** 2 <= JOINT and sum(each) <= 4 * WORK
    return "" if few else f"the {s.agents} chains have too many states, {cells} together"


def _unaffine(setting: Setting) -> str:
    s = setting
    if not (s.problem.linear and s.straight) or s.scheduled or s.adaptive:
        return "rounds are not affine"
    if s.topology.by_node or s.topology.nested or s.lossy or s.bound.merged_by:
        return "there is no fusion center that adds up what is sent"
    if any(s.numbers.drawn) or s.lucky:
        return "the method draws numbers of its own"
    if s.moments.merge < 1 or not s.moments.independent:
        return f"rounds of {type(s.timing).__name__} are abandoned, or depend on each other"
    return ""


def _stages(setting: Setting) -> list[list[tuple[int, int]]]:
    s = setting
    return [stages_of(Local(s.space, s.numbers, k), known_by(s, s.origin, k)) for k in range(s.agents)]


def _work(setting: Setting, chains: list[Jumps]) -> float:
    """About how many multiplications a round of all joint states takes."""
    s, joint = setting, math.prod(len(chain.first) for chain in chains)
    carried = [sum(size for _, size in each) for each in _stages(s)]
    z, whole = 1 + s.u0.size + s.m0.shape[1], 1 + s.size + sum(carried)
    each = (
        len(chain.first) * (whole**2 + y * z * whole + (y * z) ** 2) for chain, y in zip(chains, carried, strict=True)
    )
    return joint * sum(each) * len(s.timing.lineups(s.problem.weights).chance)


class Trajectory(Outlook):
    """Affine rounds whose samples come from one trajectory per agent, exactly; runs begin in the state `origin`.

    x: any state with what is conserved as it is in `origin`; the fixed point of independent samples is close.
    """

    how = "trajectory"

    operator: type[Joint] | type[Apart] = Joint

    def __init__(self, setting: Setting, x: np.ndarray, origin: np.ndarray, gauge: Gauge):
        self.setting, self.x, self.origin, self.gauge = setting, x, origin, gauge
        self.R = gauge.of_state(setting.reading)
        self.move = self.operator(setting, x)

    @property
    def n(self) -> int:
        return 1 + len(self.x)

    @property
    def _still(self) -> np.ndarray:
        """The moments of runs at x."""
        S = np.zeros((*self.move.shape, self.n, self.n))
        S[..., 0, 0] = self.move.first
        return S

    @cached_property
    def _mean(self) -> np.ndarray:
        """(..., n): E[(x_t - x) 1(s)] once settled."""
        source = self.move.mean(self._still[..., 0])[..., 1:]
        return solve(self._rows, source, 1e-12, most=300)[0]

    def _rows(self, mean: np.ndarray) -> np.ndarray:
        return self.move.mean(np.concatenate([np.zeros((*mean.shape[:-1], 1)), mean], axis=-1))[..., 1:]

    @cached_property
    def memory(self) -> float:
        found = 0.0
        for chain, work in zip(self.move.chains, self.move.works, strict=True):
            moves = np.zeros((len(chain.first), len(chain.first)))
            np.add.at(moves, chain.state, chain.chance[:, None] * chain.after)
            second = np.sort(np.abs(np.linalg.eigvals(moves)))[:-1].max(initial=0.0)
            found = max(found, float(second) ** sum(len(stage.maps) for stage in work.stages))
        return found

    @cached_property
    def own_rate(self) -> float:
        start = np.random.default_rng(0).normal(size=(*self.move.shape, self.n - 1))
        return _radius(self._rows, self._rows(start), lambda space: float(np.abs(space.ritz()).max(initial=0.0)))

    @cached_property
    def rate(self) -> float:
        root = np.random.default_rng(1).normal(size=(*self.move.shape, self.n, min(self.n, 8)))
        root[..., 0, :] = 0.0
        return _radius(self.move, self.move(root @ np.swapaxes(root, -1, -2)), perron)

    @cached_property
    def _settled(self) -> np.ndarray | None:
        """(..., 1 + n, 1 + n): the moments once settled; None where they grow."""
        if self.rate >= 1 or self.own_rate >= 1:
            return None
        still = self._still
        source = self.move(still) - still
        source[..., 0, 0] = 0.0
        return still + solve(self.move, source, 1e-11, most=400)[0]

    @property
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x + self.move.total(self._mean))

    def _read(self, S: np.ndarray) -> np.ndarray:
        """Second moments of (1, what is measured)."""
        P = np.zeros((1 + len(self.R), self.n))
        P[0, 0], P[1:, 1:] = 1.0, self.R
        return np.asarray(P @ self.move.total(S) @ P.T)

    @property
    def variance(self) -> float:
        if self._settled is None:
            return math.inf
        S = self._read(self._settled)
        return float(np.trace(S[1:, 1:]) - S[0, 1:] @ S[0, 1:])

    @property
    def begun(self) -> np.ndarray:
        """The moments before the first round."""
        x0 = np.concatenate([[1.0], self.origin - self.x])
        return np.multiply.outer(self.move.first, np.outer(x0, x0))

    @cached_property
    def _way(self) -> Way:
        """What is left to the settled moments; all where there are none."""
        return Way(self.move, self.begun if self._settled is None else self.begun - self._settled, self._read)

    @cached_property
    def _end(self) -> np.ndarray:
        return np.zeros((1 + len(self.R),) * 2) if self._settled is None else self._read(self._settled)

    @property
    def _gap(self) -> np.ndarray:
        return self.gauge(self.setting.read(self.x) - self.gauge.target)

    def path(self, rounds: int) -> Path:
        rows, traces = self._way.path(rounds)
        mean, square = rows[:, 1:] + self._end[0, 1:], traces + np.trace(self._end[1:, 1:])
        return Path(((self._gap + mean) ** 2).sum(1), np.maximum(square - (mean**2).sum(1), 0.0))

    def law(self, round: int | None) -> Law | None:
        if round is None and self._settled is None:
            return None
        S = self._end if round is None else self._end + self._way.after(round)
        if not np.isfinite(S).all():
            return None
        mean = S[0, 1:]
        return Law.of(self._gap + mean, S[1:, 1:] - np.outer(mean, mean))

    def course(self) -> Course | None:
        return None if self._settled is None else ChainsCourse(self.move, self.R, self.begun, self._settled)


class OwnChains(Trajectory):
    """The same of many chains, by a closure: what they do to each other through the model is left out."""

    how = "chains"
    operator = Apart

    @cached_property
    def doubt(self) -> float:
        """About how much of the floor may be wrong: a share of what the chains' states tell of the model's spread.

        Beside the exact moments of two to four chains it was off by less than that in all cases, mostly far less.
        """
        if self._settled is None:
            return math.inf
        means = self._settled[..., 0, 1:] @ self.R.T
        apart = means / self.move.first[:, None] - self.move.total(means)
        told = float(self.move.first @ (apart**2).sum(1))
        return CLOSED * told / max(self.variance, 1e-300)


def _radius(apply: Callable[[np.ndarray], np.ndarray], start: np.ndarray, top_of: Callable[[Krylov], float]) -> float:
    space, last = Krylov(apply, start), -1.0
    while True:
        space.extend(space.steps + 20)
        top = top_of(space)
        if space.closed or abs(top - last) <= 1e-8 * top or space.steps >= min(space.most, 200):
            return top
        last = top
