"""Is the noise of many alike local steps, found by squaring, that of going through them one by one?"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.precision import double
from fedpoint.theory.alike import AlikeStep, added_noise, moved, worthwhile
from fedpoint.theory.moments import Second, move
from fedpoint.theory.noise import Loop, covariance_of


def a_step(rng, y, d, ext):
    shapes = [(y,), (y, y), (y, ext), (y, d), (d, y), (d, ext)]
    return [0.4 * rng.normal(size=shape) for shape in shapes]


def by_hand(step, start, count, Z, constant, linear, slopes):
    """W after `count` steps: the deviation of y is y+ = F y + N g(point), Cov g = constant + linear x + E[B x x'B']."""
    drift, F, T, N, H, V = step
    n = len(start)
    mean = np.hstack([np.zeros((n, 1)), start])  # of y, as a map of (1, ext)
    W = np.zeros((n, n))
    for _ in range(count):
        asked = H @ mean + np.hstack([np.zeros((len(H), 1)), V])
        spread = asked @ Z @ asked.T + H @ W @ H.T
        C = Z[0, 0] * constant + linear @ (asked @ Z[:, 0]) + sum(B @ spread @ B.T for B in slopes)
        W = F @ W @ F.T + N @ C @ N.T
        mean = F @ mean + np.column_stack([drift, T])
    return W


def test_squaring_is_going_step_by_step():
    """For several agents at once, with as many steps as each takes."""
    counts, y, d, ext = np.array([0, 1, 2, 7, 12]), 3, 2, 4
    rng = np.random.default_rng(0)
    steps = [a_step(rng, y, d, ext) for _ in counts]
    start = rng.normal(size=(len(counts), y, ext))
    noise, (constant, linear, slopes) = a_noise(d, rng)
    Z = rng.normal(size=(1 + ext, 1 + ext))
    Z = Z + Z.T
    together = AlikeStep(*(np.stack(parts) for parts in zip(*steps, strict=True)), np.stack([noise] * len(counts)))
    tables = added_noise(together, start, counts)
    for step, begin, count, first, added in zip(steps, start, counts, *tables, strict=True):
        expected = by_hand(step, begin, count, Z, constant, linear, slopes)[np.triu_indices(y)]
        np.testing.assert_allclose(read(first, added, Z), expected, rtol=1e-10, atol=1e-10)


def read(first, added, Z):
    moments = first @ Z @ first.T
    return added @ moments[np.triu_indices(len(moments))]


def a_noise(d, rng):
    """(q, 1 + d + q): constant, linear and quadratic part of a field's covariance; and the three as they are."""
    constant, linear, slopes = rng.normal(size=(d, d)), rng.normal(size=(d, d, d)), rng.normal(size=(2, d, d))
    constant, linear = constant + constant.T, linear + linear.transpose(1, 0, 2)
    upper = np.triu_indices(d)
    units = [np.outer(e, f) for e, f in zip(np.eye(d)[upper[0]], np.eye(d)[upper[1]], strict=True)]
    spreads = [sum(B @ np.maximum(P, P.T) @ B.T for B in slopes)[upper] for P in units]
    return np.column_stack([constant[upper], *linear[upper].T, *spreads]), (constant, linear, slopes)


@pytest.mark.parametrize("off, pushed", [(0.0, 0.0), (0.0, 1.0), (1e-6, 0.0)])
def test_agents_that_differ_only_in_where_their_steps_lead_share_a_table(off, pushed):
    """The noise of each depends on the distance to a centre of its own, and something pushes it elsewhere; with
    anything else apart nothing is shared."""
    agents, y, ext, rng = 4, 2, 3, np.random.default_rng(1)
    noise, parts = a_noise(y, rng)
    _, F, T, N, H, V = a_step(rng, y, y, ext)
    V = V * (pushed == 0)  # what pushes enters as what comes from outside does, where fields are asked for at y alone
    alike = AlikeStep(np.zeros(y), F, T, N, H, V, noise)
    centres = rng.normal(size=(agents, y))  # by which they are apart
    each = [moved(alike, -centre) for centre in centres]  # around another point: seen from `centre` they are alike
    together = AlikeStep(*(np.stack(parts) for parts in zip(*each, strict=True)))
    together.F[2] += off
    together.drift[:] += pushed * rng.normal(size=(agents, y))
    start, counts = rng.normal(size=(agents, y, ext)), np.full(agents, 5)
    first, added = added_noise(together, start, counts)
    assert len(added) == (1 if off == 0 else agents)
    Z = rng.normal(size=(1 + ext, 1 + ext))
    Z = Z + Z.T
    for k in range(agents):
        constant, linear, slopes = parts
        h = H @ -centres[k]
        there = constant + linear @ h + sum(B @ np.outer(h, h) @ B.T for B in slopes)
        tilt = np.stack([sum(B @ (np.outer(h, e) + np.outer(e, h)) @ B.T for B in slopes) for e in np.eye(y)], axis=2)
        step = (together.drift[k], together.F[k], T, N, H, V)
        expected = by_hand(step, start[k], 5, Z, there, linear + tilt, slopes)[np.triu_indices(y)]
        np.testing.assert_allclose(read(first[k], added[k if off else 0], Z), expected, rtol=1e-9, atol=1e-9)


STREAM = fp.problems.LinearStream(np.random.default_rng(0).normal(size=(3, 2)), noise=[0.1, 0.2, 0.3])
ROWS = fp.problems.LeastSquares(
    list(np.random.default_rng(1).normal(size=(3, 6, 2))), list(np.random.default_rng(2).normal(size=(3, 6))), batch=2
)
ALIKE = fp.problems.LinearStream(np.random.default_rng(0).normal(size=(3, 2)), noise=0.1)
GARNET = fp.problems.garnet(states=5, dim=2, agents=3, heterogeneity=1.0, gamma=0.5)


@pytest.mark.parametrize(
    "method, problem, options",
    [
        (fp.FedAvg(0.1, 5, normalise=False), STREAM, {}),
        (fp.FedAvg(0.1, [1, 3, 6], normalise=False), ROWS, {"participation": fp.Uniform(2)}),
        (fp.ScaffLSA(0.1, 7), GARNET, {}),
        pytest.param(fp.Scaffold(0.05, 4), STREAM, {"participation": fp.Uniform(2)}, marks=pytest.mark.slow),
        (fp.Scaffold(0.05, 4), ALIKE, {"participation": fp.Uniform(2)}),
    ],
)
def test_tables_are_what_the_steps_add(method, problem, options):
    """The covariance of what an agent sends and remembers, for any second moments of what it starts from."""
    setting = fp.forecast(method, problem, **options).setting
    locals_ = jax.tree.map(lambda a: a[0], Second(setting, setting.origin + 0.3).moving.linear.locals)
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
