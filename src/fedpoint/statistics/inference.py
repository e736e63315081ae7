"""What does an estimate say? Coefficients with a covariance: errors, z, p, intervals and Wald tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain


@dataclass(frozen=True)
class Test:
    """A test of a hypothesis: chi-square with so many degrees of freedom, and its p-value."""

    __test__ = False  # not one of pytest's

    name: str
    statistic: float
    df: int

    @property
    def pvalue(self) -> float:
        return float(stats.chi2.sf(self.statistic, self.df))

    def __str__(self) -> str:
        return f"{self.name}: chi2({self.df}) = {self.statistic:.4g}, p {p_text(self.pvalue)}"


@dataclass(frozen=True)
class Coefficients:
    """Estimates (d,) with their covariance (d, d); terms: where the columns of each term of a formula are."""

    names: tuple[str, ...]
    values: np.ndarray
    covariance: np.ndarray
    terms: Mapping[str, slice]

    @property
    def params(self) -> pd.Series:
        return pd.Series(self.values, index=list(self.names))

    @property
    def bse(self) -> pd.Series:
        """Standard errors."""
        return pd.Series(np.sqrt(np.diag(self.covariance)), index=list(self.names))

    @property
    def zvalues(self) -> pd.Series:
        return self.params / self.bse

    @property
    def pvalues(self) -> pd.Series:
        """Two-sided, by the normal law."""
        return pd.Series(2 * stats.norm.sf(np.abs(self.zvalues)), index=list(self.names))

    def cov_params(self) -> pd.DataFrame:
        return pd.DataFrame(self.covariance, index=list(self.names), columns=list(self.names))

    def conf_int(self, level: float = 0.95) -> pd.DataFrame:
        """Intervals of this level, by the normal law."""
        check_level("level", level)
        half = stats.norm.ppf(0.5 + level / 2) * self.bse
        return pd.DataFrame({"lower": self.params - half, "upper": self.params + half})

    def wald_test(self, term: str) -> Test:
        """Whether all coefficients of a term are zero."""
        if term not in self.terms:
            raise FedpointError(f"no term {term!r}: {nearest(term, self.terms)}")
        place = self.terms[term]
        b, V = self.values[place], self.covariance[place, place]
        return Test(f"Wald, {term}", float(b @ np.linalg.solve(V, b)), len(b))

    def table(self) -> pd.DataFrame:
        """Estimates and their intervals, by name."""
        return self.conf_int().assign(estimate=self.params)

    def plain(self) -> dict[str, Plain]:
        """The same in plain types, for JSON."""
        columns = {"estimate": self.params, "std_err": self.bse, "z": self.zvalues, "p": self.pvalues}
        table = pd.DataFrame(columns).join(self.conf_int())
        return {str(name): {str(k): float(v) for k, v in row.items()} for name, row in table.iterrows()}

    def lines(self, ratios: str = "") -> list[str]:
        """A table of the coefficients; ratios: what exp(coefficient) is called, which then stands beside it."""
        low, high = self.conf_int().to_numpy().T
        rows = [
            ["", "coef", "std err", "z", "p", "[0.025", "0.975]", *([ratios, "[0.025", "0.975]"] if ratios else [])]
        ]
        for i, name in enumerate(self.names):
            b, se = self.values[i], float(self.bse.iloc[i])
            p = p_text(float(self.pvalues.iloc[i])).removeprefix("= ")
            row = [name, f"{b:.4g}", f"{se:.3g}", f"{b / se:.2f}", p, f"{low[i]:.4g}", f"{high[i]:.4g}"]
            rows.append([*row, *([f"{np.exp(value):.4g}" for value in (b, low[i], high[i])] if ratios else [])])
        return aligned(rows)


def check_level(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise FedpointError(f"{name} = {value} must lie between 0 and 1")


def p_text(p: float) -> str:
    """A p-value as papers print it.

    >>> p_text(0.0312), p_text(3e-9)
    ('= 0.031', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
