"""Should we join? From one round of sums, what each site can expect alone, pooled, personalised and in private."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import optimize, stats

from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.kinds import Positive
from fedpoint.core.numbers import counted
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain
from fedpoint.data.floor import Floor
from fedpoint.privacy.target import Privacy
from fedpoint.statistics import glm_sums
from fedpoint.statistics.glm import check_columns, model_of, start_of
from fedpoint.statistics.sites import TableLike, listed
from fedpoint.statistics.sums import collect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS = ("alone", "pooled", "personalised", "private")
FAR = 1e3  # times the variance of a site's estimates: no larger difference between sites is looked for


class Evidence(NamedTuple):
    """Sums of every site in coordinates in which the mean information of a row is the unit matrix.

    H: (K, d, d) information. at: (K, d) one Newton step of each site by itself. rows: (K,). ranks: of H. phi: the
    variance of a row, with its degrees of freedom; infinite where the family fixes it. longest: the largest norm of a
    site's sums.
    """

    H: np.ndarray
    at: np.ndarray
    rows: np.ndarray
    ranks: np.ndarray
    phi: float
    freedom: float
    longest: float


@checked_methods
@dataclass(frozen=True, repr=False)
class Joining:
    """What joining is worth to every site.

    errors: by (site, way) the expected excess deviance of a row of that site, over a model that knew the site's own
    coefficients, with its interval; of gaussian models that is the squared error of predicted means. A site's way
    may be infinite alone, where its rows do not determine the coefficients. heterogeneity: the variance between sites
    of every coefficient, in units in which a row's mean information is one, with its interval.
    """

    formula: str
    errors: pd.DataFrame
    heterogeneity: tuple[float, float, float]
    rows: dict[str, int]
    epsilon: float | None
    notes: list[str] = field(default_factory=list)

    def best(self) -> pd.Series:
        """The way with the least expected error, of every site."""
        table = self.errors.expected.unstack()
        return table.idxmin(axis=1)[list(self.rows)]

    def gain(self) -> pd.Series:
        """By how many times the best way with others is better than alone."""
        table = self.errors.expected.unstack()
        return (table["alone"] / table.drop(columns="alone").min(axis=1))[list(self.rows)]

    def of(self, site: str) -> pd.DataFrame:
        """One site's expected errors, by way."""
        if site not in self.rows:
            raise FedpointError(f"no site {site!r}: {nearest(site, self.rows)}")
        return self.errors.loc[site]

    def summary(self) -> str:
        """A line for every site, as text."""
        ways = [way for way in WAYS if way in self.errors.index.get_level_values(1)]
        value, low, high = self.heterogeneity
        head = [
            f"Should we join? {self.formula}: {counted(len(self.rows), 'site')}",
            f"variance between sites {value:.3g} [{low:.3g}, {high:.3g}], where a row's information is 1",
            "expected excess deviance of a row, with 95 % intervals"
            + ("" if self.epsilon is None else f"; private: pooled under epsilon {self.epsilon:g}"),
            "",
        ]
        cells = [["site", "rows", *ways, "best"]]
        best = self.best()
        for site, rows in self.rows.items():
            own = self.of(site)
            told = [f"{own.expected[way]:.3g} [{own.lower[way]:.3g}, {own.upper[way]:.3g}]" for way in ways]
            cells.append([site, f"{rows:,}", *told, best[site]])
        return "\n".join([*head, *aligned(cells), *(f"Note: {note}." for note in self.notes)])

    def to_dict(self) -> dict[str, Plain]:
        """The results in plain types, for JSON."""
        sites: dict[str, Plain] = {}
        for site in self.rows:
            sites[site] = {
                str(way): [float(v) if np.isfinite(v) else None for v in row] for way, row in self.of(site).iterrows()
            }
        return {"formula": self.formula, "heterogeneity": list(self.heterogeneity), "sites": sites}

    def plot(self, path: str | Path | None = None, sites: list[str] | None = None) -> Figure:
        """A card for every site, or for these."""
        from fedpoint.show.cards import Card, cards

        chosen = list(self.rows) if sites is None else sites
        best = self.best()
        made = [Card(f"{site}: {self.rows[site]:,} rows", self.of(site), str(best[site])) for site in chosen]
        return cards(made, path, "expected excess deviance of a row")

    def __repr__(self) -> str:
        return f"<Joining {self.formula!r}: {counted(len(self.rows), 'site')}>"


@checked
def value_of_joining(
    formula: str,
    data: TableLike,
    *,
    groups: str | ArrayLike,
    family: str = "gaussian",
    link: str | None = None,
    offset: str | ArrayLike | None = None,
    weights: str | ArrayLike | None = None,
    dispersion: Positive = 1.0,
    epsilon: float | None = None,
    delta: float = 1e-5,
    floor: Floor | None = None,
    small: str = "refuse",
) -> Joining:
    """What each site can expect of its own fit, of the pooled one, of one that is pulled to the others', in private.

    Sites' coefficients are taken as drawn around a common mean, equally in all directions of the information. How far
    they differ is estimated from one round of sums; its interval, and that of the variance of a row, are carried on.
    For gaussian models with identity link nothing else is approximate; others take one Newton step from the model of a
    constant mean. Personalised is GTVMin's coupling over all other sites with the best strength.

    Args:
        epsilon, delta: of one private round of pooled sums, whose noise hides the largest site. Default: not told.
        formula, data, groups, family, link, offset, weights, dispersion, floor, small: as of `fp.glm`.
    """
    given = (family, link, offset, weights, 0.0, dispersion, floor, small)
    model, left_out = model_of(formula, data, groups, *given)
    if len(model.rows) < 2:
        raise FedpointError("joining needs at least 2 sites")
    if epsilon is not None and not epsilon > 0:
        raise FedpointError(f"epsilon = {epsilon} must be above 0")
    begun = collect(glm_sums.first, model.rows).total
    check_columns(model, begun)
    start = start_of(model, begun)
    got = collect(glm_sums.last, model.rows, at=start, own=lambda sums: sums)
    rows = {name: len(own) for name, own in model.rows.items()}
    found = evidence(np.array(list(rows.values())), list(got.sites.values()), glm_sums.scaled(model.response))
    spread = heterogeneity(found)
    noise = None if epsilon is None else found.longest * _multiplier(Privacy(epsilon, delta), len(rows))
    table = _with_intervals(found, spread, noise, list(rows))
    notes = [f"{counted(len(left_out), 'site')} below the floor left out: {listed(left_out)}"] if left_out else []
    return Joining(formula, table, spread, rows, epsilon, [*model.made.notes, *notes])


def _multiplier(target: Privacy, sites: int) -> float:
    from fedpoint.privacy.spent import multiplier

    return float(multiplier(target, None, rounds=1, agents=sites))


def evidence(rows: np.ndarray, sums: list[glm_sums.Last], scaled: bool) -> Evidence:
    """The sites' sums at a common model, in coordinates in which information is the unit matrix."""
    H, g = np.stack([one.information for one in sums]), np.stack([one.score for one in sums])
    inv = np.linalg.inv(np.linalg.cholesky(H.sum(0) / rows.sum()))
    H, g = inv @ H @ inv.T, g @ inv.T
    above = np.triu_indices(len(inv))
    longest = max(np.sqrt((s**2).sum() + (h[above] ** 2).sum()) for s, h in zip(g, H, strict=True))
    ranks = np.array([np.linalg.matrix_rank(h, tol=1e-9 * np.trace(h), hermitian=True) for h in H])
    at = np.stack([np.linalg.pinv(h, rcond=1e-9, hermitian=True) @ s for h, s in zip(H, g, strict=True)])
    phi, freedom = 1.0, np.inf
    if scaled:
        freedom = float(rows.sum() - ranks.sum())
        if freedom < 1:
            raise FedpointError("sites have no rows left over to estimate the variance of a row: use fewer terms")
        left = np.array([float(one.pearson) for one in sums]) - np.einsum("kd,kd->k", at, g)  # after a site's own step
        phi = float(left.sum() / freedom)
    return Evidence(H, at, rows, ranks, phi, freedom, float(longest))


# How far sites differ.


def heterogeneity(found: Evidence) -> tuple[float, float, float]:
    """The variance between sites where Cochran's Q is what it is expected to be, and where it is at its quantiles."""
    df = int(found.ranks.sum() - found.H.shape[1])
    if df < 1:
        return 0.0, 0.0, np.inf
    top = FAR * found.phi / float(np.median(found.rows))

    def zero(target: float) -> float:
        if _cochran(found, 0.0) <= target:
            return 0.0
        if _cochran(found, top) >= target:
            return top
        return float(optimize.brentq(lambda v: _cochran(found, v) - target, 0.0, top, xtol=1e-12 * top))

    return zero(df), zero(stats.chi2.ppf(0.975, df)), zero(stats.chi2.ppf(0.025, df))


def _pulls(found: Evidence, variance: float, phi: float) -> np.ndarray:
    """(K, d, d): the inverse covariance of a site's estimate around the mean of sites, also where H is singular."""
    unit = np.eye(found.H.shape[1])
    return np.stack([h @ np.linalg.inv(variance * h + phi * unit) for h in found.H])


def _cochran(found: Evidence, variance: float) -> float:
    W = _pulls(found, variance, found.phi)
    mean = np.linalg.solve(W.sum(0), np.einsum("kij,kj->i", W, found.at))
    off = found.at - mean
    return float(np.einsum("ki,kij,kj->", off, W, off))


# What to expect.


def expected_errors(found: Evidence, variance: float, phi: float, noise: float | None) -> np.ndarray:
    """(K, ways): E (w - w_k)' S_k (w - w_k) of each way, S_k the mean information of a site's row."""
    K, d = found.at.shape
    S = found.H / found.rows[:, None, None]
    total = np.linalg.inv(found.H.sum(0))
    A = total @ found.H  # (K, d, d): what each site's coefficients count in the pooled ones
    spread = np.einsum("kij,klj->il", A, A)
    alone = np.where(found.ranks == d, phi * found.ranks / found.rows, np.inf)
    step = total @ np.einsum("kij,kj->i", found.H, found.at)
    far = float(step @ step)  # noise in the information moves the estimate by as much of the step
    W = _pulls(found, variance, phi)
    out = np.zeros((K, 3 if noise is None else 4))
    for k in range(K):
        off = np.eye(d) - A[k]
        differs = variance * (off @ off.T + spread - A[k] @ A[k].T)
        pooled = np.trace(S[k] @ (phi * total + differs))
        others = np.linalg.inv(W.sum(0) - W[k]) + variance * np.eye(d)  # what others say of this site
        pulled = np.trace(S[k] @ np.linalg.inv(found.H[k] / phi + np.linalg.inv(others)))
        out[k, :3] = alone[k], pooled, pulled
        if noise is not None:
            out[k, 3] = pooled + noise**2 * (1 + far) * np.trace(S[k] @ total @ total)
    return out


def _with_intervals(
    found: Evidence, spread: tuple[float, float, float], noise: float | None, names: list[str]
) -> pd.DataFrame:
    """Expected errors at the estimated variances, and the least and largest at the ends of their intervals."""
    phis = [found.phi]
    if np.isfinite(found.freedom):
        phis += [found.phi * found.freedom / float(stats.chi2.ppf(q, found.freedom)) for q in (0.025, 0.975)]
    middle = expected_errors(found, spread[0], found.phi, noise)
    ends = np.stack([expected_errors(found, v, phi, noise) for v in spread for phi in phis])
    ways = WAYS[: middle.shape[1]]
    index = pd.MultiIndex.from_product([names, ways], names=["site", "way"])
    columns = {"expected": middle.ravel(), "lower": ends.min(0).ravel(), "upper": ends.max(0).ravel()}
    return pd.DataFrame(columns, index=index)
