"""The star methods again, as plain NumPy loops written from the formulas: what the library is held against.

Nothing here comes from the library except the problem objects that are handed to it, and the draws of who takes
part (`drawn`), which are data to both sides.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

import fedpoint as fp
from fedpoint.engine.state import SCHEDULE


class Bowls(NamedTuple):
    """Agents with F_k(x) = 1/2 (x - c_k)'H_k(x - c_k) and weights p_k: everything unequal."""

    H: np.ndarray
    c: np.ndarray
    p: np.ndarray

    def g(self, k, x):
        return self.H[k] @ (x - self.c[k])

    def loss(self, k, x):
        return 0.5 * (x - self.c[k]) @ self.H[k] @ (x - self.c[k])

    def mean_field(self, x):
        return sum(p * self.g(k, x) for k, p in enumerate(self.p))

    def star(self):
        H = np.tensordot(self.p, self.H, 1)
        return np.linalg.solve(H, sum(p * A @ c for p, A, c in zip(self.p, self.H, self.c, strict=True)))

    def problem(self, noise=0.0):
        return fp.problems.Quadratic(self.H, self.c, noise=noise, weights=self.p)


def bowls(seed=0, K=5, d=3, low=0.5, high=2.0, equal_weights=False):
    """Random Hessians with eigenvalues in [low, high] and axes of their own, random centers and weights."""
    rng = np.random.default_rng(seed)
    axes = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(K)]
    H = np.stack([q @ np.diag(rng.uniform(low, high, d)) @ q.T for q in axes])
    H = (H + np.swapaxes(H, 1, 2)) / 2
    p = np.ones(K) if equal_weights else rng.uniform(0.5, 2.0, K)
    return Bowls(H, rng.standard_normal((K, d)), p / p.sum())


class Tick(NamedTuple):
    """One round: weights v_k for changes, and who answered."""

    v: np.ndarray
    heard: np.ndarray


def everyone(p, rounds):
    return [Tick(p, np.ones(len(p), bool))] * rounds


@jax.jit
def _keys(key, rounds):
    return jax.vmap(key.fold)(rounds)


@jax.jit
def _ticks(scheme, p, keys, rounds):
    def one(key, round):
        tick = scheme.completed(key, p, round)
        agents = np.arange(len(p)) if tick.agents is None else tick.agents
        zero = jax.numpy.zeros(len(p))
        return (
            zero.at[agents].add(tick.weight),
            zero.at[agents].add(tick.share),
            tick.merge,
            tick.asked,
            zero.at[agents].add(tick.heard),
        )

    return jax.vmap(one)(keys, rounds)


def ticks_of(scheme, p, rounds, seed=0, repeat=0):
    """The rounds of `fp.run(..., participation=scheme, seed=seed)` as dense arrays.

    v and p over those heard (rounds, K), merge and asked (rounds,), answers of each agent (rounds, K).
    """
    with jax.enable_x64(True):
        at = jax.numpy.arange(rounds)
        keys = _keys(fp.Key.of(seed, repeat, SCHEDULE), at)
        found = _ticks(jax.device_put(scheme), jax.numpy.asarray(p), keys, at)
        return tuple(np.asarray(a) for a in found)


def drawn(scheme, p, rounds, seed=0):
    """Who takes part in the rounds of `fp.run(..., participation=scheme, seed=seed)`, repeat 0."""
    v, share, merge, _, _ = ticks_of(scheme, p, rounds, seed)
    return [
        Tick(a, s > 0) if m else Tick(0 * a, np.zeros(len(p), bool)) for a, s, m in zip(v, share, merge, strict=True)
    ]


def local(b, k, x, steps, rate, pull=0.0, momentum=0.0, shift=0.0):
    """`steps` times m <- momentum m + g_k(y) + shift + pull (y - x), y <- y - rate(e) m, from y = x and m = 0.

    Returns where it ends and the gradients g_k(y) that it met.
    """
    y, m, met = x, np.zeros_like(x), []
    for e in range(steps):
        met.append(b.g(k, y))
        m = momentum * m + met[-1] + shift + pull * (y - x)
        y = y - (rate(e) if callable(rate) else rate) * m
    return y, met


def average(ticks, x, end):
    """x <- x + sum_k v_k (end(k, x, round) - x): every model from the start on."""
    path = [x]
    for r, (v, heard) in enumerate(ticks):
        x = x + sum((v[k] * (end(k, x, r) - x) for k in np.flatnonzero(heard)), np.zeros_like(x))
        path.append(x)
    return np.array(path)


def beside(b, ticks, x, work, read=lambda x, v: v):
    """Agents' models (rounds + 1, K, d): work(k, x, v) is an agent's end, whose change is sent, and its own v."""
    own = [x] * len(b.p)
    path = [np.array(own)]
    for v, heard in ticks:
        move = np.zeros_like(x)
        for k in np.flatnonzero(heard):
            end, own[k] = work(k, x, own[k])
            move += v[k] * (end - x)
        x = x + move
        path.append(np.array([read(x, one) for one in own]))
    return np.array(path)


def descent(b, x, rounds, step):
    """Gradient descent on sum_k p_k F_k."""
    path = [x]
    for r in range(rounds):
        x = x - (step(r) if callable(step) else step) * b.mean_field(x)
        path.append(x)
    return np.array(path)


def fedavg(b, ticks, x, steps, rate, **solver):
    """Local steps, then the mean; rate(k, t) of an agent at its gradient step t = round E_k + e."""

    def end(k, x, r):
        return local(b, k, x, steps[k], lambda e: rate(k, r * steps[k] + e), **solver)[0]

    return average(ticks, x, end)


def impulse_response(steps, eta, momentum=0.0, pull=0.0, decay=1.0):
    """a_j: how far the local solver has moved in the end, in units of -eta, for one unit gradient met at step j.

    The solver is linear in the gradients it meets, so a is its response to impulses, whatever is combined in it.
    """
    a = np.zeros(steps)
    for j in range(steps):
        y = m = 0.0
        for e in range(steps):
            m = momentum * m + (e == j) + pull * y
            y = y - eta * decay**e * m
        a[j] = -y / eta
    return a


def general_rule(b, ticks, x, eta, a, weights, effective, path_of):
    """x <- x - tau_eff eta sum_k (v_k/p_k) w_k d_k, d_k = sum_j a_kj g_k(x_kj) / |a_k|_1; tau_eff a function of v."""
    path = [x]
    for v, heard in ticks:
        step = np.zeros_like(x)
        for k in np.flatnonzero(heard):
            met = path_of(k, x)
            d = sum(a_j * g for a_j, g in zip(a[k], met, strict=True)) / a[k].sum()
            step += v[k] / b.p[k] * weights[k] * d
        x = x - effective(v) * eta * step
        path.append(x)
    return np.array(path)


def mean_length(a):
    """tau_eff = sum_j p_j |a_j|_1 when everyone answers, else the mean over those who do."""
    lengths = np.array([one.sum() for one in a])
    return lambda v: v @ lengths / v.sum()


def scaffold(b, ticks, x, steps, eta, server=1.0, option=2):
    """Models, and at the end the agents' c_k and the hub's c."""
    K = len(b.p)
    c_k, c, path = np.zeros((K, len(x))), np.zeros(len(x)), [x]
    for v, heard in ticks:
        move, change, new = np.zeros_like(x), np.zeros_like(x), c_k.copy()
        for k in np.flatnonzero(heard):
            y, _ = local(b, k, x, steps[k], eta, shift=c - c_k[k])
            new[k] = b.g(k, x) if option == 1 else c_k[k] - c + (x - y) / (steps[k] * eta)
            move += v[k] * (y - x)
            change += b.p[k] * (new[k] - c_k[k])
        x, c, c_k = x + server * move, c + change, new
        path.append(x)
    return np.array(path), c_k, c


def scaffnew(b, x, lengths, gamma, probability):
    """By rounds of the given numbers of local steps: models, and the h_k after every round."""
    h = np.zeros((len(b.p), len(x)))
    path, hs = [x], [h]
    for steps in lengths:
        ends = np.array([local(b, k, x, steps, gamma, shift=-h[k])[0] for k in range(len(b.p))])
        x = b.p @ ends
        h = h + probability / gamma * (x - ends)
        path.append(x)
        hs.append(h)
    return np.array(path), np.array(hs)


def feddyn(b, ticks, x, steps, eta, a, exact=False):
    """Models, and at the end the agents' h_k and the hub's h. Exactly: (H_k + a) y = H_k c_k + a x + h_k."""
    h_k, h, path, one = np.zeros((len(b.p), len(x))), np.zeros(len(x)), [x], np.eye(len(x))
    for v, heard in ticks:
        move, total, new = np.zeros_like(x), np.zeros_like(x), h_k.copy()
        for k in np.flatnonzero(heard):
            if exact:
                y = np.linalg.solve(b.H[k] + a * one, b.H[k] @ b.c[k] + a * x + h_k[k])
            else:
                y, _ = local(b, k, x, steps[k], eta, pull=a, shift=-h_k[k])
            new[k] = h_k[k] - a * (y - x)
            move += v[k] * (y - x)
            total += b.p[k] * (y - x)
        h, h_k = h - a * total, new
        x = x + move - h / a
        path.append(x)
    return np.array(path), h_k, h


def fedexp(b, ticks, x, steps, eta, epsilon):
    path = [x]
    for v, heard in ticks:
        change = {k: local(b, k, x, steps[k], eta)[0] - x for k in np.flatnonzero(heard)}
        mean = sum(v[k] * d for k, d in change.items())
        squares = sum(v[k] * (d @ d) for k, d in change.items())
        x = x + max(1.0, squares / (2 * (mean @ mean + epsilon))) * mean
        path.append(x)
    return np.array(path)


def mime(b, ticks, x, steps, eta, beta):
    """beta = 0 is FedLin. Agents' own momentum buffers stay as the hub's was."""
    m, path = np.zeros_like(x), [x]
    for v, heard in ticks:
        who = np.flatnonzero(heard)
        c = sum(v[k] * b.g(k, x) for k in who)
        move = np.zeros_like(x)
        for k in who:
            y = x
            for _ in range(steps[k]):
                y = y - eta * ((1 - beta) * (b.g(k, y) - b.g(k, x) + c) + beta * m)
            move += v[k] * (y - x)
        x, m = x + move, (1 - beta) * c + beta * m
        path.append(x)
    return np.array(path)


def qfedavg(b, ticks, x, q, eta, steps):
    """x <- x - sum v_k F_k^q D_k / h, h the mean over those heard of q F_k^(q-1) |D_k|^2 + F_k^q / eta."""
    path = [x]
    for v, heard in ticks:
        who = np.flatnonzero(heard)
        F = {k: b.loss(k, x) for k in who}
        D = {k: (x - local(b, k, x, steps[k], eta)[0]) / eta for k in who}
        h = {k: q * F[k] ** (q - 1) * (D[k] @ D[k]) + F[k] ** q / eta for k in who}
        mean_h = sum(v[k] * h[k] for k in who) / v.sum()
        x = x - sum(v[k] * F[k] ** q * D[k] for k in who) / mean_h
        path.append(x)
    return np.array(path)


def server_optimiser(b, ticks, x, eta, steps, server):
    """x <- x + server(-mean change), `server` a function of the gradient that keeps its own state."""
    path = [x]
    for v, heard in ticks:
        gradient = sum(v[k] * (x - local(b, k, x, steps[k], eta)[0]) for k in np.flatnonzero(heard))
        x = x + server(gradient)
        path.append(x)
    return np.array(path)


class Turn(NamedTuple):
    """One tick of a network: who works, and how many ticks old is what i hears of j."""

    who: tuple[int, ...]
    age: np.ndarray  # (K, K)


def network(turns, x, update):
    """x_i <- update(i, k, x_i, heard) for those who work in tick k; every version is kept. Their own is never stale."""
    versions = [x]
    for k, (who, age) in enumerate(turns):
        new = versions[-1].copy()
        for i in who:
            heard = np.array([versions[k - age[i, j]][j] for j in range(len(x))])
            new[i] = update(i, k, versions[-1][i], heard)
        versions.append(new)
    return np.array(versions)


def z_scores(samples, expected):
    """(mean - expected) / standard error of the mean, over the leading axis; 0 where nothing varies and it agrees."""
    samples = np.asarray(samples, dtype=float)
    gap = samples.mean(0) - expected
    error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    exact = error < 1e-15 * (1 + np.abs(expected))
    if np.any(exact & (np.abs(gap) > 1e-12)):
        return np.full(np.shape(gap), np.inf)
    return np.where(exact, 0.0, gap / np.where(exact, 1.0, error))


def newton(start, rounds, derivatives, loss, halvings):
    """Damped: (models asked about), of gradients and Hessians at a model, and losses, summed over agents."""
    w, trial, path = start, start, [start]
    for _ in range(rounds):
        points = [w + s * (trial - w) for s in 0.5 ** np.arange(halvings + 1)]
        fallen = [loss(w) - loss(v) for v in points]
        if fallen[0] >= 0.25 * max(fallen) - 1e-15 * abs(loss(w)):
            g, H = derivatives(trial)
            w, trial = trial, trial - np.linalg.solve(H, g)
        else:
            trial = points[1 + int(np.argmax(fallen[1:]))]
        path.append(trial)
    return np.array(path)
