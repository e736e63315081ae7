"""share=: parts of a model that stay at their agents, for every method, on linear models in closed form."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp

K, ROWS, D = 4, 6, 3
SHARED = [True, True, False]


@functools.cache
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(K * ROWS, D)), rng.normal(size=K * ROWS), np.repeat(np.arange(K), ROWS)


@functools.cache
def problem(batch=None):
    X, y, groups = rows()
    return fp.problems.LeastSquares(X, y, groups=groups, batch=batch, mean=True)


@functools.cache
def best():
    """(K, D): one column's coefficient for each agent, the others' common, by least squares on a wide table."""
    X, y, groups = rows()
    own = X[:, 2:] * np.eye(K)[groups]
    found = np.linalg.lstsq(np.concatenate([X[:, :2], own], axis=1), y, rcond=None)[0]
    return np.column_stack([np.tile(found[:2], (K, 1)), found[2:]])


def moments():
    X, y, groups = rows()
    A = np.stack([X[groups == k].T @ X[groups == k] / ROWS for k in range(K)])
    return A, np.stack([X[groups == k].T @ y[groups == k] / ROWS for k in range(K)])


def fedavg_round(models, step, steps, own_steps=None):
    """The recursion by hand. models: (K, D) with one shared part."""
    A, b = moments()
    s, o = [0, 1], [2]
    new = models.copy()
    for k in range(K):
        w = models[k].copy()
        for _ in range(own_steps or 0):
            w[o] -= step * (A[k] @ w - b[k])[o]
        for _ in range(steps):
            g = A[k] @ w - b[k]
            w[s] -= step * g[s]
            if own_steps is None:
                w[o] -= step * g[o]
        new[k] = w
    new[:, s] = new[:, s].mean(0)
    return new


@pytest.mark.parametrize("own_steps", [None, 2], ids=["together", "alternating"])
def test_rounds_are_those_of_the_recursion(own_steps):
    share = fp.only(SHARED, own_steps=own_steps)
    run = fp.run(fp.FedAvg(0.1, local_steps=3), problem(), share=share, rounds=4)
    models = np.zeros((K, D))
    for round in range(4):
        models = fedavg_round(models, 0.1, 3, own_steps)
        np.testing.assert_allclose(run.history[0, round + 1], models, rtol=0, atol=1e-13)
    assert run.models.shape == (1, K, D)
    np.testing.assert_allclose(run.model[0], models.mean(0), rtol=0, atol=1e-13)


def test_what_is_sent_is_counted():
    shared, whole = (fp.run(fp.Scaffold(0.1), problem(), rounds=2, share=s).cost for s in (fp.only(SHARED), None))
    assert (shared.floats_up, shared.floats_down) == (2 * K * 4, 2 * K * 4)  # model and control, two numbers of each
    assert (whole.floats_up, whole.floats_down) == (2 * K * 6, 2 * K * 6)
    assert shared.evaluations == whole.evaluations


EXACT = {
    "FedAvg, one step": fp.FedAvg(0.1),
    "Scaffold": fp.Scaffold(0.1, local_steps=3),
    "Scaffold, option 1": fp.Scaffold(0.1, local_steps=3, option=1),
    "FedLin": fp.FedLin(0.1, local_steps=3),
}


@pytest.mark.parametrize("name", EXACT)
def test_methods_without_bias_end_at_the_least_squares_of_a_wide_table(name):
    """Minimised over own parts too: the Schur complement of the shared ones."""
    method = EXACT[name]
    e = fp.Experiment(method, problem(), share=fp.only(SHARED), exact=True)
    f = fp.forecast(e)
    np.testing.assert_allclose(f.limit, best(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(e.bind().solution, best(), rtol=0, atol=1e-12)
    assert f.bias < 1e-10 and f.rate < 1
    assert fp.run(e, rounds=30).error[0, -1] == pytest.approx(f.curve(30)[-1], rel=1e-8)


def test_drift_is_forecast():
    """Several local steps: the fixed point of the recursion, which is not the best."""
    models = np.zeros((K, D))
    for _ in range(3000):
        models = fedavg_round(models, 0.1, 3)
    f = fp.forecast(fp.FedAvg(0.1, local_steps=3), problem(), share=fp.only(SHARED), exact=True)
    np.testing.assert_allclose(f.limit, models, rtol=0, atol=1e-11)
    assert f.bias > 0.01


def test_noise_and_few_participants_are_forecast_exactly():
    """The stationary error by the forecast against 2,000 drawn rounds of 40 runs: within four standard errors."""
    e = fp.Experiment(
        fp.FedAvg(0.1, local_steps=2), problem(2), share=fp.only(SHARED), participation=2, repeats=40, seed=1
    )
    f = fp.forecast(e)
    assert f.noise_by == "exact"
    each = fp.run(e, rounds=2000, record_every=10).error[:, 20:].mean(1)
    assert abs(each.mean() - f.floor) < 4 * each.std() / np.sqrt(40)
    assert f.floor > 5 * each.std() / np.sqrt(40)


def test_on_a_network_neighbours_tell_the_shared_parts():
    net = fp.Network.ring(K).mixing()
    e = fp.Experiment(fp.ExactDiffusion(0.1), problem(), share=fp.only(SHARED), network=net, exact=True)
    np.testing.assert_allclose(fp.forecast(e).limit, best(), rtol=0, atol=1e-9)
    assert fp.run(e, rounds=3).cost.floats_up == 3 * 2 * K * 2  # two neighbours each, two numbers


def test_resumed_rebuilt_and_extended_to_the_same_bits(tmp_path):
    share = fp.only(SHARED, own_steps=2, own_step=0.05)
    e = fp.Experiment(
        fp.Scaffold(0.1, local_steps=2), problem(2), participation=2, channel=fp.channel.TopK(0.5), share=share, seed=3
    )
    whole = fp.run(e, rounds=12)
    fp.run(e, rounds=5, folder=tmp_path / "run")
    found = fp.load(tmp_path / "run")
    assert found.models.shape == (1, K, D) and found.memories is not None
    resumed = fp.load(tmp_path / "run", problem(2)).extend(12)
    np.testing.assert_array_equal(resumed.history, whole.history)
    again = fp.run(fp.Experiment.from_dict(e.describe(), problem=problem(2)), rounds=12)
    np.testing.assert_array_equal(again.history, whole.history)


def test_every_agent_is_measured_at_its_own_model():
    X, y, groups = rows()
    run = fp.run(fp.FedAvg(0.1), problem(), share=fp.only(SHARED), rounds=20, evaluate=(X, y, groups))
    own = run.models[0]
    errors = [np.mean((X[groups == k] @ own[k] - y[groups == k]) ** 2) for k in range(K)]
    np.testing.assert_allclose(run.held_out["mse"][0], errors, rtol=1e-12)
    np.testing.assert_allclose(run.predict(X[:1], groups=groups[:1]), X[:1] @ own[0], rtol=1e-12)
    assert run.fairness[0].mean == pytest.approx(np.mean(errors) / 2)


# Trees of parameters.


def squares(params, batch):
    x, y = batch
    return jnp.mean((x @ params["body"]["w"] + params["body"]["b"] + params["head"] - y) ** 2)


@functools.cache
def tree():
    X, y, groups = rows()
    params = {"body": {"w": np.zeros(D), "b": np.zeros(())}, "head": np.zeros(())}
    return fp.problems.Loss(squares, params, (X, y), groups=groups)


@pytest.mark.parametrize(
    "share",
    [
        "body",
        ["body.w", "body.b"],
        fp.only("body.*"),
        fp.all_but("head"),
        fp.only(lambda name, a: "body" in name),
        fp.only({"body": {"w": True, "b": True}, "head": False}),
    ],
    ids=["name", "names", "pattern", "all but", "predicate", "mask"],
)
def test_ways_to_say_the_same(share):
    run = fp.run(fp.FedAvg(0.1), tree(), rounds=2, share=share)
    assert run.cost.floats_up == 2 * K * 4
    heads = run.models["head"][0]
    assert len(set(heads.tolist())) == K and len(set(run.models["body"]["b"][0].tolist())) == 1


def test_a_part_of_an_array_in_a_tree():
    mask = {"body": {"w": np.array([True, False, True]), "b": True}, "head": False}
    run = fp.run(fp.FedAvg(0.1), tree(), rounds=1, share=fp.only(mask))
    slopes = run.models["body"]["w"][0]
    assert run.cost.floats_up == K * 3
    assert [len(set(slopes[:, i].tolist())) for i in range(D)] == [1, K, 1]
    plain = fp.run(fp.FedAvg(0.1), tree(), rounds=1)
    np.testing.assert_allclose(slopes[0, [0, 2]], plain.model["body"]["w"][0, [0, 2]], rtol=1e-12)


def test_all_that_is_shared_is_the_method_itself():
    shared, plain = (fp.run(fp.FedAvg(0.1), tree(), rounds=2, share=s) for s in ("*", None))
    np.testing.assert_array_equal(shared.model["head"], plain.model["head"])


@pytest.mark.parametrize(
    ("method", "share", "message"),
    [
        (fp.FedAvg(0.1), "bdy", r"the model has no part 'bdy': did you mean 'body'"),
        (fp.FedAvg(0.1), fp.all_but("*"), r"nothing of the model is shared"),
        (fp.FedAvg(0.1), [], r"names of parts of a model"),
        (fp.FedAvg(0.1), fp.only([True, False]), r"the mask does not fit the model"),
        (fp.FedAvg(0.1), fp.only(lambda name, a: 1), r"must return True or False; for 'body.b' it returned 1"),
        (fp.FedProx(0.1, exact=True), "body", r"FedProx solves for a whole model"),
        (fp.FedNewton(), "body", r"no step for what stays at the agents: give one, fp.only\(..., own_step=0.1\)"),
    ],
)
def test_what_cannot_be_shared_is_refused(method, share, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.run(method, tree(), share=share)


def test_names_of_a_model_without_names():
    with pytest.raises(fp.FedpointError, match=r"one array of shape \(3,\), whose parts have no names: give a mask"):
        fp.run(fp.FedAvg(0.1), problem(), share="body")


def test_files_say_what_is_shared(tmp_path):
    file = tmp_path / "shared.toml"
    text = """
problem = {kind = "quadratic", H = [1.0, 2.0], centers = [[0.0, 1.0], [2.0, 3.0]]}
algorithm = {name = "fedavg", step = 0.1}
share = {mask = [true, false], own_steps = 2}
rounds = 2
"""
    file.write_text(text)
    entry = fp.read(file)[0]
    assert entry.experiment.share.own_steps == 2 and entry.experiment.bind().algorithm.personal
    fp.write(tmp_path / "again.toml", entry)
    again = fp.read(tmp_path / "again.toml")[0].experiment
    np.testing.assert_array_equal(fp.run(again, rounds=2).history, fp.run(entry.experiment, rounds=2).history)
    file.write_text(text.replace("own_steps = 2", "own_stps = 2"))
    with pytest.raises(fp.FedpointError, match="own_stps"):
        fp.read(file)
