"""Do the closed forms beside the algorithms say where the engine goes? Unequal weights, Hessians and local steps.

With affine fields a round is an affine map, so that the engine's own matrix is read off one round from the fixed point
displaced along each axis: rates are compared to rounding, not estimated from slopes.
"""

import math

import jax
import numpy as np
import plain
import pytest

import fedpoint as fp
from fedpoint.algorithms import fedavg, fednova, fedopt, fedprox, general_rule, qfedavg, scaffnew, scaffold
from fedpoint.closed import linear
from fedpoint.theory import lms_floor
from fedpoint.theory.closed_forms import closed_forms

WORLD = plain.bowls(seed=0)
BOWLS = WORLD.problem()
RAGGED = (1, 1, 2, 6, 2)  # compiled for the other files too
ETA = 0.1
OWN = np.array([0.05, 0.1, 0.2, 0.03, 0.15])
LIMIT = 1e-10  # transients are below 1e-13 after 1,500 rounds; the forms divide by matrices of order 0.1


def regressions():
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((m, 3)) for m in (4, 6, 8, 12, 20)]
    b = [rng.standard_normal(len(a)) + a @ rng.standard_normal(3) for a in A]
    return fp.problems.LeastSquares(A, b, weights=WORLD.p, mean=True)


REGRESSIONS = regressions()

BIASED = {
    "fedavg": fp.FedAvg(ETA, RAGGED, normalise=False),
    "fedavg, normalised": fp.FedAvg(0.4, RAGGED, normalise=True),
    "fedavg, own steps": fp.FedAvg(OWN, RAGGED, normalise=False),
    "fedprox": fp.FedProx(ETA, RAGGED, pull=0.8),
    "fedprox, exact": fp.FedProx(pull=0.8, exact=True),
    "fednova": fp.FedNova(ETA, RAGGED),
    "fednova, all of it": fp.FedNova(ETA, RAGGED, momentum=0.6, pull=0.8, decay=0.7),
    "fednova, tau_eff": fp.FedNova(ETA, RAGGED, effective=1.5),
    "general rule": fp.GeneralRule(ETA, RAGGED, weights="fedavg", effective=1.2, momentum=0.5),
    "general rule, weights": fp.GeneralRule(ETA, RAGGED, weights=[0.1, 0.3, 0.2, 0.3, 0.1], pull=0.5),
    "general rule, a": fp.GeneralRule(ETA, RAGGED, coefficients=[1.0, 0.5, 2.0, 0.3, 1.0, 0.7], weights="fednova"),
    "q-fedavg, q = 0": fp.QFedAvg(0.0, ETA, RAGGED),
    "fedopt, sgd": fp.FedOpt(ETA, RAGGED, "sgd", server_step=0.7),
    "fedavgm": fp.FedAvgM(ETA, RAGGED, server_step=0.3, momentum=0.5),
}
UNBIASED = {
    "gradient exchange": fp.GradientExchange(ETA),
    "parameter exchange": fp.ParameterExchange(ETA),
    "fedavg, E = 1": fp.FedAvg(ETA),
    "scaffold": fp.Scaffold(0.05, RAGGED),
    "scaffold, E = 1": fp.Scaffold(ETA, server_step=0.8),
    "scaffnew": fp.Scaffnew(0.05, probability=0.5),
}


def limit(algorithm, problem, rounds=1500):
    return fp.run(algorithm, problem, rounds=rounds, exact=True).model[0]


def matrix(algorithm, problem, point):
    """The matrix of one round, by the engine."""
    columns = [fp.run(algorithm, problem, rounds=1, exact=True, start=point + e).model[0] - point for e in np.eye(3)]
    return np.array(columns).T


@pytest.mark.parametrize("name", BIASED)
def test_fixed_points_and_biases(name):
    found = closed_forms(BIASED[name], BOWLS)
    np.testing.assert_allclose(limit(BIASED[name], BOWLS), found["fixed_point"], rtol=0, atol=LIMIT)
    np.testing.assert_allclose(found["bias"], found["fixed_point"] - WORLD.star(), rtol=0, atol=1e-12)
    assert np.linalg.norm(found["bias"]) > 1e-3


@pytest.mark.parametrize("name", UNBIASED)
def test_methods_without_bias(name):
    found = closed_forms(UNBIASED[name], BOWLS)
    np.testing.assert_allclose(limit(UNBIASED[name], BOWLS), found["fixed_point"], rtol=0, atol=LIMIT)
    assert np.linalg.norm(found["bias"]) < 1e-12


@pytest.mark.parametrize("name", ["fedavg, normalised", "fedprox, exact", "fednova, all of it"])
def test_fixed_points_on_rows(name):
    found = closed_forms(BIASED[name], REGRESSIONS)
    np.testing.assert_allclose(limit(BIASED[name], REGRESSIONS, 3000), found["fixed_point"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in (*BIASED, *UNBIASED) if name not in ("fedavgm", "scaffold")])
def test_rates_are_those_of_the_engines_matrix(name):
    algorithm = {**BIASED, **UNBIASED}[name]
    found = closed_forms(algorithm, BOWLS)
    if name == "scaffnew":
        assert "rate" not in found
        return
    measured = np.abs(np.linalg.eigvals(matrix(algorithm, BOWLS, found["fixed_point"]))).max()
    assert found["rate"] == pytest.approx(measured, abs=1e-11)
    assert found["rate"] < 1


@pytest.mark.parametrize(("step", "momentum"), [(0.3, 0.5), (0.05, 0.9)], ids=["real", "complex"])
def test_the_rate_of_momentum_at_the_server(step, momentum):
    """From the decay over many rounds: real roots settle on one factor, complex ones turn, hence the loose slope."""
    algorithm = fp.FedAvgM(ETA, RAGGED, server_step=step, momentum=momentum)
    found = closed_forms(algorithm, BOWLS)
    path = fp.run(algorithm, BOWLS, rounds=300, exact=True, start=np.full(3, 1e6)).history[0]
    error = np.linalg.norm(path - found["fixed_point"], axis=1)
    usable = np.flatnonzero(error > 1e-5)[-1]
    slope = np.polyfit(np.arange(usable // 2, usable), np.log(error[usable // 2 : usable]), 1)[0]
    assert math.log(found["rate"]) == pytest.approx(slope, rel=0.05)


def test_lecture_002s_weights_are_special_cases():
    """On |x - e_k|^2/2 agents count by p_k om_k: lecture 002 and its corrections."""
    tau, centers = np.array(RAGGED), WORLD.c
    problem = fp.problems.Quadratic(1.0, centers, weights=WORLD.p)
    left = (1 - ETA) ** tau
    cases = [
        (fedavg.fixed_point(fp.FedAvg(ETA, RAGGED, normalise=False), problem), 1 - left),
        (fednova.fixed_point(fp.FedNova(ETA, RAGGED), problem), (1 - left) / tau),
        (fedprox.fixed_point(fp.FedProx(ETA, RAGGED, pull=0.8), problem), (1 - (1 - ETA * 1.8) ** tau) / 1.8),
        (fedprox.fixed_point(fp.FedProx(pull=0.8, exact=True), problem), np.ones(5)),
    ]
    for found, om in cases:
        np.testing.assert_allclose(found, (WORLD.p * om) @ centers / (WORLD.p @ om), rtol=1e-12)


def test_the_small_step_bias_is_the_limit_of_the_bias():
    """First order: its error falls by four when the step is halved (2.5 % of fifth-order terms), also with own E_k."""
    for steps, normalise in (((5,) * 5, False), (RAGGED, True), (RAGGED, False)):
        gaps = []
        for step in (2e-3, 1e-3):
            algorithm = fp.FedAvg(step, steps, normalise=normalise)
            gaps.append(np.linalg.norm(fedavg.bias(algorithm, BOWLS) - fedavg.bias_small_step(algorithm, BOWLS)))
        assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.03)


def test_the_small_step_bias_is_lecture_001s():
    s, E = 0.01, 5
    mean, g = np.tensordot(WORLD.p, WORLD.H, 1), np.array([WORLD.g(k, WORLD.star()) for k in range(5)])
    expected = s * (E - 1) / 2 * np.linalg.solve(mean, np.einsum("k,kij,kj->i", WORLD.p, WORLD.H - mean, g))
    found = fedavg.bias_small_step(fp.FedAvg(s, E, normalise=False), BOWLS)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


# Participation and stragglers: the mean of one round, over repeats, from the fixed point.


def drift(algorithm, point, participation=None, repeats=4000):
    """z-scores of the mean change of one round from a point."""
    run = fp.run(algorithm, BOWLS, rounds=1, exact=True, start=point, participation=participation, repeats=repeats)
    return np.abs(plain.z_scores(run.model, point)).max()


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *((name, fp.Uniform(2)) for name in ("fedavg", "fedprox", "fednova, tau_eff", "fedopt, sgd")),
        # Round by round FedAvg under this scheme (test_identities.py).
        pytest.param("q-fedavg, q = 0", fp.Uniform(2), marks=pytest.mark.slow),
        ("fedavg", fp.ByWeight(3)),
        ("gradient exchange", fp.ByWeight(3)),
    ],
)
def test_sampling_leaves_the_fixed_point(name, scheme):
    algorithm = {**BIASED, **UNBIASED}[name]
    found = closed_forms(algorithm, BOWLS, scheme)["fixed_point"]
    np.testing.assert_array_equal(found, closed_forms(algorithm, BOWLS)["fixed_point"])
    assert drift(algorithm, found, scheme) < 4.5


def test_sampling_moves_a_length_that_depends_on_who_answers():
    """FedNova's tau_eff is the mean length of those heard: no closed form then, and everyone's is wrong."""
    algorithm, scheme = BIASED["fednova"], fp.Uniform(2)
    assert closed_forms(algorithm, BOWLS, scheme) == {}
    assert drift(algorithm, closed_forms(algorithm, BOWLS)["fixed_point"], scheme) > 6
    assert "fixed_point" in closed_forms(fp.FedNova(ETA, 3), BOWLS, scheme)


def test_a_plain_mean_of_unequal_agents_has_another_fixed_point():
    algorithm, scheme = BIASED["fedavg"], fp.Uniform(2, plain=True)
    assert closed_forms(algorithm, BOWLS, scheme) == {}
    assert drift(algorithm, closed_forms(algorithm, BOWLS)["fixed_point"], scheme) > 6
    equal = fp.problems.Quadratic(WORLD.H, WORLD.c)
    assert "fixed_point" in closed_forms(algorithm, equal, scheme)


def test_rounds_that_may_be_abandoned_have_no_rate():
    often = fp.Answering(fp.Everyone(), probability=0.3)
    found = closed_forms(BIASED["fedavg"], BOWLS, often)
    assert "fixed_point" in found and "rate" not in found
    assert drift(BIASED["fedavg"], found["fixed_point"], often) < 4.5


@pytest.mark.parametrize("normalise", [True, False])
def test_stragglers_enter_by_their_mean(normalise):
    algorithm = fp.FedAvg(ETA, fp.steps.Stragglers(6, 0.7), normalise=normalise)
    found = closed_forms(algorithm, BOWLS)
    assert drift(algorithm, found["fixed_point"]) < 4.5
    assert drift(algorithm, fedavg.fixed_point(fp.FedAvg(ETA, 6, normalise=normalise), BOWLS), repeats=12000) > 6
    assert ("stability" in found) == (not normalise)  # a straggler's normalised step is longer


# Floors and stability.

STREAM = fp.problems.LinearStream.sample(8, 4, spread=0.5, noise=0.3, seed=3)


def test_floors_are_those_of_the_exact_recursion():
    """The recursion itself is held against quadrature and simulation in test_lms.py."""
    for scheme, options in (
        (None, {}),
        (3, {"participants": 3}),
        (fp.Uniform(3, plain=True), {"participants": 3}),
        (fp.ByWeight(3), {"participants": 3, "replacement": True}),
    ):
        for E, normalise in ((1, True), (4, True), (4, False)):
            found = closed_forms(fp.FedAvg(0.1, E, normalise=normalise), STREAM, scheme)["floor"]
            assert found == lms_floor(STREAM, 0.1, E, normalise=normalise, **options)
        for same in (fp.GradientExchange(0.1), fp.ParameterExchange(0.1), fp.FedOpt(0.1), fp.QFedAvg(0.0, 0.1)):
            assert closed_forms(same, STREAM, scheme)["floor"] == lms_floor(STREAM, 0.1, **options)


def test_small_step_floors_are_their_limit():
    for scheme in (None, 3, fp.ByWeight(3)):
        for E in (1, 5):
            found = closed_forms(fp.FedAvg(1e-5, E, normalise=True), STREAM, scheme)
            assert found["floor_small_step"] == pytest.approx(found["floor"], rel=1e-4)
            long = closed_forms(fp.FedAvg(E * 1e-5, E, normalise=True), STREAM, scheme)["floor_small_step"]
            unscaled = closed_forms(fp.FedAvg(1e-5, E, normalise=False), STREAM, scheme)["floor_small_step"]
            assert long == pytest.approx(unscaled, rel=1e-12)


def test_floors_are_not_given_where_the_recursion_does_not_hold():
    assert not {"floor", "floor_small_step"} & set(closed_forms(fp.FedAvg(0.1), STREAM, exact=True))
    weighted = fp.problems.LinearStream(STREAM.own.model, weights=np.arange(1.0, 9.0))
    own = fp.FedAvg(np.linspace(0.05, 0.1, 8))
    for algorithm, problem, scheme in (
        (fp.FedAvg(0.1), weighted, None),
        (fp.FedAvg(0.1, [1, 2] * 4, normalise=True), STREAM, None),
        (own, STREAM, None),
        (fp.FedAvg(0.1), STREAM, fp.Importance(3)),
        (fp.FedAvg(fp.steps.InverseTime(1.0, 10.0)), STREAM, None),
        (fp.FedAvg(0.1), BOWLS, None),
        (fp.FedProx(0.1), STREAM, None),
    ):
        assert "floor" not in closed_forms(algorithm, problem, scheme)


SHARP = {
    "descent": (lambda step: fp.GradientExchange(step), BOWLS, True),
    "fedavg, E = 1": (lambda step: fp.FedAvg(step), BOWLS, True),
    "equal agents": (lambda step: fp.FedAvg(step, 3, normalise=True), fp.problems.Quadratic(WORLD.H[0], WORLD.c), True),
    "fedavg": (lambda step: fp.FedAvg(step, RAGGED, normalise=False), BOWLS, False),
    "fedavg, normalised": (lambda step: fp.FedAvg(step, RAGGED, normalise=True), BOWLS, False),
    "fedprox": (lambda step: fp.FedProx(step, RAGGED, pull=0.8), BOWLS, False),
}


@pytest.mark.parametrize("name", SHARP)
def test_steps_below_the_limit_are_stable(name):
    make, problem, sharp = SHARP[name]
    top = closed_forms(make(0.1), problem)["stability"]
    assert closed_forms(make(0.999 * top), problem)["rate"] < 1
    if sharp:
        assert closed_forms(make(1.001 * top), problem)["rate"] > 1
    else:
        assert closed_forms(make(4 * top), problem)["rate"] > 1


def test_each_agent_has_its_own_limit():
    algorithm = fp.FedAvg(ETA, RAGGED, normalise=True)
    each = closed_forms(algorithm, BOWLS)["stability_by_agent"]
    for k in range(5):
        alone = fp.problems.Quadratic(WORLD.H[k], WORLD.c[k : k + 1])
        for factor, grows in ((0.999, False), (1.001, True)):
            rate = fedavg.rate(fp.FedAvg(factor * each[k], RAGGED[k], normalise=True), alone)
            assert (rate > 1) == grows


# Scaffnew.


def potential(gamma, p, x, h):
    own = np.array([WORLD.g(k, WORLD.star()) for k in range(5)])
    distance = ((x - WORLD.star()) ** 2).sum(1) + (gamma / p) ** 2 * ((h - own) ** 2).sum(1)
    return WORLD.p @ distance


@pytest.mark.parametrize("p", [0.2, 0.5, 1.0])
def test_scaffnews_potential_shrinks_by_its_bound_in_every_step(p):
    """The exact mean over the coin, from random states with sum p_k h_k = 0; some come within half of the bound."""
    gamma = 1 / BOWLS.constants().delta_k.max()
    bound = scaffnew.rate_bound(fp.Scaffnew(gamma, probability=p), BOWLS)
    rng, worst = np.random.default_rng(0), 0.0
    for trial in range(300):
        x, h = rng.standard_normal((2, 5, 3)) * 10.0 ** rng.uniform(-2, 2, size=(2, 1, 1))
        if trial % 2:
            x = np.broadcast_to(x[0], x.shape)
        h = h - WORLD.p @ h
        ahead = np.array([x[k] - gamma * (WORLD.g(k, x[k]) - h[k]) for k in range(5)])
        merged = np.broadcast_to(WORLD.p @ ahead, ahead.shape)
        after = p * potential(gamma, p, merged, h + p / gamma * (merged - ahead))
        after += (1 - p) * potential(gamma, p, ahead, h)
        worst = max(worst, after / potential(gamma, p, x, h))
    assert worst <= bound + 1e-12
    assert 1 - worst < 8 * (1 - bound)


def test_scaffnews_bound_per_round_holds_in_the_long_run():
    """Over 120 rounds, in each of 50 repeats: |w - w*|^2 <= Psi, and the start's factor is 1e-3 of a nat a round."""
    gamma, p = 1 / BOWLS.constants().delta_k.max(), 0.4
    algorithm = fp.Scaffnew(gamma, probability=p)
    bound = closed_forms(algorithm, BOWLS)["rate_bound_round"]
    run = fp.run(algorithm, BOWLS, rounds=120, exact=True, repeats=50)
    slopes = np.log(run.error[:, -1] / run.error[:, 0]) / 120
    assert slopes.mean() < math.log(bound)


def test_scaffnews_bound_needs_its_assumptions():
    top = BOWLS.constants().delta_k.max()
    flat = fp.problems.Quadratic([1.0, 0.0], [[0.0], [1.0]])
    assert scaffnew.rate_bound(fp.Scaffnew(1.1 / top, probability=0.5), BOWLS) is None  # too long a step
    assert scaffnew.rate_bound(fp.Scaffnew(0.1, local_steps=3), BOWLS) is None  # not its random number of steps
    assert scaffnew.rate_bound(fp.Scaffnew(0.1, probability=0.5), flat) is None  # not strongly convex
    assert closed_forms(fp.Scaffnew(0.1, probability=0.5), BOWLS, 2) == {}  # Scaffnew needs everyone


# Where no closed form applies, and wrong ones.


def test_other_problems_and_settings_have_none():
    rng = np.random.default_rng(0)
    logistic = fp.problems.Logistic(rng.normal(size=(40, 2)), rng.integers(0, 2, 40), groups=np.arange(40) % 4)
    found = closed_forms(fp.FedAvg(0.1), logistic)
    np.testing.assert_array_equal(found["fixed_point"], logistic.solution())
    assert set(found) == {"fixed_point", "bias"}
    assert closed_forms(fp.FedAvg(0.1, 3, normalise=True), logistic) == {}
    assert closed_forms(fp.FedProx(pull=1.0, exact=True), logistic) == {}
    assert set(closed_forms(fp.Scaffold(0.1, 3), logistic)) == {"fixed_point", "bias"}
    assert closed_forms(fp.QFedAvg(1.0, 0.1), BOWLS) == {}
    assert closed_forms(fp.FedAvg(fp.steps.InverseTime(1.0, 10.0), 3, normalise=True), BOWLS) == {}
    assert set(closed_forms(fp.FedAdam(ETA, 3), BOWLS)) == {"fixed_point", "bias"}
    assert closed_forms(fp.FedAdam(ETA, 3), BOWLS, 2) == {}
    assert "fixed_point" in closed_forms(fp.FedAvg(ETA, fp.steps.Epochs(2), normalise=True), REGRESSIONS)

    class Own(fp.FedAvg):
        def combine(self, w, inbox):
            return super().combine(w, inbox)

    assert closed_forms(Own(ETA, 3), BOWLS) == {}  # it may do anything


def test_a_subclass_that_leaves_the_update_alone_keeps_them():
    class Named(fp.FedAvg):
        label: str = "ours"

        def check(self):
            assert self.label

    own, plain = closed_forms(Named(ETA, 3), BOWLS), closed_forms(fp.FedAvg(ETA, 3), BOWLS)
    assert list(own) == list(plain) and "rate" in own
    for name, value in plain.items():
        np.testing.assert_array_equal(own[name], value)


def test_local_optimisers_have_none():
    optax = pytest.importorskip("optax")
    assert closed_forms(fp.FedAvg(ETA, 3, optimiser=optax.trace(0.5), normalise=True), BOWLS) == {}
    assert closed_forms(fp.FedOpt(ETA, 3, server=optax.adam(0.1)), BOWLS) == {}


def dropped_weights(problem, M):
    A, b = problem.linear_fields()
    return linear.AffineRound(M / problem.agents, A, b)


def one_term_less(A, setting, normalise=False, pull=0.0):
    fewer = linear.LocalWork(setting.step, [(c, np.maximum(n - 1, 1)) for c, n in setting.draws])
    return DESCENT(A, fewer, normalise, pull)


def not_normalised(A, setting, normalise=False, pull=0.0):
    return DESCENT(A, setting, False, pull)


def pull_forgotten(A, setting, normalise=False, pull=0.0):
    return DESCENT(A, setting, normalise, 0.0)


DESCENT = linear.descent


@pytest.mark.parametrize(
    ("name", "part", "broken"),
    [
        ("fedavg", "averaged", dropped_weights),
        ("fednova", "averaged", dropped_weights),
        ("fedavg", "descent", one_term_less),
        ("fedavg, normalised", "descent", not_normalised),
        ("fedprox", "descent", pull_forgotten),
    ],
)
def test_a_wrong_formula_is_convicted(monkeypatch, name, part, broken):
    monkeypatch.setattr(linear, part, broken)
    with pytest.raises(AssertionError):
        test_fixed_points_and_biases(name)


def test_powers_and_sums_by_squaring():
    rng = np.random.default_rng(0)
    B, counts = rng.standard_normal((6, 3, 3)) / 2, np.array([0, 1, 2, 3, 7, 20])
    power, total = linear.geometric(B, counts)
    for k, n in enumerate(counts):
        np.testing.assert_allclose(power[k], np.linalg.matrix_power(B[k], n), rtol=1e-12, atol=1e-14)
        exact = sum((np.linalg.matrix_power(B[k], e) for e in range(n)), np.zeros((3, 3)))
        np.testing.assert_allclose(total[k], exact, rtol=1e-12, atol=1e-14)
    assert linear.geometric(1e200 * B[:1], np.array([50]))[0].shape == (1, 3, 3)  # overflows without a warning


def test_the_forms_are_functions_of_algorithm_and_problem():
    """Called as they stand in their modules, without a participation."""
    for module, algorithm in (
        (fedavg, fp.FedAvg(ETA, 3, normalise=True)),
        (fedprox, fp.FedProx(ETA, 3)),
        (fednova, fp.FedNova(ETA, RAGGED)),
        (general_rule, fp.GeneralRule(ETA, RAGGED)),
        (fedopt, fp.FedOpt(ETA, 3)),
        (qfedavg, fp.QFedAvg(0.0, ETA, 3)),
        (scaffold, fp.Scaffold(ETA, 1)),
    ):
        assert module.fixed_point(algorithm, BOWLS).shape == (3,)
        assert isinstance(module.rate(algorithm, BOWLS), float)
    assert not jax.config.jax_enable_x64
