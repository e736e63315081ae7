"""How fast and how noisy is a fusion center that merges answers as they come? Exactly, where times are exponential.

An agent whose time is exponential forgets how long it has been at work: who answers next is drawn anew for every merge.
So with what every agent holds (the hub as it was when the agent was asked, and its memory) in the state, merges are
independent linear maps, x+ = J x: mean and second moments are followed over all of them. Where old answers count less,
what an agent holds is kept apart by its age, one place for each, so that the weight of an age is a number.
"""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.inbox import Inbox
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK
from fedpoint.core.record import split_per_agent
from fedpoint.core.types import Tree
from fedpoint.problems.base import per_agent
from fedpoint.theory.expected_round import Numbers, start_at, template
from fedpoint.theory.krylov import Krylov, norm, solve
from fedpoint.theory.noise import LocalNoise, Luck, ProbePlace, covariance_of, linearised, tabulated
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Law, Outlook, Path
from fedpoint.theory.space import Space, fill, flat
from fedpoint.theory.steady import decay, moving, perron, rate_of
from fedpoint.timing.timed import Arrivals, MergeLaw

if TYPE_CHECKING:
    from scipy import sparse

WAYS = 256  # in which a buffer may fill, that are gone through
LARGEST = 800  # numbers of the hub and of all that agents hold
OLDEST = 1e-4  # the chance of an answer so old that older ones are taken to be as old
LONG = 256  # merges of a curve that are gone through one by one


def why_not(setting: Setting, timing: Arrivals) -> str:
    """Why merges are not independent linear maps of reasonable size; empty where they are."""
    s = setting
    if not (s.problem.linear and s.straight):
        return "answers that come late are forecast where fields are affine"
    if s.scheduled or s.adaptive or s.settles or not s.combines_linearly:
        return "answers that come late are forecast for hubs that merge linearly, with steps that stay"
    if s.lossy or any(s.numbers.drawn) or (s.own_kind and not s.exact):
        return "answers that come late are forecast where all that is random is who answers, and samples"
    if not s.silent and not (s.oracle.known_noise and s.oracle.independent):
        return "the problem does not tell the covariance of its samples"
    law = timing.merge_law(s.problem.weights, WAYS)
    if isinstance(law, str):
        return law
    places = _places(law)
    if places > 1 and law.rebase:
        return "models that count less the older they are: the product of weight and model is not linear"
    size = 1 + s.u0.size + s.agents * places * (1 + s.u0.size + s.m0.shape[1])
    return f"hub and agents hold {size:,} numbers: up to {LARGEST:,} are followed" if size > LARGEST else ""


def _places(law: MergeLaw) -> int:
    """Ages that are told apart: one where all count the same."""
    least = float((law.chance @ law.who).min())
    oldest = 1 + math.ceil(math.log(OLDEST) / math.log1p(-least)) if least < 1 else 1
    ages = law.staleness.weight(np.arange(oldest))
    return 1 if np.ptp(ages) == 0 else oldest


class Works(NamedTuple):
    """Agents and hub, linearised around a state; the first leads with agents."""

    locals: LocalNoise
    base: Array  # (n_s,) what a message is a change of, and its slope (n_s, n_u)
    tilt: Array
    hub: Array  # the hub's merge: value there, with nothing heard, and its slopes
    stays: Array
    mean: Array
    total: Array


@partial(jax.jit, static_argnums=0)
def _works(space: Space, numbers: Numbers, x: Array) -> Works:
    hub, m = start_at(numbers, x, 0)
    u, algorithm, like = flat(hub), numbers.algorithm, template(space, numbers)[0]
    tuned, put = split_per_agent(algorithm)

    def agent(k: Tree) -> LocalNoise:
        own, tuned, m, share = k
        return linearised(space, numbers, put(tuned), ProbePlace(own, share, hub, u, m), 0)

    def base(u: Array) -> Array:
        return flat(algorithm.base(algorithm.say(fill(hub, u), NO_LUCK.row())))

    def merge(u: Array, mean: Array, total: Array) -> Array:
        inbox = Inbox(fill(like, mean[:-1]), fill(like, total[:-1]), total[-1], mean[-1])
        return flat(algorithm.combine(fill(hub, u), inbox))

    n_s = flat(like).size
    nothing = jnp.zeros(n_s + 1)
    changes = algorithm.sends_changes()
    return Works(
        per_agent(agent, (numbers.inputs.own, tuned, m, numbers.p)),
        base(u) if changes else jnp.zeros(n_s),
        jax.jacfwd(base)(u) if changes else jnp.zeros((n_s, u.size)),
        merge(u, nothing, nothing),
        *jax.jacfwd(merge, argnums=(0, 1, 2))(u, nothing, nothing),
    )


@partial(jax.jit, static_argnums=0)
def _noise(space: Space, numbers: Numbers, locals_: LocalNoise, Z: Array) -> Array:
    """(K, out, out): covariances of (message, 1, memory), given second moments of (1, hub, memory)."""

    def agent(k: Tree) -> Array:
        own, local, Z = k
        return covariance_of(space, numbers, own, local, Z)

    return per_agent(agent, (numbers.inputs.own, locals_, Z))


class Merges:
    """The linear maps of all merges, on x = (1, hub, what agents hold: by age (1 if it is so old, hub, memory))."""

    @double
    def __init__(self, setting: Setting, law: MergeLaw, origin: np.ndarray):
        self.setting, self.law, self.ages = setting, law, _places(law)
        self.scale = law.staleness.weight(np.arange(self.ages))
        at = setting.origin
        works: Works = _works(setting.space, setting.numbers, jnp.asarray(at))
        self.locals = tabulated(works.locals)
        self.random = not setting.silent or any(isinstance(s, Luck) for s in works.locals.sources)
        self.n_u, (self.K, self.n_m) = setting.u0.size, setting.m0.shape
        self.each = 1 + self.n_u + self.n_m
        self.held = self._held()
        self.size = 1 + int(max(self.n_u, self.held.max()))
        self._linear(works, at)
        self.start = np.zeros(self.size)
        self.start[0], self.start[1 : 1 + self.n_u] = 1.0, origin[: self.n_u]
        begun = np.broadcast_to(self.start[: 1 + self.n_u], (self.K, 1 + self.n_u))
        self.start[self.held[:, 0]] = np.concatenate([begun, origin[self.n_u :].reshape(self.K, -1)], axis=1)
        self.maps = [self._map(who) for who in law.who]

    def _held(self) -> np.ndarray:
        """(K, ages, 1 + n_u + n_m): where (1, hub, memory) of an agent are, by age; of one age, 1 is everybody's."""
        if self.ages > 1:
            return 1 + self.n_u + np.arange(self.K * self.ages * self.each).reshape(self.K, self.ages, -1)
        own = 1 + self.n_u + np.arange(self.K * (self.each - 1)).reshape(self.K, 1, -1)
        return np.concatenate([np.zeros((self.K, 1, 1), int), own], axis=2)

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
        J = np.zeros((self.size, self.size))
        J[0, 0] = 1.0
        J[1 : 1 + self.n_u] = hub
        for k, answered in enumerate(who):
            now = self.held[k, 0]
            if not answered:
                for age in range(self.ages):
                    J[self.held[k, min(age + 1, self.ages - 1)], self.held[k, age]] = 1.0
                continue
            J[now[0], 0] = 1.0
            J[now[1 : 1 + self.n_u]] = hub
            for age in range(self.ages):
                J[np.ix_(now[1 + self.n_u :], self.held[k, age])] = self.keeps[k]
        return sparse.csr_matrix(J)

    def _hub(self, few: np.ndarray) -> np.ndarray:
        """(n_u, size): the hub after it."""
        p, hub = self.setting.problem.weights, np.zeros((self.n_u, self.size))
        hub[:, : 1 + self.n_u] = self.hub
        for k in few:
            for age in range(self.ages):
                part = self.law.weight[k] * self.scale[age] * self.by_mean + p[k] * self.by_total
                hub[:, self.held[k, age]] += part @ self.says[k]
                if self.law.rebase:  # all ages are one then
                    hub[:, : 1 + self.n_u] -= part @ self.base
        return hub

    @cached_property
    def expected(self) -> sparse.csr_matrix:
        return sum(chance * J for chance, J in zip(self.law.chance, self.maps, strict=True))

    def second(self, S: np.ndarray) -> np.ndarray:
        """S -> E[J S J'] and what samples add."""
        new = np.zeros_like(S)
        noise = self._noises(S) if self.random else None
        for chance, J, who in zip(self.law.chance, self.maps, self.law.who, strict=True):
            new += chance * (J @ (J @ S).T)
            if noise is not None:
                self._add_noise(new, noise, who, chance)
        return (new + new.T) / 2

    @double
    def _noises(self, S: np.ndarray) -> np.ndarray:
        """(K, ...): covariances of (weighted message, message, memory) of every agent, were it to answer."""
        Z = np.zeros((3, self.K, self.each, self.each))
        for k in range(self.K):
            for age in range(self.ages):
                part = S[np.ix_(self.held[k, age], self.held[k, age])]
                Z[:, k] += (self.scale[age] ** np.array([2, 1, 0]))[:, None, None] * part
        Z = (Z + Z.transpose(0, 1, 3, 2)) / 2
        space, numbers = self.setting.space, self.setting.numbers
        found = [
            np.asarray(_noise(space, numbers, self.locals, jnp.asarray(z))) for z in Z[: 1 if self.ages == 1 else 3]
        ]
        if self.ages == 1:  # what is weighted is a multiple
            found = [found[0], found[0] / self.scale[0], found[0] / self.scale[0] ** 2]
        twice, once, plain = found
        s = slice(0, self.sent)
        top = np.concatenate([twice[:, s, s], once[:, s]], axis=2)
        below = np.concatenate([once[:, :, s], plain], axis=2)
        return np.concatenate([top, below], axis=1)

    def _add_noise(self, new: np.ndarray, noise: np.ndarray, who: np.ndarray, chance: float) -> None:
        p, few = self.setting.problem.weights, np.flatnonzero(who)
        hubs = np.concatenate([1 + np.arange(self.n_u)[None], self.held[few, 0, 1 : 1 + self.n_u]])
        for k in few:
            moved = np.concatenate(
                [self.law.weight[k] * self.by_mean, p[k] * self.by_total, np.zeros((self.n_u, self.n_m))], axis=1
            )
            own = np.eye(self.n_m, moved.shape[1], 2 * self.sent)
            reach = np.concatenate([np.tile(moved, (len(hubs), 1)), own])
            at = np.concatenate([hubs.ravel(), self.held[k, 0, 1 + self.n_u :]])
            new[np.ix_(at, at)] += chance * (reach @ noise[k] @ reach.T)

    def reading(self, gauge: Gauge) -> np.ndarray:
        """(d, size): what is measured of a model less the target."""
        R = self.setting.reading
        whole = np.zeros((len(R), self.size))
        whole[:, 1 : 1 + self.n_u] = R[:, : self.n_u]
        for k in range(self.K):
            for age in range(self.ages):
                own = slice(self.n_u + k * self.n_m, self.n_u + (k + 1) * self.n_m)
                whole[:, self.held[k, age, 1 + self.n_u :]] = R[:, own]
        whole[:, 0] -= gauge.target
        return gauge.of_state(whole)


class LateAnswers(Outlook):
    """Of a hub that merges answers when they come, at exponential times; runs begin in the state `origin`."""

    how = "exact"

    def __init__(self, setting: Setting, timing: Arrivals, origin: np.ndarray, gauge: Gauge):
        law = timing.merge_law(setting.problem.weights, WAYS)
        assert not isinstance(law, str), law
        self.setting, self.gauge = setting, gauge
        self.merges = Merges(setting, law, origin)
        self.R = self.merges.reading(gauge)

    @cached_property
    def fixed(self) -> np.ndarray:
        """Where the mean settles, reached from the start."""
        M, x = self.merges.expected, self.merges.start
        return np.asarray(x + solve(lambda v: M @ v, M @ x - x, 1e-13, most=max(400, len(x)))[0])

    @property
    def limit(self) -> np.ndarray:
        n_u, held = self.merges.n_u, self.merges.held
        memories = self.fixed[held[:, :, 1 + n_u :]].sum(1)
        return self.setting.read(np.concatenate([self.fixed[1 : 1 + n_u], memories.ravel()]))

    @cached_property
    def mean_rate(self) -> float:
        """Factor per merge of the mean's deviation."""
        return rate_of(self.merges.expected.toarray()[1:, 1:])

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
        for _ in range(8):
            if not S.any():
                return self.mean_rate**2
            S = self._on(S / norm(S))
        space, last = Krylov(self._on, S), -1.0
        while True:
            space.extend(space.steps + 10, 1e-14)
            top = perron(space)
            if space.closed or abs(top - last) <= 1e-9 * top or space.steps >= min(space.most, 120):
                return max(float(top), self.mean_rate**2)
            last = top

    @cached_property
    def _settled(self) -> np.ndarray:
        """Second moments once settled."""
        outer = np.outer(self.fixed, self.fixed)
        source = self.merges.second(outer) - outer
        source[0], source[:, 0] = 0.0, 0.0
        return np.asarray(outer + solve(self._on, source, 1e-12, most=300)[0])

    @property
    def variance(self) -> float:
        if self.rate >= 1:
            return math.inf
        law = self.law(None)
        return 0.0 if law is None else float(law.weights.sum())

    def path(self, rounds: int) -> Path:
        near = self._near(min(rounds, LONG))
        if rounds > LONG:
            near = np.concatenate([near, self._far(rounds)])
        mean = (self.gauge(self.mean_path(rounds) - self.gauge.target) ** 2).sum(1)
        return Path(mean, np.maximum(near - mean, 0.0))

    def _near(self, rounds: int) -> np.ndarray:
        S, W, found = np.outer(self.merges.start, self.merges.start), self.R.T @ self.R, []
        for t in range(rounds + 1):
            found.append(float((W * S).sum()))
            S = self.merges.second(S) if t < rounds else S
        self._after = S
        return np.array(found)

    def _far(self, rounds: int) -> np.ndarray:
        W, S = self.R.T @ self.R, self._after
        rest = self._settled if self.rate < 1 else np.zeros_like(S)
        return (
            float((W * rest).sum())
            + decay(self._on if self.rate < 1 else self.merges.second, S - rest, W, rounds - LONG)[1:]
        )

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
            S, x = self._settled, self.fixed
        else:
            S, x = np.outer(self.merges.start, self.merges.start), self.merges.start
            for _ in range(round):
                S, x = self.merges.second(S), self.merges.expected @ x
        gap = self.R @ x
        return Law.of(gap, self.R @ S @ self.R.T - np.outer(gap, gap))
