"""FedDyn, FedLin, Mime and FedExP: rates, noise and few participants, against dense matrices and all lineups."""

import itertools

import numpy as np
import plain
import pytest
import scipy.linalg

import fedpoint as fp
from fedpoint.theory.closed_forms import closed_forms

B = plain.bowls(seed=3)
K, D = len(B.p), len(B.c[0])
ONE, NOISE, S, E, A, BETA = np.eye(D), 0.05, 0.1, 4, 0.9, 0.6
STAR, MEAN = B.star(), np.tensordot(B.p, B.H, 1)
METHODS = {
    "FedDyn": fp.FedDyn(S, E, pull=A),
    "FedDyn, exact": fp.FedDyn(pull=A, exact=True),
    "FedLin": fp.FedLin(S, E),
    "Mime": fp.Mime(S, E, momentum=BETA),
}


def reach(H, step, steps=E):
    """sum_e (I - step H)^e."""
    return sum(np.linalg.matrix_power(ONE - step * H, e) for e in range(steps))


@pytest.mark.parametrize("name", METHODS)
def test_it_ends_at_the_solution_at_the_rate_of_its_closed_form(name):
    method = METHODS[name]
    run = fp.run(method, B.problem(), rounds=300, exact=True, start=[1.5, -2.0, 1.0])
    f = fp.forecast(method, B.problem(), exact=True, start=[1.5, -2.0, 1.0])
    closed = closed_forms(method, B.problem(), exact=True)
    np.testing.assert_allclose(run.model[0], STAR, rtol=0, atol=1e-12)
    np.testing.assert_allclose(closed["fixed_point"], STAR, rtol=0, atol=1e-12)
    assert f.rate == pytest.approx(closed["rate"], rel=1e-9)
    np.testing.assert_allclose(f.curve(40), run.error[0, :41], rtol=1e-9, atol=1e-20)
    # |w_t - w*| <= C rate^t: complex pairs turn, so over a stretch of rounds
    error = np.sqrt(run.error[0])
    stretch = np.log(error[20:60].max() / error[60:100].max()) / 40
    assert np.exp(-stretch) <= 1.01 * f.rate


def test_noise_of_feddyn_by_the_lyapunov_equation():
    """(w, h_1, ..., h_K): an agent's noise enters w with 2 p_k and its h_k with -a."""
    n = (K + 1) * D
    T, Q = np.zeros((n, n)), np.zeros((n, n))
    T[:D, :D] = ONE
    for k in range(K):
        P, own = S * reach(B.H[k] + A * ONE, S), slice((k + 1) * D, (k + 2) * D)
        T[:D, :D] -= 2 * B.p[k] * P @ B.H[k]
        T[:D, own] = B.p[k] * (2 * P - ONE / A)
        T[own, :D], T[own, own] = A * P @ B.H[k], ONE - A * P
        each = np.zeros((n, D))
        each[:D], each[own] = 2 * B.p[k] * ONE, -A * ONE
        inside = ONE - S * (B.H[k] + A * ONE)
        spread = S**2 * NOISE * sum(np.linalg.matrix_power(inside, 2 * e) for e in range(E))
        Q += each @ spread @ each.T
    expected = np.trace(scipy.linalg.solve_discrete_lyapunov(T, Q)[:D, :D])
    f = fp.forecast(METHODS["FedDyn"], B.problem(NOISE))
    assert f.floor == pytest.approx(expected, rel=1e-8)


def test_noise_of_fedlin_by_the_lyapunov_equation():
    """x+ = (I - P H) x - sum_k p_k (P - P_k) z_k - sum_k p_k s sum_e B_k^e z_ke, from drawn rounds with their error."""
    each = [S * reach(H, S) for H in B.H]
    mean = np.tensordot(B.p, each, 1)
    Q = np.zeros((D, D))
    for p, H, P in zip(B.p, B.H, each, strict=True):
        steps = S**2 * sum(np.linalg.matrix_power(ONE - S * H, 2 * e) for e in range(E))
        Q += p**2 * NOISE * ((mean - P) @ (mean - P).T + steps)
    expected = np.trace(scipy.linalg.solve_discrete_lyapunov(ONE - mean @ MEAN, Q))
    f = fp.forecast(METHODS["FedLin"], B.problem(NOISE))
    assert "sampled rounds" in str(f)
    assert abs(f.floor - expected) < 4 * f.standard_error < 0.3 * expected


def test_few_participants_of_feddyn_end_at_the_solution():
    """Two of five, unequal weights: h_k of those not asked stay, and h = sum p_k h_k."""
    run = fp.run(METHODS["FedDyn"], B.problem(), rounds=1500, participation=2, exact=True, record_every=1500)
    np.testing.assert_allclose(run.model[0], STAR, rtol=0, atol=1e-10)
    f = fp.forecast(METHODS["FedDyn"], B.problem(), participation=2, exact=True)
    assert f.bias < 1e-9 and abs(f.floor) < 1e-15


def test_the_limit_of_mime_with_few_is_the_mean_over_lineups():
    """c and the local steps are of the same agents: their product moves the limit, exactly as all pairs say."""
    T, shift = np.zeros((2 * D, 2 * D)), np.zeros(2 * D)
    pairs = list(itertools.combinations(range(K), 2))
    for pair in pairs:
        v = [B.p[k] * K / 2 for k in pair]
        P = sum(w * S * reach(B.H[k], S * (1 - BETA)) for w, k in zip(v, pair, strict=True))
        G = (1 - BETA) * sum(w * B.H[k] for w, k in zip(v, pair, strict=True))
        g = (1 - BETA) * sum(w * B.H[k] @ B.c[k] for w, k in zip(v, pair, strict=True))
        T += np.block([[ONE - P @ G, -BETA * P], [G, BETA * ONE]]) / len(pairs)
        shift += np.concatenate([P @ g, -g]) / len(pairs)
    limit = np.linalg.solve(np.eye(2 * D) - T, shift)[:D]
    assert np.linalg.norm(limit - STAR) > 1e-3  # it does move
    f = fp.forecast(METHODS["Mime"], B.problem(), participation=2, exact=True)
    np.testing.assert_allclose(f.limit, limit, rtol=0, atol=1e-9)


def test_two_exchanges_cost_twice_the_messages():
    run = fp.run(METHODS["FedLin"], B.problem(), rounds=3, exact=True)
    cost = run.cost
    assert (cost.messages_down, cost.messages_up) == (3 * 2 * K, 3 * 2 * K)
    assert cost.floats_up == 3 * 2 * K * D and cost.floats_down == 3 * (K * D + K * 2 * D)  # w, then w and g
    assert cost.evaluations == 3 * K * (1 + 1 + E)
    few = fp.run(METHODS["Mime"], B.problem(), rounds=3, exact=True, participation=fp.Uniform(2)).cost
    assert (few.messages_up, few.evaluations) == (3 * 2 * 2, 3 * 2 * (1 + 2 * E))


def test_fedexp_settles_only_where_one_model_suits_all():
    apart = fp.problems.Quadratic([np.diag(part) for part in ONE], np.ones((D, D)))  # each knows one number
    changes = fp.run(fp.FedExP(S, adaptivity=1e-12), apart, rounds=3, exact=True).error[0]
    # |change_k| = s e and |mean change| = s e / sqrt(d) for all: a server step of d/2, so that e+ = (1 - s/2) e
    np.testing.assert_allclose(changes, D * (1 - S / 2) ** (2 * np.arange(4)), rtol=1e-9)
    late = fp.run(fp.FedExP(S), B.problem(), rounds=400, exact=True).history[0, 200:]
    assert np.linalg.norm(np.diff(late, axis=0), axis=1).min() > 0.05  # thrown to and fro for ever


CLIPPED = {"channel": fp.channel.Clip(1.0)}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fp.forecast(fp.FedExP(S), B.problem()), "no derivative there"),
        (lambda: fp.run(fp.FedLin(S), B.problem(), rounds=1, participation=2), "FedLin cannot run with participation"),
        (lambda: fp.Averaged(fp.FedLin(S)), "asks agents more than once in a round"),
        (lambda: fp.Extrapolated(fp.Mime(S)), "asks agents more than once in a round"),
        (lambda: fp.run(fp.Mime(S), B.problem(), rounds=1, **CLIPPED), "a lossy channel is for one message"),
        (lambda: fp.run(fp.Mime(S), B.problem(), 1, schedule=fp.Arrivals(fp.Clock())), "answers come later"),
        (lambda: fp.run(fp.FedLin(S), B.problem(), 1, network=fp.Network.ring(5).mixing()), "needs a fusion center"),
        (lambda: fp.FedDyn(), "FedDyn: give step=, or exact=True"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(call, words):
    with pytest.raises(fp.FedpointError, match=words):
        call()
