"""Three verdicts: as forecast, contradicted, and undecided where nothing of the forecast was compared."""

import json
import math

import numpy as np
import pytest
from test_check import by_name, quadratic

import fedpoint as fp
from fedpoint.results.verdict import THRESHOLD


def softmax():
    """Three classes of four numbers each, which settle slowly."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    y = (X @ rng.normal(size=(4, 3)) + rng.normal(size=(60, 3))).argmax(1)
    return fp.problems.Logistic(X, y, groups=np.arange(60) % 4, ridge=0.1, batch=4)


def test_nothing_compared_is_undecided():
    """Far from settled, and two repeats say little."""
    found = fp.check(fp.run(fp.FedAvg(0.1, 3), softmax(), 30, repeats=2))
    assert found.outcome == "undecided" and not found and not found.passed and found.compared == []
    first = str(found).splitlines()[0]
    assert first.startswith("Undecided, 0 of 5 comparisons made: nothing of the forecast could be compared: ")
    assert "a mean over 2 repeats says little" in first and "the run has not settled" in first
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["verdict"] == "undecided" and plain["passed"] is False and plain["compared"] == 0


def test_the_first_line_says_how_much_was_compared():
    run = fp.run(fp.FedAvg(0.2, 3), quadratic(), 240, seed=1, repeats=16)
    assert str(fp.check(run)).startswith("As forecast, 6 of 6 comparisons made: ends at FedAvg's fixed point")
    one = fp.run(fp.FedAvg(0.2, 3), quadratic(), 240, seed=1)
    assert str(fp.check(one)).startswith("As forecast, 4 of 5 comparisons made: ")
    wrong = fp.check(run, claims=fp.FedAvg(0.3, 3))
    assert wrong.outcome == "contradicted" and str(wrong).startswith("Contradicted by ")
    assert wrong.to_dict()["verdict"] == "contradicted"


def test_what_is_conserved_alone_decides_nothing():
    """SCAFFOLD's sum of controls holds in a run whose forecast is void: that is no confirmation of the forecast."""
    found = fp.check(fp.run(fp.Scaffold(0.1, 2), softmax(), 5))
    assert by_name(found)["c = sum p_k c_k"].ok and found.outcome == "undecided"


def chain(sampling, agents=2):
    rng = np.random.default_rng(6)
    mdps = [fp.problems.MDP(rng.dirichlet(np.full(5, 0.2), (5, 2)), rng.normal(size=(5, 2))) for _ in range(agents)]
    return fp.problems.TD(mdps, features=np.random.default_rng(0).normal(size=(5, 2)), gamma=0.9, sampling=sampling)


def test_a_trajectory_is_held_against_the_joint_states_of_its_chains():
    """Of few chains: right runs are as forecast, and contradict a longer step."""
    for seed in range(3):
        run = fp.run(fp.FedAvg(0.2, 5), chain("trajectory"), 300, repeats=64, seed=seed)
        found = fp.check(run)
        assert found.outcome == "as forecast" and by_name(found)["limit"].ok and by_name(found)["floor"].ok, found
    assert fp.check(run, claims=fp.FedAvg(0.3, 5)).outcome == "contradicted"
    f = fp.forecast(fp.FedAvg(0.2, 5), chain("trajectory"))
    assert f.exact and not f.proviso and f.noise_by == "trajectory"


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({}, "without what trajectories do to each other"),
        ({"participation": fp.Uniform(3)}, "as if samples were independent"),
    ],
)
def test_what_is_no_forecast_of_many_trajectories_is_not_held_against_them(options, left_out):
    """No right run is convicted, and the reason is said."""
    method, problem = fp.FedAvg(0.2, 5), chain("trajectory", agents=12)
    found = fp.check(fp.run(method, problem, 60, repeats=16, **options))
    assert found.outcome == "undecided" and left_out in found.words, found
    f = fp.forecast(method, problem, **options)
    assert f.proviso == left_out and not f.exact and any("joint states" in note for note in f.notes)


def test_a_comparison_fails_beyond_five_standard_errors():
    """The rule of the page, for every comparison that has a z; one that is 5.8 off does not pass."""
    run = fp.run(fp.FedAvg(0.2, 3), quadratic(), 240, seed=1, repeats=50)
    for claim in (fp.FedAvg(0.2, 3), fp.FedAvg(0.21, 3), fp.FedAvg(0.3, 3), fp.FedAvg(0.2, 2)):
        scores = [c for c in fp.check(run, claims=claim).checks if c.z is not None]
        assert len(scores) == 6 and all(c.ok == (abs(c.z) <= THRESHOLD) for c in scores)
    assert THRESHOLD == 5.0


@pytest.mark.parametrize(("off", "passes"), [(3.0, True), (5.8, False), (-7.0, False)])
def test_a_path_that_is_off(off, passes, monkeypatch):
    """50 repeats whose mean error at one round is moved by so many of its standard errors from the forecast.

    Low means are judged by the forecast's own standard error where that is larger: 7 instead of 5.8.
    """
    run = fp.run(fp.FedAvg(0.2, 3), quadratic(), 40, seed=1, repeats=50)
    curve, at = fp.check(run).forecast.curve(40), 40
    error = run.error.copy()
    spread = error[:, at].std(ddof=1)
    error[:, at] += curve[at] - error[:, at].mean() + off * spread / math.sqrt(50)
    monkeypatch.setattr(type(run), "error", property(lambda self: error))
    assert by_name(fp.check(run))["path"].ok is passes


def test_the_slack_of_a_second_order_forecast_is_said():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(120, 2))
    y = np.where(X @ [1.0, -1.0] + rng.normal(size=120) > 0, 1, -1)
    problem = fp.problems.Logistic(X, y, groups=np.arange(120) % 3, ridge=0.1, batch=4)
    found = by_name(fp.check(fp.run(fp.FedAvg(0.1, 2), problem, 300, repeats=16, seed=2)))
    assert "of second order, so that " in found["floor"].words
    assert "of second order, so that 10% more or less is allowed" in found["path"].words
    assert "a part of the spread" in found["limit"].words
    assert all(found[name].ok for name in ("floor", "path", "limit"))
    assert found["step"].ok is None and "linearised" in found["step"].words
    exact = by_name(fp.check(fp.run(fp.FedAvg(0.2, 3), quadratic(), 240, seed=1, repeats=16)))
    assert not any("second order" in c.words for c in exact.values())


class QuietRounds(fp.FedAvg):
    """Each agent takes the same sample twice and halves: less noise than one step's, on the same mean path."""

    def local(self, w, memory, agent):
        y = fp.descend(
            agent,
            w,
            self.local_steps,
            lambda y, e: y - self.step * (agent.field(y, 2 * e) + agent.field(y, 2 * e + 1)) / 2,
        )
        return y - w, memory

    def samples(self, steps):
        return 2 * steps


def test_noise_that_is_not_the_forecast_one_is_found():
    run = fp.run(QuietRounds(0.2, 3), quadratic(), 60, seed=1, repeats=100)
    found = by_name(fp.check(run, claims=fp.FedAvg(0.2, 3)))
    assert found["noise"].ok is False and found["noise"].measured == pytest.approx(0.5, abs=0.05)
    assert found["unbiasedness"].ok
