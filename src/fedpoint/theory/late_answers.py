"""How fast and how noisy is a fusion center that merges answers as they come? Exactly, where times are exponential.

An agent whose time is exponential forgets how long it has been at work: who answers next is drawn anew for every merge.
So with what every agent holds (the hub as it was when the agent was asked, and its memory) in the state, merges are
independent linear maps, x+ = J x: mean and second moments are followed over all of them. Where old answers count less,
an agent holds several copies, each times a number that follows its age (`theory/ages.py`).
"""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.compiling import quickly
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK
from fedpoint.core.record import split_per_agent
from fedpoint.core.types import Tree
from fedpoint.problems.base import per_agent
from fedpoint.theory.ages import Ages, recursion
from fedpoint.theory.expected_round import Numbers, start_at, template
from fedpoint.theory.krylov import Krylov, norm, solve
from fedpoint.theory.moments import hub_map
from fedpoint.theory.noise import LocalNoise, Luck, ProbePlace, covariance_of, linearised, tabulated
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Law, Outlook, Path
from fedpoint.theory.space import Space, fill, flat
from fedpoint.theory.steady import Way, moving, perron, rate_of
from fedpoint.timing.base import Timing
from fedpoint.timing.tick_law import MergeLaw

if TYPE_CHECKING:
    from scipy import sparse

WAYS = 256  # in which a buffer may fill, that are gone through
LARGEST = 800  # numbers of the hub and of all that agents hold
LONG = 256  # merges of a curve that are gone through one by one
SMOOTHED = 8  # merges before Krylov's process looks for the slowest direction
MOST = 120  # steps of it that a rate is worth


def why_not(setting: Setting, timing: Timing) -> str:
    """Why merges are not independent linear maps of reasonable size; empty where they are."""
    s = setting
    if not (s.problem.linear and s.straight):
        return "answers that come late are forecast where fields are affine"
    if s.scheduled or s.adaptive or s.settles or not s.combines_linearly:
        return "answers that come late are forecast for hubs that merge linearly, with steps that stay"
    if s.bound.merged_by:
        return f"{s.bound.merged_by} does not merge linearly"
    if s.lossy or any(s.numbers.drawn) or (s.own_kind and not s.exact):
        return "answers that come late are forecast where all that is random is who answers, and samples"
    if not s.silent and not (s.oracle.known_noise and s.oracle.independent):
        return "the problem does not tell the covariance of its samples"
    if s.algorithm.chains > 1 and not s.silent and not s.oracle.known_cross_noise:
        return "the problem does not tell the covariance of two fields with the same sample"
    law = timing.merge_law(s.problem.weights, WAYS)
    if isinstance(law, str):
        return law
    places = _ages(law).copies
    if places > 1 and law.rebase:
        return "models that count less the older they are: the product of weight and model is not linear"
    size = 1 + s.u0.size + s.agents * places * (1 + s.u0.size + s.m0.shape[1])
    return f"hub and agents hold {size:,} numbers: up to {LARGEST:,} are followed" if size > LARGEST else ""


def _ages(law: MergeLaw) -> Ages:
    return recursion(law.staleness, float((law.chance @ law.who).min()))


class Works(NamedTuple):
    """Agents and hub, linearised around a state; the first leads with agents."""

    locals: LocalNoise
    base: Array  # (n_s,) what a message is a change of, and its slope (n_s, n_u)
    tilt: Array
    hub: Array  # the hub's merge: value there, with nothing heard, and its slopes
    stays: Array
    mean: Array
    total: Array


@partial(quickly, static_argnums=0)
def _works(space: Space, numbers: Numbers, x: Array) -> Works:
    hub, m = start_at(numbers, x, 0)
    u, algorithm, like = flat(hub), numbers.algorithm, template(space, numbers)[0]
    tuned, put = split_per_agent(algorithm)

    def agent(k: Tree) -> LocalNoise:
        own, tuned, m, share = k
        return linearised(space, numbers, put(tuned), ProbePlace(own, share, hub, u, m), 0)

    def base(u: Array) -> Array:
        return flat(algorithm.base(algorithm.say(fill(hub, u), NO_LUCK.row())))

    n_s = flat(like).size
    nothing = jnp.zeros(n_s + 1)
    changes, merge = algorithm.sends_changes(), hub_map(space, numbers, u, (nothing, nothing), 0)
    return Works(
        per_agent(agent, (numbers.inputs.own, tuned, m, numbers.p)),
        base(u) if changes else jnp.zeros(n_s),
        jax.jacfwd(base)(u) if changes else jnp.zeros((n_s, u.size)),
        u + merge.offset,
        merge.A,
        merge.B,
        merge.C,
    )


@partial(quickly, static_argnums=0)
def _noise(space: Space, numbers: Numbers, locals_: LocalNoise, Z: Array) -> Array:
    """(K, out, out): covariances of (message, 1, memory), given second moments of (1, hub, memory)."""

    def agent(k: Tree) -> Array:
        own, local, Z = k
        return covariance_of(space, numbers, own, local, Z)

    return per_agent(agent, (numbers.inputs.own, locals_, Z))


class Merges:
    """The linear maps of all merges, on x = (1, hub, copies of (1, hub, memory) that agents hold).

    Copies are times the numbers b that follow an answer's age; where all ages count the same there is one, and its 1 is
    everybody's.
    """

    @double
    def __init__(self, setting: Setting, timing: Timing, origin: np.ndarray):
        law = timing.merge_law(setting.problem.weights, WAYS)
        assert not isinstance(law, str), law
        self.setting, self.law, self.ages = setting, law, _ages(law)
        at = setting.origin
        works: Works = _works(setting.space, setting.numbers, jnp.asarray(at))
        self.locals = jax.device_put(tabulated(works.locals))
        self.random = not setting.silent or any(isinstance(s, Luck) for s in works.locals.sources)
        self.n_u, (self.K, self.n_m) = setting.u0.size, setting.m0.shape
        self.each = 1 + self.n_u + self.n_m
        self.held = self._held()
        self.size = 1 + int(max(self.n_u, self.held.max()))
        self._linear(works, at)
        self.start = np.zeros(self.size)
        self.start[0], self.start[1 : 1 + self.n_u] = 1.0, origin[: self.n_u]
        begun = np.broadcast_to(self.start[: 1 + self.n_u], (self.K, 1 + self.n_u))
        begun = np.concatenate([begun, origin[self.n_u :].reshape(self.K, -1)], axis=1)
        self.start[self.held] = self.ages.fresh[:, None] * begun[:, None]
        self.maps = [self._map(who) for who in law.who]
        self._restarts()
        self._split()

    def _held(self) -> np.ndarray:
        """(K, copies, 1 + n_u + n_m): where (1, hub, memory) of an agent are, by copy."""
        copies = self.ages.copies
        if copies > 1:
            return 1 + self.n_u + np.arange(self.K * copies * self.each).reshape(self.K, copies, -1)
        own = 1 + self.n_u + np.arange(self.K * (self.each - 1)).reshape(self.K, 1, -1)
        return np.concatenate([np.zeros((self.K, 1, 1), int), own], axis=2)

    def _holds(self, k: int, numbers: np.ndarray) -> np.ndarray:
        """(1 + n_u + n_m, size): what agent k holds, times numbers' b: its own, or its weight's."""
        found = np.zeros((self.each, self.size))
        found[np.arange(self.each), self.held[k]] = numbers[:, None]
        return found

    def _linear(self, works: Works, at: np.ndarray) -> None:
        """Maps of (1, hub, memory) that agents hold, absolute: message with a 1 behind it, and new memory."""
        u, m = at[: self.n_u], at[self.n_u :].reshape(self.K, -1)
        slope = np.asarray(works.locals.slope)[:, :, : self.n_u + self.n_m]
        value = np.asarray(works.locals.value)
        held = np.concatenate([np.broadcast_to(u, (self.K, self.n_u)), m], axis=1)
        one = value - np.einsum("koz,kz->ko", slope, held)
        made = np.concatenate([one[:, :, None], slope], axis=2)
        self.sent = value.shape[1] - self.n_m  # with the 1
        self.says, self.keeps = made[:, : self.sent], made[:, self.sent :]
        tilt, base = np.asarray(works.tilt), np.asarray(works.base)
        self.base = np.zeros((self.sent, 1 + self.n_u))
        self.base[:-1] = np.column_stack([base - tilt @ u, tilt])
        if self.law.rebase:
            self.says[:, :, : 1 + self.n_u] += self.base
        stays = np.asarray(works.stays)
        self.hub = np.column_stack([np.asarray(works.hub) - stays @ u, stays])
        self.by_mean, self.by_total = np.asarray(works.mean), np.asarray(works.total)

    def _map(self, who: np.ndarray) -> sparse.csr_matrix:
        """J of a merge of these agents' answers."""
        from scipy import sparse

        hub = self._hub(np.flatnonzero(who))
        J = np.eye(self.size)
        J[1 : 1 + self.n_u] = hub
        for k, answered in enumerate(who):
            if answered:
                self._begin(J, k, hub, self.keeps[k] @ self._holds(k, self.ages.one))
            else:
                for i in range(self.each):
                    J[np.ix_(self.held[k, :, i], self.held[k, :, i])] = self.ages.on
        return sparse.csr_matrix(J)

    def _split(self) -> None:
        """Maps differ in few rows: those of the hub and of who answers. The others are those of a merge of nobody."""
        self.aged = self._map(np.zeros(self.K, bool))  # of these rows none is the hub's
        moved = np.zeros((len(self.maps), self.size), bool)
        moved[:, 1 : 1 + self.n_u] = True
        for way, who in zip(moved, self.law.who, strict=True):
            way[self.held[who].ravel()] = True
        moved[:, 0] = False  # the 1 stays, where it is everybody's too
        self.rows = [np.flatnonzero(way) for way in moved]
        self.answers = [J[rows] for J, rows in zip(self.maps, self.rows, strict=True)]
        self.stay = (~moved * self.law.chance[:, None]).T @ ~moved  # the chance that neither row moves
        self.reaches = [[self._reach(who, int(k)) for k in np.flatnonzero(who)] for who in self.law.who]

    def _begin(self, J: np.ndarray, k: int, hub: np.ndarray, memory: np.ndarray) -> None:
        """Agent k is asked anew: what it holds in every copy, as rows of a map."""
        now = np.concatenate([np.eye(1, self.size), hub, memory])
        J[self.held[k]] = self.ages.fresh[:, None, None] * now

    def _hub(self, few: np.ndarray) -> np.ndarray:
        """(n_u, size): the hub after it."""
        p, hub = self.setting.problem.weights, np.zeros((self.n_u, self.size))
        hub[:, : 1 + self.n_u] = self.hub
        for k in few:
            mean = self.law.weight[k] * self.by_mean
            hub += mean @ self.says[k] @ self._holds(k, self.ages.weight)
            hub += p[k] * self.by_total @ self.says[k] @ self._holds(k, self.ages.one)
            if self.law.rebase:  # all ages count the same then
                hub[:, : 1 + self.n_u] -= (self.ages.weight[0] * mean + p[k] * self.by_total) @ self.base
        return hub

    def _restarts(self) -> None:
        """What lost answers do before a merge: agents begin anew with the hub as it is. Chances of pairs are enough."""
        from scipy import sparse

        R, hub = np.eye(self.size), np.eye(self.n_u, self.size, 1)
        for k in range(self.K):
            self._begin(R, k, hub, self._holds(k, self.ages.one)[1 + self.n_u :])
        owner, lost = np.full(self.size, -1), np.zeros(self.size)
        owner[self.held] = np.arange(self.K)[:, None, None]
        owner[0] = -1  # everybody's, where all ages count the same
        lost[owner >= 0] = self.law.lost[owner[owner >= 0]]
        kept, same = 1 / (1 + lost), (owner[:, None] == owner) & (owner >= 0)
        neither = np.where(same, kept[:, None], 1 / (1 + lost[:, None] + lost))
        self.anew, self.kept = sparse.csr_matrix(R), kept
        self.neither, self.row_only = neither, kept - neither  # the column's agent goes on, the row's begins anew
        self.both = 1 - kept[:, None] - kept + neither

    def _restarted(self, S: np.ndarray) -> np.ndarray:
        """Second moments after what lost answers do."""
        if not self.law.lost.any():
            return S
        anew = self.anew @ S
        one = self.row_only * anew
        return self.neither * S + one + one.T + self.both * (self.anew @ anew.T)

    @cached_property
    def expected(self) -> sparse.csr_matrix:
        from scipy import sparse

        mean = sum(chance * J for chance, J in zip(self.law.chance, self.maps, strict=True))
        return mean @ (sparse.diags(self.kept) + sparse.diags(1 - self.kept) @ self.anew)

    # The mean

    @cached_property
    def fixed(self) -> np.ndarray:
        """Where the mean settles, reached from the start: what is conserved keeps its value."""
        M, x = self.expected, self.start
        return np.asarray(x + solve(lambda v: M @ v, M @ x - x, 1e-13, most=max(400, len(x)))[0])

    @property
    def state(self) -> np.ndarray:
        """The same as a state of the setting: the hub, and what agents remember."""
        memories = np.einsum("a,kai->ki", self.ages.one, self.fixed[self.held[:, :, 1 + self.n_u :]])
        return np.concatenate([self.fixed[1 : 1 + self.n_u], memories.ravel()])

    @cached_property
    def mean_rate(self) -> float:
        """Factor per merge of the mean's deviation."""
        return rate_of(self.expected.toarray()[1:, 1:])

    # Second moments

    def second(self, S: np.ndarray) -> np.ndarray:
        """S -> E[J S J'] and what samples add."""
        S = self._restarted(S)
        aged = (self.aged @ S).T
        new, across = self.stay * (self.aged @ aged), np.zeros_like(S)
        for chance, rows, A in zip(self.law.chance, self.rows, self.answers, strict=True):
            beside = A @ aged
            beside[:, rows] = 0.0
            across[rows] += chance * beside
            new[np.ix_(rows, rows)] += chance * (A @ (A @ S).T)
        new += across + across.T
        if self.random:
            noise = self._noises(S)
            for chance, reaches in zip(self.law.chance, self.reaches, strict=True):
                for k, at, reach in reaches:
                    new[np.ix_(at, at)] += chance * (reach @ noise[k] @ reach.T)
        return np.asarray((new + new.T) / 2)

    @double
    def _noises(self, S: np.ndarray) -> np.ndarray:
        """(K, ...): covariances of (weighted message, message, memory) of every agent, were it to answer."""
        space, numbers = self.setting.space, self.setting.numbers
        rows, columns = self.held[:, :, None, :, None], self.held[:, None, :, None, :]
        each = S[rows, columns]
        weight, one = self.ages.weight, self.ages.one

        def noise(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            Z = np.einsum("a,b,kabij->kij", a, b, each)
            return np.asarray(_noise(space, numbers, self.locals, jnp.asarray((Z + Z.swapaxes(1, 2)) / 2)))

        plain = noise(one, one)
        if self.ages.copies == 1:
            twice, once = weight[0] ** 2 * plain, weight[0] * plain
        else:
            twice, once = noise(weight, weight), noise(weight, one)
        s = slice(0, self.sent)
        top = np.concatenate([twice[:, s, s], once[:, s]], axis=2)
        below = np.concatenate([once[:, :, s], plain], axis=2)
        return np.concatenate([top, below], axis=1)

    def _reach(self, who: np.ndarray, k: int) -> tuple[int, np.ndarray, np.ndarray]:
        """What samples of agent k move: the hub, what all who answer hear of it next, and its memory. Where, and how
        (weighted message, message, memory) does."""
        p, few, fresh = self.setting.problem.weights, np.flatnonzero(who), self.ages.fresh
        moved = np.concatenate(
            [self.law.weight[k] * self.by_mean, p[k] * self.by_total, np.zeros((self.n_u, self.n_m))], axis=1
        )
        reach = np.zeros((self.size, moved.shape[1]))
        reach[1 : 1 + self.n_u] = moved
        reach[self.held[few, :, 1 : 1 + self.n_u]] = fresh[:, None, None] * moved
        own = np.eye(self.n_m, moved.shape[1], 2 * self.sent)
        reach[self.held[k, :, 1 + self.n_u :]] = fresh[:, None, None] * own
        at = np.flatnonzero(reach.any(axis=1))
        return k, at, reach[at]

    def reading(self, gauge: Gauge) -> np.ndarray:
        """(d, size): what is measured of a model less the target."""
        R = self.setting.reading
        whole = np.zeros((len(R), self.size))
        whole[:, 1 : 1 + self.n_u] = R[:, : self.n_u]
        for k in range(self.K):
            own = slice(self.n_u + k * self.n_m, self.n_u + (k + 1) * self.n_m)
            whole += R[:, own] @ self._holds(k, self.ages.one)[1 + self.n_u :]
        whole[:, 0] -= gauge.target
        return gauge.of_state(whole)


class LateAnswers(Outlook):
    """Of a hub that merges answers when they come, at exponential times."""

    how = "exact"
    certain = drawn = False  # who answers is drawn, and its law is known

    def __init__(self, merges: Merges, gauge: Gauge):
        self.merges, self.gauge = merges, gauge
        R = merges.reading(gauge)
        self.read = np.concatenate([np.eye(1, merges.size), R])  # of (1, all): 1, and what is measured
        self._moments = [self._seen(np.outer(merges.start, merges.start))]
        self._last = np.outer(merges.start, merges.start)

    @property
    def limit(self) -> np.ndarray:
        return self.merges.setting.read(self.merges.state)

    @property
    def mean_rate(self) -> float:
        return self.merges.mean_rate

    @cached_property
    def _free(self) -> np.ndarray | None:
        """The projector on deviations without what is conserved; None where nothing is."""
        P = moving(self.merges.expected.toarray()[1:, 1:])
        if P is None:
            return None
        whole = np.zeros((self.merges.size,) * 2)
        whole[1:, 1:] = P
        return whole

    def _on(self, S: np.ndarray) -> np.ndarray:
        """Second moments of deviations after a merge: rounding along what is conserved would never decay."""
        new = self.merges.second(S)
        return new if self._free is None else self._free @ new @ self._free.T

    @cached_property
    def rate(self) -> float:
        r = np.random.default_rng(1).normal(size=(self.merges.size, 8))
        r[0] = 0.0
        S = self._on(r @ r.T)
        for _ in range(SMOOTHED):
            if not S.any():
                return self.mean_rate**2
            S = self._on(S / norm(S))
        space, last = Krylov(self._on, S), -1.0
        while True:
            space.extend(space.steps + 10, 1e-14)
            top = perron(space)
            if space.closed or abs(top - last) <= 1e-9 * top or space.steps >= min(space.most, MOST):
                return max(float(top), self.mean_rate**2)
            last = top

    @cached_property
    def _settled(self) -> np.ndarray:
        """Second moments once settled."""
        outer = np.outer(self.merges.fixed, self.merges.fixed)
        source = self.merges.second(outer) - outer
        source[0], source[:, 0] = 0.0, 0.0
        return np.asarray(outer + solve(self._on, source, 1e-12, most=300)[0])

    @property
    def variance(self) -> float:
        law = self.law(None)
        return math.inf if law is None else float(law.weights.sum())

    # On the way: merge by merge, and far ahead by Krylov's approximation.

    def _seen(self, S: np.ndarray) -> np.ndarray:
        """(1 + d, 1 + d): moments of 1 and of what is measured."""
        return np.asarray(self.read @ S @ self.read.T)

    def _near(self, merges: int) -> list[np.ndarray]:
        """The same after merges 0, 1, ..., at least so many."""
        while len(self._moments) <= merges:
            self._last = self.merges.second(self._last)
            self._moments.append(self._seen(self._last))
        return self._moments

    @cached_property
    def _far(self) -> tuple[np.ndarray, Way]:
        """What is measured once settled, and the way there from merge LONG on."""
        self._near(LONG)
        rest = self._settled if self.rate < 1 else np.zeros_like(self._last)
        on = self._on if self.rate < 1 else self.merges.second
        return self._seen(rest), Way(on, self._last - rest, self._seen)

    def path(self, rounds: int) -> Path:
        near = np.array(self._near(min(rounds, LONG))[: rounds + 1][: LONG + 1])
        means, totals = near[:, 0, 1:], np.trace(near[:, 1:, 1:], axis1=1, axis2=2)
        if rounds > LONG:
            rest, way = self._far
            row, trace = way.path(rounds - LONG)
            means = np.concatenate([means, rest[0, 1:] + row[1:, 1:]])
            totals = np.concatenate([totals, np.trace(rest[1:, 1:]) + trace[1:]])
        mean = (means**2).sum(1)
        return Path(mean, np.maximum(totals - mean, 0.0))

    def path_error(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): nothing is sampled."""
        return np.zeros(rounds + 1)

    def mean_path(self, rounds: int) -> np.ndarray:
        """(rounds + 1, d): the mean of the model."""
        plain = self.merges.reading(Gauge(np.zeros_like(self.gauge.target)))
        x, found = self.merges.start, []
        for _ in range(rounds + 1):
            found.append(plain @ x)
            x = self.merges.expected @ x
        return np.array(found)

    def law(self, round: int | None) -> Law | None:
        if round is None:
            if self.rate >= 1:
                return None
            moments = self._seen(self._settled)
        elif round <= LONG:
            moments = self._near(round)[round]
        else:
            rest, way = self._far
            moments = rest + way.after(round - LONG)
        if not np.isfinite(moments).all():
            return None
        gap = moments[0, 1:]
        return Law.of(gap, moments[1:, 1:] - np.outer(gap, gap))
