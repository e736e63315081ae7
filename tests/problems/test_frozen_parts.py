"""Parts that nobody learns: runs are those of a loss that closes over them, and nothing of them is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp

RNG = np.random.default_rng(4)
X, Y, WHOSE = RNG.normal(size=(30, 4)), RNG.normal(size=(30, 3)), np.arange(30) % 3
BASE = {"W": RNG.normal(size=(4, 3)), "b": RNG.normal(size=3)}
START = {"base": BASE, "lora": {"A": RNG.normal(size=(4, 1)), "B": np.zeros((1, 3))}}


def predict(w, x):
    return x @ (w["base"]["W"] + w["lora"]["A"] @ w["lora"]["B"]) + w["base"]["b"]


def loss(w, rows):
    return jnp.mean((predict(w, rows[0]) - rows[1]) ** 2)


def adapter(lora, rows):
    return loss({"base": BASE, "lora": lora}, rows)


def pair(**more):
    """The adapter of a frozen base, and the adapter alone with a loss that has the base in it."""
    given = ((X, Y), WHOSE)
    return fp.problems.Loss(loss, START, *given, learn="lora", **more), fp.problems.Loss(
        adapter, START["lora"], *given, **more
    )


@pytest.mark.parametrize(
    "options",
    [
        {"share": None},
        {"share": "lora.A", "participation": 2},
        pytest.param({"channel": fp.channel.TopK(0.5)}, marks=pytest.mark.slow),
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_adapter_of_a_frozen_base_is_a_loss_with_the_base_in_it(options):
    ours, theirs = pair(batch=4)
    alone = {**options, "share": "A"} if options.get("share") else options
    one = fp.run(fp.Scaffold(step=0.05, local_steps=3), ours, 6, repeats=2, **options)
    two = fp.run(fp.Scaffold(step=0.05, local_steps=3), theirs, 6, repeats=2, **alone)
    for name in ("A", "B"):
        np.testing.assert_array_equal(one.model["lora"][name], two.model[name])
    np.testing.assert_array_equal(one.model["base"]["W"], np.broadcast_to(BASE["W"], (2, 4, 3)))
    np.testing.assert_array_equal(one.loss, two.loss)
    assert one.cost == two.cost
    final = one.final()["base"]["b"]  # of each agent, where they have models of their own
    np.testing.assert_array_equal(final, np.broadcast_to(BASE["b"], final.shape))


@pytest.mark.slow
def test_a_linear_part_has_the_forecast_of_least_squares():
    """The constants learnt alone, behind frozen weights: least squares of what these leave."""
    left = Y[:, 0] - X.sum(1)
    ours = fp.problems.Loss(
        lambda w, rows: jnp.mean((rows[0] @ w["w"] + w["c"] - rows[1]) ** 2) / 2, {"w": np.ones(4), "c": np.zeros(())},
        (X, Y[:, 0]), WHOSE, batch=5, convex=True, learn="c", solution={"w": np.ones(4), "c": left.mean()},
    )  # fmt: skip
    theirs = fp.problems.LeastSquares(np.ones((30, 1)), left, groups=WHOSE, batch=5, mean=True)
    method = fp.FedAvg(step=0.1, local_steps=3)
    a, b = (fp.forecast(method, problem, participation=2) for problem in (ours, theirs))
    np.testing.assert_allclose([a.floor, a.rate], [b.floor, b.rate], rtol=1e-6)


def test_in_half_precision_the_base_is_too():
    ours, theirs = pair(compute="bfloat16")
    assert ours.start()["lora"]["A"].dtype == np.float64
    one = fp.run(fp.FedAvg(step=0.05), ours, 3).model["lora"]["B"]
    # The closed-over base stays double, so that products are: near, not the same.
    np.testing.assert_allclose(one, fp.run(fp.FedAvg(step=0.05), theirs, 3).model["B"], atol=0.02)
    text = str(jax.make_jaxpr(lambda w: ours.oracle.function(w, (X[:2], Y[:2])))(ours.start()))
    assert "bf16[4,3]" in text


def test_whoever_resumes_needs_the_same_base(tmp_path):
    ours, _ = pair()
    fp.run(fp.FedAvg(step=0.05), ours, 2, folder=tmp_path / "run")
    other = {**START, "base": {**BASE, "b": BASE["b"] + 1}}
    with pytest.raises(fp.FedpointError, match="has other data"):
        fp.load(tmp_path / "run", fp.problems.Loss(loss, other, (X, Y), WHOSE, learn="lora")).extend(4)
    done = fp.load(tmp_path / "run", ours).extend(4)
    np.testing.assert_array_equal(done.model["lora"]["B"], fp.run(fp.FedAvg(step=0.05), ours, 4).model["lora"]["B"])


def test_the_best_model_of_a_file_begins_another_run(tmp_path):
    ours, _ = pair()
    done = fp.run(fp.FedAvg(step=0.05), ours, 3)
    done.export(tmp_path / "model.npz")
    for start in (done.final(), fp.warm_start(tmp_path / "model.npz", ours)):
        begun = fp.run(fp.FedAvg(step=0.05), ours, 0, start=start)
        np.testing.assert_array_equal(begun.model["lora"]["B"], done.model["lora"]["B"])


@pytest.mark.parametrize(
    ("learn", "message"),
    [
        ("lorra", "learn=: the model has no part 'lorra': did you mean 'lora'"),
        (fp.only(lambda name, array: False), "nothing of the model is learnt"),
        (fp.only("lora", own_steps=3), "own_steps and own_step belong to share="),
        (fp.only({"base": {"W": False, "b": [True, False, True]}, "lora": {"A": True, "B": True}}), "whole arrays"),
        (3, "learn must be"),
    ],
)
def test_mistakes(learn, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.problems.Loss(loss, START, (X, Y), WHOSE, learn=learn)
