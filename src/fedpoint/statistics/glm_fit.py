"""What does a generalised linear model say? Coefficients with errors of three kinds, tests, sites, each alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked_methods
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain
from fedpoint.problems.families import Response
from fedpoint.statistics import glm_sums
from fedpoint.statistics.formula import Designs
from fedpoint.statistics.glm_sums import Last, Rows
from fedpoint.statistics.inference import Coefficients, Test
from fedpoint.statistics.meta import MetaAnalysis, Method, meta_analysis
from fedpoint.statistics.newton import Optimum, inverse, solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["model", "sandwich", "cluster"]
RATIOS = {"logit": "odds ratio", "log": "ratio", "cloglog": "hazard ratio"}  # what exp(coefficient) is


class GLMSite(NamedTuple):
    """What is said of one site: rows, and where they are known the sum of y and its part of the deviance."""

    rows: int
    y: float | None = None
    deviance: float | None = None


@checked_methods
@dataclass(frozen=True, repr=False)
class GLMFit:
    """Coefficients of a generalised linear model over sites.

    params, bse, conf_int, wald_test: by the model's own covariance, or of another `kind`: "sandwich" holds where the
    variance of y is not the family's, "cluster" also where rows of one site depend on each other. phi: the
    dispersion, by Pearson's chi-square, where the family has one. sites: by name. rounds: of sums over sites that
    were exchanged. held: the sites' rows, where they are here. optimisation_error: by how many standard errors a
    further step would have moved at most; `left_by` says it of other algorithms.
    """

    formula: str
    response: Response
    names: tuple[str, ...]
    terms: dict[str, slice]
    values: np.ndarray
    ridge: np.ndarray
    sums: Last
    sites: dict[str, GLMSite]
    rounds: int
    optimisation_error: float
    held: dict[str, Rows]
    notes: list[str] = field(default_factory=list)

    @staticmethod
    def of(
        made: Designs,
        response: Response,
        ridge: np.ndarray,
        end: Optimum,
        sums: Last,
        sites: dict[str, GLMSite],
        held: dict[str, Rows],
        notes: list[str],
    ) -> GLMFit:
        where = (made.formula, response, made.names, dict(made.terms))
        fit = GLMFit(*where, end.w, ridge, sums, sites, end.rounds + 2, 0.0, held, notes)
        # The curvature of the likelihood is 1/phi of the sums', so the decrement is sqrt(phi) of it in standard errors.
        return replace(fit, optimisation_error=end.decrement / np.sqrt(fit.phi))

    # Numbers of the fit.

    @property
    def params(self) -> pd.Series:
        return self._coefficients("model").params

    @property
    def bse(self) -> pd.Series:
        """Standard errors, by the model."""
        return self._coefficients("model").bse

    @property
    def zvalues(self) -> pd.Series:
        return self._coefficients("model").zvalues

    @property
    def pvalues(self) -> pd.Series:
        return self._coefficients("model").pvalues

    @property
    def nobs(self) -> float:
        """Rows, or the sum of their weights."""
        return float(self.sums.weight)

    @property
    def deviance(self) -> float:
        return float(self.sums.deviance)

    @property
    def phi(self) -> float:
        left = self.nobs - len(self.names)
        return float(self.sums.pearson) / left if glm_sums.scaled(self.response) and left > 0 else 1.0

    @property
    def log_likelihood(self) -> float:
        at = (float(self.sums.constant), self.deviance, self.nobs, self.phi)
        return glm_sums.log_likelihood(self.response.family, *at)

    @property
    def aic(self) -> float:
        return -2 * self.log_likelihood + 2 * len(self.names)

    def conf_int(self, level: float = 0.95, kind: Kind = "model") -> pd.DataFrame:
        return self._coefficients(kind).conf_int(level)

    def cov_params(self, kind: Kind = "model") -> pd.DataFrame:
        return self._coefficients(kind).cov_params()

    def wald_test(self, term: str, kind: Kind = "model") -> Test:
        """Whether all coefficients of a term are zero."""
        return self._coefficients(kind).wald_test(term)

    def compare(self, smaller: GLMFit) -> Test:
        """Likelihood ratio against a model of the same rows with fewer terms.

        Of gamma the fall of the deviance over phi of this, the larger, model.
        """
        rows, others = ({name: site.rows for name, site in fit.sites.items()} for fit in (self, smaller))
        apart = abs(self.nobs - smaller.nobs) > 1e-9 * self.nobs  # sums over sites are rounded
        if self.response != smaller.response or rows != others or apart:
            raise FedpointError(
                "compare() needs fits of the same rows with the same family and link: these have others"
            )
        if not set(smaller.names) < set(self.names):
            raise FedpointError("compare() needs a smaller model, whose columns are among those of this one")
        if self.ridge.any() or smaller.ridge.any():
            raise FedpointError("compare() needs fits without a ridge: with one they do not maximise the likelihood")
        fall = (smaller.deviance - self.deviance) / self.phi
        if self.response.family == "gaussian":
            fall = 2 * (self.log_likelihood - smaller.log_likelihood)
        return Test("likelihood ratio", fall, len(self.names) - len(smaller.names))

    def _coefficients(self, kind: Kind) -> Coefficients:
        return Coefficients(self.names, self.values, self._covariance(kind), self.terms)

    def _covariance(self, kind: Kind) -> np.ndarray:
        weight = np.diag(self.nobs * self.ridge)
        if kind == "model":
            A = inverse(self.sums.information + weight)
            return self.phi * (A @ self.sums.information @ A if self.ridge.any() else A)
        A = inverse(self.sums.hessian + weight)
        if kind == "sandwich":
            return A @ self.sums.scores @ A
        count, d = len(self.sites), len(self.names)
        if count <= d:
            raise FedpointError(
                f'kind="cluster" needs more sites than coefficients: {count} sites, {d} coefficients. Use "sandwich"'
            )
        correction = count / (count - 1) * (self.nobs - 1) / (self.nobs - d)
        return correction * A @ self.sums.site_scores @ A

    # Each site alone, and all of them meta-analysed.

    @cached_property
    def alone(self) -> dict[str, Coefficients | str]:
        """Each site's own fit, made of its own rows, or why there is none."""
        from fedpoint.statistics.glm_alone import alone

        return {name: alone(self, rows) for name, rows in self.held.items()}

    def meta_analysis(self, name: str, method: Method = "reml") -> MetaAnalysis:
        """One coefficient of the sites' own fits, combined; sites without one are left out."""
        at = self._place(name)
        if not self.held:
            raise FedpointError(
                "each site's own fit takes its rows, which are not here: let the sites fit, and combine"
            )
        own = {site: fit for site, fit in self.alone.items() if isinstance(fit, Coefficients)}
        if len(own) < 2:
            raise FedpointError(
                f"a meta-analysis needs at least 2 sites with a fit of their own; here {len(own)} have one"
            )
        estimates = {site: float(fit.values[at]) for site, fit in own.items()}
        errors = {site: float(fit.bse.iloc[at]) for site, fit in own.items()}
        return meta_analysis(estimates, errors, method=method, name=name)

    def beside(self, name: str, method: Method = "reml") -> pd.DataFrame:
        """One coefficient four ways: each site alone, federated, which is the pooled fit, and meta-analysed."""
        found, at = self.meta_analysis(name, method), self._place(name)
        rows = [
            [site, *pair] for site, pair in zip(found.estimates.index, found.estimates.to_numpy()[:, :2], strict=True)
        ]
        rows.append(["federated = pooled", self.values[at], float(self.bse.iloc[at])])
        for word, one in (("fixed effect", found.fixed), ("random effects", found.random)):
            rows.append([f"meta-analysis, {word}", one.values[0], float(one.bse.iloc[0])])
        table = pd.DataFrame(rows, columns=["", "estimate", "std_err"]).set_index("")
        return table.assign(lower=table.estimate - 1.96 * table.std_err, upper=table.estimate + 1.96 * table.std_err)

    def left_by(self, algorithm: Algorithm, rounds: int = 200) -> float:
        """By how many standard errors another algorithm would still be off at most, in any combination of coefficients.

        It runs on the same rows, from zero, in columns of mean square 1: for instance
        `fit.left_by(fp.FedAvg(step=0.5, local_steps=10))` beside `fit.optimisation_error`.
        """
        from fedpoint.statistics.glm_alone import problem_of
        from fedpoint.verbs.run import run

        problem, size = problem_of(self)
        off = np.asarray(run(algorithm, problem, rounds=rounds, exact=True).model)[0] / size - self.values
        return float(np.sqrt(off @ solve(self._covariance("model"), off)))

    def _place(self, name: str) -> int:
        if name not in self.names:
            raise FedpointError(f"no coefficient {name!r}: {nearest(name, self.names)}")
        return self.names.index(name)

    # As text and pictures.

    @property
    def ratios(self) -> str:
        """What exp(coefficient) is called; empty where it means nothing."""
        link = self.response.link
        return RATIOS.get(link, "") if self.response.family != "gaussian" or link == "log" else ""

    def summary(self, kind: Kind = "model") -> str:
        """The coefficients, their errors of this kind, and the sites, as text."""
        family = self.response.family.replace("_", " ")
        errors = {"model": "", "sandwich": "; sandwich errors", "cluster": "; errors clustered by site"}[kind]
        rows, sites = sum(site.rows for site in self.sites.values()), counted(len(self.sites), "site")
        phi = f", phi {self.phi:.4g}" if glm_sums.scaled(self.response) else ""
        lines = [
            f"Generalised linear model, {family} ({self.response.link}): {self.formula}",
            f"{counted(rows, 'row')}, {sites}; {counted(self.rounds, 'round')} of sums{errors}",
            "",
            *self._coefficients(kind).lines(self.ratios),
            "",
            f"deviance {self.deviance:.6g}{phi}, log-likelihood {self.log_likelihood:.6g}, AIC {self.aic:.6g}",
            f"optimisation error: at most {self.optimisation_error:.1g} standard errors",
            *(f"Note: {note}." for note in self.notes),
            "",
        ]
        return "\n".join([*lines, *aligned(self._site_cells())])

    def _site_cells(self) -> list[list[str]]:
        if not self.held:
            return [["site", "rows"], *([name, f"{site.rows:,}"] for name, site in self.sites.items())]
        cells = [["site", "rows", "mean of y", "deviance", "own fit"]]
        for name, site in self.sites.items():
            assert site.y is not None  # as it is of all sites whose rows are here
            weight = self.held[name].weight
            mean = site.y / (site.rows if weight is None else float(weight.sum()))
            own = self.alone[name]
            said = own if isinstance(own, str) else f"chi2 {self._distance(own):.3g}"
            cells.append([name, f"{site.rows:,}", f"{mean:.4g}", f"{site.deviance:.6g}", said])
        return cells

    def _distance(self, own: Coefficients) -> float:
        """How far a site's own fit is from this one, in its own errors: chi-square with d degrees of freedom."""
        off = own.values - self.values
        return float(off @ np.linalg.lstsq(own.covariance, off, rcond=None)[0])

    def to_dict(self) -> dict[str, Plain]:
        """The results in plain types, for JSON."""
        return {
            "formula": self.formula,
            "family": self.response.family,
            "link": self.response.link,
            "coefficients": self._coefficients("model").plain(),
            "deviance": self.deviance,
            "phi": self.phi,
            "log_likelihood": self.log_likelihood,
            "aic": self.aic,
            "rounds": self.rounds,
            "optimisation_error": self.optimisation_error,
            "sites": {n: {"rows": s.rows, "y": s.y, "deviance": s.deviance} for n, s in self.sites.items()},
            "notes": list(self.notes),
        }

    def plot(self, path: str | Path | None = None, title: str | None = None, kind: Kind = "model") -> Figure:
        """The coefficients with their intervals; as ratios where exp(coefficient) is one."""
        from fedpoint.show.intervals import coefficients

        return coefficients(self._coefficients(kind).table(), path, title or self.formula, self.ratios)

    def __repr__(self) -> str:
        family = self.response.family
        return (
            f"<GLMFit {self.formula!r}, {family}: {counted(int(self.nobs), 'row')}, {counted(len(self.sites), 'site')}>"
        )
