"""Rows of five nodes, shared points and their network, for models of any kind."""

import numpy as np
import pytest
from any_model_world import D

from fedpoint.graphs.network import Network


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(m, D)) for m in (5, 9, 14, 7, 30)]
    y = [x @ rng.normal(size=D) + 0.1 * rng.normal(size=len(x)) for x in X]
    return X, y


@pytest.fixture(scope="module")
def points():
    return np.sqrt(8) * np.linalg.qr(np.random.default_rng(1).normal(size=(8, D)))[0]


@pytest.fixture(scope="module")
def net():
    return Network.from_edges([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4)], weights=[1.0, 0.5, 2.0, 0.3, 1.5])
