"""Limits and rates derived from the code against closed forms and against long exact runs.

Tolerance against closed forms: 1e-8 relative, the promise. Newton's steps end at 1e-14 of the state, the matrices
inverted here have condition numbers below 1e3.
"""

import dataclasses

import numpy as np
import pytest
import worlds

import fedpoint as fp
from fedpoint.core.algorithm import CATALOGUE
from fedpoint.theory.closed_forms import closed_forms
from fedpoint.theory.operator import Setting

CLOSE = 1e-8
QUICK = [
    ("fedavg, own steps", "stream"),
    ("fedprox, exact", "quadratic"),
    ("fednova, all of it", "quadratic"),
    ("fedavgm, turning", "quadratic"),
    ("scaffold", "stream"),
]
ALL = [(a, p) for a in worlds.CATALOGUE for p in worlds.AFFINE]
CASES = [pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow, id="-".join(c)) for c in ALL]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_against_closed_forms(name, kind):
    problem, algorithm = worlds.AFFINE[kind](), worlds.CATALOGUE[name]
    f = fp.forecast(algorithm, problem)
    w, closed = problem.solution(), f.closed
    np.testing.assert_allclose(f.limit, closed["fixed_point"], rtol=CLOSE, atol=CLOSE)
    np.testing.assert_allclose(f.limit - w, closed["bias"], rtol=CLOSE, atol=CLOSE)
    assert f.bias == pytest.approx(np.linalg.norm(closed["bias"]), rel=CLOSE, abs=1e-10)
    assert (f.bias == 0.0) == (name in worlds.UNBIASED)
    if "rate" in closed:
        assert f.rate == pytest.approx(closed["rate"], rel=CLOSE)
    assert f.rate < 1


def test_every_method_of_the_catalogue_is_here():
    """Those with a fusion center, but for FedExP, which has no forecast; methods on networks are in tests/networks,
    those with models of the agents' own in tests/mathematics/test_personal_methods.py."""
    star = {name for name, card in CATALOGUE.items() if not card.network and not card.cls.personal}
    assert fp.FedExP(0.1).why_no_forecast()
    assert {type(a).card.name for a in worlds.CATALOGUE.values()} == star - {"fedexp"}


@pytest.mark.parametrize("variance", [0.7, 1.0])
@pytest.mark.parametrize(("count", "replace"), [(3, False), (2, False), (2, True)])
def test_floors_of_federated_lms(variance, count, replace):
    """Gaussian regressors R = s I and equal weights: the exact recursion of section LMS, by hand.

    a = 1 - mu s, r = 1 - 2 mu s + mu^2 (M + 2) s^2, noise of E steps mu^2 M s v (1 - r^E)/(1 - r).
    """
    M, K, E, mu, v = worlds.D, worlds.K, 3, 0.1, 0.2
    problem = fp.problems.LinearStream(worlds.CENTERS, noise=v, covariance=variance)
    scheme = fp.ByWeight(count) if replace else fp.Uniform(count)
    f = fp.forecast(fp.FedAvg(mu, E, normalise=False), problem, participation=scheme)
    a, r = 1 - mu * variance, 1 - 2 * mu * variance + mu**2 * (M + 2) * variance**2
    noise = mu**2 * M * variance * v * (1 - r**E) / (1 - r)
    spread = ((worlds.CENTERS - worlds.CENTERS.mean(0)) ** 2).sum(1).mean()
    if replace:
        q = 1 / count + (1 - 1 / count) / K
        lam = a ** (2 * E) + (r**E - a ** (2 * E)) * q
        kap = noise * q + spread * ((r**E - a ** (2 * E)) * q + (1 - a**E) ** 2 / count)
    else:
        c = (K - count) / (K - 1)
        lam = a ** (2 * E) + (r**E - a ** (2 * E)) / count
        kap = (noise + spread * (r**E - a ** (2 * E) + c * (1 - a**E) ** 2)) / count
    assert f.rate_ms == pytest.approx(lam, rel=CLOSE)
    assert f.floor == pytest.approx(kap / (1 - lam), rel=CLOSE)
    assert f.closed["floor"] == pytest.approx(f.floor, rel=CLOSE)
    start = ((problem.start() - worlds.CENTERS.mean(0)) ** 2).sum()
    expected = kap / (1 - lam) + lam ** np.arange(41) * (start - kap / (1 - lam))
    np.testing.assert_allclose(f.curve(40), expected, rtol=CLOSE)


def test_the_floor_of_one_step_with_additive_noise():
    """One step, constant noise: Sigma = M Sigma M' + mu^2 noise sum p_k^2 I, solved as a Kronecker system."""
    mu, noise = 0.2, 0.3
    problem = worlds.quadratic(noise)
    f = fp.forecast(fp.GradientExchange(mu), problem)
    M = np.eye(2) - mu * np.tensordot(worlds.P, worlds.H, 1)
    source = mu**2 * problem.noise(problem.solution()) / 2  # each agent's trace over two coordinates
    Q = (worlds.P**2 @ source) * np.eye(2)
    sigma = np.linalg.solve(np.eye(4) - np.kron(M, M), Q.ravel()).reshape(2, 2)
    assert f.variance == pytest.approx(np.trace(sigma), rel=CLOSE)
    assert f.floor == f.variance and f.bias == 0.0
    assert f.rate_ms == pytest.approx(np.abs(np.linalg.eigvals(M)).max() ** 2, rel=1e-6)


# Control variates: w* from the usual start, for every participation that is valid; elsewhere from another one.

SCHEMES = {
    "uniform": fp.Uniform(2),
    "by weight": fp.ByWeight(2),
    "importance": fp.Importance(2),
    "answering": fp.Answering(fp.Uniform(2), probability=0.7),
    "uneven": fp.Answering(fp.Everyone(), probability=[0.4, 0.9, 0.7]),
}


@pytest.mark.parametrize("who", SCHEMES)
def test_scaffold_ends_at_w_star_whoever_answers(who):
    f = fp.forecast(worlds.CATALOGUE["scaffold"], worlds.stream(), participation=SCHEMES[who], start=worlds.START)
    assert f.bias == 0.0
    np.testing.assert_allclose(f.limit, worlds.stream().solution(), rtol=0, atol=1e-10)
    assert f.rate < 1


def test_scaffnew_needs_everyone():
    with pytest.raises(fp.FedpointError, match="Everyone"):
        fp.forecast(worlds.CATALOGUE["scaffnew"], worlds.quadratic(), participation=2)


C0 = np.array([0.3, -0.2])


class Shifted(fp.Scaffold):
    """SCAFFOLD whose agents' controls start at C0, the hub's at 0."""

    def init(self, w):
        hub, c = fp.Scaffold.init(self, w)
        return hub, c + C0


class ShiftedNew(fp.Scaffnew):
    def init(self, w):
        hub, memory = fp.Scaffnew.init(self, w)
        return hub, memory._replace(h=memory.h + C0)


@pytest.mark.parametrize("algorithm", [Shifted(0.05, (1, 2, 4)), ShiftedNew(0.1, local_steps=3)], ids=["i", "ii"])
def test_a_wrong_start_of_the_controls_is_conserved(algorithm):
    """sum p_k c_k - c = C0 for ever: at the limit sum p_k g_k(w) = C0 instead of 0, and runs go there."""
    problem = worlds.quadratic(0.0)
    f = fp.forecast(algorithm, problem)
    expected = problem.solution() + np.linalg.solve(np.tensordot(worlds.P, worlds.H, 1), C0)
    assert f.bias > 0.1
    run = fp.run(algorithm, problem, rounds=1200, exact=True)
    np.testing.assert_allclose(f.limit, run.model[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(f.limit, expected, rtol=0, atol=1e-9)
    assert f.rate < 1  # the conserved direction is left out


# Rates are slopes of log |w - limit| of long exact runs.


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fedavg, own steps", "stream"),
        ("scaffold", "stream"),
        pytest.param("scaffnew, H = 3", "quadratic", marks=pytest.mark.slow),
        pytest.param("scaffold, option 1", "quadratic", marks=pytest.mark.slow),
        pytest.param("fedprox", "squares", marks=pytest.mark.slow),
        pytest.param("fednova", "squares", marks=pytest.mark.slow),
    ],
)
def test_rates_are_slopes_of_long_runs(name, kind):
    """The second half of the decades above rounding; other modes have died out there to about 1e-3 of the slope."""
    problem, algorithm = worlds.AFFINE[kind](), worlds.CATALOGUE[name]
    f = fp.forecast(algorithm, problem, exact=True)
    path = fp.run(algorithm, problem, rounds=1500, exact=True, start=np.array([1e3, -1.7e3])).history[0]
    gap = np.linalg.norm(path - f.limit, axis=1)
    last = np.flatnonzero(gap > 1e-8)[-1]
    slope = np.polyfit(np.arange(last // 2, last), np.log(gap[last // 2 : last]), 1)[0]
    assert np.log(f.rate) == pytest.approx(slope, rel=5e-3)


def test_the_curve_without_noise_is_the_run():
    """Nothing random: the expected error is the error, to rounding (errors of order 1, 60 rounds)."""
    for name in ("fedavg, own steps", "scaffold"):
        f = fp.forecast(worlds.CATALOGUE[name], worlds.stream(), start=worlds.START, exact=True)
        run = fp.run(worlds.CATALOGUE[name], worlds.stream(), rounds=60, start=worlds.START, exact=True)
        np.testing.assert_allclose(f.curve(60), run.error[0], rtol=1e-9, atol=1e-14)
        assert f.variance == 0.0 and f.floor == pytest.approx(f.bias**2, rel=1e-12)


def test_partial_participation_slows_the_mean_of_scaffold_only():
    """A rate with memories depends on who is heard; without memories it is everyone's, by linearity."""
    everyone, few = (fp.forecast(worlds.CATALOGUE["scaffold"], worlds.stream(), participation=who) for who in (None, 2))
    assert few.rate > everyone.rate + 1e-6
    everyone, few = (
        fp.forecast(worlds.CATALOGUE["fedavg, own steps"], worlds.stream(), participation=who) for who in (None, 2)
    )
    assert few.rate == pytest.approx(everyone.rate, rel=1e-12)


def test_abandoned_rounds_slow_the_mean():
    """With chance 0.4 of a merge M becomes 0.6 I + 0.4 M."""
    algorithm = worlds.CATALOGUE["fedavg, own steps"]
    scheme = fp.Answering(fp.Uniform(1), probability=0.4)
    f, g = (fp.forecast(algorithm, worlds.stream(), participation=who) for who in (scheme, None))
    matrix = g.setting.matrix(g.limit)
    assert f.rate == pytest.approx(np.abs(np.linalg.eigvals(0.6 * np.eye(2) + 0.4 * matrix)).max(), rel=1e-10)
    np.testing.assert_allclose(f.limit, g.limit, rtol=0, atol=1e-12)


def test_other_numbers_do_not_compile_again():
    """Steps and counts are traced: structure is the same."""
    one, two = (
        Setting(fp.Experiment(fp.FedAvg(step, steps, normalise=False), worlds.quadratic(), start=worlds.START).bind())
        for step, steps in ((0.1, 3), (0.2, 4))
    )
    assert one.space == two.space and one.oracle == two.oracle
    assert dataclasses.asdict(one.algorithm) != dataclasses.asdict(two.algorithm)


def test_closed_forms_of_a_users_own_method_are_none():
    assert closed_forms(Shifted(0.05, 2), worlds.quadratic()) == {}


def test_a_direction_that_no_agent_sees():
    """Both agents' rows lie in a plane of three dimensions: SCAFFOLD's eigenvalue 1 then lacks an eigenvector.

    In the plane everything is as without the third dimension, there nothing moves; no divergence.
    """
    rng = np.random.default_rng(3)
    rows, b = rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 3))
    plane = np.linalg.qr(rng.normal(size=(3, 2)))[0].T
    flat = fp.problems.LeastSquares(list(rows), list(b), mean=True, batch=1)
    tall = fp.problems.LeastSquares([r @ plane for r in rows], list(b), mean=True, batch=1)
    f, g = (fp.forecast(fp.Scaffold(0.1, 2), problem) for problem in (tall, flat))
    np.testing.assert_allclose(f.limit, g.limit @ plane, rtol=0, atol=1e-9)
    assert f.rate == pytest.approx(g.rate, rel=1e-8) and not f.diverges
    assert f.variance == pytest.approx(g.variance, rel=1e-6)
