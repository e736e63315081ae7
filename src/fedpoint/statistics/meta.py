"""What do estimates of single sites say together? Fixed and random effects, heterogeneity, a forest plot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import optimize, stats

from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain
from fedpoint.statistics.inference import Coefficients, Test, check_level, p_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Method = Literal["dl", "reml"]
METHODS = {"dl": "DerSimonian-Laird", "reml": "REML"}
EVERYBODY = "random effects"


@checked_methods
@dataclass(frozen=True, repr=False)
class MetaAnalysis:
    """One coefficient of several sites, combined.

    estimates: by site, with `std_err` and `weight`, of the random effects. fixed, random: effects that all sites
    share, and the mean of effects that differ with variance tau2. heterogeneity: Cochran's Q.
    """

    name: str
    estimates: pd.DataFrame
    fixed: Coefficients
    random: Coefficients
    tau2: float
    method: str
    heterogeneity: Test

    @property
    def i2(self) -> float:
        """The share of the estimates' variance that is between sites: (Q - df)/Q, or 0."""
        q, df = self.heterogeneity.statistic, self.heterogeneity.df
        return max(0.0, (q - df) / q) if q > 0 else 0.0

    def i2_interval(self, level: float = 0.95) -> tuple[float, float]:
        """I^2 with an interval by Higgins and Thompson's test-based standard error of log H."""
        check_level("level", level)
        q, df = self.heterogeneity.statistic, self.heterogeneity.df
        k = df + 1
        if q > k:
            error = 0.5 * (np.log(q) - np.log(df)) / (np.sqrt(2 * q) - np.sqrt(2 * k - 3))
        elif k > 2:
            error = np.sqrt((1 - 1 / (3 * (k - 2) ** 2)) / (2 * (k - 2)))
        else:
            return 0.0, 1.0  # of two sites nothing is known
        middle, half = 0.5 * np.log(max(q / df, 1.0)), stats.norm.ppf(0.5 + level / 2) * error
        h2 = np.exp(2 * np.array([middle - half, middle + half]))
        low, high = np.maximum(0.0, (h2 - 1) / h2)
        return float(low), float(high)

    def prediction_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Where the effect of another site lies, by Student's law with K - 2 degrees of freedom."""
        check_level("level", level)
        if len(self.estimates) < 3:
            raise FedpointError("a prediction interval needs the estimates of at least 3 sites")
        spread = np.sqrt(self.tau2 + float(self.random.covariance[0, 0]))
        half = stats.t.ppf(0.5 + level / 2, len(self.estimates) - 2) * spread
        return float(self.random.values[0] - half), float(self.random.values[0] + half)

    def to_dict(self) -> dict[str, Plain]:
        """The results in plain types, for JSON."""
        told: dict[str, Plain] = {"name": self.name, "method": self.method, "tau2": self.tau2, "i2": self.i2}
        for word, one in (("fixed", self.fixed), ("random", self.random)):
            told[word] = {"estimate": float(one.values[0]), "std_err": float(one.bse.iloc[0])}
        told["heterogeneity"] = {"Q": self.heterogeneity.statistic, "df": self.heterogeneity.df}
        told["sites"] = {str(site): row.to_dict() for site, row in self.estimates.iterrows()}
        return told

    def summary(self, ratios: bool = False) -> str:
        """Every site, both combinations and their heterogeneity, as text; ratios: exp of the estimates."""
        shown = np.exp if ratios else np.asarray
        cells = [["", "exp(coef)" if ratios else "coef", "[0.025", "0.975]", "weight"]]
        for site, row in self.estimates.iterrows():
            low, high = row.estimate + stats.norm.ppf([0.025, 0.975]) * row.std_err
            told = [f"{v:.4g}" for v in shown(np.array([row.estimate, low, high]))]
            cells.append([str(site), *told, f"{100 * row.weight:.1f} %"])
        for word, one in (("fixed effect", self.fixed), (EVERYBODY, self.random)):
            low, high = one.conf_int().to_numpy()[0]
            cells.append([word, *(f"{v:.4g}" for v in shown(np.array([one.values[0], low, high]))), ""])
        low, high = self.i2_interval()
        q = self.heterogeneity
        notes = [
            f"tau^2 = {self.tau2:.4g} ({METHODS[self.method]}); I^2 = {100 * self.i2:.1f} % "
            f"[{100 * low:.1f}, {100 * high:.1f}]; Q({q.df}) = {q.statistic:.4g}, p {p_text(q.pvalue)}"
        ]
        head = f"Meta-analysis of {self.name}: {counted(len(self.estimates), 'site')}"
        return "\n".join([head, "", *aligned(cells), "", *notes])

    def plot(self, path: str | Path | None = None, title: str | None = None, ratios: bool = False) -> Figure:
        """A forest plot: every site, and below both combinations as diamonds."""
        from fedpoint.show.intervals import Estimate, forest

        z = float(stats.norm.ppf(0.975))
        lines = [
            Estimate(
                str(site), row.estimate, row.estimate - z * row.std_err, row.estimate + z * row.std_err, row.weight
            )
            for site, row in self.estimates.iterrows()
        ]
        for word, one in (("fixed effect", self.fixed), (f"random effects ({METHODS[self.method]})", self.random)):
            lower, upper = one.conf_int().to_numpy()[0]
            lines.append(Estimate(word, float(one.values[0]), lower, upper, summary=True))
        low, high = self.i2_interval()
        note = f"I² = {100 * self.i2:.0f} % [{100 * low:.0f}, {100 * high:.0f}], τ² = {self.tau2:.3g}"
        label = f"exp(coefficient of {self.name})" if ratios else f"coefficient of {self.name}"
        return forest(lines, path, title, label, ratios, note)

    def __repr__(self) -> str:
        return f"<MetaAnalysis of {self.name}: {counted(len(self.estimates), 'site')}, I^2 {100 * self.i2:.0f} %>"


@checked
def meta_analysis(
    estimates: Mapping[str, float] | ArrayLike,
    std_errors: Mapping[str, float] | ArrayLike,
    *,
    method: Method = "reml",
    name: str = "effect",
) -> MetaAnalysis:
    """Estimates of one coefficient by several sites, combined with fixed and with random effects.

    Args:
        estimates: by site, or one after the other.
        std_errors: their standard errors, in the same way.
        method: of the variance between sites: "reml" (restricted maximum likelihood) or "dl" (DerSimonian-Laird).
        name: of the coefficient.

    >>> found = meta_analysis({"a": 0.1, "b": 0.5, "c": 0.3}, {"a": 0.1, "b": 0.2, "c": 0.1}, method="dl")
    >>> found.random.params.round(3).item(), round(found.i2, 3)
    (0.256, 0.5)
    """
    b, errors = _paired(estimates, std_errors)
    v = errors.to_numpy() ** 2
    y = b.to_numpy()
    w = 1 / v
    fixed = float(w @ y / w.sum())
    q = float(w @ (y - fixed) ** 2)
    tau2 = _dersimonian_laird(q, w) if method == "dl" else _reml(y, v)
    u = 1 / (v + tau2)
    table = pd.DataFrame({"estimate": b, "std_err": errors, "weight": u / u.sum()})
    return MetaAnalysis(
        name,
        table,
        _one(name, fixed, 1 / w.sum()),
        _one(name, float(u @ y / u.sum()), 1 / u.sum()),
        tau2,
        method,
        Test("heterogeneity, Q", q, len(y) - 1),
    )


def _one(name: str, value: float, variance: float) -> Coefficients:
    return Coefficients((name,), np.array([value]), np.array([[variance]]), {name: slice(0, 1)})


def _paired(
    estimates: Mapping[str, float] | ArrayLike, errors: Mapping[str, float] | ArrayLike
) -> tuple[pd.Series, pd.Series]:
    b, e = _series("estimates", estimates), _series("std_errors", errors)
    if len(b) != len(e):
        raise FedpointError(f"{counted(len(b), 'estimate')}, but {counted(len(e), 'standard error')}")
    if set(b.index) != set(e.index):
        raise FedpointError("estimates and std_errors must be of the same sites, both by name or both in a row")
    if len(b) < 2:
        raise FedpointError("a meta-analysis needs the estimates of at least 2 sites")
    if not (np.isfinite(b).all() and np.isfinite(e).all() and (e > 0).all()):
        raise FedpointError("estimates must be finite, and std_errors finite and above 0")
    return b, e[b.index]


def _series(name: str, values: Mapping[str, float] | ArrayLike) -> pd.Series:
    """Numbers by site; sites without a name are counted from 1."""
    if isinstance(values, Mapping | pd.Series):
        return pd.Series(
            numbers(name, list(values.values() if isinstance(values, Mapping) else values)), list(values.keys())
        )
    found = numbers(name, values).ravel()
    return pd.Series(found, [str(k + 1) for k in range(len(found))])


def _dersimonian_laird(q: float, w: np.ndarray) -> float:
    return max(0.0, (q - (len(w) - 1)) / float(w.sum() - (w**2).sum() / w.sum()))


def _reml(y: np.ndarray, v: np.ndarray) -> float:
    """The variance between sites at which the restricted likelihood is largest."""

    def score(tau2: float) -> float:  # twice its derivative
        u = 1 / (v + tau2)
        mean = u @ y / u.sum()
        return float(u**2 @ (y - mean) ** 2 - u.sum() + (u**2).sum() / u.sum())

    def minus(tau2: float) -> float:
        u = 1 / (v + tau2)
        return float(np.log(v + tau2).sum() + np.log(u.sum()) + u @ (y - u @ y / u.sum()) ** 2)

    top = 10 * float(np.var(y) + v.max())
    grid = np.concatenate([[0.0], np.geomspace(1e-8 * top, top, 200)])
    k = int(np.argmin([minus(t) for t in grid]))
    low, high = grid[max(k - 1, 0)], grid[min(k + 1, len(grid) - 1)]
    if score(low) <= 0:  # the likelihood falls from the start: no variance between sites
        return float(low)
    return float(optimize.brentq(score, low, high, xtol=1e-15 * top, rtol=1e-14))
