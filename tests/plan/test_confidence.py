"""`fp.plan(..., confidence=)`: so large a share of single runs reaches the target."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory.outlook import Law
from fedpoint.theory.planning import Assured
from fedpoint.theory.quadratic_forms import distribution

REPEATS = 2000


def stream(agents=6, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(agents, dim, dim)) / math.sqrt(dim)
    R = roots @ np.swapaxes(roots, 1, 2) + 0.5 * np.eye(dim)
    return fp.problems.LinearStream(1 + 0.3 * rng.normal(size=(agents, dim)), 0.1, R)


def classes(agents=4):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(15 * agents, 2))
    y = (X @ [1.0, -1.0] + 0.5 * rng.normal(size=len(X)) > 0).astype(int)
    return fp.problems.Logistic(X, y, groups=np.arange(len(X)) % agents, ridge=0.1, batch=5)


def share_of(made, seed=11):
    """How many of the runs of the best choice are at or below the target."""
    best = made.best
    runs = fp.run(
        best.algorithm,
        made.problem,
        best.rounds,
        participation=best.participation,
        repeats=REPEATS,
        seed=seed,
        record_every=best.rounds,
    )
    return float((runs.error[:, -1] <= made.target).mean())


def enough(share, confidence):
    """As far as the standard error of a share can tell, three of them."""
    return share >= confidence - 3 * math.sqrt(confidence * (1 - confidence) / REPEATS)


CASES = {
    "stream, few": (stream(), 0.05, {"methods": ["fedavg"], "local_steps": [2], "participation": [2]}),
    "scaffold": (stream(), 0.02, {"methods": ["scaffold"], "local_steps": [4], "participation": [None]}),
    "logistic": (classes(), 0.05, {"methods": ["fedavg"], "local_steps": [2], "participation": [None]}),
}
SLOW = ("scaffold", "logistic")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_the_share_of_runs_is_that_promised(name):
    problem, target, options = CASES[name]
    made = fp.plan(problem, target, confidence=0.9, **options)
    assert made.best.promise == "verified" and made.best.error <= target
    share = share_of(made)
    assert enough(share, 0.9)
    f = fp.forecast(made.best.algorithm, problem, participation=made.best.participation)
    assert f.probability(made.target, made.best.rounds) == pytest.approx(share, abs=0.03)  # of a normal law
    assert f.quantile(0.9, made.best.rounds) == pytest.approx(made.best.error, rel=1e-3)


def test_a_promise_of_the_mean_is_none_of_a_single_run():
    """The broken variant: without a confidence, fewer runs are below the target, and the test above would fail."""
    problem, target, options = CASES["stream, few"]
    assert not enough(share_of(fp.plan(problem, target, **options)), 0.9)


def test_more_confidence_costs_more():
    problem, target, options = CASES["stream, few"]
    costs = [fp.plan(problem, target, confidence=c, **options).best.cost for c in (None, 0.8, 0.99)]
    assert costs[0] < costs[1] < costs[2]


def test_without_randomness_a_run_is_the_mean():
    quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    options = {"methods": ["fedavg", "scaffold"], "local_steps": [2], "participation": [None]}
    mean, single = (fp.plan(quad, 1e-4, confidence=c, **options) for c in (None, 0.95))
    assert [c.rounds for c in single.choices] == [c.rounds for c in mean.choices]
    assert single.best.promise == "exact"


def test_the_value_of_a_law():
    """At the target to its accuracy and on the safe side; far above it, still above."""
    law = Law(np.array([1.0, 0.3]), np.array([0.5, 0.0]), 0.1)
    assured = Assured(0.95, 3.0)
    assert 0.95 <= distribution(law, assured(law)) < 0.95 + 1e-4
    assert Assured(0.95, 0.01)(Law(np.array([1e-3]), np.array([1.0]))) > 1.0
    assert Assured(0.95, 0.01)(Law(np.zeros(0), np.zeros(0), math.inf)) == math.inf


def test_it_can_be_read():
    problem, target, options = CASES["stream, few"]
    made = fp.plan(problem, target, confidence=0.9, **options)
    (m,) = made.verify(top=1, repeats=400, seed=3)
    assert m.met and m.share > 0.85 and m.z == pytest.approx((0.9 - m.share) / 0.015)
    text = str(made)
    assert "|w - w*|^2 <= 0.05 in 0.9 of runs" in text and "E|w" not in text and "share of 400 runs" in text
    said = made.to_dict()
    assert said["confidence"] == 0.9 and said["promise"] == "share of runs" and said["measured"][0]["share"] == m.share


class Lossy(fp.channel.Channel):
    """What arrives is known from drawn rounds only: it keeps something at the agents."""

    lossless = False

    def init(self, message):
        return jnp.zeros(())


def test_drawn_rounds_have_no_law_of_single_runs():
    options = {"methods": ["fedavg"], "local_steps": [1], "participation": [None], "channel": Lossy()}
    made = fp.plan(stream(), 0.05, confidence=0.9, **options)
    assert not made.choices and "how far single runs spread is not known" in made.excluded[0].reason


@pytest.mark.slow
def test_a_share_of_runs_of_a_large_model():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 250)), rng.integers(0, 2, size=40)
    wide = fp.problems.Logistic(X, y, groups=np.arange(40) % 2, ridge=0.5, batch=5)
    options = {"methods": ["fedavg"], "local_steps": [1], "participation": [None]}
    made = fp.plan(wide, 0.2 * float((wide.solution() ** 2).sum()), confidence=0.9, **options)
    assert made.best.promise == "verified" and enough(share_of(made), 0.9)


@pytest.mark.parametrize("confidence", [0.3, 1.0, 2, "high", True])
def test_mistakes(confidence):
    with pytest.raises(fp.FedpointError, match="confidence"):
        fp.plan(stream(), 0.05, confidence=confidence)
