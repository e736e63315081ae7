"""Wrappers among the choices of a plan, and forecasts that are not accurate."""

import dataclasses

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.results.forecast import Forecast
from fedpoint.theory.outlook import Accuracy
from fedpoint.verbs.plan.search import method_of

GRID = {"local_steps": [4], "participation": [None]}


def bowls(noise=0.02):
    """Agents whose curvatures differ: local steps are biased, in proportion to the step."""
    return fp.problems.Quadratic([0.5, 1.0, 3.0], [[0.0], [1.0], [2.5]], noise=noise)


def keeps(made):
    """The promise of the best, by 400 runs."""
    (m,) = made.verify(top=1, repeats=400, seed=5)
    assert m.met and abs(m.z) < 4, m


@pytest.mark.parametrize(
    "wrapper", [fp.Extrapolated, lambda inner: fp.Averaged(inner, burn_in=3)], ids=["both", "mean"]
)
def test_a_wrapper_is_planned_by_its_own_forecast(wrapper):
    target = 0.004
    made = fp.plan(bowls(), target, methods=[wrapper(fp.FedAvg(step=1.0))], **GRID)
    best = made.best
    assert best.promise == "exact" and best.algorithm.local_steps == 4
    f = fp.forecast(best.algorithm, bowls())
    assert f.rounds_to(target) == best.rounds and f.curve(best.rounds)[-1] == pytest.approx(best.error, rel=1e-6)
    plain = fp.forecast(best.algorithm.inner, bowls()).curve(best.rounds)[-1]
    assert plain != pytest.approx(best.error, rel=0.1)  # the curve of the inner method would be another
    keeps(made)


def test_wrappers_compete_with_what_they_wrap():
    """Where local steps are biased by the step, the line through two steps is worth twice the messages."""
    quiet = bowls(noise=1e-6)
    made = fp.plan(quiet, 1e-4, methods=["fedavg", fp.Extrapolated(fp.FedAvg(step=1.0))], **GRID)
    assert {c.title for c in made.choices} == {"FedAvg", "Extrapolated FedAvg"}
    costs = {c.title: c.use.floats_up for c in made.choices}
    assert costs["Extrapolated FedAvg"] == 2 * costs["FedAvg"]
    assert made.best.title == "Extrapolated FedAvg"


def test_running_means_without_randomness():
    made = fp.plan(bowls(noise=0.0), 1e-2, methods=[fp.Averaged(fp.Scaffold(step=1.0), burn_in=2)], **GRID)
    errors = fp.run(made.best.algorithm, bowls(noise=0.0), made.best.rounds).error[0]
    assert errors[-1] <= 1e-2 < errors[-2] and made.best.error == pytest.approx(errors[-1], rel=1e-6)


def test_wrappers_around_wrappers():
    method = method_of(fp.Averaged(fp.Extrapolated(fp.FedProx(step=1.0, pull=2.0)), burn_in=7))
    made = method(0.1, 3)
    assert method.title == "Averaged Extrapolated FedProx" and method.local
    assert made.burn_in == 7 and made.inner.inner.pull == 2.0 and made.step == 0.1 and made.local_steps == 3


# What is not accurate is not promised.


def classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = (X @ [1.0, -1.0] + 0.5 * rng.normal(size=len(X)) > 0).astype(int)
    return fp.problems.Logistic(X, y, groups=np.arange(len(X)) % 4, ridge=0.1, batch=5)


@pytest.fixture(scope="module")
def found():
    return fp.plan(classes(), 0.1, methods=["fedavg"], local_steps=[2], participation=[None])


def again(made):
    """As if nothing had been run."""
    made.choices = [dataclasses.replace(c, promise="not verified") for c in made.choices]
    made.tried = [dataclasses.replace(c, promise="not verified") for c in made.tried]
    made.excluded = []
    return made


@pytest.mark.parametrize("off, kept", [(0.01, True), (0.3, False)])
def test_a_forecast_that_is_not_accurate_is_verified_or_skipped(monkeypatch, found, off, kept):
    monkeypatch.setattr(Forecast, "accuracy", property(lambda self: Accuracy(off, 0.01)))
    made = again(found)
    choices, tried = list(made.choices), list(made.tried)
    made.confirm()
    assert made.best.promise == "verified"  # a run says so, whatever the theory
    made.choices, made.tried = choices, tried
    made.confirm(late=lambda: True)
    assert bool(made.best) == kept
    said = "not accurate: a Gaussian theory puts the floor 30.0% higher"
    assert kept or (said in made.excluded[0].reason and "no time was left to verify it" in made.excluded[0].reason)
    made.choices = choices
