"""Is the noise of many alike local steps, found by squaring, that of going through them one by one?"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.precision import double
from fedpoint.theory.alike import AlikeStep, added_noise, worthwhile
from fedpoint.theory.moments import Second, move
from fedpoint.theory.noise import Loop, covariance_of


def a_step(rng, y, d, ext):
    shapes = [(y,), (y, y), (y, ext), (y, d), (d, y), (d, ext)]
    return AlikeStep(*(0.4 * rng.normal(size=shape) for shape in shapes))


def by_hand(step, start, count, Z, constant, linear, slopes):
    """W after `count` steps: the deviation of y is y+ = F y + N g(point), Cov g = constant + linear x + E[B x x'B']."""
    n = len(start)
    mean = np.hstack([np.zeros((n, 1)), start])  # of y, as a map of (1, ext)
    W = np.zeros((n, n))
    for _ in range(count):
        asked = step.H @ mean + np.hstack([np.zeros((len(step.H), 1)), step.V])
        spread = asked @ Z @ asked.T + step.H @ W @ step.H.T
        C = Z[0, 0] * constant + linear @ (asked @ Z[:, 0]) + sum(B @ spread @ B.T for B in slopes)
        W = step.F @ W @ step.F.T + step.N @ C @ step.N.T
        mean = step.F @ mean + np.column_stack([step.drift, step.T])
    return W


@pytest.mark.parametrize("count", [0, 1, 2, 7, 12])
def test_squaring_is_going_step_by_step(count):
    rng = np.random.default_rng(count)
    y, d, ext = 3, 2, 4
    step, start = a_step(rng, y, d, ext), rng.normal(size=(y, ext))
    constant, linear, slopes = rng.normal(size=(d, d)), rng.normal(size=(d, d, d)), rng.normal(size=(2, d, d))
    constant, linear = constant + constant.T, linear + linear.transpose(1, 0, 2)
    Z = rng.normal(size=(1 + ext, 1 + ext))
    Z = Z + Z.T

    def noise(mass, shift, spread):
        return mass * constant + jnp.asarray(linear) @ shift + jnp.einsum("mij,jk,mlk->il", slopes, spread, slopes)

    with jax.enable_x64(True):
        table = np.asarray(added_noise(step, jnp.asarray(start), noise, jnp.int32(count), 12))
    expected = by_hand(step, start, count, Z, constant, linear, slopes)
    np.testing.assert_allclose(np.tensordot(table, Z, 2), expected, rtol=1e-10, atol=1e-10)


STREAM = fp.problems.LinearStream(np.random.default_rng(0).normal(size=(3, 2)), noise=[0.1, 0.2, 0.3])
ROWS = fp.problems.LeastSquares(
    list(np.random.default_rng(1).normal(size=(3, 6, 2))), list(np.random.default_rng(2).normal(size=(3, 6))), batch=2
)
GARNET = fp.problems.garnet(states=5, dim=2, agents=3, heterogeneity=1.0, gamma=0.5)


@pytest.mark.parametrize(
    "method, problem, options",
    [
        (fp.FedAvg(0.1, 5, normalise=False), STREAM, {}),
        (fp.FedAvg(0.1, [1, 3, 6], normalise=False), ROWS, {"participation": fp.Uniform(2)}),
        (fp.ScaffLSA(0.1, 7), GARNET, {}),
        (fp.Scaffold(0.05, 4), STREAM, {"participation": fp.Uniform(2)}),
    ],
)
def test_tables_are_what_the_steps_add(method, problem, options):
    """The covariance of what an agent sends and remembers, for any second moments of what it starts from."""
    setting = fp.forecast(method, problem, **options).setting
    moving = Second(setting, setting.origin + 0.3).moving
    locals_ = jax.tree.map(lambda a: a[0], moving.linear).locals
    assert all(source.table is not None for source in locals_.sources if isinstance(source, Loop))
    stepped = tuple(s._replace(table=None) if isinstance(s, Loop) else s for s in locals_.sources)
    rng = np.random.default_rng(0)

    @double
    def both(k):
        own, local, plain = jax.tree.map(
            lambda a: jnp.asarray(a)[k], (setting.numbers.inputs.own, locals_, locals_._replace(sources=stepped))
        )
        local, plain = (jax.tree.map(lambda a: a[0], one) for one in (local, plain))  # nobody straggles
        size = 1 + setting.u0.size + setting.m0.reshape(problem.agents, -1).shape[1]
        Z = rng.normal(size=(size, size))
        return [np.asarray(covariance_of(setting.space, setting.numbers, own, one, Z + Z.T)) for one in (local, plain)]

    for k in range(problem.agents):
        tabulated, walked = both(k)
        np.testing.assert_allclose(tabulated, walked, rtol=1e-9, atol=1e-12 * np.abs(walked).max())
        assert np.abs(walked).max() > 0


def test_second_moments_do_not_go_through_the_local_steps():
    """What a forecast of 1,000 steps a round applies dozens of times costs what it does for one step."""
    setting = fp.forecast(fp.ScaffLSA(0.01, 1000), GARNET).setting
    moving = Second(setting, setting.origin).moving
    with jax.enable_x64(True):
        program = str(jax.make_jaxpr(lambda S: move(setting.space, moving, S))(jnp.eye(1 + setting.size)))
    assert max(int(length) for length in re.findall(r"length=(\d+)", program)) < 1000


def test_large_states_are_not_tabulated():
    assert worthwhile(100, 8, 24) and not worthwhile(1, 200, 10) and not worthwhile(10**6, 8, 24)
