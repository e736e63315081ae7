"""Affine rounds followed in NumPy, with one program for all steps, are those of the plain forecast."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.results.plan import Goal
from fedpoint.theory.affine_rounds import Powers, Rounds, affine, plain, suits, work_of_agents
from fedpoint.verbs.forecast import prepare
from fedpoint.verbs.plan.search import Search, method_of

ROUNDS = 20


def stream():
    return fp.problems.LinearStream.sample(agents=9, dim=2, seed=3)


def tables():
    """Agents with different curvatures, weights and sizes: nobody is like another."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, 2)) for n in (8, 12, 16, 12)]
    answers = [a @ (1 + 0.3 * rng.normal(size=2)) + 0.1 * rng.normal(size=len(a)) for a in rows]
    return fp.problems.LeastSquares(rows, answers, mean=True, batch=3)


METHODS = {
    "fedavg": lambda step, E: fp.FedAvg(step, E),
    "scaffold": lambda step, E: fp.Scaffold(step, E),
    "scaffold, option 1": lambda step, E: fp.Scaffold(step, E, option=1),
    "scaffnew": lambda step, E: fp.Scaffnew(step=step, local_steps=E),
    "gradient exchange": lambda step, E: fp.GradientExchange(step),
    "fedprox": lambda step, E: fp.FedProx(step=step, local_steps=E),
}


def followed(method, problem, scheme, step=0.02, E=3, chance=1.0):
    """The expected errors of another step and number of local steps than those that were compiled."""
    first = prepare(fp.Experiment(method(0.05, 6), problem, participation=scheme), coarse=8)
    s = first.setting
    assert suits(s) and plain(s, method(0.05, 6)) and affine(s)
    work = work_of_agents(s, method(step, E))
    moments = prepare(fp.Experiment(method(step, E), problem, participation=scheme)).setting.moments
    moments = moments._replace(own=chance * moments.own)
    rounds = Rounds(work, moments, first.gauge)
    found = [rounds.mean_error + rounds.variance, *(rounds.advance() for _ in range(ROUNDS))]
    powers = None if work.remembers else [Powers(work, moments, first.gauge).at(t) for t in range(ROUNDS + 1)]
    return np.array(found), powers


def compare(name, problem, scheme):
    """To rounding: products of the same matrices in another order; where agents remember, of differences too."""
    known = fp.forecast(METHODS[name](0.02, 3), problem, participation=scheme).curve(ROUNDS)
    found, powers = followed(METHODS[name], problem, scheme)
    np.testing.assert_allclose(found, known, rtol=1e-8)
    if powers is not None:
        np.testing.assert_allclose(powers, known, rtol=1e-9)


@pytest.mark.parametrize("name, problem", [("fedavg", stream), ("scaffold", tables), ("gradient exchange", tables)])
def test_curves_are_those_of_the_forecast(name, problem):
    compare(name, problem(), 2)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [None, 2, fp.Importance(2)], ids=str)
@pytest.mark.parametrize("problem", [stream, tables])
@pytest.mark.parametrize("name", METHODS)
def test_curves_of_every_method(name, problem, scheme):
    if name == "scaffnew" and scheme is not None:
        pytest.skip("it is for everyone")
    compare(name, problem(), scheme)


@pytest.mark.parametrize("wrong", [{"step": 0.021}, {"E": 4}, {"chance": 0.9}])
def test_another_step_count_or_chance_is_seen(wrong):
    known = fp.forecast(fp.Scaffold(0.02, 3), tables(), participation=2).curve(ROUNDS)
    found, _ = followed(METHODS["scaffold"], tables(), 2, **wrong)
    assert np.abs(found / known - 1).max() > 1e-4


def test_chances_that_depend_on_local_steps():
    """Importance draws by noise over local steps: a plan asks for them anew for every number."""
    problem = tables()
    search = Search(fp.Experiment(fp.FedAvg(1.0), problem), Goal(0.05), 8)
    method, scheme = method_of("fedavg"), fp.Importance(2)
    for E in (1, 8):
        known = search.known(method, E, scheme)
        curve = fp.forecast(fp.FedAvg(0.02, E), problem, participation=scheme).curve(ROUNDS)
        powers = Powers(search.work(method, E, 0.02), known.moments, known.gauge)
        np.testing.assert_allclose([powers.at(t) for t in range(ROUNDS + 1)], curve, rtol=1e-9)


def test_curved_fields_and_large_hubs_are_not_followed_so():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 2)), rng.integers(0, 2, size=20)
    curved = prepare(fp.Experiment(fp.FedAvg(0.1, 2), fp.problems.Logistic(X, y, np.arange(20) % 2, ridge=0.1)))
    assert not suits(curved.setting)
    wide = fp.problems.Quadratic([np.eye(40)] * 2, np.zeros((2, 40)), noise=0.1)
    assert not suits(prepare(fp.Experiment(fp.FedAvg(0.1, 2), wide)).setting)
