"""What is the share of a site that is not there yet? Fixed at the start, whatever its rows turn out to be: weights that
changed on the way would break what methods conserve over all sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.federation.preparation import Setup
from fedpoint.federation.study import Study
from fedpoint.federation.transport import Event


def rows_of_all(study: Study, said: Mapping[str, int]) -> list[int]:
    """What sites say; for a site that has said nothing the middle of what the study allows it, or else the mean of the
    others."""
    mean, bounds = round(sum(said.values()) / len(said)), study.terms.rows or {}
    expected = {site: round(sum(bounds[site]) / 2) if site in bounds else mean for site in study.sites}
    return [said.get(site, expected[site]) for site in study.sites]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def absent_note(study: Study, site: str, weights: Sequence[float]) -> str:
    """Of a site that has said nothing when the study begins."""
    share = _percent(weights[study.sites.index(site)])
    if not study.of_files:
        by = ""
    elif not study.shares_by_rows:
        by = ", as the study says"
    elif site in (study.terms.rows or {}):
        by = ", by the middle of the rows that the study allows it"
    else:
        by = ", by the mean of the others' rows"
    return f"{site} was not there when the study was prepared: its share is {share}{by}"


def too_late(study: Study, site: str, setup: Setup, rows: int) -> str:
    """Why a late site cannot take part in secure sums; empty where it can. Its share was fixed without it, and masks of
    sites whose shares do not follow from their rows do not cancel."""
    if not (study.terms.secure and study.shares_by_rows and setup["rows"] is not None):
        return ""
    expected = setup["rows"][study.sites.index(site)]
    if rows == expected:
        return ""
    fixed = counted(expected, "row")
    return (
        f"{site} cannot take part (rows): its share was fixed as if it had {fixed}, and it has {rows:,}"
        "; with secure = true shares must follow from rows: begin the study again (--fresh), or say weights in it"
    )


def joined_note(study: Study, site: str, weights: Sequence[float], rounds: int, rows: Mapping[str, int]) -> str:
    """Of a late site that takes part from now on; `rows` of those who have said how many they have."""
    mine = weights[study.sites.index(site)]
    text = f"{site} came after {counted(rounds, 'round')} and takes part, with a share of {_percent(mine)}"
    if not study.shares_by_rows:
        return text
    every = np.array(rows_of_all(study, rows), float)
    return f"{text}; by its {counted(rows[site], 'row')} it would have been {_percent(rows[site] / every.sum())}"


def shares_event(study: Study, setup: Setup) -> Event:
    """What is told before the first round: how much each site counts, and by which rows."""
    shares = dict(zip(study.sites, setup["weights"], strict=True))
    known = {} if setup["rows"] is None else dict(zip(study.sites, setup["rows"], strict=True))
    return Event(shares=shares, rows={site: rows for site, rows in known.items() if site not in setup["absent"]})
