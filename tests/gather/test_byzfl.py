"""Robust means and attacks against byzfl, where it is installed: `pip install --no-deps byzfl` is enough.

byzfl imports torch, which has gigabytes, at its top; on arrays of numpy it calls nothing of it. So only its two modules
of means and attacks are loaded here, with an empty torch where there is none.
"""

import importlib
import importlib.util
import sys
from types import ModuleType

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.attack import Heard
from fedpoint.core.precision import double

POINTS = np.random.default_rng(3).normal(size=(11, 5))


@pytest.fixture
def byzfl(monkeypatch):
    found = importlib.util.find_spec("byzfl")
    if found is None:
        pytest.skip("byzfl is not installed")
    if importlib.util.find_spec("torch") is None:
        torch, linalg = ModuleType("torch"), ModuleType("torch.linalg")
        torch.Tensor, torch.linalg = type("Tensor", (), {}), linalg
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch.linalg", linalg)
    package = ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations)
    monkeypatch.setitem(sys.modules, "byzfl", package)
    for name in ("aggregators", "attacks"):
        module = importlib.import_module(f"byzfl.{name}")
        package.__dict__.update({word: value for word, value in vars(module).items() if isinstance(value, type)})
    yield package
    for name in [name for name in sys.modules if name.startswith("byzfl.")]:
        del sys.modules[name]


@double
def middle(gather, points):
    weights = np.ones(len(points))
    return np.asarray(jax.jit(gather.inbox)(points, weights, weights).mean) / len(points)


def test_robust_means(byzfl):
    """Its Krum sums over the n - f - 1 nearest others, which is ours with one liar less; its multi-Krum keeps n - f."""
    pairs = [
        (fp.gather.Median(), byzfl.Median()),
        (fp.gather.TrimmedMean(2), byzfl.TrMean(2)),
        (fp.gather.Krum(2), byzfl.Krum(3)),
        (fp.gather.MultiKrum(2, keep=8), byzfl.MultiKrum(3)),
        (fp.gather.CentredClipping(1.0, iterations=3), byzfl.CenteredClipping(L=3, tau=1.0)),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(middle(ours, POINTS), theirs(POINTS), atol=1e-10, err_msg=type(ours).__name__)
    exact = byzfl.GeometricMedian(nu=1e-9, T=2000)(POINTS)
    np.testing.assert_allclose(middle(fp.gather.GeometricMedian(), POINTS), exact, atol=1e-4)


def test_mixing_with_nearest_neighbours(byzfl):
    mixing = fp.gather.NearestNeighbourMixing(3, then=fp.gather.TrimmedMean(3))
    np.testing.assert_allclose(middle(mixing, POINTS), byzfl.TrMean(3)(byzfl.NNM(3)(POINTS)), atol=1e-10)


def test_attacks(byzfl):
    """Its deviation divides by n - 1, ours by n, as in the paper; and its sign is the other one."""
    liars = np.arange(len(POINTS)) >= 8
    honest, told = POINTS[~liars], {}
    for attack in (fp.attack.InnerProduct([8, 9, 10], scale=2.0), fp.attack.LittleIsEnough([8, 9, 10], z=1.5)):
        with jax.enable_x64(True):
            told[type(attack)] = np.asarray(attack.sent(POINTS, Heard(liars, ~liars), None))[liars]
    twice = byzfl.InnerProductManipulation(2.0)(honest)
    np.testing.assert_allclose(told[fp.attack.InnerProduct], np.tile(twice, (3, 1)), atol=1e-12)
    little = byzfl.ALittleIsEnough(-1.5 * np.sqrt(7 / 8))(honest)
    np.testing.assert_allclose(told[fp.attack.LittleIsEnough], np.tile(little, (3, 1)), atol=1e-12)
