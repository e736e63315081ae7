"""Laws of the algorithms: what holds of the library's class, and what every broken variant must violate.

A law takes a class and raises AssertionError. Fields are exact unless the law is about samples; weights p, Hessians
and local steps are unequal, and "few" lets two of five agents take part, so that mean, total and a plain mean over
those heard all differ. The reference is a NumPy loop (`plain.py`); who takes part is data to both sides.

Tolerance: 12 rounds of fewer than 100 operations on numbers of order 1 in a stable recursion leave at most about
1e3 roundings of 1e-16; 1e-12 is ten times that. What the mutants change is of order 1e-3 or more.
"""

from __future__ import annotations

import functools

import numpy as np
import plain

import fedpoint as fp

WORLD = plain.bowls(seed=3)  # shapes and steps as in the other files: compiled once
START = np.array([1.5, -2.0, 1.0])
STEPS = (2, 3, 4, 3, 3)
ROUNDS = 12
TOLERANCE = 1e-12
ALL, FEW = None, fp.Uniform(2)


@functools.cache
def ticks(participation):
    """Everyone, or the draws of two of five."""
    if participation == "all":
        return plain.everyone(WORLD.p, ROUNDS)
    return plain.drawn(FEW, WORLD.p, ROUNDS, seed=5)


def follows(algorithm, who, reference):
    """The run's models are those of reference(ticks), from the start on. Returns the run."""
    expected = reference(ticks(who))
    run = fp.run(
        algorithm,
        WORLD.problem(),
        rounds=ROUNDS,
        start=START,
        participation=ALL if who == "all" else FEW,
        seed=5,
    )
    np.testing.assert_allclose(run.history[0], expected, rtol=0, atol=TOLERANCE)
    return run


def fresh(algorithm, steps, rounds=4000):
    """The local steps of a round use independent samples: E steps of pure unit noise have variance E, not E^2.

    H = 0, so a field is its noise alone and rounds add independent increments. The estimate of a variance from n
    normals has standard error sqrt(2/n) of it, n = 2 rounds (two coordinates); 5 of them are far from the factor E.
    """
    noise = fp.problems.Quadratic(0.0, [[0.0, 0.0]], noise=1.0)
    moved = np.diff(fp.run(algorithm, noise, rounds=rounds, seed=2).history[0], axis=0)
    expected = steps * algorithm.step**2
    z = ((moved**2).mean() / expected - 1) / np.sqrt(2 / moved.size)
    assert abs(z) < 5, f"variance {(moved**2).mean():.4g}, expected {expected:.4g}, z = {z:.1f}"


# Lecture 000 (11)-(14), (31)-(34): x <- x - mu sum v_k g_k(x), by gradients or by parameters.


def exchange(make, who):
    follows(make(step=0.3), who, lambda t: plain.average(t, START, lambda k, x, r: x - 0.3 * WORLD.g(k, x)))


def exchange_schedule(make):
    follows(
        make(step=fp.InverseTime(1.0, 3.0)),
        "all",
        lambda t: plain.average(t, START, lambda k, x, r: x - WORLD.g(k, x) / (3.0 + r)),
    )


# Lecture 000 (57)-(59), (72), lecture 004: mu_k = s_t / E_k with t = round E_k + e.


def fedavg(make, who):
    follows(
        make(step=0.2, local_steps=STEPS, normalise=False),
        who,
        lambda t: plain.fedavg(WORLD, t, START, STEPS, lambda k, t: 0.2),
    )


def fedavg_schedule(make):
    follows(
        make(step=fp.InverseTime(3.0, 8.0), local_steps=STEPS),
        "all",
        lambda t: plain.fedavg(WORLD, t, START, STEPS, lambda k, t: 3.0 / (8.0 + t) / STEPS[k]),
    )


# Lecture 003: steps on F_k(y) + (pull/2)|y - x|^2, or its minimiser (H + pull)^-1 (H c + pull x).


def fedprox(make, who):
    follows(
        make(step=0.2, local_steps=STEPS, pull=0.7),
        who,
        lambda t: plain.fedavg(WORLD, t, START, STEPS, lambda k, t: 0.2, pull=0.7),
    )


def fedprox_exact(make):
    def minimiser(k, x, r):
        return np.linalg.solve(WORLD.H[k] + 0.7 * np.eye(3), WORLD.H[k] @ WORLD.c[k] + 0.7 * x)

    follows(make(pull=0.7, exact=True), "all", lambda t: plain.average(t, START, minimiser))


# Lecture 002: x <- x - tau_eff eta sum w_k d_k, with a the local solver's impulse response, or given.

ETA = 0.1
SOLVERS = (
    {},
    {"momentum": 0.6},
    {"pull": 0.8},
    {"decay": 0.7},
    {"momentum": 0.6, "pull": 0.8, "decay": 0.7},
)


def solver_a(momentum=0.0, pull=0.0, decay=1.0):
    return [plain.impulse_response(n, ETA, momentum, pull, decay) for n in STEPS]


def rule(t, weights, effective, a, momentum=0.0, pull=0.0, decay=1.0):
    def met(k, x):
        return plain.local(WORLD, k, x, STEPS[k], lambda e: ETA * decay**e, pull, momentum)[1]

    return plain.general_rule(WORLD, t, START, ETA, a, weights, effective, met)


def fednova(make, who):
    """w = p, tau_eff = sum p_j |a_j|_1, as a mean over those heard."""
    for solver in SOLVERS:
        a = solver_a(**solver)
        follows(
            make(step=ETA, local_steps=STEPS, **solver),
            who,
            lambda t, a=a, solver=solver: rule(t, WORLD.p, plain.mean_length(a), a, **solver),
        )


def fednova_effective(make):
    a = solver_a()
    follows(
        make(step=ETA, local_steps=STEPS, effective=2.0),
        "few",
        lambda t: rule(t, WORLD.p, lambda v: 2.0, a),
    )


def general_fedavg(make, who):
    """w_k = p_k |a_k|_1 / sum_j p_j |a_j|_1 and tau_eff = sum_j p_j |a_j|_1: FedAvg's, for every local solver."""
    for solver in SOLVERS:
        a = solver_a(**solver)
        lengths = np.array([one.sum() for one in a])
        mean = WORLD.p @ lengths
        follows(
            make(step=ETA, local_steps=STEPS, **solver),
            who,
            lambda t, a=a, w=WORLD.p * lengths / mean, m=mean, s=solver: rule(t, w, lambda v: m, a, **s),
        )


def general_fednova(make):
    a = solver_a(momentum=0.6)
    follows(
        make(step=ETA, local_steps=STEPS, weights="fednova", momentum=0.6),
        "few",
        lambda t: rule(t, WORLD.p, plain.mean_length(a), a, momentum=0.6),
    )


def general_given(make):
    """Any tau_eff, w (here not adding up to p) and a."""
    a, w = np.array([1.0, 0.5, 2.0, 0.3]), np.array([0.4, 0.3, 0.2, 0.1, 0.1])
    follows(
        make(step=ETA, local_steps=STEPS, weights=w, effective=1.7, coefficients=a),
        "few",
        lambda t: rule(t, w, lambda v: 1.7, [a[:n] for n in STEPS]),
    )


# SCAFFOLD (Karimireddy et al.) with weights: x takes v, c takes p over those heard, the others keep their c_k.


def scaffold(make, who, option):
    path, c_k, c = plain.scaffold(WORLD, ticks(who), START, STEPS, 0.1, server=0.8, option=option)
    run = follows(make(step=0.1, local_steps=STEPS, server_step=0.8, option=option), who, lambda t: path)
    np.testing.assert_allclose(run.memories[0], c_k, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(run.session.state.hub.c[0], c, rtol=0, atol=TOLERANCE)


# Scaffnew (Mishchenko et al.) by rounds; H is the run's own, the same for all agents.


def lengths_of(run):
    """(repeats, rounds): H of every round, from the field evaluations, of which each agent makes H."""
    counts = np.diff(run.used[:, :, 2], axis=1)
    assert (counts % run.problem.agents == 0).all(), "agents took different numbers of local steps"
    return counts // run.problem.agents


def scaffnew_random(make):
    run = fp.run(make(step=0.3, probability=0.4), WORLD.problem(), rounds=ROUNDS, start=START, seed=5)
    path, h = plain.scaffnew(WORLD, START, lengths_of(run)[0], 0.3, 0.4)
    np.testing.assert_allclose(run.history[0], path, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(run.memories.h[0], h[-1], rtol=0, atol=TOLERANCE)


def scaffnew_fixed(make):
    run = fp.run(make(step=0.3, local_steps=3), WORLD.problem(), rounds=ROUNDS, start=START)
    path, h = plain.scaffnew(WORLD, START, [3] * ROUNDS, 0.3, 1 / 3)
    np.testing.assert_allclose(run.history[0], path, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(run.memories.h[0], h[-1], rtol=0, atol=TOLERANCE)


def scaffnew_lengths(make, p=0.4, rounds=40, repeats=100):
    """H ~ Geometric(p) on 1, 2, ...: mean 1/p and variance (1-p)/p^2, cell by cell, independent in time and repeats.

    n = 4000 draws: the mean's standard error is sqrt((1-p)/p^2/n); the frequency of h has sqrt(q(1-q)/n) with
    q = p(1-p)^(h-1); a correlation of neighbours has 1/sqrt(n). All within 4.5 of them. Returns the run.
    """
    run = fp.run(make(step=0.3, probability=p), WORLD.problem(), rounds=rounds, repeats=repeats, seed=11)
    H = lengths_of(run)
    n = H.size
    scores = [(H.mean() - 1 / p) / np.sqrt((1 - p) / p**2 / n)]
    for h in range(1, 8):
        q = p * (1 - p) ** (h - 1)
        scores.append(((h == H).mean() - q) / np.sqrt(q * (1 - q) / n))
    scores.append(np.corrcoef(H[:, 1:].ravel(), H[:, :-1].ravel())[0, 1] * np.sqrt(n))
    scores.append(np.corrcoef(H[1:].ravel(), H[:-1].ravel())[0, 1] * np.sqrt(n))
    assert np.abs(scores).max() < 4.5 and H.min() == 1, scores
    return run


# q-FedAvg (Li et al.): F_k at the received model; the curvature is a mean over those heard.


def qfedavg(make, who):
    for q in (0.5, 2.0):
        follows(
            make(q=q, step=0.1, local_steps=STEPS),
            who,
            lambda t, q=q: plain.qfedavg(WORLD, t, START, q, 0.1, STEPS),
        )


# Server optimisers (Reddi et al., Hsu et al.): minus the mean change is the server's gradient.


class Momentum:
    """m <- rho m + g; -rate m."""

    def __init__(self, rate, rho):
        self.rate, self.rho, self.m = rate, rho, 0.0

    def __call__(self, g):
        self.m = self.rho * self.m + g
        return -self.rate * self.m


class Adaptive:
    """m <- b1 m + (1-b1) g; v by the rule; -rate m^ / (sqrt(v^) + tau), ^ the bias correction where there is one."""

    def __init__(self, rule, rate, b1, b2, tau, start=(0.0, 0.0), corrected=True):
        self.rule, self.rate, self.b1, self.b2, self.tau = rule, rate, b1, b2, tau
        self.m, self.v, self.t, self.corrected = *start, 0, corrected

    def __call__(self, g):
        self.t += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.rule(self.v, g * g, self.b2)
        m, v = self.m, self.v
        if self.corrected:
            m, v = m / (1 - self.b1**self.t), v / (1 - self.b2**self.t)
        return -self.rate * m / (np.sqrt(v) + self.tau)


def by_hand(server, rate, b1, b2, tau):
    """Yogi starts both moments at 1e-6 (optax's choice, the paper leaves them open); Adagrad at tau^2, no momentum."""
    if server == "sgd":
        return lambda g: -rate * g
    if server == "momentum":
        return Momentum(rate, b1)
    if server == "adam":
        return Adaptive(lambda v, s, b: b * v + (1 - b) * s, rate, b1, b2, tau)
    if server == "yogi":
        return Adaptive(lambda v, s, b: v - (1 - b) * s * np.sign(v - s), rate, b1, b2, tau, start=(1e-6, 1e-6))
    return Adaptive(lambda v, s, b: v + s, rate, 0.0, 0.0, tau, start=(0.0, tau**2), corrected=False)


def fedopt(make, server, who="all"):
    algorithm = make(
        step=0.1, local_steps=STEPS, server=server, server_step=0.2, momentum=0.8, second=0.95, adaptivity=0.05
    )
    hand = by_hand(server, 0.2, 0.8, 0.95, 0.05)
    follows(algorithm, who, lambda t: plain.server_optimiser(WORLD, t, START, 0.1, STEPS, hand))


LAWS = {
    "gradient_exchange": {
        "all": lambda make: exchange(make, "all"),
        "few": lambda make: exchange(make, "few"),
        "schedule": exchange_schedule,
    },
    "parameter_exchange": {
        "all": lambda make: exchange(make, "all"),
        "few": lambda make: exchange(make, "few"),
        "schedule": exchange_schedule,
    },
    "fedavg": {
        "all": lambda make: fedavg(make, "all"),
        "few": lambda make: fedavg(make, "few"),
        "schedule": fedavg_schedule,
        "fresh": lambda make: fresh(make(step=0.5, local_steps=4, normalise=False), 4),
    },
    "fedprox": {
        "all": lambda make: fedprox(make, "all"),
        "few": lambda make: fedprox(make, "few"),
        "exact": fedprox_exact,
        "fresh": lambda make: fresh(make(step=0.5, local_steps=4, pull=0.0), 4),
    },
    "fednova": {
        "all": lambda make: fednova(make, "all"),
        "few": lambda make: fednova(make, "few"),
        "effective": fednova_effective,
        "fresh": lambda make: fresh(make(step=0.5, local_steps=4), 4),
    },
    "general_rule": {
        "all": lambda make: general_fedavg(make, "all"),
        "few": lambda make: general_fedavg(make, "few"),
        "fednova": general_fednova,
        "given": general_given,
        "fresh": lambda make: fresh(make(step=0.5, local_steps=4), 4),
    },
    "scaffold": {
        "all": lambda make: scaffold(make, "all", 2),
        "few": lambda make: scaffold(make, "few", 2),
        "option 1": lambda make: scaffold(make, "few", 1),
        "fresh": lambda make: fresh(make(step=0.5, local_steps=4), 4),
    },
    "scaffnew": {
        "random": scaffnew_random,
        "fixed": scaffnew_fixed,
        "lengths": scaffnew_lengths,
        "fresh": lambda make: fresh(make(step=0.5, local_steps=4), 4),
    },
    "qfedavg": {
        "all": lambda make: qfedavg(make, "all"),
        "few": lambda make: qfedavg(make, "few"),
        "fresh": lambda make: fresh(make(q=0.0, step=0.5, local_steps=4), 4),
    },
    "fedopt": {
        "sgd, few": lambda make: fedopt(make, "sgd", "few"),
        "momentum": lambda make: fedopt(make, "momentum"),
        "adam": lambda make: fedopt(make, "adam"),
        "yogi": lambda make: fedopt(make, "yogi"),
        "adagrad": lambda make: fedopt(make, "adagrad"),
        "fresh": lambda make: fresh(make(step=0.5, local_steps=4), 4),
    },
}
