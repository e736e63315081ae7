"""Convolutions as products: the same numbers and derivatives as XLA's own, for every shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedpoint as fp
from fedpoint.problems.products import AsProducts, as_products

RNG = np.random.default_rng(0)


def numbers(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def agree(function, *given):
    """Values, and derivatives by every argument."""
    ours = as_products(function, *given)
    assert isinstance(ours, AsProducts) and "conv_general" not in str(jax.make_jaxpr(ours)(*given))
    weight = numbers(*jax.eval_shape(function, *given).shape)
    places = tuple(range(len(given)))
    for f in (lambda f: f(*given), lambda f: jax.grad(lambda *a: jnp.vdot(weight, f(*a)), places)(*given)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), f(ours), f(function))


@pytest.mark.parametrize(
    "x, kernel, strides, padding, apart, spec",
    [
        ((2, 7, 6, 3), (3, 2, 3, 4), (1, 1), "SAME", (1, 1), ("NHWC", "HWIO", "NHWC")),
        ((2, 3, 9, 8), (4, 3, 3, 3), (2, 1), "VALID", (1, 2), ("NCHW", "OIHW", "NCHW")),
        ((2, 7, 6, 3), (3, 3, 3, 4), (2, 2), [(2, 0), (-1, 1)], (1, 1), ("NHWC", "HWIO", "NCHW")),
        ((2, 9, 3), (4, 3, 5), (3,), "SAME", (1,), ("NWC", "WIO", "NWC")),
    ],
)
def test_convolutions(x, kernel, strides, padding, apart, spec):
    def function(x, k):
        return lax.conv_general_dilated(x, k, strides, padding, rhs_dilation=apart, dimension_numbers=spec)

    agree(function, numbers(*x), numbers(*kernel))
    agree(jax.jit(function), numbers(*x), numbers(*kernel))


@pytest.mark.parametrize("start, operation", [(-jnp.inf, lax.max), (0.0, lax.add)])
def test_pooling(start, operation):
    """With ties, whose derivative belongs to the first; a window that is not a number stays one."""

    def function(x):
        return lax.reduce_window(x, start, operation, (1, 2, 3, 1), (1, 2, 3, 1), "VALID")

    agree(function, numbers(2, 5, 7, 3))
    agree(function, jnp.round(numbers(4, 4, 6, 3)))
    broken = numbers(1, 2, 3, 1).at[0, 1, 0, 0].set(jnp.nan)
    assert np.isnan(as_products(function, broken)(broken)).all()


def test_what_is_not_written_otherwise_stays_as_it_is():
    def grouped(x, k):
        return lax.conv_general_dilated(x, k, (1, 1), "SAME", feature_group_count=3)

    def overlapping(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    given = numbers(2, 3, 5, 5), numbers(3, 1, 3, 3)
    assert as_products(grouped, *given) is grouped
    assert as_products(overlapping, given[0]) is overlapping


def test_a_run_says_it_and_ends_at_the_same_model():
    """The model of plain gradient descent with XLA's own convolution."""
    X, y = np.asarray(numbers(8, 6, 6, 1)), np.arange(8) % 2
    params = {"k": np.asarray(numbers(3, 3, 1, 2)), "d": np.asarray(numbers(18, 2))}

    def loss(w, batch):
        x = lax.conv_general_dilated(batch[0], w["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = lax.reduce_window(jnp.tanh(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        said = jax.nn.log_softmax(x.reshape(len(x), -1) @ w["d"])
        return -jnp.mean(jnp.take_along_axis(said, batch[1][:, None], 1))

    done = fp.run(fp.FedAvg(step=0.3, local_steps=2), fp.problems.Loss(loss, params, (X, y)), 2)
    assert "convolutions as products" in done.engine
    by_hand = params
    for _ in range(4):
        by_hand = jax.tree.map(lambda w, g: w - 0.3 * g, by_hand, jax.grad(loss)(by_hand, (X, y)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b, rtol=1e-4, atol=1e-5), done.model, by_hand)
