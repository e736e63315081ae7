"""Are there rows enough to speak of? Below a site's floor a mean, a category or a message says too much of a row.

The floor is the site's own, and no study can lower it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.steps import chances_of_steps
from fedpoint.data.column import Column
from fedpoint.data.dates import possible_forms
from fedpoint.federation.preparation import labels_of
from fedpoint.federation.study import SiteTable, Study

LEAST = 2  # rows: the mean of one is the row


@dataclass(frozen=True)
class Floor:
    """The fewest rows that anything which leaves a site is made of.

    rows: of the file, of the values of a column, and behind a message. per_category, per_class: of each one that the
    site has.
    """

    rows: int = 20
    per_category: int = 5
    per_class: int = 5

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = LEAST if name == "rows" else 1
            if type(value) is not int or value < least:
                raise FedpointError(f"the floor's {name} = {value!r} must be a whole number, at least {least}")

    def plain(self) -> dict[str, int]:
        return asdict(self)


DEFAULT = Floor()


def below(study: Study, site: str, columns: Mapping[str, Column], floor: Floor) -> list[str]:
    """All that would be said of too few rows, each with what to do about it; empty where nothing would."""
    table = study.table
    if table is None:
        return []
    rows = len(columns[table.target].values)
    if rows < floor.rows:  # all else follows from it
        return [f"the mean of {counted(rows, 'row')} would leave: the floor is {floor.rows}; take part with more rows"]
    found = [*_few_values(table, columns, floor), *_few_of_a_category(table, columns, floor)]
    found += _few_of_a_class(table, columns, floor)
    behind = rows_behind_a_message(study, site, rows)
    if behind < floor.rows:
        found.append(
            f"a message of {counted(behind, 'row')} would leave (batch and local steps): the floor is {floor.rows}; "
            "ask for a study with a larger batch, or more local steps"
        )
    return found


def _few_values(table: SiteTable, columns: Mapping[str, Column], floor: Floor) -> Iterator[str]:
    for name in table.features:
        there = int((~columns[name].missing).sum())
        if 0 < there < floor.rows:
            yield (
                f"the mean of {counted(there, 'value')} of column {name!r} would leave: the floor is {floor.rows}; "
                "empty that column, or fill its gaps yourself"
            )


def _few_of_a_category(table: SiteTable, columns: Mapping[str, Column], floor: Floor) -> Iterator[str]:
    for name in table.features:
        column = columns[name]
        if column.words is None or (name not in table.categorical and possible_forms(name, column)):
            continue
        counts = np.bincount(column.values[~column.missing], minlength=len(column.words))
        few = [f"{column.words[i]} ({counts[i]})" for i in np.flatnonzero((counts > 0) & (counts < floor.per_category))]
        if few:
            yield (
                f"categories of column {name!r} with few rows would leave: {', '.join(few)}; the floor is "
                f"{floor.per_category}; join them with others, or empty these cells"
            )


def _few_of_a_class(table: SiteTable, columns: Mapping[str, Column], floor: Floor) -> Iterator[str]:
    if table.model == "linear":
        return
    labels, counts = np.unique(labels_of(columns[table.target]), return_counts=True)
    few = [f"{label} ({n})" for label, n in zip(labels.tolist(), counts.tolist(), strict=True) if n < floor.per_class]
    if few:
        yield (
            f"classes of {table.target!r} with few rows would leave: {', '.join(few)}; the floor is {floor.per_class}; "
            "leave these rows out, or take part with more"
        )


def rows_behind_a_message(study: Study, site: str, rows: int) -> int:
    """The fewest rows that one message of this site is made of: in the shortest round, or all."""
    bound = study.experiment(study.outline(np.zeros(1), rows=rows)).bind()
    batch, algorithm = bound.problem.batch, bound.algorithm
    if batch is None or bound.exact or algorithm.proximal:
        return rows
    index, agents = study.sites.index(site), len(study.sites)
    steps = min(int(each[index]) for _, each in chances_of_steps(algorithm.local_steps, agents))
    return min(rows, batch * algorithm.samples(steps))
