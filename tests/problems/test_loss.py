"""`Loss`: a sum in place of a mean is refused; a model that is more than arrays is taken, and given back whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.learnt import fixed_of

rng = np.random.default_rng(0)
X = rng.normal(size=(12, 2))
Y = X[:, 0] - 0.5 * X[:, 1]
GROUPS = np.arange(12) % 3


def residuals(w, batch):
    x, y = batch
    return x @ w - y


SUMS = {
    "a sum": lambda w, b: jnp.sum(residuals(w, b) ** 2),
    "a sum and a penalty": lambda w, b: jnp.sum(residuals(w, b) ** 2) + 5 * w @ w,
    "a mean times the rows": lambda w, b: len(b[1]) * jnp.mean(residuals(w, b) ** 2),
    "zero at the start": lambda w, b: jnp.sum((b[0] @ w) ** 2),
    "a mean inside": lambda w, b: jnp.sum((residuals(w, b) - residuals(w, b).mean()) ** 2),
    "not a number but at the start": lambda w, b: jnp.sum(residuals(w, b) ** 2) + 0 * jnp.log(1e-9 - w @ w),
}
MEANS = {
    "a mean": lambda w, b: jnp.mean(residuals(w, b) ** 2),
    "a mean and a penalty": lambda w, b: jnp.mean(residuals(w, b) ** 2) + 5 * w @ w,
    "one loss a row": lambda w, b: residuals(w, b) ** 2,
    "a weighted mean": lambda w, b: jnp.sum(b[1] ** 2 * residuals(w, b) ** 2) / jnp.sum(b[1] ** 2),
    "huge": lambda w, b: 1e30 * jnp.mean(residuals(w, b) ** 2),
    "nothing yet": lambda w, b: 0.0 * jnp.sum(w),
    "not a number": lambda w, b: jnp.mean(jnp.log(-jnp.abs(residuals(w, b)))),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_the_batch_is_refused(name, dtype):
    with pytest.raises(fp.FedpointError, match=r"is a sum over the rows of the batch: .*jnp.mean"):
        fp.problems.Loss(SUMS[name], np.zeros(2, dtype), (X.astype(dtype), Y.astype(dtype)), GROUPS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_taken(name, dtype):
    fp.problems.Loss(MEANS[name], np.zeros(2, dtype), (X.astype(dtype), Y.astype(dtype)), GROUPS)


def test_one_row_is_enough_to_tell():
    with pytest.raises(fp.FedpointError, match="is a sum over the rows"):
        fp.problems.Loss(SUMS["a sum"], np.zeros(2), (X[:1], Y[:1]))


# A model that is more than arrays, as modules of libraries for neural networks are.


@jax.tree_util.register_pytree_with_keys_class
class Net:
    """w -> activation(scale x @ w + shift): an array to learn, a function, and settings."""

    def __init__(self, w, activation=jnp.tanh, width=2, scale=1.0):
        self.w, self.activation, self.width, self.scale = w, activation, width, scale

    def tree_flatten_with_keys(self):
        keys = map(jax.tree_util.GetAttrKey, vars(self))
        return tuple(zip(keys, vars(self).values(), strict=True)), None

    @classmethod
    def tree_unflatten(cls, _, children):
        net = object.__new__(cls)
        net.w, net.activation, net.width, net.scale = children
        return net

    def __call__(self, x):
        assert self.width == 2
        return self.activation(self.scale * x @ self.w)


def of_net(net, batch):
    return jnp.mean((net(batch[0]) - batch[1]) ** 2)


def of_arrays(w, batch):
    return jnp.mean((jnp.tanh(batch[0] @ w) - batch[1]) ** 2)


def problems(**options):
    start, data = np.array([0.1, -0.2]), (X, Y)
    return (
        fp.problems.Loss(of_net, Net(start), data, GROUPS, **options),
        fp.problems.Loss(of_arrays, start, data, GROUPS, **options),
    )


def test_a_module_learns_what_its_arrays_would():
    module, arrays = problems(batch=2)
    for method in (fp.Scaffold(step=0.2, local_steps=3), fp.FedAvg(step=0.2)):
        ran, same = (fp.run(method, problem, rounds=5, repeats=2) for problem in (module, arrays))
        np.testing.assert_array_equal(ran.history.w, same.history)
        np.testing.assert_array_equal(ran.loss, same.loss)
        np.testing.assert_array_equal(ran.model.w, same.model)
    assert repr(module) == "<Loss: 3 agents, 12 rows, 2 parameters, batches of 2>"


def test_the_module_is_given_back_whole():
    module, _ = problems()
    seen = []
    run = fp.run(
        fp.FedAvg(step=0.2), module, rounds=3, repeats=2, evaluate=lambda net: {"first": seen.append(net(X)) or 0}
    )
    net = run.final(1)
    assert isinstance(net, Net) and (net.activation, net.width, net.scale) == (jnp.tanh, 2, 1.0)
    np.testing.assert_allclose(net(X), np.tanh(X @ net.w), rtol=1e-5)  # jax: in single precision
    assert np.shape(seen[0]) == (12,) and run.model.activation is jnp.tanh and run.model.w.shape == (2, 2)
    on = fp.run(fp.FedAvg(step=0.2), module, rounds=2, start=net)
    np.testing.assert_array_equal(on.history.w[0, 0], net.w)
    swept = fp.sweep(fp.FedAvg(step=0.2), module, over={"step": [0.1, 0.2]}, rounds=1).model
    assert swept.w.shape == (2, 1, 2) and swept.activation is jnp.tanh


def test_a_known_solution_may_be_a_module():
    start = Net(np.zeros(2), activation=lambda x: x)
    linear = fp.problems.Loss(of_net, start, (X, Y), GROUPS, solution=Net(np.array([1.0, -0.5]), start.activation))
    run = fp.run(fp.FedAvg(step=0.1), linear, rounds=200)
    np.testing.assert_allclose(run.error, ((run.history.w - [1.0, -0.5]) ** 2).sum(-1))
    assert run.error[0, -1] < 1e-6


def test_a_folder_goes_on_with_the_module(tmp_path):
    module, _ = problems()
    fp.run(fp.FedAvg(step=0.2), module, rounds=3, folder=tmp_path / "run")
    again = fp.load(tmp_path / "run", module)
    whole = fp.run(fp.FedAvg(step=0.2), module, rounds=6)
    np.testing.assert_array_equal(again.extend(6).model.w, whole.model.w)
    assert again.final().activation is jnp.tanh
    assert fp.load(tmp_path / "run").model["w"].shape == (1, 2)  # without the problem: arrays


@pytest.mark.parametrize(
    "params, message",
    [
        ({"w": np.zeros(2), "b": 0.0, "activation": jnp.tanh}, r"params\['b'\] is the Python number 0.0: to learn it"),
        ((Net(np.zeros(2)), 3), r"params\[1\] is the Python number 3: to learn it"),
        (Net(np.zeros(2), np.ones(1), np.ones(1), 0.5), r"params.scale is the Python number 0.5"),
        (Net(None), "params holds no array of real numbers"),
    ],
)
def test_what_may_or_may_not_be_learnt_is_asked_for(params, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.problems.Loss(of_net, params, (X, Y))


def test_which_leaves_are_fixed():
    assert not fixed_of("params", {"a": 0.0, "b": [np.zeros(2), (1.0,)]})  # numbers are learnt where all are numbers
    assert fixed_of("params", Net(np.zeros(2))).learnt == (True, False, False, False)
    fixed = fixed_of("params", [Net(np.zeros(2)), np.ones(3)])
    assert fixed.learnt == (True, False, False, False, True)
    learnt = fixed.split([Net(np.ones(2)), np.zeros(3)])
    assert [a.tolist() for a in jax.tree.leaves(learnt)] == [[1, 1], [0, 0, 0]]
    assert fixed.split(learnt) is learnt and fixed.whole(learnt)[0].width == 2


def test_modules_of_equinox():
    eqx = pytest.importorskip("equinox")
    layers = [eqx.nn.Linear(2, 4, key=jax.random.key(0)), eqx.nn.Lambda(jax.nn.relu), eqx.nn.Dropout(0.5)]
    net = eqx.nn.Sequential([*layers, eqx.nn.Linear(4, 1, key=jax.random.key(1))])

    def loss(net, batch):
        return jnp.mean((jax.vmap(eqx.nn.inference_mode(net))(batch[0])[:, 0] - batch[1]) ** 2)

    problem = fp.problems.Loss(loss, net, (X.astype("f4"), Y.astype("f4")), GROUPS)
    run = fp.run(fp.FedAvg(step=0.1), problem, rounds=20)
    assert run.loss[0, -1] < run.loss[0, 0] and run.final()[2].p == 0.5
    np.testing.assert_allclose(loss(run.final(), (X.astype("f4"), Y.astype("f4"))), run.loss[0, -1], rtol=1e-5)
