"""Every outcome of a round, one by one, in plain NumPy: who takes part, which rows each local step meets.

Three agents with two rows each, batches of one row, unequal weights, two unknowns. On least squares every outcome is an
affine map of the state, so that with x = (1, state - point) a round is x+ = J x, and E[x+ x+'] = sum of chance J S J'.
Nothing here comes from the library except the problem object.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import fedpoint as fp

K, D = 3, 2
P = np.array([0.5, 0.2, 0.3])
Q = np.array([0.25, 0.35, 0.4])  # chances of importance sampling: far from P, so that weights differ
_rng = np.random.default_rng(5)
A = _rng.normal(size=(K, 2, D))
B = _rng.normal(size=(K, 2))


def problem(**options):
    return fp.problems.LeastSquares(list(A), list(B), weights=P, mean=True, **{"batch": 1, **options})


# Who takes part: (chance, v, s), s = 1 where an agent is heard; None is a round that is abandoned.


def everyone():
    return [(1.0, P, np.ones(K))]


def uniform(count):
    found = []
    for who in itertools.combinations(range(K), count):
        s = np.isin(np.arange(K), who).astype(float)
        found.append((1 / math.comb(K, count), P * K / count * s, s))
    return found


def replacement(count, q):
    """Each draw takes agent k with chance q_k, and counts p_k / (L q_k)."""
    found = []
    for who in itertools.product(range(K), repeat=count):
        times = np.bincount(who, minlength=K)
        found.append((float(np.prod(q[list(who)])), times * P / (count * q), (times > 0).astype(float)))
    return found


def answering(asked, chance, minimum=1, keep=K):
    """Of those asked each answers with that chance; the first `keep` are merged and stand for all who were asked."""
    found = []
    for probability, v, s in asked:
        who = np.flatnonzero(s)
        for answers in itertools.product((0, 1), repeat=len(who)):
            luck = probability * np.prod([chance if a else 1 - chance for a in answers])
            there = who[np.array(answers, bool)]
            if len(there) < minimum:
                found.append((luck, None, None))
                continue
            subsets = list(itertools.combinations(there, min(keep, len(there))))
            for kept in subsets:
                heard = np.isin(np.arange(K), kept).astype(float)
                found.append((luck / len(subsets), v * heard * len(who) / len(kept), heard))
    return found


WHO: dict[str, tuple[object, list]] = {
    "everyone": (fp.Everyone(), everyone()),
    "uniform": (fp.Uniform(2), uniform(2)),
    "plain": (fp.Uniform(2, plain=True), [(c, s / 2, s) for c, _, s in uniform(2)]),
    "by weight": (fp.ByWeight(2), replacement(2, P)),
    "importance": (fp.Importance(2, probabilities=Q), replacement(2, Q)),
    "answering": (fp.Answering(fp.Everyone(), probability=0.5), answering(everyone(), 0.5)),
    "keep": (
        fp.Answering(fp.Everyone(), probability=0.6, keep=2, minimum=2),
        answering(everyone(), 0.6, minimum=2, keep=2),
    ),
    "asked": (fp.Answering(fp.Uniform(2), probability=0.7), answering(uniform(2), 0.7)),
}


# What an agent meets: the batches of its local steps, each a list of (weight, row).


def one_row(k):
    """Batches of one row."""
    return [(0.5, [(1.0, j)]) for j in range(2)]


def two_rows(k):
    """Batches of two rows, drawn one after the other."""
    return [(0.25, [(0.5, i), (0.5, j)]) for i in range(2) for j in range(2)]


def by_norm(star):
    """Two rows drawn with chances proportional to their gradients' norms at w*, reweighted."""

    def draws(k):
        size = np.abs(A[k] @ star - B[k]) * np.linalg.norm(A[k], axis=1)
        q = size / size.sum()
        each = [1 / (2 * 2 * q[j]) for j in range(2)]  # 1 / (batch rows chance)
        return [(q[i] * q[j], [(each[i], i), (each[j], j)]) for i in range(2) for j in range(2)]

    return draws


def field(k, batch, y):
    return sum(weight * np.outer(A[k, j], A[k, j] @ y - B[k, j]) for weight, j in batch)


def sequences(draws, k, length):
    for each in itertools.product(draws(k), repeat=length):
        yield math.prod(chance for chance, _ in each), [batch for _, batch in each]


# Methods. Columns are states. local(k, steps, batches, u, m) -> message, new memory; combine(u, mean, total).


class Method(NamedTuple):
    local: Callable
    combine: Callable
    hub: int  # numbers at the hub
    memory: int = 0  # numbers at an agent
    extra: int = 0  # samples besides those of the local steps
    settle: Callable | None = None  # (new hub, memory) -> memory


def fedavg(step, pull=0.0):
    def local(k, steps, batches, w, m):
        y = w
        for batch in batches[:steps]:
            y = y - step * (field(k, batch, y) + pull * (y - w))
        return y - w, m

    return Method(local, lambda w, mean, total: w + mean, D)


def fednova(step, momentum, lengths):
    """x - tau_eff eta sum v_k d_k, d_k = sum_j a_kj g_j / |a_k|_1, a the response of a heavy ball, tau_eff given."""

    def local(k, steps, batches, w, m):
        y, buffer = w, 0.0
        for batch in batches[:steps]:
            buffer = momentum * buffer + field(k, batch, y)
            y = y - step * buffer
        a = sum((1 - momentum ** (steps - j)) / (1 - momentum) for j in range(steps))
        return (y - w) / a, m

    a = [sum((1 - momentum ** (n - j)) / (1 - momentum) for j in range(n)) for n in lengths]
    return Method(local, lambda w, mean, total: w + (P @ a) * mean, D)


def heard_fednova(step):
    """The same with tau_eff the mean length of those heard: messages end in (length, 1), so that a product of what is
    heard is merged."""

    def local(k, steps, batches, w, m):
        y = w
        for batch in batches[:steps]:
            y = y - step * field(k, batch, y)
        behind = np.outer([steps, 1.0], np.ones(w.shape[1]))
        return np.concatenate([(y - w) / steps, behind]), m

    return Method(local, lambda w, mean, total: w + mean[D] / mean[D + 1] * mean[:D], D)


def fedavgm(step, server, momentum):
    """u = (w, buffer): buffer <- rho buffer - change, w <- w - server buffer."""
    averaged = fedavg(step)

    def combine(u, mean, total):
        buffer = momentum * u[D:] - mean
        return np.concatenate([u[:D] - server * buffer, buffer])

    return Method(lambda k, E, batches, u, m: averaged.local(k, E, batches, u[:D], m), combine, 2 * D)


def scaffold(step, server, option):
    """u = (x, c), m = c_k; messages are the changes of both."""

    def local(k, steps, batches, u, c_k):
        x, c = u[:D], u[D:]
        y = x
        for batch in batches[:steps]:
            y = y - step * (field(k, batch, y) - c_k + c)
        new = field(k, batches[steps], x) if option == 1 else c_k - c + (x - y) / (steps * step)
        return np.concatenate([y - x, new - c_k]), new

    def combine(u, mean, total):
        return np.concatenate([u[:D] + server * mean[:D], u[D:] + total[D:]])

    return Method(local, combine, 2 * D, D, int(option == 1))


def scaffnew(step, probability):
    """u = x, m = h_k, completed by the merged model."""

    def local(k, steps, batches, w, h):
        y = w
        for batch in batches[:steps]:
            y = y - step * (field(k, batch, y) - h)
        return y - w, (h, y)

    def settle(w, memory):
        h, y = memory
        return h + probability / step * (w - y)

    return Method(local, lambda w, mean, total: w + mean, D, D, settle=settle)


def side_by_side(one, two):
    """Both on the same rows, one after the other in hub, memories and messages."""
    parts = ((one, slice(one.hub), slice(one.memory)), (two, slice(one.hub, None), slice(one.memory, None)))

    def local(k, steps, batches, u, m):
        answers = [part.local(k, steps, batches, u[hub], m[memory]) for part, hub, memory in parts]
        sent = np.concatenate([message for message, _ in answers])
        kept = [memory for _, memory in answers]
        return sent, kept if one.settle else np.concatenate(kept)

    def combine(u, mean, total):
        half = len(mean) // 2
        cuts = (slice(half), slice(half, None))
        return np.concatenate(
            [part.combine(u[hub], mean[cut], total[cut]) for (part, hub, _), cut in zip(parts, cuts, strict=True)]
        )

    def settle(u, memories):
        kept = zip(parts, memories, strict=True)
        return np.concatenate([part.settle(u[hub], memory) for (part, hub, _), memory in kept])

    hub, memory = one.hub + two.hub, one.memory + two.memory
    return Method(local, combine, hub, memory, one.extra, settle if one.settle else None)


def moved(method, who, counts, S, point, draws=one_row):
    """E[J S J'] by enumeration. counts: for every agent a list of (chance, local steps)."""
    n = len(point)
    columns = np.concatenate([point[:, None], point[:, None] + np.eye(n)], axis=1)
    u, m = columns[: method.hub], columns[method.hub :].reshape(K, method.memory, n + 1)
    answers = [
        [
            (late * chance, method.local(k, steps, batches, u, m[k]))
            for late, steps in counts[k]
            for chance, batches in sequences(draws, k, steps + method.extra)
        ]
        for k in range(K)
    ]
    total = np.zeros_like(S)
    weights = 0.0
    for chance, v, s in who:
        if v is None:
            total, weights = total + chance * S, weights + chance
            continue
        heard = np.flatnonzero(s)
        for outcome in itertools.product(*(answers[k] for k in heard)):
            luck = chance * math.prod(one[0] for one in outcome)
            sent = [one[1][0] for one in outcome]
            mean = sum(v[k] * a for k, a in zip(heard, sent, strict=True))
            all_ = sum(P[k] * a for k, a in zip(heard, sent, strict=True))
            hub = method.combine(u, mean, all_)
            new = m.copy()
            for k, one in zip(heard, outcome, strict=True):
                new[k] = one[1][1] if method.settle is None else method.settle(hub, one[1][1])
            image = np.concatenate([hub, new.reshape(-1, n + 1)])
            J = np.zeros((n + 1, n + 1))
            J[0, 0], J[1:, 0] = 1.0, image[:, 0] - point
            J[1:, 1:] = image[:, 1:] - image[:, :1]
            total, weights = total + luck * (J @ S @ J.T), weights + luck
    assert abs(weights - 1) < 1e-12
    return total
