"""Lengths of steps, and how many an agent takes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import fedpoint as fp
from fedpoint.core.random import Key
from fedpoint.core.steps import at, most_steps


def test_a_number_is_its_own_schedule():
    assert at(0.3, 17) == 0.3


def test_inverse_time_is_that_of_lecture_004():
    """s_t = 2 / (alpha (gamma + t)), gamma = max(8 beta / alpha, E)."""
    alpha, beta = 0.5, 3.0
    for E, gamma in ((5, 48.0), (100, 100.0)):
        step = fp.steps.InverseTime.lecture004(strong=alpha, smooth=beta, local_steps=E)
        for t in (0, 1, 77):
            assert at(step, t) == pytest.approx(2 / (alpha * (gamma + t)), rel=1e-15)


def test_exponential_and_any_function():
    assert at(fp.steps.Exponential(0.5, 0.9), 3) == pytest.approx(0.5 * 0.9**3)
    schedule = optax.cosine_decay_schedule(0.1, 100)
    assert at(fp.steps.Scheduled(schedule), 50) == pytest.approx(0.05, rel=1e-6)


def test_schedules_count_gradient_steps_not_rounds():
    """FedAvg with E steps a round takes s_t at t = round E + e."""
    center, E, rounds = 2.0, 3, 4
    step = fp.steps.InverseTime(1.0, 4.0)
    quad = fp.problems.Quadratic(1.0, [[center]])
    run = fp.run(fp.FedAvg(step, local_steps=E, normalise=False), quad, rounds=rounds)
    w = 0.0
    for t in range(rounds * E):
        w -= (1.0 / (4.0 + t)) * (w - center)
    np.testing.assert_allclose(run.model, [[w]], rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fp.steps.InverseTime(0.0, 1.0), "scale > 0"),
        (lambda: fp.steps.InverseTime(1.0, -1.0), "offset > 0"),
        (lambda: fp.steps.Exponential(-0.1, 0.9), "initial > 0"),
        (lambda: fp.steps.Exponential(0.1, 1.1), "factor <= 1"),
        (lambda: fp.steps.Exponential(0.1, 0.0), "0 < factor"),
        (lambda: fp.steps.Epochs(0), "at least 1, got 0"),
        (lambda: fp.steps.Stragglers(0, 0.5), "steps >= 1"),
        (lambda: fp.steps.Stragglers(3, 1.5), "fraction <= 1"),
        (lambda: fp.steps.Stragglers(3, -0.5), "0 <= fraction"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(fp.FedpointError, match=words):
        make()


@pytest.mark.parametrize("fraction", [0.0, 0.6, 1.0])
def test_stragglers_stop_after_a_uniform_number_of_steps(fraction):
    n, E = 40_000, 5
    with jax.enable_x64(True):
        draw = jax.jit(jax.vmap(lambda e: fp.steps.Stragglers(E, fraction).draw(Key.of(3).row(e))))
        steps = np.asarray(draw(jnp.arange(n)))
    counts = np.bincount(steps, minlength=E + 1)
    assert counts[0] == 0 and len(counts) == E + 1
    chances = np.full(E, fraction / E) + (1 - fraction) * (np.arange(1, E + 1) == E)
    if fraction == 0:
        assert (steps == E).all()
    else:
        assert stats.chisquare(counts[1:], n * chances).pvalue > 1e-5


def test_epochs_are_counted_by_each_agents_rows_and_batches(rng):
    rows = [3, 4, 10]
    X, groups = rng.normal(size=(17, 2)), np.repeat(np.arange(3), rows)

    def loss(w, batch):
        return jnp.mean((batch @ w) ** 2)

    for batch, counts in ((None, 2), (4, [2, 2, 6]), (5, [2, 2, 4]), (20, 2)):
        problem = fp.problems.Loss(loss, np.zeros(2), X, groups=groups, batch=batch)
        run = fp.run(fp.FedAvg(0.01, local_steps=fp.steps.Epochs(2), normalise=True), problem, rounds=0)
        np.testing.assert_array_equal(most_steps(run.session.algorithm.local_steps), counts)


def test_a_stream_has_no_epoch():
    lab = fp.problems.LinearStream.sample(agents=2, dim=2)
    with pytest.raises(fp.FedpointError, match="a stream has no epoch"):
        fp.run(fp.FedAvg(0.1, local_steps=fp.steps.Epochs(1), normalise=True), lab, rounds=1)


def test_a_schedule_of_rounds():
    """On a quadratic with curvature 1 and one agent, w_R = w_0 times the product over rounds of (1 - s_r)^E."""
    cosine = optax.cosine_decay_schedule(0.5, decay_steps=8)
    quad = fp.problems.Quadratic([1.0], [[0.0]])
    step = fp.steps.ByRound(fp.steps.Scheduled(cosine), 3)
    done = fp.run(fp.FedAvg(step=step, local_steps=3), quad, 6, start=np.ones(1))
    shrunk = np.prod([(1 - float(cosine(r))) ** 3 for r in range(6)])
    np.testing.assert_allclose(done.model[0], shrunk, rtol=1e-6)
    with pytest.raises(fp.FedpointError, match=r"is a function: write fp\.steps\.Scheduled"):
        fp.FedAvg(step=cosine)
    with pytest.raises(fp.FedpointError, match="at least 1"):
        fp.steps.ByRound(fp.steps.Exponential(0.1, 0.9), 0)
