"""Curves and floors against runs: algorithm x participation x local steps x heterogeneity x problem.

Standard errors are those of independent repeats. Errors are squares, with a tail longer than a normal one: five
standard errors of 400 repeats. Seeds are fixed, so that a case is right or wrong for ever. The quick cases have
every level of every axis; all that meet are in `make test-all`.
"""

import itertools
import math

import numpy as np
import pytest
import worlds

import fedpoint as fp

REPEATS, ROUNDS = 400, 120
SECOND_ORDER = 0.05  # of the floor: what a second-order theory may leave out on the logistic loss
Z = 5.0

ALGORITHMS = {
    "fedavg": lambda E: fp.FedAvg(0.2, E, normalise=False),
    "fedprox": lambda E: fp.FedProx(0.2, E, pull=0.5),
    "fednova": lambda E: fp.FedNova(0.2, E, momentum=0.3),
    "fedavgm": lambda E: fp.FedAvgM(0.15, E, server_step=0.6, momentum=0.4),
    "scaffold": lambda E: fp.Scaffold(0.1, E),
    "scaffnew": lambda E: fp.Scaffnew(0.15, probability=1 / E),
}
SCHEMES = {
    "everyone": fp.Everyone(),
    "uniform": fp.Uniform(2),
    "importance": fp.Importance(2),
    "answering": fp.Answering(fp.Everyone(), probability=0.6, minimum=2),
}
PROBLEMS = {
    "stream": worlds.stream,
    "quadratic": worlds.quadratic,
    "iid": worlds.squares,
    # Eight rows a step: a rare row's weight (up to 22) would make the errors' tail too heavy for a mean over 400. With
    # two rows, 400,000 repeats of two rounds gave 0.198(3), 0.164(3), where 0.1970, 0.1652 were forecast.
    "by norm": lambda spread: worlds.squares("importance", batch=8, spread=spread),
    "logistic": worlds.logistic,
}
AXES = (tuple(ALGORITHMS), tuple(SCHEMES), (1, 3), (0.0, 1.0), tuple(PROBLEMS))
GRID = [c for c in itertools.product(*AXES) if c[0] != "scaffnew" or (c[1] == "everyone" and c[2] > 1)]


QUICK = [
    ("fedavg", "uniform", 3, 1.0, "iid"),
    ("fedprox", "importance", 1, 1.0, "stream"),
    ("fednova", "answering", 3, 1.0, "quadratic"),
    ("fedavgm", "importance", 3, 0.0, "by norm"),
    ("scaffold", "uniform", 3, 1.0, "logistic"),
    ("scaffnew", "everyone", 3, 1.0, "stream"),
]
CASES = [
    pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow, id="-".join(map(str, c)).replace(" ", "_"))
    for c in GRID
]


def test_every_level_is_covered():
    """Whatever some case of the grid has, some quick case has."""
    assert set(QUICK) <= set(GRID)
    for i, axis in enumerate(AXES):
        assert {case[i] for case in QUICK} == set(axis)


def settling(f):
    """Rounds after which the expected error is about 1 % from its floor, by the forecast's own rates."""
    slow = max(f.rate, f.rate_ms)
    return int(np.clip(math.ceil(math.log(0.01) / math.log(max(slow, 1e-3))), 8, ROUNDS // 2))


def compare(f, run, slack=0.0):
    """z-scores of the mean error at some rounds, and over the second half, beyond what a linearisation may be off."""
    rounds = int(run.rounds[-1])
    curve, tail = f.curve(rounds), rounds // 2
    at = np.unique([1, 2, 4, 8, 16, tail, rounds])
    seen = np.concatenate([run.error[:, at], run.error[:, tail:].mean(1, keepdims=True)], axis=1)
    expected = np.append(curve[at], curve[tail:].mean())
    off = np.maximum(np.abs(seen.mean(0) - expected) - slack * expected, 0.0)
    return off / (seen.std(0, ddof=1) / np.sqrt(len(seen))), seen.mean(0), expected


@pytest.mark.parametrize(("method", "who", "steps", "spread", "kind"), CASES)
def test_curve_and_floor(method, who, steps, spread, kind):
    algorithm, problem = ALGORITHMS[method](steps), PROBLEMS[kind](spread=spread)
    # Near w* where fields are linearised, and where rows are chosen by their gradients at w*.
    near = kind in ("logistic", "by norm")
    start = problem.solution() + (np.array([0.4, -0.3]) if near else np.array([2.0, -1.5]))
    f = fp.forecast(algorithm, problem, participation=SCHEMES[who], start=start)
    assert not f.diverges and f.standard_error is None
    run = fp.run(algorithm, problem, 2 * settling(f), participation=SCHEMES[who], start=start, seed=17, repeats=REPEATS)
    z, seen, expected = compare(f, run, SECOND_ORDER if kind == "logistic" else 0.0)
    assert z.max() < Z, f"z = {z.round(1)}, seen {seen}, forecast {expected}"
    # The curve ends at the floor, as fast as the slower of the two rates tells (up to the factor before it).
    slow = max(f.rate, np.sqrt(f.rate_ms))
    assert abs(f.curve(4000)[-1] - f.floor) <= 1e-6 * f.floor + 100 * slow**4000
    assert f.floor == pytest.approx(f.bias**2 + f.variance, rel=1e-9)


def test_a_wrong_forecast_is_seen():
    """The same comparison with everyone's floor, or with one local step more, must fail."""
    algorithm, problem = ALGORITHMS["fedavg"](3), PROBLEMS["quadratic"](spread=1.0)
    start = problem.solution() + np.array([2.0, -1.5])
    run = fp.run(algorithm, problem, ROUNDS, participation=fp.Uniform(2), start=start, seed=17, repeats=REPEATS)
    assert compare(fp.forecast(algorithm, problem, participation=fp.Uniform(2), start=start), run)[0].max() < Z
    assert compare(fp.forecast(algorithm, problem, participation=fp.Uniform(3), start=start), run)[0].max() > 2 * Z
    assert (
        compare(fp.forecast(ALGORITHMS["fedavg"](4), problem, participation=fp.Uniform(2), start=start), run)[0].max()
        > 2 * Z
    )


@pytest.mark.parametrize(
    "step",
    [fp.steps.InverseTime(2.0, 6.0), pytest.param(fp.steps.Exponential(0.3, 0.99), marks=pytest.mark.slow)],
    ids=["1/t", "exponential"],
)
def test_the_curve_of_decaying_steps(step):
    """Only a curve; linearised anew around the mean, so exact on affine fields."""
    problem = worlds.stream()
    algorithm = fp.FedAvg(step, 2, normalise=False)
    f = fp.forecast(algorithm, problem, participation=fp.Uniform(2), start=worlds.START)
    assert f.limit is None and f.rate is None and f.rate_ms is None and f.floor is None and not f.diverges
    assert "only the curve" in " ".join(f.notes) and "only curve(rounds)" in f.text()
    run = fp.run(algorithm, problem, ROUNDS, participation=fp.Uniform(2), start=worlds.START, seed=3, repeats=REPEATS)
    z, seen, expected = compare(f, run)
    assert z.max() < Z, (z, seen, expected)


def test_the_loss_above_its_minimum():
    """measure="loss": E f(w) - f*, exact on quadratic losses."""
    problem = worlds.quadratic()
    algorithm = ALGORITHMS["fedavg"](3)
    f = fp.forecast(algorithm, problem, participation=fp.Uniform(2), start=worlds.START, measure="loss")
    run = fp.run(algorithm, problem, ROUNDS, participation=fp.Uniform(2), start=worlds.START, seed=3, repeats=REPEATS)
    seen = np.stack([problem.objective(m) for m in run.history]) - problem.objective(problem.solution()[None])
    curve = f.curve(ROUNDS)
    at = [1, 2, 5, 20, ROUNDS]
    z = (seen.mean(0) - curve)[at] / (seen.std(0, ddof=1) / np.sqrt(REPEATS))[at]
    assert np.abs(z).max() < Z, z
