"""What must a hub know before the first round? What sites say of their data, asked for and put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.federation import preparation, wire
from fedpoint.federation.hub import validate
from fedpoint.federation.preparation import Setup
from fedpoint.federation.study import SiteTable
from fedpoint.problems.base import check_weights

if TYPE_CHECKING:
    from fedpoint.federation.hub.hub import StudyHub


class Preparing:
    """The questions of a hub before the first round."""

    def __init__(self, hub: StudyHub):
        self.hub, self.study = hub, hub.study

    def setup(self) -> Setup:
        return self._generated() if self.study.table is None else self._tabulated(self.study.table)

    def _generated(self) -> Setup:
        """Of a trial: everybody makes the data."""
        self.hub.ask_all("columns", lambda packet: None)
        problem = self.study.generated()
        rows = problem.local_rows()
        counts = None if rows is None else rows.tolist()
        return Setup(weights=problem.weights.tolist(), rows=counts, notes=[], recipe=[], classes=None)

    def _tabulated(self, table: SiteTable) -> Setup:
        """In two questions to every site: rows and categories, then moments."""
        sites = self.study.sites
        first = self.hub.ask_all("columns", lambda packet: validate.columns(packet, table))
        said = [first[site] for site in sites]
        recipe, classes, notes = preparation.first_recipe(table, said)
        width = sum(len(feature.names) for feature in recipe)

        def check(packet: wire.Packet) -> None:
            validate.moments([packet.arrays.get(p) for p in preparation.PARTS], packet.header.get("count"), width)

        second = self.hub.ask_all("moments", check, wire.Header(recipe=preparation.written(recipe)))
        said_again = [second[site] for site in sites]
        rows: list[int] = [packet.header["rows"] for packet in said]
        for site, count, packet in zip(sites, rows, said_again, strict=True):
            if packet.header["count"] != count:
                raise FedpointError(f"{site} speaks of {counted(count, 'row')}, and then of {packet.header['count']}")
        recipe, more = preparation.last_recipe(table, recipe, said_again)
        weights = check_weights(table.weights, len(rows), default=np.array(rows, float))
        made = preparation.written(recipe)
        return Setup(weights=weights.tolist(), rows=rows, notes=notes + more, recipe=made, classes=classes)
