"""Whose rows are these? A table and a column of names become one table per site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted
from fedpoint.data.column import Column
from fedpoint.data.floor import Floor
from fedpoint.problems.base import by_agent, check_agents

TableLike: TypeAlias = pd.DataFrame | Mapping[str, ArrayLike]
Held = TypeVar("Held", bound=Sized)  # what a site holds: its rows
LISTED = 8  # sites that a message names
SMALL = ("refuse", "leave out")  # what happens to a site below the floor


@dataclass(frozen=True)
class Sites(Mapping[str, pd.DataFrame]):
    """The rows of every site, by its name; a site's table is made when it is asked for, so that there is one at a time.

    rows: which rows of the table are a site's.
    """

    table: pd.DataFrame
    rows: dict[str, np.ndarray]

    def __getitem__(self, site: str) -> pd.DataFrame:
        return self.table.iloc[self.rows[site]].reset_index(drop=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def complete(self, columns: Sequence[str]) -> Sites:
        """Without the rows that miss a value in one of these columns."""
        there = np.ones(len(self.table), bool)
        for name in columns:
            there &= self.table[name].notna().to_numpy()
        return Sites(self.table, {site: own[there[own]] for site, own in self.rows.items()})


def sites_of(data: TableLike, groups: str | ArrayLike) -> Sites:
    """The rows of every site, by its name in sorted order.

    data: a data frame, or columns by name. groups: the column that says whose row it is, or one name a row.

    >>> rows = sites_of({"age": [40, 50, 60], "centre": ["b", "a", "b"]}, groups="centre")
    >>> {name: own["age"].tolist() for name, own in rows.items()}
    {'a': [50], 'b': [40, 60]}
    """
    table = table_of(data)
    check_agents(len(table))
    names = column(table, groups, "groups") if isinstance(groups, str) else np.asarray(groups)
    if pd.isna(names).any():
        raise FedpointError(f"{counted(pd.isna(names).sum(), 'row')} without a site in groups: name it or remove them")
    order, counts, sites = by_agent(names, len(table))
    ends = np.cumsum(counts)
    return Sites(table, {site: order[end - count : end] for site, count, end in zip(sites, counts, ends, strict=True)})


def table_of(data: TableLike) -> pd.DataFrame:
    """A table of columns of the same length."""
    if isinstance(data, pd.DataFrame):
        return data
    columns = {name: np.asarray(values) for name, values in data.items()}
    wrong = [name for name, values in columns.items() if values.ndim != 1]
    if wrong:
        raise FedpointError(f"column {wrong[0]!r} has shape {columns[wrong[0]].shape}: one value a row is expected")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        first, *others = lengths
        other = next(name for name in others if lengths[name] != lengths[first])
        raise FedpointError(
            f"column {first!r} has {counted(lengths[first], 'row')}, but column {other!r} has {lengths[other]}"
        )
    return pd.DataFrame(columns)


def frame_of(columns: Mapping[str, Column]) -> pd.DataFrame:
    """Columns as they were read from a file, as formulas read them: words or numbers.

    >>> frame_of({"sex": Column(np.array([1, 0, -1]), ["f", "m"])}).sex.tolist()
    ['m', 'f', None]
    """
    return pd.DataFrame({name: _series(column) for name, column in columns.items()})


def _series(column: Column) -> pd.Series:
    if column.words is None:
        return pd.Series(column.values)
    return pd.Series(np.array([*column.words, None], object)[column.values], dtype=object)  # the code -1 is the last


def column(table: pd.DataFrame, name: str, argument: str) -> np.ndarray:
    """A column by its name, or the nearest name where there is none."""
    if name not in table.columns:
        raise FedpointError(f"{argument}: no column {name!r}: {nearest(name, map(str, table.columns))}")
    return table[name].to_numpy()


def listed(names: Iterable[str]) -> str:
    """Some of the names, for a message.

    >>> listed("abcdefghij")
    'a, b, c, d, e, f, g, h and 2 more'
    """
    names = list(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def above_floor(
    sites: Mapping[str, Held], floor: Floor | None, small: str = "refuse"
) -> tuple[dict[str, Held], dict[str, int]]:
    """The sites with rows enough, and how many rows those have that are left out; or a refusal that names them."""
    if small not in SMALL:
        raise FedpointError(f"unknown small={small!r}: {nearest(small, SMALL)}")
    below = {} if floor is None else {name: len(own) for name, own in sites.items() if len(own) < floor.rows}
    if below and floor is not None and (small == "refuse" or len(below) == len(sites)):
        listed = ", ".join(f"{name} ({rows})" for name, rows in below.items())
        raise FedpointError(
            f"{counted(len(below), 'site')} with fewer rows than the floor of {floor.rows}: {listed}. Leave them out "
            'with small="leave out", or set a lower floor if these sites agree to it, as in floor=Floor(rows=5)'
        )
    return {name: own for name, own in sites.items() if name not in below}, below
