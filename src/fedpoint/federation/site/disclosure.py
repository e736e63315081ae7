"""Are there rows enough to speak of? Below a site's floor a mean, a category or a message says too much of a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.core.steps import chances_of_steps
from fedpoint.data.column import Column
from fedpoint.data.dates import as_days, possible_forms
from fedpoint.data.floor import Floor
from fedpoint.data.recipe import Feature
from fedpoint.federation.site_table import SiteTable
from fedpoint.federation.study import Study

NEAR = 10.0  # ranges of a site's own values, beyond which a filled gap stands out


def below(
    study: Study, site: str, columns: Mapping[str, Column], floor: Floor, held: Mapping[str, Column] | None = None
) -> list[str]:
    """All that would be said of too few rows, each with what to do about it; empty where nothing would. columns: of the
    rows to train on; held: of those that are held out."""
    table = study.table
    if table is None:
        return []
    rows = table.rows_of(columns)
    few = below_rows(study, site, rows, floor)
    if rows < floor.rows:  # all else follows from it
        return few
    found = [*_few_values(table, columns, floor), *_few_of_a_category(table, columns, floor)]
    found += [*_few_of_a_class(table, columns, floor), *_few_by_weight(table, columns, floor)]
    found += [*_few_of_a_cell(table, columns, floor), *_few_apart(table, columns, floor)]
    return found + few + ([] if held is None else _few_held_out(table.rows_of(held), floor))


def below_rows(study: Study, site: str, rows: int, floor: Floor) -> list[str]:
    """The same where nothing but the number of rows is known."""
    if rows < floor.rows:
        return [f"the mean of {counted(rows, 'row')} would leave: the floor is {floor.rows}; take part with more rows"]
    behind = rows_behind_a_message(study, site, rows)
    if behind >= floor.rows:
        return []
    return [
        f"a message of {counted(behind, 'row')} would leave (batch and local steps): the floor is {floor.rows}; "
        "ask for a study with a larger batch, or more local steps"
    ]


def _few_held_out(rows: int, floor: Floor) -> list[str]:
    if rows >= floor.rows:
        return []
    return [
        f"measurements of {counted(rows, 'row')} that are held out would leave: the floor is {floor.rows}; "
        "take part with more rows, or ask for a study that holds out more"
    ]


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
    found = table.count_of(columns)
    if found is None:
        return
    labels, counts = np.unique(found, return_counts=True)
    few = [f"{label} ({n})" for label, n in zip(labels.tolist(), counts.tolist(), strict=True) if n < floor.per_class]
    if few:
        yield (
            f"classes of {table.target!r} with few rows would leave: {', '.join(few)}; the floor is {floor.per_class}; "
            "leave these rows out, or take part with more"
        )


def _few_by_weight(table: SiteTable, columns: Mapping[str, Column], floor: Floor) -> Iterator[str]:
    """Sums in which a few rows have all the weight are sums over these rows."""
    weights = table.row_weights(columns)
    if weights is None or not (weights > 0).any():
        return
    behind = int(weights.sum() ** 2 / (weights**2).sum() + 1e-9)
    if behind < floor.rows:
        yield (
            f"sums in which rows weigh as if they were {behind} would leave: the floor is {floor.rows}; take part with "
            "rows of more equal weights"
        )


def _few_of_a_cell(table: SiteTable, columns: Mapping[str, Column], floor: Floor) -> Iterator[str]:
    few = [f"{what} ({n})" for what, n in table.cells_of(columns).items() if 0 < n < floor.per_category]
    if few:
        yield (
            f"counts of few rows would leave: {', '.join(few)}; the floor is {floor.per_category}; join them with "
            "others, or leave the column out of the table"
        )


def _few_apart(table: SiteTable, columns: Mapping[str, Column], floor: Floor) -> Iterator[str]:
    """Columns of numbers in which all rows but a few are alike: a flag, say. Sums with them are sums over these few."""
    for name, column in columns.items():
        if column.words is not None or (name == table.target and table.count_of(columns) is not None):
            continue
        values, counts = np.unique(column.values[~column.missing], return_counts=True)
        few = int(counts.sum() - counts.max(initial=0))
        if 0 < few < floor.per_category:
            yield (
                f"sums over {counted(few, 'row')} would leave: column {name!r} is {values[counts.argmax()]:g} in all "
                f"others; the floor is {floor.per_category}; empty that column, or ask for a study without it"
            )


def few_of_a_design(
    table: SiteTable, columns: Mapping[str, Column], recipe: Sequence[Feature], floor: Floor
) -> list[str]:
    """The same of what a formula makes of columns: a product, a spline or a power may rest on a few rows."""
    found = []
    for name, values in table.design_of(columns, recipe).items():
        alike, counts = np.unique(values, return_counts=True)
        apart = np.abs(values - alike[counts.argmax()])
        if apart.any():
            apart = apart / apart.max()
            behind = int(apart.sum() ** 2 / (apart**2).sum() + 1e-9)
            if behind < floor.per_category:
                found.append(
                    f"sums over as good as {counted(behind, 'row')} would leave, by {name} of the formula: the floor "
                    f"is {floor.per_category}; ask for a study without it"
                )
    return found


def few_by_filling(columns: Mapping[str, Column], recipe: Sequence[Feature], floor: Floor) -> list[str]:
    """The same where few gaps are filled with what no other row here is near. A server says what fills them, and could
    mark these rows so."""
    found = []
    for feature in recipe:
        column = columns[feature.column]
        gaps = int(column.missing.sum())
        few = 0 < gaps < min(floor.per_category, len(column.values))
        if feature.fill is not None and few and _stands_out(column, feature, gaps, floor):
            found.append(
                f"sums over {counted(gaps, 'row')} would leave: gaps of column {feature.column!r} are to be filled "
                f"with {feature.fill!r}, which no other row here is near; the floor is {floor.per_category}; fill "
                "them yourself"
            )
    return found


def _stands_out(column: Column, feature: Feature, gaps: int, floor: Floor) -> bool:
    if feature.categories is not None:
        words = np.array([*(column.words or []), ""])[column.values]
        return int((words[~column.missing] == feature.fill).sum()) + gaps < floor.per_category
    known = (column if feature.dates is None else as_days(column, feature.dates)).values[~column.missing]
    reach = NEAR * float(np.ptp(known))
    return not known.min() - reach <= float(feature.fill or 0.0) <= known.max() + reach


def rows_behind_a_message(study: Study, site: str, rows: int) -> int:
    """The fewest rows that one message of this site is made of: in the shortest round, or all."""
    bound = study.experiment(study.outline(study.placeholder, rows=rows)).bind()
    batch, algorithm = bound.problem.batch, bound.algorithm
    if batch is None or bound.exact or algorithm.proximal:
        return rows
    index, agents = study.sites.index(site), len(study.sites)
    steps = min(int(each[index]) for _, each in chances_of_steps(algorithm.local_steps, agents))
    return min(rows, batch * algorithm.samples(steps))
