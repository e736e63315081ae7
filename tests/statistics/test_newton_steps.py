"""The linear algebra of a Newton step, against NumPy's."""

import numpy as np

from fedpoint.statistics import newton


def curvature(rng, sizes):
    rows = rng.normal(size=(50, len(sizes))) * sizes
    return rows.T @ rows


def test_columns_may_be_of_any_size(rng):
    """Of columns of size 1e-6 to 1e6 the condition number is 1e24: only in units of the diagonal there is an answer."""
    sizes = np.array([1e-6, 1.0, 1e6, 10.0])
    H, x = curvature(rng, sizes), rng.normal(size=4) / sizes
    np.testing.assert_allclose(newton.solve(H, H @ x), x, rtol=1e-9)
    np.testing.assert_allclose(newton.inverse(H) @ H * sizes[:, None] / sizes, np.eye(4), atol=1e-9)
    assert (newton.inverse(H) == newton.inverse(H).T).all()


def test_what_has_no_curvature_is_left_alone(rng):
    """The shortest of all answers, where a column stands twice."""
    rows = rng.normal(size=(50, 2))[:, [0, 1, 1]]
    H = rows.T @ rows
    found = newton.solve(H, H @ [1.0, 2.0, 4.0])
    np.testing.assert_allclose(found, [1.0, 3.0, 3.0], rtol=1e-9)
    assert newton.dependent(H, ("a", "b", "c")) == ["b", "c"] and newton.dependent(H[:2, :2], ("a", "b")) == []
