"""Modules of Flax and Equinox as they are: the same numbers as loops by hand with each library's own calls."""

import jax
import numpy as np
import optax
import pytest

import fedpoint as fp

RNG = np.random.default_rng(2)
X = RNG.normal(size=(12, 4)).astype("f")
Y = RNG.integers(0, 3, 12)
STEP, ROUNDS = 0.2, 3
ONE = fp.FedAvg(step=STEP, local_steps=2)  # one agent, full batches: gradient descent of 2 ROUNDS steps


def entropy(said, targets):
    return optax.softmax_cross_entropy_with_integer_labels(said, targets).mean()


def descended(loss, params, state):
    """2 ROUNDS steps by hand; loss(params, state) -> (loss, state)."""
    for _ in range(2 * ROUNDS):
        slope, state = jax.grad(loss, has_aux=True)(params, state)
        params = jax.tree.map(lambda w, g: w - STEP * g, params, slope)
    return params, state


def close(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), ours, theirs)


def once(tree):
    return jax.tree.map(lambda a: np.asarray(a)[0], tree)


def drawn_twice(problem):
    """Dropout is of the run's coordinates: the same bits in two goes, others for another seed."""
    done = fp.run(ONE, problem, 6)
    jax.tree.map(np.testing.assert_array_equal, done.learnt, fp.run(ONE, problem, 2).extend(6).learnt)
    first = jax.tree.leaves(done.learnt)[0]
    assert np.any(first != jax.tree.leaves(fp.run(ONE, problem, 6, seed=1).learnt)[0])


def test_linen():
    nn = pytest.importorskip("flax.linen", reason="flax is not installed: pip install 'fedpoint[flax]'")

    class Net(nn.Module):
        rate: float = 0.0

        @nn.compact
        def __call__(self, x, train):
            x = nn.BatchNorm(use_running_average=not train)(nn.Dense(5)(x))
            return nn.Dense(3)(nn.relu(nn.Dropout(self.rate, deterministic=not train)(x)))

    net = Net()
    variables = net.init(jax.random.key(0), X, train=False)

    def ours(module, batch, key):
        return entropy(module(batch[0], train=key is not None), batch[1])

    def theirs(params, stats):
        said, new = net.apply({"params": params, "batch_stats": stats}, X, train=True, mutable=["batch_stats"])
        return entropy(said, Y), new["batch_stats"]

    problem = fp.problems.Loss(ours, (net, variables), (X, Y), predict=lambda module, x: module(x, train=False))
    done = fp.run(ONE, problem, ROUNDS, evaluate=(X, Y))
    params, stats = descended(theirs, variables["params"], variables["batch_stats"])
    found = once(done.model)
    close(found["params"], params)
    close(found["batch_stats"], stats)
    said = net.apply(found, X, train=False)
    np.testing.assert_allclose(done.loss[0, -1], entropy(said, Y), rtol=1e-5)
    assert done.evaluation["accuracy"][0, -1] == (np.asarray(said).argmax(1) == Y).mean()
    drawn_twice(fp.problems.Loss(ours, (Net(0.5), variables), (X, Y), batch=4, random=True))
    with pytest.raises(fp.FedpointError, match=r"give \(module, module.init"):
        fp.problems.Loss(ours, net, (X, Y))


def test_nnx():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed: pip install 'fedpoint[flax]'")

    class Net(nnx.Module):
        def __init__(self, rate):
            rngs = nnx.Rngs(0)
            self.layers = nnx.List([nnx.Linear(4, 5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)])
            self.norm = nnx.BatchNorm(5, rngs=rngs)
            self.dropout = nnx.Dropout(rate, rngs=rngs)

        def __call__(self, x):
            return self.layers[1](nnx.relu(self.dropout(self.norm(self.layers[0](x)))))

    def ours(module, batch):
        return entropy(module(batch[0]), batch[1])

    built, params, rest = nnx.split(Net(0.0), nnx.Param, ...)

    def theirs(params, rest):
        module = nnx.merge(built, *jax.tree.map(lambda a: a, (params, rest)))  # of this trace
        return entropy(module(X), Y), nnx.split(module, nnx.Param, ...)[2]

    given = Net(0.0)
    done = fp.run(ONE, fp.problems.Loss(ours, given, (X, Y), predict=lambda module, x: module(x)), ROUNDS)
    params, rest = descended(theirs, params, rest)
    final = done.final()
    assert isinstance(final, Net)
    close(nnx.to_pure_dict(nnx.state(final, nnx.Param)), nnx.to_pure_dict(params))
    close(final.norm.mean[...], nnx.merge(built, params, rest).norm.mean[...])
    np.testing.assert_array_equal(given.norm.mean[...], np.zeros(5))  # the user's module is left as it was
    final.eval()
    np.testing.assert_allclose(done.loss[0, -1], entropy(final(X), Y), rtol=1e-5)
    warm = fp.run(ONE, fp.problems.Loss(ours, given, (X, Y)), 0, start=final)
    jax.tree.map(np.testing.assert_array_equal, warm.learnt, done.learnt)
    drawn_twice(fp.problems.Loss(ours, Net(0.5), (X, Y), batch=4))


def test_equinox():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed: pip install 'fedpoint[equinox]'")

    class Net(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        dropout: eqx.nn.Dropout
        last: eqx.nn.Linear

        def __init__(self, key, rate):
            one, two = jax.random.split(key)
            self.first, self.last = eqx.nn.Linear(4, 5, key=one), eqx.nn.Linear(5, 3, key=two)
            self.norm, self.dropout = eqx.nn.BatchNorm(5, "batch", mode="batch"), eqx.nn.Dropout(rate)

        def __call__(self, x, key, state):
            x, state = self.norm(self.first(x), state)
            return self.last(jax.nn.relu(self.dropout(x, key=key))), state

    def said(module, x, keys, state):
        return jax.vmap(module, axis_name="batch", in_axes=(0, 0, None), out_axes=(0, None))(x, keys, state)

    def ours(module, batch, key, state):
        keys = None if key is None else jax.random.split(key, len(batch[0]))
        outputs, state = said(module, batch[0], keys, state)
        return entropy(outputs, batch[1]), state

    module, state = eqx.nn.make_with_state(Net)(jax.random.key(0), 0.0)
    learnt, fixed = eqx.partition(module, eqx.is_inexact_array)
    done = fp.run(ONE, fp.problems.Loss(ours, module, (X, Y), state=state, random=True), ROUNDS)

    def theirs(learnt, state):
        outputs, state = said(eqx.combine(learnt, fixed), X, jax.random.split(jax.random.key(0), 12), state)
        return entropy(outputs, Y), state

    params, after = descended(theirs, learnt, state)
    final = done.final()
    close(eqx.filter(final["params"], eqx.is_inexact_array), params)
    close(final["state"], after)
    assert [np.asarray(a).dtype for a in jax.tree.leaves(final["state"])] == ["int32", "float32", "float32"]
    outputs, _ = said(eqx.nn.inference_mode(final["params"]), X, None, final["state"])
    np.testing.assert_allclose(done.loss[0, -1], entropy(outputs, Y), rtol=1e-5)
    module, state = eqx.nn.make_with_state(Net)(jax.random.key(0), 0.5)
    drawn_twice(fp.problems.Loss(ours, module, (X, Y), state=state, random=True, batch=4))
