"""Another forecast of a problem begins where earlier ones ended, computes less, and answers the same."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory import known
from fedpoint.theory.operator import Setting


def problem(features):
    rng = np.random.default_rng(0)
    X = 3 * rng.normal(size=(40, features)) / np.sqrt(features)
    y = (X @ rng.normal(size=features) + rng.normal(size=40) > 0).astype(int)
    return fp.problems.Logistic(X, y, groups=np.repeat(np.arange(4), 10), ridge=0.1, batch=2)


def ask(problem, step, local_steps=4, method=fp.FedAvg, **options):
    return fp.forecast(method(step=step, local_steps=local_steps), problem, participation=2, **options)


@pytest.fixture
def work(monkeypatch):
    """Counts derivatives of expected rounds: products with one, or whole ones."""
    counts = {"derivatives": 0}
    slope, matrix = Setting.slope, Setting.matrix

    def counted(name, function):
        def call(*args, **named):
            counts[name] += 1
            return function(*args, **named)

        return call

    monkeypatch.setattr(Setting, "slope", lambda *a, **n: counted("derivatives", slope(*a, **n)))
    monkeypatch.setattr(Setting, "matrix", counted("derivatives", matrix))
    return counts


@pytest.mark.parametrize(
    ("features", "less", "same"),
    [(100, 0.8, 1e-9), pytest.param(600, 0.8, 1e-3, marks=pytest.mark.slow)],  # Newton's method, and strides
)
def test_another_step_and_number_of_local_steps_begin_from_what_is_known(work, features, less, same):
    def spent(problem, *asked):
        before = work["derivatives"]
        f = ask(problem, *asked, exact=features == 100)
        _ = f.fixed_point, f.rate
        return f, work["derivatives"] - before

    once = problem(features)
    spent(once, 0.3)
    for asked in [(0.33,), (0.3, 5)]:
        fresh, alone = spent(problem(features), *asked)
        again, after = spent(once, *asked)
        assert after <= less * alone
        apart = np.linalg.norm(again.fixed_point[0] - fresh.fixed_point[0])
        assert apart <= same * np.linalg.norm(fresh.fixed_point[0])
        assert again.rate == pytest.approx(fresh.rate, rel=same)


def test_ends_on_a_line_tell_the_next_one():
    """The drift is about proportional to the step: from w* and one end the next is told to second order."""
    asked = problem(20)
    steps, ends = (0.2, 0.22), []
    for step in steps:
        f = ask(asked, step, exact=True)
        near = known.near_end(f.setting)
        ends.append((near, f.setting.flatten(f.fixed_point)))
    (nothing, first), (near, second) = ends
    assert nothing is None
    w = ask(asked, 0.2).optimum
    assert np.linalg.norm(near - second) < 0.1 * np.linalg.norm(first - second)
    assert np.linalg.norm(first - second) < 0.2 * np.linalg.norm(first - w)


@pytest.mark.parametrize("method", [fp.FedAvg, fp.Scaffold])
def test_nothing_is_kept_where_ends_depend_on_where_a_run_begins(method):
    """Controls are conserved: their end is that of where they began. Affine rounds are solved at once."""
    linear = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
    curved = problem(3)
    assert known.known_of(ask(linear, 0.1, method=method, exact=True).setting) is None
    kept = known.known_of(ask(curved, 0.1, method=method).setting)
    assert (kept is None) == (method is fp.Scaffold)


def test_what_was_kept_is_no_answer(monkeypatch):
    """A wrong memory costs work, and nothing else."""
    asked = problem(20)
    right = ask(asked, 0.2).limit
    for wrong in (1e3, -5.0, np.nan):
        other = problem(20)
        _ = ask(other, 0.21).limit
        kept = known.known_of(ask(other, 0.2).setting)
        kept.ends = [np.full_like(kept.ends[0], wrong)]
        np.testing.assert_allclose(ask(other, 0.2).limit, right, rtol=1e-7)
