"""Ditto, fine-tuning, APFL and pFedMe: rounds as recursions by hand, limits in closed form, mutants."""

import functools

import numpy as np
import pytest

import fedpoint as fp

K, ROWS, D, STEP = 4, 6, 2, 0.15


@functools.cache
def problem(batch=None):
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(K * ROWS, D)), rng.normal(size=K * ROWS)
    return fp.problems.LeastSquares(X, y, groups=np.repeat(np.arange(K), ROWS), batch=batch, mean=True)


@functools.cache
def fields():
    """A_k and b_k with f_k(w) = |X_k w - y_k|^2 / (2 rows)."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(K * ROWS, D)).reshape(K, ROWS, D), rng.normal(size=K * ROWS).reshape(K, ROWS)
    return np.einsum("kri,krj->kij", X, X) / ROWS, np.einsum("kri,kr->ki", X, y) / ROWS


def common(w, steps):
    """FedAvg's round."""
    A, b = fields()
    y = np.tile(w, (K, 1))
    for _ in range(steps):
        y = y - STEP * (np.einsum("kij,kj->ki", A, y) - b)
    return y.mean(0)


def gradient(v):
    A, b = fields()
    return np.einsum("kij,kj->ki", A, v) - b


def ditto(w, v, pull=0.5, steps=3, sign=1.0):
    for _ in range(steps):
        v = v - STEP * (gradient(v) + sign * pull * (v - w))
    return v


def fine_tuned(w, v, own=2):
    v = np.tile(w, (K, 1))
    for _ in range(own):
        v = v - STEP * gradient(v)
    return v


def apfl(w, v, mix=0.6, steps=3):
    for _ in range(steps):
        v = v - STEP * mix * gradient(mix * v + (1 - mix) * w)
    return v


def envelopes(w, theta, pull=0.8, steps=2):
    """pFedMe: w after the round, and the last proximal points."""
    A, b = fields()
    y = np.tile(w, (K, 1))
    for _ in range(steps):
        theta = np.linalg.solve(A + pull * np.eye(D), (b + pull * y)[..., None])[..., 0]
        y = y - STEP * pull * (y - theta)
    return y.mean(0), theta


METHODS = {
    "ditto": (fp.Ditto(STEP, 3, pull=0.5), ditto),
    "fine_tuned": (fp.FineTuned(STEP, 3, own_steps=2), fine_tuned),
    "apfl": (fp.APFL(STEP, 3, mix=0.6), apfl),
    "pfedme": (fp.PFedMe(STEP, pull=0.8, local_steps=2), None),
}


def path(name, rounds):
    """(rounds + 1, K, D): the agents' models."""
    w, v, found = np.zeros(D), np.zeros((K, D)), [np.zeros((K, D))]
    for _ in range(rounds):
        if name == "pfedme":
            w, v = envelopes(w, v)
            found.append(v)
            continue
        v = METHODS[name][1](w, v)
        w = common(w, 3)
        found.append(0.6 * v + 0.4 * w if name == "apfl" else v)
    return np.stack(found)


@pytest.mark.parametrize("name", METHODS)
def test_rounds_are_those_of_the_recursion(name):
    run = fp.run(METHODS[name][0], problem(), rounds=4)
    np.testing.assert_allclose(run.history[0], path(name, 4), rtol=0, atol=1e-13)
    assert run.cost.floats_up == run.cost.floats_down == 4 * K * D  # what is FedAvg's


@pytest.mark.parametrize("name", METHODS)
def test_limit_and_rate_in_closed_form(name):
    """The end of the recursion, the forecast and the closed form are one; so are the rates."""
    method = METHODS[name][0]
    f = fp.forecast(method, problem(), exact=True)
    end = path(name, 1500)[-1]
    np.testing.assert_allclose(f.limit, end, rtol=0, atol=1e-10)
    np.testing.assert_allclose(f.closed["fixed_point"], end, rtol=0, atol=1e-10)
    assert f.rate == pytest.approx(f.closed["rate"], rel=1e-9)


def test_goals():
    """With one local step the common model is w* (or the envelopes' minimum), and the error goes to zero."""
    A, b = fields()
    best = np.linalg.solve(A.mean(0), b.mean(0))
    pulled = np.linalg.solve(A + 0.5 * np.eye(D), (b + 0.5 * best)[..., None])[..., 0]
    goals = {
        fp.Ditto(STEP, pull=0.5): pulled,
        fp.FineTuned(STEP, own_steps=2): fine_tuned(best, None),
        fp.APFL(STEP, mix=0.6): np.linalg.solve(A, b[..., None])[..., 0],
    }
    for method, goal in goals.items():
        bound = fp.Experiment(method, problem()).bind()
        np.testing.assert_allclose(bound.solution, goal, rtol=0, atol=1e-11)
        assert fp.forecast(bound.experiment).bias < 1e-9


class Repelled(fp.Ditto):
    """A mutant: its own models are pushed away from the common one."""

    def local(self, w, v, agent):
        return super().local(2 * v - w, v, agent)


class Forgetful(fp.Ditto):
    """A mutant: its own models begin anew from the common one in every round."""

    def local(self, w, v, agent):
        return super().local(w, w, agent)


@pytest.mark.parametrize("mutant", [Repelled, Forgetful])
def test_mutants_end_elsewhere(mutant):
    run = fp.run(mutant(STEP, 3, pull=0.5), problem(), rounds=4)
    assert np.abs(run.history[0] - path("ditto", 4)).max() > 0.01


def test_noise_of_own_models_is_forecast():
    e = fp.Experiment(fp.Ditto(STEP, 2, pull=0.5), problem(2), participation=2, repeats=40, seed=1)
    f = fp.forecast(e)
    each = fp.run(e, rounds=1500, record_every=10).error[:, 20:].mean(1)
    assert f.noise_by == "exact" and abs(each.mean() - f.floor) < 4 * each.std() / np.sqrt(40)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fp.APFL(0.1, mix=1.5), "mix must be at most 1"),
        (lambda: fp.Ditto(0.1, pull=-1.0), "pull must be at least 0"),
        (lambda: fp.FineTuned(0.1, own_steps=0), "own_steps must be at least 1"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(fp.FedpointError, match=message):
        make()
