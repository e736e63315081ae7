"""Generalised linear models agree with statsmodels on pooled rows, for every family, link, offset, weight and ridge."""

import numpy as np
import pytest
import statsmodels.api as sm
from statsmodels.genmod import families

import fedpoint as fp
from fedpoint.problems.families import FAMILIES
from fedpoint.problems.glm import GLM

LINKS = {
    "identity": families.links.Identity,
    "log": families.links.Log,
    "inverse": families.links.InversePower,
    "sqrt": families.links.Sqrt,
    "logit": families.links.Logit,
    "probit": families.links.Probit,
    "cloglog": families.links.CLogLog,
    "loglog": families.links.LogLog,
    "cauchit": families.links.Cauchy,
}
THEIRS = {
    "gaussian": families.Gaussian,
    "binomial": families.Binomial,
    "poisson": families.Poisson,
    "gamma": families.Gamma,
    "negative_binomial": lambda link: families.NegativeBinomial(link, alpha=0.7),
}
USUAL = [(family, kind.links[0]) for family, kind in FAMILIES.items()] + [("binomial", "probit"), ("gamma", "inverse")]
PAIRS = [
    pytest.param(family, link, marks=() if (family, link) in USUAL else pytest.mark.slow)
    for family, kind in FAMILIES.items()
    for link in kind.links
]
RNG = np.random.default_rng(3)
N = 300
X = np.column_stack([RNG.normal(size=N), RNG.uniform(size=N), np.ones(N)])
SITE = RNG.integers(0, 4, N)
COUNTS = RNG.integers(1, 4, N).astype(float)  # how often a row occurs
AT = {"identity": [0.05, 0.1, 0.4], "log": [0.1, -0.2, -0.8], "inverse": [0.1, 0.4, 1.5], "sqrt": [0.1, 0.3, 1.0]}
TRUE = {link: np.array(AT.get(link, [0.4, -0.3, 0.2])) for link in LINKS}


def targets(family, link):
    """y whose mean is that of a true model, so that all links are well inside their ranges."""
    rng = np.random.default_rng(4)
    mean = LINKS[link]().inverse(X @ TRUE[link])
    draw = {
        "gaussian": lambda: mean + 0.05 * rng.normal(size=N),
        "binomial": lambda: rng.binomial(8, np.clip(mean, 0, 1)) / 8,
        "poisson": lambda: rng.poisson(mean),
        "gamma": lambda: rng.gamma(8.0, mean / 8),
        "negative_binomial": lambda: rng.poisson(mean),
    }
    return draw[family]()


def theirs(family, link, offset=None, weights=None):
    model = sm.GLM(targets(family, link), X, THEIRS[family](LINKS[link]()), offset=offset, freq_weights=weights)
    start = None if family == "gaussian" else TRUE[link]
    return model, model.fit(start_params=start, tol=1e-15, maxiter=300, method="IRLS", tol_criterion="params")


@pytest.mark.filterwarnings("ignore:The .* link function does not respect the domain")
@pytest.mark.parametrize(("family", "link"), PAIRS)
def test_coefficients_are_those_of_the_pooled_fit(family, link):
    offset, y = 0.02 * np.cos(np.arange(N)), targets(family, link)
    problem = GLM(X, y, SITE, family, link, offset, COUNTS, dispersion=0.7)
    model, fitted = theirs(family, link, offset, COUNTS)
    w = problem.solution()
    np.testing.assert_allclose(w, fitted.params, rtol=0, atol=1e-8 * np.abs(fitted.params).max())
    assert problem.total == COUNTS.sum()
    # Sums over rows: deviance, score, observed and expected information, each with its own formula there.
    order = np.argsort(SITE, kind="stable")
    np.testing.assert_allclose(COUNTS[order] @ problem.row_deviances(w), fitted.deviance, rtol=1e-7)
    v = w + 0.01 * np.abs(w).max()
    total = COUNTS.sum() * np.tensordot(problem.weights, problem.hessians(v), 1)
    np.testing.assert_allclose(total, -model.hessian(v, scale=1.0, observed=True), rtol=1e-7, atol=1e-7 * total.max())
    total = COUNTS.sum() * np.tensordot(problem.weights, problem.informations(v), 1)
    np.testing.assert_allclose(total, -model.hessian(v, scale=1.0, observed=False), rtol=1e-7, atol=1e-7 * total.max())
    gradient = problem.weights @ problem.fields(v)
    np.testing.assert_allclose(gradient, -model.score(v, scale=1.0) / COUNTS.sum(), atol=1e-9 * np.abs(total).max())
    np.testing.assert_allclose(problem.means(v), model.predict(v, exog=X, offset=offset)[order], rtol=1e-11)
    np.testing.assert_allclose(problem.row_gradients(v).T @ problem.row_weights(), gradient, atol=1e-13 * total.max())


def test_a_ridge_is_statsmodels_l2_penalty_on_chosen_columns():
    y, ridge = targets("poisson", "log"), np.array([0.3, 0.1, 0.0])
    model = sm.GLM(y, X, families.Poisson())
    problem = GLM(X, y, SITE, "poisson", ridge=ridge)

    def gradient(w):
        return -model.score(w) / N + ridge * w

    assert np.abs(gradient(problem.solution())).max() < 1e-12
    appended = GLM(X[:, :2], y, SITE, "poisson", ridge=ridge, intercept=True)
    np.testing.assert_allclose(appended.solution(), problem.solution(), atol=1e-13)


def test_how_rows_are_split_does_not_matter_and_weights_are_copies():
    y = targets("gamma", "log")
    whole = GLM(X, y, family="gamma", sample_weight=COUNTS).solution()
    split = GLM(X, y, SITE, family="gamma", sample_weight=COUNTS).solution()
    copies = np.repeat(np.arange(N), COUNTS.astype(int))
    copied = GLM(X[copies], y[copies], SITE[copies], family="gamma").solution()
    np.testing.assert_allclose(split, whole, atol=1e-12)
    np.testing.assert_allclose(copied, whole, atol=1e-12)
    none = np.where(np.arange(N) < 200, 1.0, 0.0)  # rows that count nothing are as good as gone
    few = GLM(X[:200], y[:200], SITE[:200], family="gamma")
    np.testing.assert_allclose(
        GLM(X, y, SITE, family="gamma", sample_weight=none).solution(), few.solution(), atol=1e-12
    )


def test_binomial_and_gaussian_are_the_problems_that_were_there():
    y = (targets("binomial", "logit") > 0.5).astype(float)
    ours, logistic = GLM(X, y, SITE, "binomial", ridge=0.1), fp.problems.Logistic(X, y, SITE, ridge=0.1)
    np.testing.assert_allclose(ours.solution(), logistic.solution(), atol=1e-12)
    np.testing.assert_allclose(ours.constants().delta_k, logistic.constants().delta_k, rtol=1e-12)
    w = np.array([0.3, -1.0, 2.0])
    np.testing.assert_allclose(ours.objective(w), logistic.objective(w), rtol=1e-13)
    b = targets("gaussian", "identity")
    line, squares = GLM(X, b, SITE), fp.problems.LeastSquares(X, b, groups=SITE, mean=True)
    for found, expected in zip(line.linear_fields(), squares.linear_fields(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_where_there_is_no_single_minimum_none_is_claimed():
    separated = GLM(X, (X[:, 0] > 0).astype(float), SITE, "binomial")
    assert separated.solution() is None and "separates" in separated.why_no_solution()
    assert GLM(X, (X[:, 0] > 0).astype(float), SITE, "binomial", ridge=1e-4).solution() is not None
    collinear = GLM(np.column_stack([X, X[:, 0] + X[:, 1]]), targets("poisson", "log"), SITE, "poisson")
    assert collinear.solution() is None
    assert GLM(X, np.zeros(N), SITE, "poisson").solution() is None  # no event at all


def test_rows_chosen_are_a_problem_of_their_own():
    y = targets("poisson", "log")
    problem = GLM(X, y, SITE, "poisson", sample_weight=COUNTS, weights=[1, 2, 3, 4])
    chosen = [np.arange(10 + k) for k in range(4)]
    part = problem.restricted(chosen)
    order = np.argsort(SITE, kind="stable")
    index = order[problem.row_numbers(chosen)]
    own = GLM(X[index], y[index], SITE[index], "poisson", sample_weight=COUNTS[index], weights=[1, 2, 3, 4])
    np.testing.assert_allclose(part.solution(), own.solution(), atol=1e-12)
    assert part.total == pytest.approx(own.total, rel=1e-14)


def test_leaving_the_range_of_a_link_is_seen():
    problem = GLM(X, targets("gamma", "inverse"), SITE, "gamma", "inverse")
    assert np.isfinite(problem.objective(problem.start()))
    with pytest.raises(fp.FedpointError, match="diverged"):
        fp.run(fp.GradientExchange(step=100.0), problem, rounds=20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"family": "possion"}, "did you mean 'poisson'"),
        ({"family": "poisson", "link": "logit"}, "family 'poisson' has no link 'logit'"),
        ({"family": "binomial"}, "between 0 and 1; it is 3 in row 1"),
        ({"family": "gamma", "y": [0.0, 1.0, 2.0]}, "above 0; it is 0 in row 0"),
        ({"family": "poisson", "y": [1.0, -1.0, -2.0]}, "at least 0; it is -1 in row 1, and in 1 more row"),
        ({"offset": [1.0]}, "offset has shape"),
        ({"sample_weight": [1.0, -1.0, 1.0]}, "must not be negative; 1 row"),
        ({"sample_weight": [0.0, 0.0, 1.0]}, "agent a count nothing"),
        ({"ridge": [1.0, 2.0]}, "one for each of the 1 coefficient"),
        ({"ridge": -1.0}, "at least 0"),
        ({"family": "gamma", "link": "inverse", "X": [[1.0], [-1.0], [0.0]]}, "add an intercept"),
    ],
)
def test_mistakes_are_said(options, said):
    given = {"X": [[1.0], [2.0], [3.0]], "y": [1.0, 3.0, 2.0], "groups": ["a", "a", "b"], **options}
    with pytest.raises(fp.FedpointError, match=said):
        GLM(**given)
