"""Held-out rows, of all and of each agent: against numbers by hand, with one model and with own ones."""

import json

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.metrics.held_out import HeldOut

QUAD = fp.problems.LeastSquares([[1.0], [1.0], [1.0]], [0.0, 2.0, 4.0], groups=["a", "b", "c"], mean=True)
X, Y, WHOSE = np.ones((3, 1)), np.array([1.0, 2.0, 5.0]), ["a", "b", "b"]


def test_one_model_by_hand():
    """The model 2 misses by 1, 0 and 3: agent a by 1, agent b by 9/2 in the mean; nothing of c is held out."""
    found = HeldOut(QUAD, (X, Y, WHOSE), own=False)
    assert found(np.array([2.0])) == {"mse": pytest.approx(10 / 3), "worst_tenth": pytest.approx(4.5)}
    np.testing.assert_allclose(found.agents(np.array([2.0]))["mse"], [1.0, 4.5, np.nan])
    assert HeldOut(QUAD, (X, Y), own=False)(np.array([2.0])) == {"mse": pytest.approx(10 / 3)}


def test_own_models_by_hand():
    """Models 0, 4 and 9: a misses by 1, b by 2 and 1. Rows of nobody: the mean over the three models."""
    models = np.array([[0.0], [4.0], [9.0]])
    found = HeldOut(QUAD, (X, Y, WHOSE), own=True)
    assert found(models) == {"mse": pytest.approx(2.0), "worst_tenth": pytest.approx(2.5)}
    np.testing.assert_allclose(found.agents(models)["mse"], [1.0, 2.5, np.nan])
    each = [((m - Y) ** 2).mean() for m in models.ravel()]
    assert HeldOut(QUAD, (X, Y), own=True)(models) == {"mse": pytest.approx(np.mean(each))}


def test_of_runs(tmp_path):
    """With a fusion center and on a network; the folder keeps the agents' numbers."""
    star = fp.run(fp.GradientExchange(step=0.5), QUAD, 3, evaluate=(X, Y, WHOSE), folder=tmp_path / "r")
    np.testing.assert_allclose(
        star.held_out["mse"][0, :2], [(star.model[0, 0] - 1) ** 2, ((star.model[0] - [2, 5]) ** 2).mean()]
    )
    kept = json.loads((tmp_path / "r" / "summary.json").read_text())["held_out"]
    assert kept["agents"] == ["a", "b", "c"] and kept["mse"][0][2] is None
    assert kept["mse"][0][:2] == star.held_out["mse"][0, :2].tolist()
    np.testing.assert_array_equal(fp.load(tmp_path / "r").held_out["mse"], star.held_out["mse"])  # nan where none
    net = fp.run(fp.FedGD(step=0.1, coupling=0.1), QUAD, 3, network=fp.Network.ring(3), evaluate=(X, Y, WHOSE))
    own = net.models[0, :, 0]
    np.testing.assert_allclose(net.held_out["mse"][0, :2], [(own[0] - 1) ** 2, ((own[1] - Y[1:]) ** 2).mean()])
    assert net.evaluation["mse"].shape == net.evaluation["worst_tenth"].shape == (1, 4)


@pytest.mark.parametrize(
    "data, message",
    [
        ((X, Y, ["a", "b", "z"]), "rows of 'z', which is not an agent of the problem"),
        ((X, Y, ["a"]), r"groups has shape \(1,\), but there are 3 rows"),
        ((X,), "evaluate= takes held-out data"),
        ((np.ones((3, 2)), Y, WHOSE), "held-out data of shape"),
    ],
)
def test_mistakes(data, message):
    with pytest.raises(fp.FedpointError, match=message):
        HeldOut(QUAD, data, own=False)(np.array([2.0]))
