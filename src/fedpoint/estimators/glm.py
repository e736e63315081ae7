"""A generalised linear model in scikit-learn's way, with standard errors: `FederatedGLM`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from fedpoint.core.arguments import check_names, check_parameters
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.precision import double
from fedpoint.core.types import Plain
from fedpoint.data.encoding import Cells
from fedpoint.estimators.base import FitRows, TableEstimator, check_penalty, joined
from fedpoint.estimators.table import Coordinates, read_rows
from fedpoint.estimators.weights import check_sample_weight
from fedpoint.problems.families import FAMILIES, LINKS, Response, response
from fedpoint.problems.glm import one_per_row
from fedpoint.statistics.formula import INTERCEPT, Design, Designs
from fedpoint.statistics.glm import Model, check_rows, fit_of, rows_of
from fedpoint.statistics.glm_fit import GLMFit


@check_names
class FederatedGLM(RegressorMixin, TableEstimator):
    r"""A generalised linear model over agents that keep their rows, equal to the fit of all rows together.

    $$\min_{w, b} \frac{1}{n} \sum_i \ell(y_i, x_i'w + b + o_i) + \frac{\alpha}{2} |w|^2$$

    where $\ell$ is the negative log-likelihood of the family at dispersion 1: the objective of scikit-learn's
    `PoissonRegressor` and `GammaRegressor`. `fp.glm` is the same by a formula, and says more.

    Args:
        family: "gaussian", "binomial" (y between 0 and 1), "poisson", "gamma" or "negative_binomial".
        link: as of `fp.glm`; None is the family's usual one.
        alpha: of the coefficients, 1 as there; the intercept is free. 0 is maximum likelihood, as in `fp.glm`.
        dispersion: of "negative_binomial": variance = mean + dispersion mean^2.
        fit_intercept: free intercept.
        categorical: "auto" encodes the columns of a data frame that are no numbers, or name them; None is none. The
            first category is the one that others are compared with: its coefficient is 0.

    Attributes: coef_, intercept_; bse_ (standard errors of the coefficients, by their names); result_ (what `fp.glm`
    returns: summary, tests, covariances, sites; not kept by pickle, as it holds the rows), agents_, agent_losses_ (the
    agents' mean deviances of a row, by name), fairness_ (over them), n_iter_ (rounds of sums).

    Arguments of methods:
        offset: (n,) added to x'w + b.

    >>> X, y = np.array([[0.0], [1.0], [0.0], [1.0]]), [1.0, 3.0, 2.0, 6.0]
    >>> model = FederatedGLM("poisson", alpha=0.0).fit(X, y, groups=["a", "a", "b", "b"])
    >>> model.predict([[0.0], [1.0]]).round(4), model.coef_.round(4)  # means 1.5 and 4.5
    (array([1.5, 4.5]), array([1.0986]))
    """

    def __init__(
        self,
        family: str = "gaussian",
        link: str | None = None,
        *,
        alpha: float = 1.0,
        dispersion: float = 1.0,
        fit_intercept: bool = True,
        categorical: str | Sequence[str] | None = "auto",
    ):
        self.family = family
        self.link = link
        self.alpha = alpha
        self.dispersion = dispersion
        self.fit_intercept = fit_intercept
        self.categorical = categorical

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.family in FAMILIES and FAMILIES[self.family].low == 0
        return tags

    def fit(
        self,
        X: Cells,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> FederatedGLM:
        """Fit the regression.

        Args:
            groups: whose row it is; without it there is one agent, and a `OneAgentWarning`.
            sample_weight: what each row counts, as if it were there so many times.
        """
        check_parameters(self)
        kind, ridge = response(self.family, self.link), check_penalty("alpha", self.alpha)
        rows = self._read(X, y, groups, sample_weight, labels=False)
        if len(rows.X) == 1:
            raise FedpointError("X holds one sample: at least two are needed")
        self._coordinates = Coordinates(np.zeros(rows.X.shape[1]), np.ones(rows.X.shape[1]), own=False)
        added = self._offset(offset, y, sample_weight)
        model = self._model(rows, added, kind, ridge)
        check_rows("y", model.rows)
        fit = fit_of(model, {})
        self.result_: GLMFit | None = fit
        self._response = kind
        self.coef_, self.intercept_ = self._apart(fit.values, rows.X.shape[1])
        self.bse_ = fit.bse
        self.n_iter_ = fit.rounds
        weights = [len(own) if own.weight is None else own.weight.sum() for own in model.rows.values()]
        self._tell(np.array([site.deviance for site in fit.sites.values()]) / weights)
        return self

    def _offset(self, offset: ArrayLike | None, y: ArrayLike, sample_weight: ArrayLike | None) -> np.ndarray | None:
        """Of the rows that count."""
        if offset is None:
            return None
        found = one_per_row("offset", offset, len(np.asarray(y)), 0.0)
        return found if sample_weight is None else found[check_sample_weight(sample_weight, y) > 0]

    def _model(self, rows: FitRows, offset: np.ndarray | None, kind: Response, ridge: float) -> Model:
        """What `fp.glm` makes of a formula, of the columns as they are."""
        intercept, columns = bool(self.fit_intercept), self._estimated(rows.X.shape[1])
        named = self._columns.names if self._columns.names is not None else [f"x{j}" for j in range(rows.X.shape[1])]
        names = ((INTERCEPT,) if intercept else ()) + tuple(str(named[j]) for j in columns)
        given = {"offset": offset, "weights": rows.weight}
        also = {name: values for name, values in given.items() if values is not None}
        X = rows.X[:, columns]
        X = np.column_stack([np.ones(len(X)), X]) if intercept else X
        sites = {}
        for agent in self.agents_:
            own = np.flatnonzero(rows.agents == agent)
            more = {name: values[own] for name, values in also.items()}
            sites[str(agent)] = Design(X[own], rows.y[own].astype(float), more)
        terms = {name: slice(j, j + 1) for j, name in enumerate(names)}
        made = Designs("y ~ " + " + ".join(names[intercept:]), sites, names, terms, {}, {}, {})
        return Model(
            made,
            kind,
            np.where(np.array(names) == INTERCEPT, 0.0, ridge),
            rows_of(made, {"offset": "offset", "weights": "weights"}, kind, float(self.dispersion)),
        )

    def _estimated(self, d: int) -> np.ndarray:
        """The columns that have a coefficient. Without an intercept the first factor has one for each category."""
        return np.setdiff1d(np.arange(d), self._columns.first_levels()[0 if self.fit_intercept else 1 :])

    def _apart(self, w: np.ndarray, d: int) -> tuple[np.ndarray, float]:
        constant, slopes = (float(w[0]), w[1:]) if self.fit_intercept else (0.0, w)
        coef = np.zeros(d)
        coef[self._estimated(d)] = slopes
        return coef, constant

    @double
    def predict(self, X: Cells, offset: ArrayLike | None = None) -> np.ndarray:
        """(n,): the means of y; NaN for rows of which the link has no mean."""
        check_is_fitted(self)
        columns = read_rows(self, self._columns, X)
        added = one_per_row("offset", offset, len(columns), 0.0)
        return np.asarray(self._response.mean(columns @ self.coef_ + self.intercept_ + added))

    @double
    def score(
        self,
        X: Cells,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> float:
        """D^2, the share of the deviance around the mean of y that the model explains: of gaussian models R^2."""
        mean, truth = self.predict(X, offset), numbers("y", y)
        weight = np.ones(len(truth)) if sample_weight is None else check_sample_weight(sample_weight, y)
        link = LINKS[self._response.link]
        means = np.stack([mean, np.full(len(mean), np.average(truth, weights=weight))])
        left, around = (
            np.asarray(self._response.deviance(link.eta(jnp.asarray(means)), truth, self.dispersion)) @ weight
        )
        return float(1 - left / around) if around > 0 else float(left == 0)

    def _score_agent(self, X: Cells, y: ArrayLike, groups: np.ndarray, sample_weight: np.ndarray | None) -> float:
        return self.score(X, y, sample_weight=sample_weight)

    def _described(self) -> tuple[dict[str, np.ndarray], dict[str, Plain]]:
        intercept = bool(self.fit_intercept)
        about: dict[str, Plain] = {"intercept": intercept, "rounds": self.n_iter_, "link": self._response.link}
        return {"model": joined(self.coef_, self.intercept_, intercept)}, {**about, **self._target()}

    def summary(self) -> str:
        """The coefficients with their errors, and the agents, as text."""
        check_is_fitted(self)
        if self.result_ is None:
            raise FedpointError("a fit that was saved has no summary: it takes the rows, which are not saved")
        return self.result_.summary()

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows: a saved model holds no data."""
        state = super().__getstate__()
        return state | {"result_": None} if "result_" in state else state
