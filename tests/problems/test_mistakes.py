"""Every mistake in the data gets one clear message, before anything runs."""

import jax.numpy as jnp
import numpy as np
import pytest
from zoo import rows, table

import fedpoint as fp
from fedpoint.problems import LeastSquares, LinearStream, Logistic, Loss, Quadratic

A, B = rows()
X, Y, GROUPS = table()


def spoiled(array, place, value):
    copy = np.array(array, dtype=float)
    copy[place] = value
    return copy


def swap(parts, k, value):
    return [value if i == k else part for i, part in enumerate(parts)]


def linear(w, batch):
    return jnp.mean(batch @ w)


MISTAKES = {
    # NaN and inf: where they are.
    "nan in A": (
        lambda: LeastSquares(swap(A, 2, spoiled(A[2], (4, 1), np.nan)), B),
        "data of agent 2 is nan at row 4, column 1",
    ),
    "inf in b": (lambda: LeastSquares(A, swap(B, 3, spoiled(B[3], 5, np.inf))), "targets of agent 3 is inf at row 5"),
    "nans in X": (lambda: Logistic(spoiled(X, ([3, 7], [2, 0]), np.nan), Y), "X is nan at row 3, column 2 and 1 more"),
    "nan in y": (lambda: Logistic(X, spoiled(Y, 6, np.nan)), "y is nan at row 6"),
    "inf in centers": (lambda: Quadratic(1.0, [[0.0, np.inf]]), "centers is inf at row 0, column 1"),
    "nan in H": (lambda: Quadratic([np.nan, 1.0], [[0.0], [1.0]]), "H is nan at row 0"),
    "nan in models": (lambda: LinearStream([[1.0, np.nan]]), "models is nan at row 0, column 1"),
    "nan in covariance": (lambda: LinearStream([[1.0]], covariance=np.nan), "covariance is nan at its only value"),
    "nan in noise": (lambda: LinearStream([[1.0], [2.0]], noise=[0.1, np.nan]), "noise is nan at row 1"),
    "nan in data": (
        lambda: Loss(linear, np.zeros(3), spoiled(X, (2, 1), np.nan)),
        "array 0.* is nan at row 2, column 1",
    ),
    "nan in params": (lambda: Loss(linear, spoiled(np.zeros(3), 1, np.nan), X), "params .*is nan at row 1"),
    # Emptiness.
    "no agents, lists": (lambda: LeastSquares([], []), "there are no agents: give at least one"),
    "no agents, table": (lambda: Logistic(np.zeros((0, 3)), np.zeros(0)), "there are no agents: give at least one"),
    "no agents, quadratic": (lambda: Quadratic(1.0, np.zeros((0, 2))), "there are no agents: give at least one"),
    "no agents, stream": (lambda: LinearStream(np.zeros((0, 2))), "there are no agents: give at least one"),
    "no agents, sample": (lambda: LinearStream.sample(agents=0), "agents must be a whole number, at least 1; got 0"),
    "no agents, loss": (lambda: Loss(linear, np.zeros(3), np.zeros((0, 3))), "there are no agents: give at least one"),
    "an empty agent": (lambda: LeastSquares(swap(A, 1, np.zeros((0, 3))), swap(B, 1, np.zeros(0))), "agent 1 is empty"),
    "no arrays": (lambda: Loss(linear, np.zeros(3), {}), "data holds no array"),
    "a row too short": (lambda: Logistic([[1.0, 2.0], [3.0]], [0, 1]), "X must be an array of numbers"),
    "centers of words": (lambda: Quadratic(1.0, [["a"]]), "centers must be an array of numbers"),
    "models too short": (lambda: LinearStream([[1.0, 2.0], [3.0]]), "models must be an array of numbers"),
    "weights of words": (lambda: Quadratic(1.0, [[0.0]], weights=["heavy"]), "weights must be an array of numbers"),
    "labels of two kinds": (lambda: Logistic(X[:2], np.array(["a", 1], object)), "labels of different kinds"),
    "nan in groups": (lambda: Logistic(X[:3], Y[:3], groups=[0, np.nan, 1]), "groups is nan at row 1"),
    # Shapes.
    "targets of other agents": (lambda: LeastSquares(A, B[:3]), "data of 4 agents, but targets of 3"),
    "targets of another length": (
        lambda: LeastSquares(A, swap(B, 2, B[2][:5])),
        "agent 2: data of shape .7, 3. and targets of shape .5",
    ),
    "columns differ": (lambda: LeastSquares(swap(A, 3, A[3][:, :2]), B), "agent 3 has 2 columns, agent 0 has 3"),
    "rows that are no matrix": (lambda: LeastSquares([[1.0, 2.0]], [[1.0, 2.0]]), "agent 0: data of shape .2,."),
    "words": (lambda: LeastSquares([[["a"]]], [[1.0]]), "data of agent 0 must be an array of numbers"),
    "X and y": (lambda: Logistic(X, Y[:-1]), "X of shape .23, 3. and y of shape .22"),
    "X of words": (lambda: Logistic(X.astype(str), Y), "X holds .*not numbers"),
    "groups": (lambda: Logistic(X, Y, groups=GROUPS[:-1]), "groups has shape .22,., but there are 23 rows"),
    "groups for least squares": (
        lambda: LeastSquares(X, Y, groups=[0]),
        "groups has shape .1,., but there are 23 rows",
    ),
    "data and targets": (lambda: LeastSquares(X, Y[:-1], groups=GROUPS), "do not go together"),
    "arrays of other lengths": (
        lambda: Loss(linear, np.zeros(3), (X, Y[:-1])),
        "array 1 has shape .22,., but array 0 has 23 rows",
    ),
    "centers": (lambda: Quadratic(1.0, [1.0, 2.0]), "centers must be .agents, dimension., got shape .2,"),
    "H": (lambda: Quadratic(np.ones((3, 3)), [[1.0, 2.0]]), "H has shape .3, 3.; for 1 agent in dimension 2"),
    "H not symmetric": (lambda: Quadratic([[1.0, 2.0], [0.0, 1.0]], [[1.0, 2.0]]), "H must be symmetric"),
    "models": (lambda: LinearStream([1.0, 2.0]), "models must be .agents, dimension."),
    "covariance": (lambda: LinearStream([[1.0, 2.0]], covariance=np.ones((3, 3))), "covariance has shape .3, 3."),
    # Numbers out of range.
    "zero weight": (
        lambda: LeastSquares(A, B, weights=[1, 0, 1, 1]),
        "weight of agent 1 is 0: weights must be above 0",
    ),
    "negative weight": (lambda: Quadratic(1.0, [[0.0], [1.0]], weights=[1, -2]), "weight of agent 1 is -2"),
    "nan weight": (lambda: LinearStream([[0.0], [1.0]], weights=[np.nan, 1]), "weight of agent 0 is nan"),
    "weights of other agents": (
        lambda: Logistic(X, Y, groups=GROUPS, weights=[1, 1]),
        "weights have shape .2,., but there are 4 agents",
    ),
    "negative noise": (lambda: Quadratic(1.0, [[0.0]], noise=-1.0), "noise is a variance and must be at least 0"),
    "nan noise": (lambda: Quadratic(1.0, [[0.0]], noise=np.nan), "noise must be a number; got nan"),
    "negative noise of a stream": (lambda: LinearStream([[0.0]], noise=-0.1), "noise is a variance"),
    "no variance": (lambda: LinearStream([[0.0]], covariance=0.0), "variance must be above 0"),
    "indefinite covariance": (
        lambda: LinearStream([[0.0, 0.0]], covariance=np.diag([1.0, -1.0])),
        "symmetric positive definite",
    ),
    "negative spread": (lambda: LinearStream.sample(spread=-1), "spread must be a number, at least 0; got -1"),
    "no dimension": (lambda: LinearStream.sample(dim=0), "dim must be a whole number, at least 1; got 0"),
    "negative ridge": (lambda: Logistic(X, Y, ridge=-0.1), "ridge must be a number, at least 0; got -0.1"),
    "one class": (lambda: Logistic(X, np.ones(23)), r"one class only \(1\.0\): a classifier needs at least two"),
    # Sampling.
    "batch of nothing": (lambda: Logistic(X, Y, batch=0), "batch must be a whole number of rows, at least 1"),
    "half a row": (lambda: LeastSquares(A, B, batch=1.5), "batch must be a whole number"),
    "sampling misspelt": (
        lambda: LeastSquares(A, B, batch=2, sampling="shufle"),
        "unknown sampling 'shufle': did you mean 'shuffle'",
    ),
    "shuffled full gradients": (lambda: Logistic(X, Y, sampling="shuffle"), 'sampling="shuffle" needs batch='),
    "importance for any loss": (
        lambda: Loss(linear, np.zeros(3), X, batch=2, sampling="importance"),
        "use it with LeastSquares or Logistic",
    ),
    # The loss itself.
    "a loss that fails": (lambda: Loss(lambda w, b: b @ w, np.zeros(2), X), "fails on two rows of the data"),
    "a loss of another shape": (
        lambda: Loss(lambda w, b: b * w, np.zeros(3), X),
        "must return a number or one number a row, got shape .2, 3.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_data_is_told(name):
    make, words = MISTAKES[name]
    with pytest.raises(fp.FedpointError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


QUAD = Quadratic(1.0, [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
IN_A_RUN = {
    "more participants than agents": ({"participation": 4}, "4 participants of 3 agents: choose at most 3"),
    "no participant": ({"participation": 0}, "must be at least 1, got 0"),
    "participation of no kind": ({"participation": 1.5}, "participation must be a Participation, a whole number"),
    "a scheme without its numbers": ({"participation": "uniform"}, "needs its numbers"),
    "a scheme misspelt": ({"participation": "unifrom"}, "unknown participation 'unifrom': did you mean 'uniform'"),
    "start of another shape": ({"start": [0.0]}, r"start has shape \(1,\), but .* \(2,\)"),
    "start of another structure": ({"start": [[0.0], [0.0]]}, "start has shape"),
    "start not finite": ({"start": [0.0, np.nan]}, "start holds NaN or inf"),
    "negative rounds": ({"rounds": -1}, "rounds must be a whole number, at least 0"),
    "half a round": ({"rounds": 1.5}, "rounds must be a whole number"),
    "no repeats": ({"repeats": 0}, "repeats must be a whole number, at least 1"),
    "record_every": ({"record_every": 0}, "record_every must be a whole number, at least 1"),
    "stop": ({"stop": -1.0}, "stop must be a tolerance above 0 or a function"),
    "stop by a word": ({"stop": "now"}, "stop must be a number, a function or None"),
    "stop by a yes": ({"stop": True}, "stop must be a number, a function or None"),
    "seed": ({"seed": 1.5}, "seed must be a whole number; got 1.5"),
    "evaluate": ({"evaluate": lambda w: 3.0}, "evaluate= must return a dictionary of numbers, got 3.0"),
    "a network": ({"network": object()}, "network must be an fp.Network"),
    "probabilities": ({"participation": fp.Importance(2, [0.5, 0.5])}, "2 probabilities for 3 agents"),
    "a probability of zero": (None, "every probability must be above 0"),
}


@pytest.mark.parametrize("name", IN_A_RUN)
def test_a_mistake_in_a_run_is_told(name):
    options, words = IN_A_RUN[name]
    with pytest.raises(fp.FedpointError, match=words):
        if options is None:
            options = {"participation": fp.Importance(2, [0.5, 0.5, 0.0])}
        fp.run(fp.FedAvg(0.1), QUAD, **{"rounds": 1, **options})


def test_what_is_no_algorithm_and_no_problem_is_told():
    for algorithm, words in (
        ("fedavg", "FedAvg needs step"),
        (fp.FedAvg, "algorithm must be .*; got the class FedAvg"),
    ):
        with pytest.raises(fp.FedpointError, match=words):
            fp.run(algorithm, QUAD, rounds=1)
    with pytest.raises(fp.FedpointError, match="problem must be a Problem"):
        fp.run(fp.FedAvg(0.1), [1, 2], rounds=1)


def test_a_start_of_other_names_is_told():
    problem = Loss(lambda p, b: jnp.mean(b @ p["w"]), {"w": np.zeros(3)}, X)
    with pytest.raises(fp.FedpointError, match=r"start is built as .*'v'.* as .*'w'"):
        fp.run(fp.FedAvg(0.1), problem, rounds=1, start={"v": np.zeros(3)})


def test_a_mistake_inside_a_users_function_is_told_with_its_line():
    def hard(w, batch):
        return jnp.sum(w) if jnp.sum(w) > 0 else jnp.sum(batch)

    with pytest.raises(
        fp.FedpointError, match=r"^loss\(params, batch\) .* Python if.*jnp.where.*test_mistakes.py, line"
    ):
        Loss(hard, np.zeros(3), X)
    with pytest.raises(fp.FedpointError, match=r"^the sampler raised ZeroDivisionError.*test_mistakes.py, line"):
        fp.problems.LinearSystem(np.eye(2)[None], np.ones((1, 2)), noise=lambda own, row: 1 / 0)
