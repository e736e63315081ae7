"""Is every participation scheme unbiased? E sum_k v_k m_k = sum_k p_k m_k, and the weights act on changes.

Means over n = 20,000 rounds of a scheme's own draws, as z-scores with the sample's standard error; at most a few dozen
at a time, so that 4.5 is passed by chance once in a thousand suites, and then always, because seeds are fixed.
"""

import itertools

import numpy as np
import plain
import pytest
from plain import z_scores

import fedpoint as fp
from fedpoint.timing.base import Context

K = 6
P = np.array([0.05, 0.1, 0.15, 0.15, 0.25, 0.3])
Q = np.array([0.3, 0.1, 0.1, 0.2, 0.2, 0.1])
OFTEN = np.array([0.3, 0.9, 0.5, 0.7, 1.0, 0.6])
N = 20000


def draws(scheme, rounds=N, seed=0):
    """v (rounds, K), p of those heard (rounds, K), merge, asked (rounds,), answers of each agent (rounds, K)."""
    return plain.ticks_of(scheme.bind(Context()), P, rounds, seed)


ALWAYS = {  # schemes that are unbiased over all rounds
    "everyone": fp.Everyone(),
    "uniform": fp.Uniform(3),
    "by weight": fp.ByWeight(4),
    "importance": fp.Importance(4, Q),
    "answering, by agent": fp.Answering(fp.Everyone(), OFTEN),
    "uniform answering, by agent": fp.Answering(fp.Uniform(4), OFTEN),
    "answering, by agent, at least two": fp.Answering(fp.Everyone(), OFTEN, minimum=2),
    "uniform answering, by agent, at least three": fp.Answering(fp.Uniform(4), OFTEN, minimum=3),
}
WHEN_MERGED = {  # schemes that are unbiased over the rounds that are not abandoned
    "answering": fp.Answering(fp.Everyone(), 0.6),
    "uniform answering": fp.Answering(fp.Uniform(3), 0.6),
    "by weight answering": fp.Answering(fp.ByWeight(4), 0.6),
    "over-selected": fp.Answering(fp.Uniform(5), 0.7, keep=2),
    "over-selected from all": fp.Answering(fp.Everyone(), 0.7, keep=3, minimum=2),
    "at least three": fp.Answering(fp.Uniform(5), 0.6, minimum=3),
}


@pytest.mark.parametrize("name", ALWAYS)
def test_weights_are_unbiased(name):
    v, _, merge, _, _ = draws(ALWAYS[name])
    assert np.abs(z_scores(v * merge[:, None], P)).max() < 4.5


@pytest.mark.parametrize("name", WHEN_MERGED)
def test_weights_are_unbiased_over_the_rounds_that_count(name):
    v, _, merge, _, _ = draws(WHEN_MERGED[name])
    assert merge.mean() > 0.3
    assert np.abs(z_scores(v[merge], P)).max() < 4.5


def test_a_plain_mean_solves_the_problem_with_equal_weights():
    v, share, _, _, _ = draws(fp.Uniform(3, plain=True))
    assert np.abs(z_scores(v, np.full(K, 1 / K))).max() < 4.5
    np.testing.assert_allclose(v[share > 0], 1 / 3, rtol=1e-15)


def test_weights_renormalised_over_the_sample_would_be_biased():
    """The mistake that the tests above must be able to see: dividing by the weight of those selected."""
    v, *_ = draws(fp.Uniform(3))
    renormalised = v / v.sum(1, keepdims=True)
    assert np.abs(z_scores(renormalised, P)).max() > 20


# The schemes one by one.


@pytest.mark.parametrize("L", [1, 3, 6])
def test_uniform_subsets(L):
    """Every agent with L/K, every pair with L(L-1)/(K(K-1)); always L distinct agents with v = p K/L."""
    v, share, merge, asked, heard = draws(fp.Uniform(L))
    inside = share > 0
    assert merge.all() and (asked == L).all() and (inside.sum(1) == L).all() and (heard == inside).all()
    np.testing.assert_allclose(v, inside * P * K / L, rtol=1e-14)
    assert np.abs(z_scores(inside, L / K)).max() < 4.5
    pairs = np.stack([inside[:, i] & inside[:, j] for i, j in itertools.combinations(range(K), 2)], axis=1)
    assert np.abs(z_scores(pairs, L * (L - 1) / (K * (K - 1)))).max() < 4.5


def test_rounds_are_independent():
    """Whether an agent is drawn does not depend on the round before: lag-one correlations within 4.5/sqrt(n)."""
    _, share, *_ = draws(fp.Uniform(3))
    inside = (share > 0) - 0.5
    lagged = inside[1:].T @ inside[:-1] / (0.25 * (N - 1))
    assert np.abs(lagged).max() < 4.5 / np.sqrt(N - 1)


@pytest.mark.parametrize(("scheme", "q"), [(fp.ByWeight(4), P), (fp.Importance(4, Q), Q)], ids=["p", "q"])
def test_draws_with_replacement_are_multinomial(scheme, q):
    """m ~ Multinomial(L, q): mean L q_k, variance L q_k (1 - q_k), covariance -L q_i q_j; v = m p / (L q).

    An agent drawn several times works once: it counts once among those asked and in the total.
    """
    v, share, merge, asked, heard = draws(scheme)
    times = v * 4 * q / P
    np.testing.assert_allclose(times, times.round(), atol=1e-12)
    np.testing.assert_allclose(times.sum(1), 4, rtol=1e-13)
    assert merge.all() and (heard == (times > 0.5)).all() and (asked == heard.sum(1)).all()
    np.testing.assert_allclose(share, heard * P, rtol=1e-15)
    assert np.abs(z_scores(times, 4 * q)).max() < 4.5
    centred = times - 4 * q
    assert np.abs(z_scores(centred**2, 4 * q * (1 - q))).max() < 4.5
    for i, j in itertools.combinations(range(K), 2):
        assert abs(z_scores(centred[:, i] * centred[:, j], -4 * q[i] * q[j])) < 4.5


def test_one_probability_of_answering():
    """Binomial answers among those asked; they stand for all of them, v = (p K/L)(asked/merged)."""
    a = 0.6
    v, share, merge, asked, heard = draws(fp.Answering(fp.Uniform(3), a))
    merged = heard.sum(1)
    assert (asked == 3).all() and (merge == (merged >= 1)).all()
    np.testing.assert_allclose(v, heard * P * K / 3 * (3 / np.maximum(merged, 1))[:, None], rtol=1e-14)
    np.testing.assert_allclose(share, heard * P, rtol=1e-15)
    binomial = [(1 - a) ** 3, 3 * a * (1 - a) ** 2, 3 * a**2 * (1 - a), a**3]
    assert np.abs(z_scores(merged[:, None] == np.arange(4), binomial)).max() < 4.5


def test_probabilities_of_answering_by_agent():
    v, share, merge, asked, heard = draws(fp.Answering(fp.Everyone(), OFTEN))
    assert (asked == K).all()
    np.testing.assert_allclose(v, heard * P / OFTEN, rtol=1e-14)
    np.testing.assert_allclose(share, heard * P, rtol=1e-15)
    assert np.abs(z_scores(heard, OFTEN)).max() < 4.5
    # Agents answer independently of each other.
    for i, j in itertools.combinations(range(K), 2):
        assert abs(z_scores(heard[:, i] * heard[:, j], OFTEN[i] * OFTEN[j])) < 4.5
    assert abs(z_scores(merge, 1 - np.prod(1 - OFTEN))) < 4.5


def test_a_trace_is_followed_to_the_letter():
    trace = np.array([[1, 1, 0, 0, 0, 1], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    v, share, merge, _, heard = draws(fp.Answering(fp.Everyone(), trace=trace), rounds=10)
    expected = trace[np.arange(10) % 4]
    np.testing.assert_array_equal(heard, expected)
    np.testing.assert_array_equal(merge, expected.any(1))
    np.testing.assert_allclose(share, expected * P, rtol=1e-15)
    answers = np.maximum(expected.sum(1), 1)[:, None]
    np.testing.assert_allclose(v, expected * P * K / answers, rtol=1e-14)


def test_over_selection_keeps_the_first_answers_without_favour():
    """Five asked, at most two merged: min(Binomial(5, a), 2) of them, every agent equally often."""
    a = 0.7
    v, _, merge, asked, heard = draws(fp.Answering(fp.Uniform(5), a, keep=2))
    merged = heard.sum(1)
    none, one = (1 - a) ** 5, 5 * a * (1 - a) ** 4
    assert (asked == 5).all() and (merge == (merged > 0)).all()
    assert np.abs(z_scores(merged[:, None] == np.arange(3), [none, one, 1 - none - one])).max() < 4.5
    mean = (one + 2 * (1 - none - one)) / K
    assert np.abs(z_scores(heard, mean)).max() < 4.5
    np.testing.assert_allclose(v, heard * P * K / np.maximum(merged, 1)[:, None], rtol=1e-14)


def test_a_minimum_of_answers():
    """Binomial(5, 0.6) of at least three."""
    _, _, merge, _, heard = draws(fp.Answering(fp.Uniform(5), 0.6, minimum=3))
    np.testing.assert_array_equal(merge, heard.sum(1) >= 3)
    a = 0.6
    expected = sum(n * a**k * (1 - a) ** (5 - k) for n, k in ((10, 3), (5, 4), (1, 5)))
    assert abs(z_scores(merge, expected)) < 4.5


def test_everyone_or_nobody_is_everyone():
    """Methods that need everybody go on over abandoned rounds, and over no others."""
    whole, some = [[1, 1, 1], [0, 0, 0]], [[1, 1, 1], [0, 1, 0]]
    assert fp.Answering(fp.Everyone(), trace=whole).names() == ("Everyone",)
    assert fp.Answering(fp.Everyone(), trace=some).names() == ("Answering", "Everyone")
    assert fp.Answering(fp.Everyone(), trace=whole, keep=2).names() == ("Answering", "Everyone")
    assert fp.Answering(fp.Uniform(2), trace=whole).names() == ("Answering", "Uniform")


def test_answering_twice_is_refused():
    """Both would draw the same luck, and the inner minimum would be lost."""
    with pytest.raises(fp.FedpointError, match="product"):
        fp.Answering(fp.Answering(fp.Everyone(), 0.5), 0.5)


# Through the engine. Centers e_k and H = I: the field at 0 is -e_k, so one step of length 1 shows the weights.

ONE_HOT = fp.problems.Quadratic(1.0, np.eye(K), weights=P)


class Listen(fp.Algorithm):
    """The hub keeps what it heard."""

    def init(self, w):
        return fp.Inbox(w, w, 0.0 * w[0], 0.0 * w[0]), ()

    def say(self, hub, row):
        return 0.0 * hub.mean

    def local(self, zero, memory, agent):
        return -agent.field(zero), memory

    def combine(self, hub, inbox):
        return inbox

    def read(self, hub, memory):
        return hub.mean


def test_a_hub_hears_mean_total_and_mass():
    """mean = sum v_k m_k; total = sum p_k m_k over the distinct agents heard; mass = sum p_k over the same;
    weight = sum v_k."""
    run = fp.run(
        Listen(), ONE_HOT, rounds=1, exact=True, participation=fp.Answering(fp.ByWeight(4), 0.6), repeats=500, seed=3
    )
    mean, total, mass, weight = (np.asarray(a) for a in run.session.state.hub)
    heard = total > 0
    np.testing.assert_allclose(total, heard * P, rtol=1e-15)
    np.testing.assert_allclose(mass, total.sum(1), rtol=1e-14)
    np.testing.assert_array_equal(mean > 0, heard)
    np.testing.assert_allclose(weight, mean.sum(1), rtol=1e-14)  # the messages are unit vectors
    merged = heard.any(1)
    assert 0 < merged.mean() < 1 or merged.all()
    assert np.abs(z_scores(mean[merged], P)).max() < 4.5
    everyone = fp.run(Listen(), ONE_HOT, rounds=1, exact=True)
    mean, total, mass, weight = (np.asarray(a)[0] for a in everyone.session.state.hub)
    assert abs(weight - 1) < 1e-14
    np.testing.assert_allclose(mean, P, rtol=1e-15)
    np.testing.assert_allclose(total, P, rtol=1e-15)
    assert mass == pytest.approx(1.0, rel=1e-14)


WORLD = plain.bowls(seed=0)
FAR = np.array([100.0, -50.0, 70.0])


@pytest.mark.parametrize(
    "scheme",
    [
        fp.Uniform(2),
        fp.Importance(3, [0.3, 0.1, 0.2, 0.25, 0.15]),
        fp.Answering(fp.Everyone(), [0.3, 0.9, 0.5, 0.7, 0.6]),
    ],
    ids=["uniform", "importance", "answering"],
)
def test_a_round_moves_like_the_round_of_everyone_on_average(scheme):
    """FedAvg with exact fields from far away, 4000 repeats of one round: the mean model is that of full participation.

    And the variance is that of weights on changes u_k = y_k - x: for L of K uniformly, (K^2/L)(1 - L/K) S^2 with
    S^2 the sample variance of p_k u_k; with replacement (1/L)(sum p_k^2 u_k^2/q_k - (sum p_k u_k)^2); for answers
    sum p_k^2 u_k^2 (1/a_k - 1). Weights on models would add the square of 100 times their spread.
    """
    run = fp.run(
        fp.FedAvg(0.1, 3, normalise=True),
        WORLD.problem(),
        rounds=1,
        start=FAR,
        participation=scheme,
        exact=True,
        repeats=4000,
        seed=8,
    )
    ends = np.array([plain.local(WORLD, k, FAR, 3, 0.1 / 3)[0] for k in range(5)])
    u, p = ends - FAR, WORLD.p[:, None]
    mean = FAR + (p * u).sum(0)
    assert np.abs(z_scores(run.model[:, :], mean)).max() < 4.5
    if isinstance(scheme, fp.Uniform):
        variance = 25 / 2 * (1 - 2 / 5) * (p * u).var(0, ddof=1)
    elif isinstance(scheme, fp.Answering):
        variance = (p**2 * u**2 * (1 / np.array([0.3, 0.9, 0.5, 0.7, 0.6])[:, None] - 1)).sum(0)
    else:
        q = np.array([0.3, 0.1, 0.2, 0.25, 0.15])[:, None]
        variance = ((p**2 * u**2 / q).sum(0) - (p * u).sum(0) ** 2) / 3
    assert np.abs(z_scores((run.model - mean) ** 2, variance)).max() < 4.5


def test_an_abandoned_round_changes_nothing():
    """Rounds with fewer answers than the minimum: model, control variates and their sum stay bit for bit."""
    trace = np.array([[1, 1, 0, 0, 1], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 0]])
    scheme = fp.Answering(fp.Everyone(), trace=trace, minimum=2)
    run = fp.run(fp.Scaffold(0.1, 3), WORLD.problem(), rounds=1, participation=scheme, start=FAR, exact=True)
    memories = [run.memories[0]]
    for rounds in range(2, 9):
        run = run.extend(rounds)
        memories.append(run.memories[0])
    moved = (np.diff(run.history[0], axis=0) != 0).any(1)
    np.testing.assert_array_equal(moved, [True, False, False, True] * 2)
    changed = (np.diff(memories, axis=0) != 0).any(2)
    np.testing.assert_array_equal(changed, (trace[np.arange(1, 8) % 4] * [[0], [0], [1], [1], [0], [0], [1]]) > 0)
    # Everybody is asked in every round, and 8 rounds have 3 + 1 + 0 + 3 answers twice.
    assert run.cost.messages_down == 8 * 5
    assert run.cost.messages_up == 14


# Importance sampling of agents with the variance-optimal probabilities.

RNG = np.random.default_rng(7)
MODELS = RNG.standard_normal((K, 2))
VARIANCE = np.array([0.3, 0.5, 1.0, 1.0, 2.0, 3.0])
NOISE = np.array([0.1, 2.0, 0.1, 1.0, 0.5, 0.1])
LAB = fp.problems.LinearStream(MODELS, noise=NOISE, covariance=VARIANCE, weights=P)


def lms_moments():
    """w*, g_k(w*) and tr Cov of one sampled field there: r^2 (d+1) |x|^2 + d r sv2 for h ~ N(0, r I), x = w* - w_k."""
    star = (P * VARIANCE) @ MODELS / (P @ VARIANCE)
    x = star - MODELS
    g = VARIANCE[:, None] * x
    noise = VARIANCE**2 * 3 * (x**2).sum(1) + 2 * VARIANCE * NOISE
    return star, g, noise


@pytest.mark.parametrize("steps", [1, 4, (1, 2, 3, 4, 5, 6)], ids=["one", "four", "own"])
def test_optimal_probabilities(steps):
    """q_k proportional to p_k sqrt(noise_k / E_k + |g_k(w*)|^2)."""
    _, g, noise = lms_moments()
    q = P * np.sqrt(noise / np.array(steps) + (g**2).sum(1))
    found = fp.Importance(2).bind(Context(LAB, fp.FedAvg(0.1, steps, normalise=True))).probabilities
    np.testing.assert_allclose(found, q / q.sum(), rtol=1e-12)


def test_optimal_probabilities_reduce_the_variance():
    """One draw from w*: E|x - w*|^2 = mu^2 sum p_k^2 (noise_k + |g_k|^2)/q_k, smallest for the optimal q (z-scores)."""
    star, g, noise = lms_moments()
    second = noise + (g**2).sum(1)
    schemes = {"optimal": fp.Importance(1), "weights": fp.Importance(1, P), "uniform": fp.Importance(1, np.ones(K))}
    exact, measured = {}, {}
    for name, scheme in schemes.items():
        run = fp.run(fp.GradientExchange(0.1), LAB, rounds=1, start=star, participation=scheme, repeats=N, seed=2)
        q = {"optimal": P * np.sqrt(second), "weights": P, "uniform": np.ones(K)}[name]
        exact[name] = 0.01 * (P**2 * second * q.sum() / q).sum()
        measured[name] = run.error[:, -1]
        assert abs(z_scores(measured[name], exact[name])) < 4.5
        assert np.abs(z_scores(run.model, star)).max() < 4.5
    assert exact["optimal"] == pytest.approx(0.01 * (P @ np.sqrt(second)) ** 2, rel=1e-12)  # Cauchy and Schwarz
    assert exact["optimal"] < exact["weights"] < exact["uniform"]
    gap = measured["uniform"].mean() - measured["optimal"].mean()
    assert gap > 5 * np.sqrt((measured["uniform"].var() + measured["optimal"].var()) / N)


# Importance sampling of an agent's rows.


def least_squares(sampling):
    rng = np.random.default_rng(4)
    A = [rng.standard_normal((m, 2)) * np.exp(rng.standard_normal((m, 1))) for m in (5, 8, 13)]
    b = [a @ [1.0, -1.0] + rng.standard_normal(len(a)) + 0.5 for a in A]
    problem = fp.problems.LeastSquares(A, b, weights=[1, 2, 3], batch=2, sampling=sampling)
    return problem, A, b


def row_variance(gradients, q, batch):
    """tr Cov of the mean over a batch of gradient_j / (m q_j), j ~ q; gradients so scaled that their mean is g_k."""
    m = len(gradients)
    return (((gradients**2).sum(1) / (m**2 * q)).sum() - (gradients.mean(0) ** 2).sum()) / batch


def test_rows_by_importance_are_unbiased_and_vary_less():
    """The mean is the exact field anywhere; at w* the variance is of q_j ~ |gradient_j|, below that of iid rows."""
    p = np.array([1, 2, 3]) / 6
    spread = {}
    for sampling in ("iid", "importance"):
        problem, A, b = least_squares(sampling)
        star = np.linalg.solve(
            sum(w * a.T @ a for w, a in zip(p, A, strict=True)),
            sum(w * a.T @ y for w, a, y in zip(p, A, b, strict=True)),
        )
        variance = 0.0
        for w, a, y in zip(p, A, b, strict=True):
            rows = len(a) * (a @ star - y)[:, None] * a
            size = np.linalg.norm(rows, axis=1)
            size = np.maximum(size, 1e-3 * size.mean())  # the library's floor, so that no row is lost
            q = size / size.sum() if sampling == "importance" else np.full(len(a), 1 / len(a))
            variance += w**2 * row_variance(rows, q, 2)
        run = fp.run(fp.GradientExchange(0.01), problem, rounds=1, start=star, repeats=N, seed=1)
        assert np.abs(z_scores(run.model, star)).max() < 4.5
        assert abs(z_scores(run.error[:, -1], 1e-4 * variance)) < 4.5
        spread[sampling] = variance
        # Elsewhere the mean is the exact field there.
        away = np.array([2.0, 1.0])
        g = sum(w * a.T @ (a @ away - y) for w, a, y in zip(p, A, b, strict=True))
        run = fp.run(fp.GradientExchange(0.01), problem, rounds=1, start=away, repeats=N, seed=1)
        assert np.abs(z_scores(run.model, away - 0.01 * g)).max() < 4.5
    assert spread["importance"] < 0.7 * spread["iid"]


def test_logistic_rows_by_importance_are_unbiased_and_vary_less():
    rng = np.random.default_rng(9)
    X = rng.standard_normal((30, 2)) * np.exp(rng.standard_normal((30, 1)))
    y = np.where(X @ [1.0, -1.0] + rng.standard_normal(30) > 0, 1, -1)
    groups = np.repeat([0, 1, 2], [5, 10, 15])
    spread = {}
    for sampling in ("iid", "importance"):
        problem = fp.problems.Logistic(X, y, groups=groups, ridge=0.1, batch=2, sampling=sampling)
        for w in (np.array([0.5, 0.5]), problem.solution()):
            g = 0.1 * w - (y / (1 + np.exp(y * (X @ w)))) @ X / 30
            run = fp.run(fp.GradientExchange(0.1), problem, rounds=1, start=w, repeats=N, seed=1)
            assert np.abs(z_scores(run.model, w - 0.1 * g)).max() < 4.5
        spread[sampling] = run.error[:, -1]  # of the last start, the solution
    gap = spread["iid"].mean() - spread["importance"].mean()
    assert gap > 5 * np.sqrt((spread["iid"].var() + spread["importance"].var()) / N)
