"""Lecture 003 on data: output of US states, fitted alone, coupled with their neighbours, and as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedpoint.core.types import Model
from fedpoint.data import Panel, produc
from fedpoint.graphs import gtv
from fedpoint.graphs.network import Network
from fedpoint.lab.study import Findings, LabStudy, Tell
from fedpoint.problems import LeastSquares


class Stage(NamedTuple):
    """Years to fit, and years to predict from that; columns scaled by the first alone."""

    task: LeastSquares
    later: Panel

    def error(self, models: Model) -> np.ndarray:
        """(K,): the mean squared error of every state's model in the later years."""
        models = np.broadcast_to(models, (self.task.agents, self.later.X.shape[1]))
        at = np.searchsorted(self.task.names, self.later.groups)
        squares = ((self.later.X * models[at]).sum(1) - self.later.y) ** 2
        return np.bincount(at, squares) / np.bincount(at)


class Curve(NamedTuple):
    """Errors over couplings with one network, mean over states."""

    choose: np.ndarray
    test: np.ndarray
    best: int  # the place of the coupling chosen by the first
    models: np.ndarray  # (couplings, K, d) of the second


@dataclass(frozen=True)
class States(LabStudy):
    fit: list[int]
    choose: list[int]
    test: list[int]
    couplings: list[float]
    count: int
    shuffles: int
    seed: int

    changes: ClassVar[dict[str, str]] = {"repeats": "shuffles"}

    @property
    def grid(self) -> np.ndarray:
        """The couplings."""
        least, most = self.couplings
        return np.geomspace(least, most, self.count)

    def stages(self, data: Panel) -> tuple[Stage, Stage]:
        """The one that chooses the coupling, and the one that is reported."""
        fit, choose, test = (range(first, last + 1) for first, last in (self.fit, self.choose, self.test))
        found = []
        for early, late in ((fit, choose), ([*fit, *choose], test)):
            now = data.years(early)
            own = now.scaled()
            task = LeastSquares(own.X, own.y, groups=own.groups, mean=True, half=False)
            found.append(Stage(task, data.years(late).scaled(like=now)))
        return found[0], found[1]

    def perform(self, tell: Tell) -> Findings:
        data = produc()
        first, last = self.stages(data)
        tell("states and their neighbours")
        curve = self._curve(first, last, data.network)
        rng, shuffled = np.random.default_rng(self.seed), []
        for r in range(self.shuffles):
            tell(f"states exchanged at random, {r + 1} of {self.shuffles}")
            order = rng.permutation(data.network.nodes)
            moved = Network(order[data.network.edges], data.network.weights, data.network.names)
            shuffled.append(self._curve(first, last, moved))
        return self._findings(data, first, last, curve, shuffled)

    def _curve(self, first: Stage, last: Stage, network: Network) -> Curve:
        choose = [first.error(W).mean() for W in gtv.path(first.task, network, self.grid).models]
        models = gtv.path(last.task, network, self.grid).models
        return Curve(np.array(choose), np.array([last.error(W).mean() for W in models]), int(np.argmin(choose)), models)

    def _findings(self, data: Panel, first: Stage, last: Stage, curve: Curve, shuffled: list[Curve]) -> Findings:
        from fedpoint.lab.network_pictures import states_picture

        local = [float(s.error(s.task.local_solutions()).mean()) for s in (first, last)]
        pooled = [float(s.error(s.task.solution()).mean()) for s in (first, last)]
        coupled = [float(curve.choose[curve.best]), float(curve.test[curve.best])]
        moved = np.array([[c.choose[c.best], c.test[c.best]] for c in shuffled])
        rows = [
            ["local", "0", *(f"{e:.4f}" for e in local)],
            ["coupled with neighbours", f"{self.grid[curve.best]:.2g}", *(f"{e:.4f}" for e in coupled)],
            [
                "coupled with anybody",
                "each its own",
                *(f"{values.min():.4f} to {values.max():.4f}" for values in moved.T),
            ],
            ["pooled", "large", *(f"{e:.4f}" for e in pooled)],
        ]
        worse = (moved > np.array(coupled)).sum(0)
        years = [f"{a} to {b}" for a, b in (self.choose, self.test)]
        says = [
            (
                "coupling",
                f"in {years[1]}, which no choice has seen, coupled models err {local[1] / coupled[1]:.1f} times less "
                f"than local ones and {pooled[1] / coupled[1]:.1f} times less than one model for all.",
            ),
            (
                "neighbours",
                f"with the states exchanged at random, {worse[0]} of {len(moved)} networks are worse in {years[0]}, "
                f"{worse[1]} in {years[1]}"
                + (": that models are coupled matters more than with whom." if 2 * worse[1] < len(moved) else "."),
            ),
        ]
        numbers = {
            "years": {"fit": self.fit, "choose": self.choose, "test": self.test},
            "couplings": self.grid.tolist(),
            "choose": curve.choose.tolist(),
            "test": curve.test.tolist(),
            "chosen": float(self.grid[curve.best]),
            "errors": {
                name: dict(zip(("choose", "test"), map(float, pair), strict=True))
                for name, pair in (("local", local), ("coupled", coupled), ("pooled", pooled))
            },
            "exchanged": moved.tolist(),
            "licence": data.licence,
            "source": data.source,
        }
        note = (
            f"Mean squared error of log output. Left: fitted to {self.fit[0]} to {self.fit[1]}, it chooses the "
            f"coupling; right: fitted to {self.fit[0]} to {self.choose[1]}, with that coupling."
        )
        return Findings(
            ["fit", "coupling", *years],
            rows,
            says,
            numbers,
            note,
            lambda: states_picture(self, last, curve, shuffled, (local, pooled)),
        )


STUDY = States
