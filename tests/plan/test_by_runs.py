"""Plans of large models, whose steps are found by runs."""

from __future__ import annotations

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.results.plan import Goal
from fedpoint.verbs.plan.by_runs import REPEATS, STEPS, Runs, Seen

STREAM = fp.problems.LinearStream(1 + 0.2 * np.random.default_rng(0).normal(size=(5, 3)), 0.2)


def runs(target: float, local_steps: int = 3, most: int = 8, confidence: float | None = None) -> Runs:
    longest = fp.Experiment(fp.FedAvg(step=0.1, local_steps=most), STREAM, participation=2)
    goal = Goal(target, confidence=confidence)
    return Runs(longest, lambda step: fp.FedAvg(step=step, local_steps=local_steps), goal, target)


def never() -> bool:
    return False


def test_what_is_watched_is_what_fp_run_runs():
    steps = np.array([0.05, 0.2])
    seen = runs(target=0.01).watch(steps, 3, limit=20, late=never)
    rounds = seen.curves.shape[2] - 1
    assert rounds >= 8
    for step, curves in zip(steps, seen.curves, strict=True):  # one program for all local steps: the same rounds
        done = fp.run(fp.FedAvg(step=float(step), local_steps=3), STREAM, rounds, participation=2, seed=1, repeats=3)
        assert curves == pytest.approx(done.error, rel=1e-12)


def test_it_ends_at_the_first_round_at_which_one_of_the_means_is_at_the_target():
    error = fp.run(fp.FedAvg(step=0.1, local_steps=3), STREAM, 500, participation=2, seed=1, repeats=8).error
    high = error.mean(0) + error.std(0, ddof=1) / 8**0.5  # where a step is chosen, a standard error is added
    first = int(np.flatnonzero(high <= 0.06)[0])
    slow, fast = runs(target=0.06).watch(np.array([0.02, 0.1]), 8, limit=500, late=never).trials()
    assert (fast.rounds, fast.why) == (first, "")
    assert (slow.why, slow.ahead) == ("slow", first)
    error = fp.run(fp.FedAvg(step=0.1, local_steps=3), STREAM, 500, participation=2, seed=2, repeats=8).error
    (promised,) = runs(target=0.06).watch(np.array([0.1]), 8, limit=500, late=never).trials()
    assert promised.rounds == int(np.flatnonzero(error.mean(0) <= 0.06)[0])


@pytest.mark.parametrize("local_steps", [1, 8])
def test_the_step_is_about_as_good_as_the_best_by_exact_forecasts(local_steps: int):
    target = 0.03
    made = fp.plan(STREAM, target, methods=["fedavg"], local_steps=[local_steps], participation=[2])
    trial, _, repeats = runs(target, local_steps).best_step(0.05, known=False, limit=1000, late=never)
    assert repeats == STEPS * REPEATS and not trial.why
    exact = fp.forecast(fp.FedAvg(step=trial.step, local_steps=local_steps), STREAM, participation=2)
    assert made.best is not None
    # Of 24 runs whose errors spread about as much as they are large: the mean is known to a fifth or so.
    assert trial.value == pytest.approx(float(exact.curve(int(trial.rounds))[-1]), rel=0.6)
    assert exact.rounds_to(1.3 * target) <= 1.25 * made.best.rounds + 1


def test_with_a_confidence_a_further_run_is_below_the_level():
    """Of many normal curves, so large a share of further ones; a level that is the mean would hold half of them."""
    rng = np.random.default_rng(0)
    curves = 1 + 0.1 * rng.normal(size=(1, 24, 4000))
    levels = Seen(np.ones(1), curves, 1.0, confidence=0.95).levels[0]
    assert (1 + 0.1 * rng.normal(size=4000) <= levels).mean() == pytest.approx(0.95, abs=0.015)
    curves = 1 + 0.1 * rng.normal(size=(STEPS, REPEATS, 4000))
    levels = Seen(np.ones(STEPS), curves, 1.0, confidence=0.95).levels
    share = (1 + 0.1 * rng.normal(size=levels.shape) <= levels).mean()
    assert 0.93 < share < 0.99
    (mean,), (single,) = (runs(0.06, confidence=c).watch(np.array([0.1]), 8, 500, never).trials() for c in (None, 0.9))
    assert single.rounds > mean.rounds


def test_promised_runs_have_luck_of_their_own():
    ends = [runs(1e-9).watch(np.array(steps), 6, 5, never).curves[0, :, -1] for steps in ([0.1, 0.2], [0.1])]
    assert len(set(np.concatenate(ends))) == 12


def seen_of(*curves: np.ndarray) -> Seen:
    """Two repeats of each, a thousandth apart."""
    return Seen(np.ones(len(curves)), np.stack([np.stack([c, 1.001 * c]) for c in curves]), target=0.01)


def test_curves_are_given_up_where_they_cannot_get_there():
    t = np.arange(65.0)
    slow, fast = np.exp(-0.01 * t), np.exp(-0.05 * t)
    wobble = 0.2 + 0.001 * np.random.default_rng(0).normal(size=(8, 65))
    assert not seen_of(slow).hopeless(limit=470)  # there after log(100) / 0.01 = 461 rounds
    assert seen_of(slow).hopeless(limit=450)
    assert not seen_of(slow, fast).hopeless(limit=450)  # one is enough
    assert seen_of(np.exp(0.05 * t)).hopeless(limit=450)
    flat = Seen(np.ones(1), wobble[None], 0.01)
    assert flat.hopeless(limit=10**9)
    assert flat.trial(0).why == "floor"


@pytest.fixture(scope="module")
def large() -> fp.Problem:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 210)) / 15
    y = (X[:, 0] + 0.02 * rng.normal(size=60) > 0).astype(int)
    return fp.problems.Logistic(X, y, groups=np.arange(60) % 3, ridge=0.1, batch=4)


def test_a_plan_of_a_large_model_promises_what_runs_keep(large: fp.Problem):
    start = float(fp.run(fp.FedAvg(step=1e-9), large, 0).error[0, 0])
    made = fp.plan(
        large, 0.1 * start, methods=["gradient_exchange", "fedavg"], local_steps=[1, 8], participation=[None]
    )
    best = made.best
    assert best is not None and best.promise == "verified"
    assert best.runs == STEPS * REPEATS and best.floor is None and best.bias is None
    (measured,) = made.verify(top=1, repeats=100, seed=5)
    assert measured.met
    assert measured.mean == pytest.approx(best.error, abs=4 * measured.standard_error * (1 + 100 / best.runs) ** 0.5)
    assert f"errors expected are means of {STEPS * REPEATS} runs" in str(made)


@pytest.mark.slow
def test_with_a_confidence_so_many_single_runs_keep_it(large: fp.Problem):
    start = float(fp.run(fp.FedAvg(step=1e-9), large, 0).error[0, 0])
    options = {"methods": ["fedavg"], "local_steps": [8], "participation": [None]}
    made = fp.plan(large, 0.1 * start, confidence=0.95, **options)
    best = made.best
    assert best is not None and best.promise == "verified" and best.runs == STEPS * REPEATS
    (measured,) = made.verify(top=1, repeats=400, seed=5)
    assert measured.met and measured.share is not None and measured.share > 0.92


def test_without_time_one_setting_is_looked_at(large: fp.Problem):
    made = fp.plan(large, 0.1, methods=["fedavg"], local_steps=[1, 8], participation=[None], seconds=1e-3)
    assert len(made.tried) == 1 and len(made.unseen) == 1


@pytest.mark.parametrize(
    ("ends", "best", "edge"),
    [((4, 2, 1), 2, True), ((4, 1.1, 1), 2, False), ((1, 2, 4), 0, True), ((4, 1, 2), 1, False)],
)
def test_the_lowest_step_is_read_where_curves_end(ends, best, edge):
    """Not on the way there, where the order is another one; much lower at an edge than beside it: look farther."""
    curves = np.array([[[9.0, 1 / end, end]] for end in ends])
    seen = Seen(np.array([0.1, 0.2, 0.4]), curves, target=0.01)
    assert (seen.best, seen.lowest, seen.falls_at_edge) == (best, ends[best], edge)
