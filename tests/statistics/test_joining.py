"""What sites are told to expect is what simulated sites get."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.statistics import joining, value_of_joining

SIZES = np.array([8, 15, 30, 60, 120, 250])
MEAN = np.array([1.0, 0.5, -0.3])


def designs(rng, sizes=SIZES):
    return [np.column_stack([np.ones(n), rng.normal(size=(n, 2))]) for n in sizes]


def table_of(X, y):
    site = np.repeat(np.arange(len(X)), [len(own) for own in X])
    rows = np.concatenate(X)
    return {"y": np.concatenate(y), "a": rows[:, 1], "b": rows[:, 2], "site": site}


def unit(X):
    """The coordinates in which a row's mean information is one."""
    H = sum(own.T @ own for own in X) / sum(map(len, X))
    return np.linalg.inv(np.linalg.cholesky(H)).T  # w = unit @ u


def simulated(variance, repeats):
    """(K, 3): mean squared errors of predicted means, alone, pooled and pulled, over sites drawn anew; phi = 1."""
    rng = np.random.default_rng(0)
    X = designs(rng)
    T = unit(X)
    X = [own @ T for own in X]  # rows in these coordinates: the unit matrix is the mean information
    H = np.stack([own.T @ own for own in X])
    d, K = 3, len(X)
    W = np.stack([h @ np.linalg.inv(variance * h + np.eye(d)) for h in H])
    found = np.zeros((repeats, K, 3))
    for r in range(repeats):
        w = np.linalg.solve(T, MEAN) + np.sqrt(variance) * rng.normal(size=(K, d))
        y = [own @ w[k] + rng.normal(size=len(own)) for k, own in enumerate(X)]
        b = np.stack([own.T @ y[k] for k, own in enumerate(X)])
        alone = np.stack([np.linalg.solve(h, one) for h, one in zip(H, b, strict=True)])
        pooled = np.linalg.solve(H.sum(0), b.sum(0))
        for k in range(K):
            rest = np.delete(np.arange(K), k)
            mean = np.linalg.solve(W[rest].sum(0), np.einsum("kij,kj->i", W[rest], alone[rest]))
            C = np.linalg.inv(np.linalg.inv(W[rest].sum(0)) + variance * np.eye(d))
            pulled = np.linalg.solve(H[k] + C, b[k] + C @ mean)
            for way, estimate in enumerate((alone[k], pooled, pulled)):
                off = estimate - w[k]
                found[r, k, way] = off @ H[k] @ off / len(X[k])
    return X, H, found


@pytest.mark.parametrize("variance", [0.0, 0.02, 0.3])
def test_expected_errors_are_those_of_simulated_sites(variance):
    """Within 4 standard errors of 1,500 repeats, at the variances that are true."""
    X, H, found = simulated(variance, repeats=1500)
    rows = np.array([len(own) for own in X])
    known = joining.Evidence(H, np.zeros((len(X), 3)), rows, np.full(len(X), 3), 1.0, np.inf, 1.0)
    want = joining.expected_errors(known, variance, 1.0, None)
    error = found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - want) < 4 * error).all()
    assert (want[:, 2] <= want[:, :2].min(1) + 1e-12).all(), "the best coupling is never worse than either end"


def drawn(seed, variance, family="gaussian", sizes=SIZES):
    rng = np.random.default_rng(seed)
    X = designs(rng, sizes)
    T = unit(X)
    w = MEAN * (0.3 if family != "gaussian" else 1) + np.sqrt(variance) * rng.normal(size=(len(X), 3)) @ T.T
    if family == "gaussian":
        y = [own @ w[k] + 2 * rng.normal(size=len(own)) for k, own in enumerate(X)]
    else:
        y = [1.0 * (rng.random(len(own)) < 1 / (1 + np.exp(-own @ w[k]))) for k, own in enumerate(X)]
    return table_of(X, y)


def test_the_estimated_variance_between_sites_covers():
    """Of 60 intervals at least 52 hold the true variance: the 1 % quantile of a binomial of 95 %."""
    inside, middle = 0, []
    for seed in range(60):
        data = drawn(seed, 0.5)
        rows = [np.flatnonzero(data["site"] == k) for k in range(len(SIZES))]
        X = np.column_stack([np.ones(len(data["y"])), data["a"], data["b"]])
        sums = [
            fp.statistics.glm_sums.Last(*(None,) * 10)._replace(
                information=X[own].T @ X[own], score=X[own].T @ data["y"][own], pearson=(data["y"][own] ** 2).sum()
            )
            for own in rows
        ]
        found = joining.evidence(SIZES, sums, scaled=True)
        value, low, high = joining.heterogeneity(found)
        inside += low <= 0.5 <= high
        middle.append(value)
    assert inside >= 52
    assert abs(np.mean(middle) - 0.5) < 4 * np.std(middle) / np.sqrt(60)


def test_one_call_tells_every_site():
    alike, apart = (value_of_joining("y ~ a + b", drawn(1, v), groups="site") for v in (0.0, 20.0))
    assert list(alike.rows.values()) == SIZES.tolist()
    assert (alike.best()[:3] != "alone").all() and (alike.gain()[:3] > 1.5).all()
    own = apart.of("5")
    assert own.expected["pooled"] > 3 * own.expected["alone"] and "pooled" not in set(apart.best())
    assert (alike.errors.lower <= alike.errors.expected).all() and (alike.errors.expected <= alike.errors.upper).all()
    assert "Should we join?" in alike.summary() and alike.to_dict()["sites"]["0"]["alone"][0] > 0
    with pytest.raises(fp.FedpointError, match="no site 'x'"):
        alike.of("x")


def test_under_epsilon_noise_is_added():
    data = drawn(1, 0.0, sizes=np.full(12, 40))
    plain, loose, tight = (
        value_of_joining("y ~ a + b", data, groups="site", epsilon=e).errors.expected.unstack()
        for e in (None, 50.0, 1.0)
    )
    assert (
        "private" not in plain and (loose.private >= loose.pooled).all() and (tight.private > 10 * loose.private).all()
    )


def test_a_newton_step_of_a_logistic_model_is_near_what_its_fits_show():
    """Sites alike: alone, d/n; pooled, d times a site's mean information over all rows'."""
    found = value_of_joining("y ~ a + b", drawn(3, 0.0, "binomial", SIZES * 3), groups="site", family="binomial")
    table = found.errors.expected.unstack()
    np.testing.assert_allclose(table.alone[list(found.rows)], 3 / (3 * SIZES), rtol=1e-9)
    assert found.heterogeneity[1] == 0
    least = found.errors.lower.unstack().pooled[list(found.rows)]  # where sites are alike
    assert least @ np.array(list(found.rows.values())) == pytest.approx(3.0)


def test_a_site_whose_rows_determine_nothing_has_no_error_alone():
    found = value_of_joining("y ~ a + b", drawn(1, 0.0, sizes=np.array([2, 40, 60])), groups="site")
    assert np.isinf(found.of("0").expected["alone"]) and np.isfinite(found.of("0").expected["personalised"])


def test_mistakes_and_a_picture(tmp_path):
    data = drawn(1, 0.1)
    with pytest.raises(fp.FedpointError, match="at least 2 sites"):
        value_of_joining("y ~ a", data | {"site": np.zeros(len(data["y"]))}, groups="site")
    with pytest.raises(fp.FedpointError, match="epsilon"):
        value_of_joining("y ~ a", data, groups="site", epsilon=-1.0)
    found = value_of_joining("y ~ a + b", data, groups="site", epsilon=8.0)
    found.plot(tmp_path / "cards.png")
    assert (tmp_path / "cards.png").stat().st_size > 5000
    with pytest.raises(fp.FedpointError, match="choose between 1 and 24 sites"):
        found.plot(sites=[])
