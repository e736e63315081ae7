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
    """What sites say, and for a site that has said nothing the mean of the others."""
    mean = round(sum(said.values()) / len(said))
    return [said.get(site, mean) for site in study.sites]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def absent_note(study: Study, site: str, weights: Sequence[float]) -> str:
    """Of a site that has said nothing when the study begins."""
    share = _percent(weights[study.sites.index(site)])
    table = study.table
    by = (
        "" if table is None else ", by the mean of the others' rows" if table.weights is None else ", as the study says"
    )
    return f"{site} was not there when the study was prepared: its share is {share}{by}"


def joined_note(study: Study, site: str, weights: Sequence[float], rounds: int, rows: Mapping[str, int]) -> str:
    """Of a late site that takes part from now on; `rows` of those who have said how many they have."""
    mine = weights[study.sites.index(site)]
    text = f"{site} came after {counted(rounds, 'round')} and takes part, with a share of {_percent(mine)}"
    if study.table is None or study.table.weights is not None:
        return text
    every = np.array(rows_of_all(study, rows), float)
    return f"{text}; by its {counted(rows[site], 'row')} it would have been {_percent(rows[site] / every.sum())}"


def shares_event(study: Study, setup: Setup) -> Event:
    """What is told before the first round: how much each site counts, and by which rows."""
    shares = dict(zip(study.sites, setup["weights"], strict=True))
    rows = {} if setup["rows"] is None else dict(zip(study.sites, setup["rows"], strict=True))
    return Event(shares=shares, rows=rows)
