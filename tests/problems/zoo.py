"""One of every kind of problem, small, and plain NumPy beside it."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import fedpoint as fp
from fedpoint.core.random import Key
from fedpoint.core.vector import take
from fedpoint.problems import Mine

SIZES = (1, 3, 7, 12)


def rows(seed=0, dim=3, sizes=SIZES):
    rng = np.random.default_rng(seed)
    A = [rng.normal(size=(n, dim)) + 0.3 * k for k, n in enumerate(sizes)]
    b = [rng.normal(size=n) + k for k, n in enumerate(sizes)]
    return A, b


def table(seed=0, dim=3, sizes=SIZES, classes=(-1, 1)):
    """(X, y, groups), the rows in no order."""
    rng = np.random.default_rng(seed)
    groups = np.repeat([f"site {k}" for k in range(len(sizes))], sizes)
    X = rng.normal(size=(len(groups), dim))
    y = np.asarray(classes)[rng.integers(0, len(classes), len(groups))]
    y[: len(classes)] = classes
    order = rng.permutation(len(groups))
    return X[order], y[order], groups[order]


def spd(rng, K, d):
    root = rng.normal(size=(K, d, d))
    return root @ np.swapaxes(root, 1, 2) + 0.3 * np.eye(d)


def quadratic(noise=0.0):
    rng = np.random.default_rng(1)
    return fp.problems.Quadratic(spd(rng, 4, 3), rng.normal(size=(4, 3)), noise=noise, weights=[1, 2, 3, 4])


def stream(kind="one"):
    rng = np.random.default_rng(2)
    covariance = {"one": 0.7, "each": [0.5, 1.0, 2.0], "full": spd(rng, 3, 4)}[kind]
    return fp.problems.LinearStream(
        rng.normal(size=(3, 4)), noise=[0.1, 0.0, 0.4], covariance=covariance, weights=[1, 1, 3]
    )


def least_squares(**options):
    A, b = rows()
    return fp.problems.LeastSquares(A, b, **options)


def logistic(classes=(-1, 1), **options):
    X, y, groups = table(classes=classes)
    return fp.problems.Logistic(X, y, groups=groups, **{"ridge": 0.1, **options})


def glm(family="poisson", link=None, **options):
    """Rows that count differently, with an offset."""
    X, y, groups = table(classes=(0, 1, 1, 2, 5))
    y = {"binomial": y / 5, "gamma": y + 0.5}.get(family, y)
    mass, offset = 0.5 + np.arange(len(y)) % 3, 0.1 * np.cos(np.arange(len(y)))
    return fp.problems.GLM(X, y, groups, family, link, offset, mass, **{"ridge": [0.1, 0.2, 0.3], **options})


def network_loss(params, batch):
    """A small neural network with one loss a row."""
    hidden = jnp.tanh(batch["x"] @ params["V"] + params["b"])
    return 0.5 * (hidden @ params["u"] - batch["y"]) ** 2


def mean_loss(params, batch):
    return jnp.mean(network_loss(params, batch))


def network(loss=network_loss, **options):
    X, y, groups = table()
    rng = np.random.default_rng(3)
    params = {"V": rng.normal(size=(3, 2)), "b": rng.normal(size=2), "u": rng.normal(size=2)}
    return fp.problems.Loss(loss, params, {"x": X, "y": y.astype(float)}, groups=groups, **options)


def system(noise=None):
    """Rotations and scalings: monotone, and no gradient."""
    rng = np.random.default_rng(4)
    skew = rng.normal(size=(3, 4, 4))
    A = spd(rng, 3, 4) + skew - np.swapaxes(skew, 1, 2)
    return fp.problems.LinearSystem(A, rng.normal(size=(3, 4)), noise=noise, weights=[1, 2, 1])


def covariances():
    rng = np.random.default_rng(5)
    root = rng.normal(size=(3, 16, 5))
    return fp.problems.Noise(b=spd(rng, 1, 4)[0], A=0.1 * root @ np.swapaxes(root, 1, 2))


def td(sampling="iid"):
    """Five states, of which arriving in the last ends an episode."""
    rng = np.random.default_rng(6)
    mdps = [
        fp.problems.MDP(rng.dirichlet(np.ones(5), (5, 2)), rng.normal(size=(5, 2)), [False] * 4 + [True], np.eye(5)[0])
        for _ in range(3)
    ]
    features, policy = rng.normal(size=(5, 3)), rng.dirichlet(np.ones(2), 5)
    return fp.problems.TD(mdps, features, 0.9, policy, sampling, weights=[1, 2, 3])


PROBLEMS = {  # one of every formula
    "quadratic": quadratic,
    "stream, variances": lambda: stream("each"),
    "stream, covariances": lambda: stream("full"),
    "least squares, sum": least_squares,
    "least squares, mean": lambda: least_squares(mean=True, weights=[1, 2, 3, 4]),
    "least squares, no half": lambda: least_squares(half=False, mean=True),
    "logistic": logistic,
    "softmax": lambda: logistic(classes=(0, 1, 2), intercept=True),
    "poisson": glm,
    "gamma": lambda: glm("gamma", weights=[1, 2, 3, 4]),
    "network": network,
    "network, mean loss": lambda: network(mean_loss),
    "system": system,
    "TD": td,
}
SAMPLED = {  # one of every way to sample
    "quadratic": lambda: quadratic(noise=0.3),
    "stream, one variance": lambda: stream("one"),
    "stream, covariances": lambda: stream("full"),
    "least squares, iid": lambda: least_squares(mean=True, batch=2),
    "least squares, iid sum": lambda: least_squares(batch=1, half=False),
    "least squares, wide": lambda: least_squares(mean=True, batch=20),
    "least squares, shuffled": lambda: least_squares(mean=True, batch=3, sampling="shuffle"),
    "least squares, shuffled sum": lambda: least_squares(batch=5, sampling="shuffle"),
    "least squares, importance": lambda: least_squares(batch=2, sampling="importance", weights=[4, 3, 2, 1]),
    "logistic, iid": lambda: logistic(batch=3),
    "logistic, importance": lambda: logistic(batch=2, sampling="importance", ridge=1.0),
    "softmax, iid": lambda: logistic(classes=(0, 1, 2), batch=30),
    "softmax, importance": lambda: logistic(classes=(0, 1, 2), batch=2, sampling="importance", ridge=1.0),
    "binomial, iid": lambda: glm("binomial", batch=2),
    "poisson, importance": lambda: glm(batch=2, sampling="importance"),
    "network, iid": lambda: network(batch=2),
    "network, iid mean loss": lambda: network(mean_loss, batch=4),
    "network, shuffled mean loss": lambda: network(mean_loss, batch=4, sampling="shuffle"),
    "system, variances": lambda: system(fp.problems.Noise(b=0.3, A=0.05)),
    "system, covariances": lambda: system(covariances()),
    "TD": td,
    "TD, trajectory": lambda: td("trajectory"),
}


@cache
def build(name, sampled=False):
    """Problems do not change: one of each serves all tests."""
    return (SAMPLED if sampled else PROBLEMS)[name]()


def flat(w):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(w)])


def random_model(problem, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: scale * rng.normal(size=np.shape(a)), problem.start())


def agent(problem, k):
    return Mine(take(jax.tree.map(jnp.asarray, problem.own), k), jax.tree.map(jnp.asarray, problem.common))


def sampled_fields(problem, w, count, steps=(0,), seed=0):
    """(K, count, steps, d): sampled fields of so many rounds at w, of every agent."""
    oracle = problem.prepare(fp.FedAvg(0.1, local_steps=max(steps) + 1, normalise=True))

    @jax.jit
    def draw(own, common, w):
        def one(own, k, r):
            mine, key = Mine(own, common), Key.of(seed).fold(r, k)
            plan = oracle.plan(mine, key)

            def step(e):
                return ravel_pytree(oracle.field(mine, w, oracle.draw(mine, plan, key.row(e), e)))[0]

            return jax.vmap(step)(jnp.array(steps))

        agents = jnp.arange(problem.agents)
        return jax.vmap(lambda o, k: jax.vmap(lambda r: one(o, k, r))(jnp.arange(count)))(own, agents)

    with jax.enable_x64(True):
        return np.asarray(draw(problem.own, problem.common, w))
