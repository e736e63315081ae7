"""Models that are trees have the arithmetic of arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpoint.core.inbox import gather
from fedpoint.core.vector import Vector, dot, square, take, unwrap, weighted_sum, where, wrap, zeros


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def tree(rng, lead=()):
    return {"a": jnp.asarray(rng.normal(size=(*lead, 2, 3))), "b": (jnp.asarray(rng.normal(size=(*lead, 4))),)}


def flat(x):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(x)])


def test_arithmetic_is_that_of_the_flat_array(rng):
    x, y = Vector(tree(rng)), Vector(tree(rng))
    a, b = flat(x), flat(y)
    for got, expected in [
        (x + y, a + b),
        (x - y, a - b),
        (x * y, a * b),
        (x / y, a / b),
        (-x, -a),
        (2.0 * x, 2 * a),
        (x * jnp.float64(2.0), 2 * a),
        (jnp.float64(0.5) * x, 0.5 * a),
        (x / 3.0, a / 3.0),
        (1.0 + x, 1 + a),
        (np.float64(3.0) * x, 3 * a),
        (y - 0.1 * (x - y) / 2.0, b - 0.1 * (a - b) / 2),
    ]:
        assert isinstance(got, Vector)
        assert jax.tree.structure(got) == jax.tree.structure(x)
        np.testing.assert_allclose(flat(got), expected, rtol=1e-15)


def test_inner_products_and_norms(rng):
    x, y = Vector(tree(rng)), Vector(tree(rng))
    np.testing.assert_allclose(dot(x, y), flat(x) @ flat(y), rtol=1e-14)
    np.testing.assert_allclose(square(x), flat(x) @ flat(x), rtol=1e-14)
    np.testing.assert_allclose(square(x.tree), flat(x) @ flat(x), rtol=1e-14)


def test_arrays_are_used_as_they_are_and_other_trees_are_wrapped(rng):
    array, model = jnp.ones(3), tree(rng)
    assert wrap(array) is array and unwrap(array) is array
    assert isinstance(wrap(model), Vector) and unwrap(wrap(model)) is model
    assert wrap(wrap(model)).tree is model  # wrapping twice is wrapping once
    assert wrap(np.ones(2)).shape == (2,)


def test_zeros_where_and_rows(rng):
    model = Vector(tree(rng, lead=(5,)))
    assert not flat(zeros(model)).any() and jax.tree.structure(zeros(model)) == jax.tree.structure(model)
    np.testing.assert_array_equal(flat(where(True, model, zeros(model))), flat(model))
    assert not flat(where(jnp.asarray(False), model, zeros(model))).any()
    rows = take(model, jnp.array([3, 0]))
    np.testing.assert_array_equal(rows.tree["a"], model.tree["a"][jnp.array([3, 0])])
    np.testing.assert_array_equal(take(model, 2).tree["b"][0], model.tree["b"][0][2])


def test_a_vector_travels_through_jit_vmap_and_grad(rng):
    model = Vector(tree(rng))
    np.testing.assert_allclose(flat(jax.jit(lambda v: v + v)(model)), 2 * flat(model))
    batched = jax.vmap(lambda s: model * s)(jnp.arange(3.0))
    np.testing.assert_allclose(batched.tree["a"][2], 2 * model.tree["a"])
    np.testing.assert_allclose(flat(jax.grad(square)(model)), 2 * flat(model), rtol=1e-14)


def test_it_prints_what_it_holds():
    assert repr(Vector({"a": 1})) == "Vector({'a': 1})"


def test_weighted_sums_keep_the_precision_of_the_messages(rng):
    weights = jnp.asarray(rng.random(4))
    messages = {"x": jnp.asarray(rng.normal(size=(4, 3))), "y": jnp.asarray(rng.normal(size=4), jnp.float32)}
    total = weighted_sum(weights, messages)
    np.testing.assert_allclose(total["x"], np.asarray(weights) @ np.asarray(messages["x"]), rtol=1e-14)
    assert total["x"].dtype == jnp.float64 and total["y"].dtype == jnp.float32 and total["y"].shape == ()


def test_an_inbox_is_the_mean_the_total_and_the_mass(rng):
    """Weights v for the mean, shares p for the total and the mass: an agent not heard has zeros in both."""
    v, p = jnp.asarray([0.6, 0.0, 0.9]), jnp.asarray([0.2, 0.0, 0.3])
    m = jnp.asarray(rng.normal(size=(3, 2)))
    inbox = gather(m, v, p)
    np.testing.assert_allclose(inbox.mean, 0.6 * m[0] + 0.9 * m[2], rtol=1e-14)
    np.testing.assert_allclose(inbox.total, 0.2 * m[0] + 0.3 * m[2], rtol=1e-14)
    np.testing.assert_allclose(inbox.mass, 0.5, rtol=1e-15)
