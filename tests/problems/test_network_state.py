"""Losses that draw random numbers and change statistics: against closed forms and against loops by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp

RNG = np.random.default_rng(1)
X = RNG.normal(size=(24, 3))
Y = RNG.normal(size=24)
WHOSE = np.arange(24) % 3


def squares(w, batch):
    x, y = batch
    return jnp.mean((x @ w - y) ** 2)


def watched(w, batch, key, state):
    """The same; its state goes a tenth of the way to the mean of the batch, and counts batches."""
    mean, count = state["mean"], state["count"]
    return squares(w, batch), {"mean": mean + 0.1 * (batch[0].mean(0) - mean), "count": count + 1}


STATE = {"mean": np.zeros(3), "count": np.int32(0)}


def problem(**more):
    return fp.problems.Loss(watched, np.zeros(3), (X, Y), WHOSE, state=STATE, **more)


def test_statistics_move_by_themselves_and_are_averaged():
    """Full batches: after E steps of R rounds s = (1 - 0.9^ER) times the mean of the agents' means, whatever w does."""
    method = fp.FedAvg(step=0.05, local_steps=2)
    done = fp.run(method, problem(), 5)
    plain = fp.run(method, fp.problems.Loss(squares, np.zeros(3), (X, Y), WHOSE), 5)
    np.testing.assert_allclose(done.model["params"], plain.model, rtol=1e-12)
    np.testing.assert_allclose(done.model["state"]["mean"][0], (1 - 0.9**10) * X.mean(0), rtol=1e-12)
    assert done.model["state"]["count"] == [10] and done.model["state"]["count"].dtype == np.int32
    np.testing.assert_allclose(done.loss, plain.loss, rtol=1e-12)


@pytest.mark.parametrize(
    "method", [fp.Scaffold(step=0.05, local_steps=2), fp.FedProx(step=0.05, local_steps=2, pull=1.0)]
)
def test_methods_do_with_parameters_what_they_do_without_a_state(method):
    plain = fp.run(method, fp.problems.Loss(squares, np.zeros(3), (X, Y), WHOSE), 4)
    np.testing.assert_allclose(fp.run(method, problem(), 4).model["params"], plain.model, rtol=1e-10)


def test_statistics_stay_at_their_agents():
    own = fp.run(fp.FedAvg(step=0.05, local_steps=2), problem(), 5, share=fp.all_but("state"))
    means = np.stack([X[k == WHOSE].mean(0) for k in range(3)])
    np.testing.assert_allclose(own.models["state"]["mean"][0], (1 - 0.9**10) * means, rtol=1e-12)
    assert np.ptp(own.models["params"][0], axis=0).max() < 1e-12


def noisy(w, batch, key):
    """Linear in w with a slope that is drawn: nothing in evaluation mode."""
    return 0.0 * w.sum() if key is None else w @ jax.random.normal(key, w.shape, w.dtype)


@pytest.mark.parametrize("more", [{"batch": 2}, {"batch": 3, "sampling": "shuffle"}, {}])
def test_keys_are_of_the_runs_coordinates(more):
    """Every step of every round and agent draws anew: increments of two steps of three agents are white, of variance
    2/3. Rows that are weighted draw each by itself, of variance 1/m. The same bits in two goes, none without noise."""
    drawn = fp.problems.Loss(noisy, np.zeros(2), (X, Y), WHOSE, random=True, **more)
    method = fp.FedAvg(step=1.0, local_steps=2)
    done = fp.run(method, drawn, 600)
    again = fp.run(method, drawn, 200).extend(600)
    np.testing.assert_array_equal(done.history, again.history)
    moves = np.diff(done.history[0], axis=0)
    rows = {None: 8, "shuffle": 8 / 3}.get(more.get("sampling") if more else None, 1) if more.get("batch") != 2 else 1
    scale = 2 / 3 / rows
    # 1,200 squares, whose mean has a relative standard error of sqrt(2/1200): five of them are 0.2
    assert abs((moves**2).mean() / scale - 1) < 0.25
    for a, b in ((moves[1:], moves[:-1]), (moves[:, :1], moves[:, 1:])):
        assert abs((a * b).mean() / scale) < 5 / np.sqrt(600)
    other = fp.run(method, drawn, 3, repeats=2)
    assert np.ptp(other.model, axis=0).min() > 0
    assert not np.any(fp.run(method, drawn, 3, exact=True).model)


def test_mixed_precision_computes_in_half_and_keeps_parameters():
    """Steps of 1e-4 from 1 would be lost in bfloat16, whose numbers near 1 are 0.0078 apart."""
    seen = []

    def falling(w, batch):
        seen.extend([w.dtype, batch[0].dtype])
        return jnp.mean(w * jnp.ones_like(batch[0][:, 0]))

    ones = fp.problems.Loss(falling, np.ones((), np.float32), (X, Y), WHOSE, compute="bfloat16")
    done = fp.run(fp.FedAvg(step=1e-4, local_steps=5), ones, 10)
    assert set(seen) == {jnp.dtype("bfloat16")} and done.model.dtype == np.float32
    np.testing.assert_allclose(done.model, 1 - 50e-4, rtol=1e-6)
    half = fp.problems.Loss(squares, np.zeros(3, np.float32), (X, Y), WHOSE, compute="bfloat16")
    full = fp.problems.Loss(squares, np.zeros(3, np.float32), (X, Y), WHOSE)
    method = fp.FedAvg(step=0.05, local_steps=2)
    near, exact = fp.run(method, half, 20).model, fp.run(method, full, 20).model
    assert 0 < np.abs(near - exact).max() < 0.02


def test_held_out_rows_have_losses_and_classes():
    labels = (X[:, 0] > 0).astype(int)

    def loss(w, batch):
        return jnp.mean(jnp.logaddexp(0, -(2 * batch[1] - 1) * (batch[0] @ w)))

    def predict(w, x):
        return jnp.stack([jnp.zeros(len(x)), x @ w], axis=1)

    there = fp.problems.Loss(loss, np.zeros(3), (X, labels), WHOSE, predict=predict)
    w = np.array([3.0, 0.5, 0.0])
    found = there.row_metrics(w, X, labels)
    margin = (2 * labels - 1) * (X @ w)
    np.testing.assert_allclose(found["loss"], np.logaddexp(0, -margin), rtol=1e-12)
    np.testing.assert_array_equal(found["accuracy"], margin > 0)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: problem(batch=3, sampling="shuffle"), "the last one of an agent would have fewer than 3"),
        (
            lambda: fp.problems.Loss(watched, np.zeros(3), (X, Y), [0] * 20 + [1] * 4, state=STATE),
            "agents have different numbers of rows: give batch=",
        ),
        (lambda: fp.problems.Loss(squares, np.zeros(3), (X, Y), compute="float8"), "unknown compute='float8'"),
        (
            lambda: fp.problems.Loss(lambda w, b, k, s: squares(w, b), np.zeros(3), (X, Y), state=STATE),
            "must return two: the loss, and the state after it",
        ),
        (
            lambda: fp.problems.Loss(watched, np.zeros(3), (X, Y), state={"name": "batch"}),
            "a state is made of arrays of numbers",
        ),
        (
            lambda: fp.problems.Loss(
                lambda w, b: squares(w, (b["x"], b["y"])), np.zeros(3), {"x": X, "y": Y}
            ).row_metrics(np.zeros(3), X, Y),
            "held-out data are",
        ),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(fp.FedpointError, match=message):
        make()
