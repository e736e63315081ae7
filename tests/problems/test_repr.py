"""What does a problem say of itself? In one line: agents, rows, classes, parameters."""

import numpy as np
import pytest

import fedpoint as fp

rows = np.arange(24.0).reshape(12, 2)


@pytest.mark.parametrize(
    "problem, said",
    [
        (fp.problems.Quadratic([1.0], [[0.0]]), "<Quadratic: 1 agent, 1 parameter>"),
        (fp.problems.Quadratic([1.0, 2.0], [[0.0, 1.0], [1.0, 2.0]]), "<Quadratic: 2 agents, 2 parameters>"),
        (
            fp.problems.Logistic(rows, np.arange(12) % 3, np.arange(12) % 2, batch=4, intercept=True),
            "<Logistic: 2 agents, 12 rows, 3 classes, 9 parameters, batches of 4>",
        ),
        (fp.problems.LeastSquares([rows], [rows[:, 0]]), "<LeastSquares: 1 agent, 12 rows, 2 parameters>"),
        (
            fp.problems.Loss(lambda w, x: ((w["b"] - x) ** 2).mean(), {"a": np.zeros(3), "b": 0.0}, rows[:, 0]),
            "<Loss: 1 agent, 12 rows, 4 parameters>",
        ),
    ],
)
def test_in_a_line(problem, said):
    assert repr(problem) == said


def test_one_that_is_not_complete():
    """While it is being made, and without a start."""

    class Half(fp.problems.Problem):
        def __init__(self):
            self.seen = repr(self)
            self.weights = np.ones(1)

    assert Half().seen == "<Half, not complete>" and repr(Half()) == "<Half: 1 agent>"
