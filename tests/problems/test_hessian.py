"""What an agent says of its curvature is the derivative of its field, whatever the rows are cut into."""

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.precision import double
from fedpoint.problems.oracle import Mine

RNG = np.random.default_rng(5)
X, GROUPS = RNG.standard_normal((400, 3)), np.repeat([0, 1], [300, 100])  # more than a block of rows, and unequal
Y = (X @ [1.0, -1.0, 0.5] + RNG.logistic(size=400) > 0).astype(int)
THREE = RNG.integers(0, 3, 400)
PROBLEMS = {
    "two classes": fp.problems.Logistic(X, Y, GROUPS, ridge=0.1),
    "three classes": fp.problems.Logistic(X, THREE, GROUPS, ridge=0.1),
    "least squares": fp.problems.LeastSquares(X, X @ [1.0, 2.0, 3.0], groups=GROUPS, half=False),
    "quadratic": fp.problems.Quadratic([1.0, 3.0], [[0.0, 1.0], [2.0, 1.0]]),
}


@pytest.mark.parametrize("name", PROBLEMS)
@double
def test_the_hessian_is_the_derivative_of_the_field(name):
    problem = PROBLEMS[name]
    w = problem.start() + 0.3 * np.cos(np.arange(np.size(problem.start()))).reshape(problem.start().shape)
    mine = Mine(jax.tree.map(lambda a: np.asarray(a)[0], problem.own), problem.common)
    found = np.asarray(problem.oracle.hessian(mine, w))
    v = np.sin(1.0 + np.arange(w.size))
    product = np.asarray(problem.oracle.hessian_times(mine, w, v.reshape(w.shape))).ravel()
    np.testing.assert_allclose(product, found @ v, rtol=1e-12, atol=1e-12 * np.abs(found).max())
    step = 1e-5
    for i in range(w.size):  # central differences: off by h^2 and by rounding over h, both below 1e-9 here
        e = step * np.eye(w.size)[i].reshape(w.shape)
        column = (problem.fields(w + e)[0] - problem.fields(w - e)[0]) / (2 * step)
        np.testing.assert_allclose(found[:, i], column, rtol=1e-6, atol=1e-7 * np.abs(found).max())
