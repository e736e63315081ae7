"""Laws of the algorithms: what holds of the library's class, and what every broken variant must violate.

A law takes a class and a way to run it (`executions.py`), and raises AssertionError. Fields are exact unless the law is
about samples; weights p, Hessians and local steps are unequal, and "few" and "drawn" let two of five agents take part,
so that mean, total and a plain mean over those heard all differ. The reference is a NumPy loop (`plain.py`). The
library's own classes go both ways; the broken ones by hand.

Tolerance: 12 rounds of fewer than 100 operations on numbers of order 1 in a stable recursion leave at most about
1e3 roundings of 1e-16; 1e-12 is ten times that. What the mutants change is of order 1e-3 or more.
"""

from __future__ import annotations

import numpy as np
import plain
from consensus_laws import CONSENSUS
from executions import NODES, ROUNDS, START, TOLERANCE, WORLD, A, by_hand, ticks, turns

import fedpoint as fp


def follows(result, expected):
    np.testing.assert_allclose(result.history, expected, rtol=0, atol=TOLERANCE)


def fresh(make, run, **options):
    """The local steps of a round use independent samples.

    By hand: no agent asks twice for the same one. In the engine: E steps of pure unit noise (H = 0, so a field is its
    noise alone and rounds add independent increments) have variance E, not E^2. The estimate of a variance from n
    normals has standard error sqrt(2/n) of it, n = 2 * 4000 here; 5 of them are far from the factor E = 4.
    """
    if run is by_hand:
        asked = run(make(step=0.1, local_steps=2, **options)).asked
        assert all(len(set(one)) == len(one) >= 2 for one in asked)
        return
    noise = fp.problems.Quadratic(0.0, [[0.0, 0.0]], noise=1.0)
    algorithm = make(step=0.5, local_steps=4, **options)
    moved = np.diff(fp.run(algorithm, noise, rounds=4000, seed=2).history[0], axis=0)
    expected = 4 * 0.5**2
    z = ((moved**2).mean() / expected - 1) / np.sqrt(2 / moved.size)
    assert abs(z) < 5, f"variance {(moved**2).mean():.4g}, expected {expected:.4g}, z = {z:.1f}"


# Lecture 000 (11)-(14), (31)-(34): x <- x - mu sum v_k g_k(x), by gradients or by parameters.


def exchange(make, run, who):
    expected = plain.average(ticks(who), START, lambda k, x, r: x - 0.3 * WORLD.g(k, x))
    follows(run(make(step=0.3), who), expected)


def exchange_schedule(make, run):
    expected = plain.average(ticks("all"), START, lambda k, x, r: x - WORLD.g(k, x) / (3.0 + r))
    follows(run(make(step=fp.steps.InverseTime(1.0, 3.0))), expected)


# Lecture 000 (57)-(59), (72), lecture 004: mu_k = s_t / E_k with t = round E_k + e.


def fedavg(make, run, who):
    expected = plain.fedavg(WORLD, ticks(who), START, run.steps, lambda k, t: 0.2)
    follows(run(make(step=0.2, local_steps=run.steps, normalise=False), who), expected)


def fedavg_schedule(make, run):
    expected = plain.fedavg(WORLD, ticks("all"), START, run.steps, lambda k, t: 3.0 / (8.0 + t) / run.steps[k])
    follows(run(make(step=fp.steps.InverseTime(3.0, 8.0), local_steps=run.steps, normalise=True)), expected)


# Lecture 003: steps on F_k(y) + (pull/2)|y - x|^2, or its minimiser (H + pull)^-1 (H c + pull x).


def fedprox(make, run, who):
    expected = plain.fedavg(WORLD, ticks(who), START, run.steps, lambda k, t: 0.2, pull=0.7)
    follows(run(make(step=0.2, local_steps=run.steps, pull=0.7), who), expected)


def fedprox_exact(make, run):
    def minimiser(k, x, r):
        return np.linalg.solve(WORLD.H[k] + 0.7 * np.eye(3), WORLD.H[k] @ WORLD.c[k] + 0.7 * x)

    follows(run(make(pull=0.7, exact=True)), plain.average(ticks("all"), START, minimiser))


# Lecture 002: x <- x - tau_eff eta sum w_k d_k, with a the local solver's impulse response, or given.

ETA = 0.1
SOLVERS = (
    {},
    {"momentum": 0.6},
    {"pull": 0.8},
    {"decay": 0.7},
    {"momentum": 0.6, "pull": 0.8, "decay": 0.7},
)


def solver_a(steps, momentum=0.0, pull=0.0, decay=1.0):
    return [plain.impulse_response(n, ETA, momentum, pull, decay) for n in steps]


def rule(who, weights, effective, a, momentum=0.0, pull=0.0, decay=1.0):
    def met(k, x):
        return plain.local(WORLD, k, x, len(a[k]), lambda e: ETA * decay**e, pull, momentum)[1]

    return plain.general_rule(WORLD, ticks(who), START, ETA, a, weights, effective, met)


def fednova(make, run, who):
    """w = p, tau_eff = sum p_j |a_j|_1, as a mean over those heard."""
    for solver in SOLVERS:
        a = solver_a(run.steps, **solver)
        expected = rule(who, WORLD.p, plain.mean_length(a), a, **solver)
        follows(run(make(step=ETA, local_steps=run.steps, **solver), who), expected)


def fednova_effective(make, run):
    expected = rule("few", WORLD.p, lambda v: 2.0, solver_a(run.steps))
    follows(run(make(step=ETA, local_steps=run.steps, effective=2.0), "few"), expected)


def general_fedavg(make, run, who):
    """w_k = p_k |a_k|_1 / sum_j p_j |a_j|_1 and tau_eff = sum_j p_j |a_j|_1: FedAvg's, for every local solver."""
    for solver in SOLVERS:
        a = solver_a(run.steps, **solver)
        lengths = np.array([one.sum() for one in a])
        mean = WORLD.p @ lengths
        expected = rule(who, WORLD.p * lengths / mean, lambda v, mean=mean: mean, a, **solver)
        follows(run(make(step=ETA, local_steps=run.steps, **solver), who), expected)


def general_fednova(make, run):
    a = solver_a(run.steps, momentum=0.6)
    expected = rule("few", WORLD.p, plain.mean_length(a), a, momentum=0.6)
    follows(run(make(step=ETA, local_steps=run.steps, weights="fednova", momentum=0.6), "few"), expected)


def general_given(make, run):
    """Any tau_eff, w (here not p) and a; one a for all, and one for each agent, as long as it needs."""
    a, w = np.array([1.0, 0.5, 2.0, 0.3, 0.7, 0.4]), np.array([0.4, 0.3, 0.2, 0.1, 0.1])
    own = [np.roll(a, k)[:n] for k, n in enumerate(run.steps)]
    for given, each in ((a, [a[:n] for n in run.steps]), ([list(one) for one in own], own)):
        expected = rule("few", w, lambda v: 1.7, each)
        rules = make(step=ETA, local_steps=run.steps, weights=w, effective=1.7, coefficients=given)
        follows(run(rules, "few"), expected)


# SCAFFOLD (Karimireddy et al.) with weights: x takes v, c takes p over those heard, the others keep their c_k.


def scaffold(make, run, who, option):
    path, c_k, c = plain.scaffold(WORLD, ticks(who), START, run.steps, 0.1, server=0.8, option=option)
    result = run(make(step=0.1, local_steps=run.steps, server_step=0.8, option=option), who)
    follows(result, path)
    np.testing.assert_allclose(result.memories, c_k, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(result.hub.c, c, rtol=0, atol=TOLERANCE)


# Newton's method: on bowls one round leads to w*; on counts, which it overshoots at first, by NumPy's sums over rows.


def fednewton(make, run):
    follows(run(make()), np.array([START] + [WORLD.star()] * ROUNDS))


def fednewton_products(make, run):
    """Three products span three parameters; the second's direction is conjugate to the first."""
    follows(run(make(products=3)), np.array([START] + [WORLD.star()] * ROUNDS))


def fednewton_damped(make, run=None):
    rng = np.random.default_rng(2)
    X, groups, p = (
        np.column_stack([rng.normal(size=(60, 2)), np.ones(60)]),
        np.arange(60) % 3,
        np.array([0.5, 0.3, 0.2]),
    )
    y = rng.poisson(np.exp(X @ [0.3, -0.2, 2.5]))
    weight = p[groups] / 20

    def derivatives(w):
        mean = np.exp(X @ w)
        return X.T @ (weight * (mean - y)), (X * (weight * mean)[:, None]).T @ X

    def loss(w):
        return weight @ (np.exp(X @ w) - y * (X @ w))

    expected = plain.newton(np.zeros(3), 12, derivatives, loss, 6)
    assert np.linalg.norm(expected[1]) > 5  # the first step is too long
    problem = fp.problems.GLM(X, y, groups, "poisson", weights=p)
    for products in (0, 3):
        found = fp.run(make(halvings=6, products=products), problem, rounds=12)
        np.testing.assert_allclose(found.history[0], expected, rtol=0, atol=1e-8)  # overshooting amplifies roundings


# FedDyn (Acar et al.) with weights: w takes v, h takes p over those heard, the others keep their h_k.


def feddyn(make, run, who, exact=False):
    path, h_k, h = plain.feddyn(WORLD, ticks(who), START, run.steps, 0.1, 0.9, exact)
    options = {"exact": True} if exact else {"step": 0.1, "local_steps": run.steps}
    result = run(make(pull=0.9, **options), who)
    follows(result, path)
    np.testing.assert_allclose(result.memories, h_k, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(result.hub.h, h, rtol=0, atol=TOLERANCE)


# FedExP (Jhunjhunwala et al.): the larger of 1 and the ratio, which the long and the short step make differ.


def fedexp(make, run, who):
    for epsilon in (1e-3, 1.0):
        expected = plain.fedexp(WORLD, ticks(who), START, run.steps, 0.1, epsilon)
        follows(run(make(step=0.1, local_steps=run.steps, adaptivity=epsilon), who), expected)


# FedLin (Mitra et al.), Mime (Karimireddy et al.): everybody's gradient first, of the same agents that then work.


def fedlin(make, run):
    follows(run(make(step=0.1, local_steps=run.steps)), plain.mime(WORLD, ticks("all"), START, run.steps, 0.1, 0.0))


def mime(make, run, who):
    expected = plain.mime(WORLD, ticks(who), START, run.steps, 0.1, 0.6)
    follows(run(make(step=0.1, local_steps=run.steps, momentum=0.6), who), expected)


def mime_samples(make, run):
    """Both fields of a local step are of one sample, another one in each step."""
    asked = run(make(step=0.1, local_steps=2)).asked
    assert all(one == [0, 0, 1, 1] for one in asked)


# Scaffnew (Mishchenko et al.) by rounds; H is the run's own, the same for all agents.


def lengths(evaluations):
    """H of every round, from the field evaluations, of which each of five agents makes H."""
    assert (evaluations % 5 == 0).all(), "agents took different numbers of local steps"
    return evaluations // 5


def lengths_of(run):
    """(repeats, rounds): H of every round of a run."""
    return lengths(np.diff(run.used[:, :, 2], axis=1))


def scaffnew_random(make, run):
    result = run(make(step=0.3, probability=0.4))
    path, h = plain.scaffnew(WORLD, START, lengths(result.evaluations), 0.3, 0.4)
    follows(result, path)
    np.testing.assert_allclose(result.memories.h, h[-1], rtol=0, atol=TOLERANCE)


def scaffnew_fixed(make, run):
    result = run(make(step=0.3, local_steps=2))
    assert (lengths(result.evaluations) == 2).all()
    path, h = plain.scaffnew(WORLD, START, [2] * ROUNDS, 0.3, 1 / 2)
    follows(result, path)
    np.testing.assert_allclose(result.memories.h, h[-1], rtol=0, atol=TOLERANCE)


def scaffnew_lengths(make, run=None, p=0.4, rounds=40, repeats=100):
    """H ~ Geometric(p) on 1, 2, ...: mean 1/p and variance (1-p)/p^2, cell by cell, independent in time and repeats.

    n = 4000 draws: the mean's standard error is sqrt((1-p)/p^2/n); the frequency of h has sqrt(q(1-q)/n) with
    q = p(1-p)^(h-1); a correlation of neighbours has 1/sqrt(n). All within 4.5 of them. Returns the run.
    """
    run = fp.run(make(step=0.3, probability=p), WORLD.problem(), rounds=rounds, repeats=repeats, exact=True, seed=11)
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


def qfedavg(make, run, who):
    for q in (0.0, 0.5, 2.0):
        expected = plain.qfedavg(WORLD, ticks(who), START, q, 0.1, run.steps)
        follows(run(make(q=q, step=0.1, local_steps=run.steps), who), expected)


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


def hand_server(server, rate, b1, b2, tau):
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


def fedopt(make, run, server, who="all"):
    algorithm = make(
        step=0.1, local_steps=run.steps, server=server, server_step=0.2, momentum=0.8, second=0.95, adaptivity=0.05
    )
    hand = hand_server(server, 0.2, 0.8, 0.95, 0.05)
    follows(run(algorithm, who), plain.server_optimiser(WORLD, ticks(who), START, 0.1, run.steps, hand))


# Lecture 003, on the network of `executions.py`.

COUPLING = 0.3


# FedAvg, and beside it at each agent v_k: steps on F_k(v) + (pull/2)|v - x|^2, from x, or on F_k(a v + (1 - a) x).


def ditto(make, run, who):
    def work(k, x, v):
        for _ in range(run.steps[k]):
            v = v - 0.2 * (WORLD.g(k, v) + 0.6 * (v - x))
        return plain.local(WORLD, k, x, run.steps[k], 0.2)[0], v

    method = make(step=0.2, local_steps=run.steps, pull=0.6)
    follows(run(method, who), plain.beside(WORLD, ticks(who), START, work))


def fine_tuned(make, run, who):
    def work(k, x, v):
        return plain.local(WORLD, k, x, run.steps[k], 0.2)[0], plain.local(WORLD, k, x, 2, 0.2)[0]

    method = make(step=0.2, local_steps=run.steps, own_steps=2)
    follows(run(method, who), plain.beside(WORLD, ticks(who), START, work))


def apfl(make, run, who):
    def mixture(x, v):
        return 0.7 * v + 0.3 * x

    def work(k, x, v):
        for _ in range(run.steps[k]):
            v = v - 0.2 * 0.7 * WORLD.g(k, mixture(x, v))
        return plain.local(WORLD, k, x, run.steps[k], 0.2)[0], v

    method = make(step=0.2, local_steps=run.steps, mix=0.7)
    follows(run(method, who), plain.beside(WORLD, ticks(who), START, work, mixture))


# Steps on the Moreau envelopes: y <- y - step pull (y - theta), theta the minimiser of F_k + (pull/2)|. - y|^2.


def pfedme(make, run, who):
    def work(k, x, v):
        y = x
        for _ in range(run.steps[k]):
            v = np.linalg.solve(WORLD.H[k] + 0.8 * np.eye(3), WORLD.H[k] @ WORLD.c[k] + 0.8 * y)
            y = y - 0.2 * 0.8 * (y - v)
        return x + 0.9 * (y - x), v

    method = make(step=0.2, local_steps=run.steps, pull=0.8, server_step=0.9)
    follows(run(method, who), plain.beside(WORLD, ticks(who), START, work))


def gradient_step(i, w, heard, rate):
    pull = sum(A[i, j] * (w - heard[j]) for j in range(5))
    return w - rate * (WORLD.g(i, w) + 2 * COUPLING * pull)


def fedgd(make, run):
    """w_i <- w_i - eta_i [grad L_i(w_i) + 2 alpha sum_j A_ij (w_i - w_j)], own gradient at the current iterate."""
    step = 0.1 * np.array([1.0, 0.5, 1.2, 0.7, 0.9])
    expected = plain.network(turns(), NODES, lambda i, k, w, heard: gradient_step(i, w, heard, step[i]))
    follows(run.network(make(step=step, coupling=COUPLING)), expected)


def fedgd_schedule(make, run):
    """Steps that decay with the ticks."""
    expected = plain.network(turns(), NODES, lambda i, k, w, heard: gradient_step(i, w, heard, 1.0 / (8.0 + k)))
    follows(run.network(make(step=fp.steps.InverseTime(1.0, 8.0), coupling=COUPLING)), expected)


def fedsgd(make, run):
    """Two steps a tick, s_t with t = tick E + e; neighbours stay as they were heard."""

    def update(i, k, w, heard):
        for e in range(2):
            w = gradient_step(i, w, heard, 1.0 / (8.0 + 2 * k + e))
        return w

    method = make(step=fp.steps.InverseTime(1.0, 8.0), coupling=COUPLING, local_steps=2)
    follows(run.network(method), plain.network(turns(), NODES, update))


def fedsgd_fresh(make, run):
    """As `fresh`: no sample twice; in the engine the variance of steps of pure noise, of a node without neighbours."""
    if run is by_hand:
        asked = run.network(make(step=0.1, coupling=COUPLING, local_steps=2)).asked
        assert all(len(set(one)) == len(one) == 2 for one in asked)
        return
    noise, alone = fp.problems.Quadratic(0.0, [[0.0, 0.0]], noise=1.0), fp.Network.from_edges([], nodes=1)
    done = fp.run(make(step=0.5, local_steps=4), noise, 4000, network=alone, seed=2)
    moved = np.diff(done.history[0, :, 0], axis=0)
    assert abs((moved**2).mean() - 1) / np.sqrt(2 / moved.size) < 5


def fedrelax(make, run):
    """The minimiser of L_i(w) + alpha sum_j A_ij |w - w_j|^2, by its normal equations."""

    def update(i, k, w, heard):
        matrix = WORLD.H[i] + 2 * COUPLING * A[i].sum() * np.eye(3)
        return np.linalg.solve(matrix, WORLD.H[i] @ WORLD.c[i] + 2 * COUPLING * A[i] @ heard)

    follows(run.network(make(coupling=COUPLING)), plain.network(turns(), NODES, update))


def _fresh(**options):
    return lambda make, run: fresh(make, run, **options)


def _on(law, *arguments):
    return lambda make, run: law(make, run, *arguments)


LAWS = {
    "gradient_exchange": {
        "all": _on(exchange, "all"),
        "few": _on(exchange, "few"),
        "schedule": exchange_schedule,
    },
    "parameter_exchange": {
        "all": _on(exchange, "all"),
        "few": _on(exchange, "few"),
        "schedule": exchange_schedule,
    },
    "fedavg": {
        "all": _on(fedavg, "all"),
        "few": _on(fedavg, "few"),
        "drawn": _on(fedavg, "drawn"),
        "schedule": fedavg_schedule,
        "fresh": _fresh(normalise=False),
    },
    "fedprox": {
        "all": _on(fedprox, "all"),
        "few": _on(fedprox, "few"),
        "exact": fedprox_exact,
        "fresh": _fresh(pull=0.0),
    },
    "fednova": {
        "all": _on(fednova, "all"),
        "few": _on(fednova, "few"),
        "effective": fednova_effective,
        "fresh": _fresh(),
    },
    "general_rule": {
        "all": _on(general_fedavg, "all"),
        "few": _on(general_fedavg, "few"),
        "fednova": general_fednova,
        "given": general_given,
        "fresh": _fresh(),
    },
    "scaffold": {
        "all": _on(scaffold, "all", 2),
        "few": _on(scaffold, "few", 2),
        "drawn, option 1": _on(scaffold, "drawn", 1),
        "fresh": _fresh(),
    },
    "fednewton": {"all": fednewton, "products": fednewton_products, "damped": fednewton_damped},
    "feddyn": {
        "all": _on(feddyn, "all"),
        "few": _on(feddyn, "few"),
        "exact, few": _on(feddyn, "few", True),
        "fresh": _fresh(pull=1e-12),
    },
    "fedexp": {"all": _on(fedexp, "all"), "few": _on(fedexp, "few")},
    "fedlin": {"all": fedlin, "fresh": _fresh()},
    "mime": {"all": _on(mime, "all"), "few": _on(mime, "few"), "samples": mime_samples},
    "scaffnew": {
        "random": scaffnew_random,
        "fixed": scaffnew_fixed,
        "lengths": scaffnew_lengths,
        "fresh": _fresh(),
    },
    "qfedavg": {
        "all": _on(qfedavg, "all"),
        "few": _on(qfedavg, "few"),
        "fresh": _fresh(q=0.0),
    },
    "fedopt": {
        "sgd, few": _on(fedopt, "sgd", "few"),
        "momentum": _on(fedopt, "momentum"),
        "adam": _on(fedopt, "adam"),
        "yogi": _on(fedopt, "yogi"),
        "adagrad": _on(fedopt, "adagrad"),
        "fresh": _fresh(),
    },
    "ditto": {"all": _on(ditto, "all"), "few": _on(ditto, "few"), "fresh": _fresh(pull=0.0)},
    "fine_tuned": {"all": _on(fine_tuned, "all"), "few": _on(fine_tuned, "few")},
    "apfl": {"all": _on(apfl, "all"), "few": _on(apfl, "few")},
    "pfedme": {"all": _on(pfedme, "all"), "few": _on(pfedme, "few")},
    "fedgd": {"late": fedgd, "schedule": fedgd_schedule},
    "fedsgd": {"late": fedsgd, "fresh": fedsgd_fresh},
    "fedrelax": {"late": fedrelax},
    **CONSENSUS,
}

# Laws about random numbers or other problems need the engine; of the rest it runs some, because by hand all are run.
SAMPLED = {("scaffnew", "random"), ("scaffnew", "lengths"), ("fednewton", "damped")}
ENGINE = SAMPLED | {
    ("gradient_exchange", "few"),
    ("parameter_exchange", "few"),
    ("fedavg", "drawn"),
    ("fedavg", "schedule"),
    ("fedavg", "fresh"),
    ("fedprox", "few"),
    ("fednova", "few"),
    ("general_rule", "few"),
    ("general_rule", "given"),
    ("scaffold", "few"),
    ("scaffold", "drawn, option 1"),
    ("scaffold", "fresh"),
    ("scaffnew", "fresh"),
    ("feddyn", "few"),
    ("feddyn", "exact, few"),
    ("fedexp", "few"),
    ("fedlin", "all"),
    ("fedlin", "fresh"),
    ("mime", "few"),
    ("qfedavg", "few"),
    ("fedopt", "sgd, few"),
    ("fedopt", "adam"),
    ("ditto", "few"),
    ("ditto", "fresh"),
    ("fine_tuned", "few"),
    ("apfl", "few"),
    ("pfedme", "few"),
    ("fedgd", "late"),
    ("fedsgd", "fresh"),
    ("fedrelax", "late"),
}
