"""With which ridge and coupling? How `fp.baselines` fits each method, and chooses within the training rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.graphs.network import Network
from fedpoint.results.baselines import interval, mean_of
from fedpoint.verbs.baselines.fit import alone, coupled, fedavg, pooled
from fedpoint.verbs.baselines.rows import Holdout

DECADES, COUPLINGS = 6.0, 13  # around the one where an agent's rows and its neighbours pull alike


@dataclass(frozen=True)
class Search:
    """How each method is fitted, and how its ridge and coupling are chosen."""

    network: Network | None
    neighbours: int
    ridges: np.ndarray
    couplings: np.ndarray | None
    weights: np.ndarray
    local_steps: int
    step: float | None

    def choose(self, method: str, cases: list[Holdout]) -> dict[str, float]:
        """Ridge (and coupling) with the least validation error."""
        if method != "coupled" and len(self.ridges) == 1:
            return {"ridge": float(self.ridges[0])}
        nets = [self.net(case) if method == "coupled" else None for case in cases]
        starts: list[np.ndarray | None] = [None] * len(cases)

        def error(**setting: float) -> float:
            total = []
            for i, case in enumerate(cases):
                models = self.fit(method, case, setting, nets[i], starts[i])
                starts[i] = models
                total.append(case.errors(models))
            return interval(mean_of(np.array(total)), self.weights)[0]

        # From the largest on: each fit starts from the one before, and models grow.
        ridges = self.ridges[::-1]
        if method != "coupled":
            return {"ridge": float(ridges[int(np.argmin([error(ridge=float(r)) for r in ridges]))])}
        couplings = self._couplings(cases[0], nets[0])[::-1]
        # Every second of both, then what lies around the best: one after the other they may get stuck.
        found: dict[tuple[int, int], float] = {}
        places = [(i, j) for i in range(0, len(ridges), 2) for j in range(0, len(couplings), 2)]
        for _ in range(2):
            for i, j in places:
                if (i, j) not in found:
                    found[i, j] = error(ridge=float(ridges[i]), coupling=float(couplings[j]))
            a, b = min(found, key=lambda at: found[at])
            places = [(i, j) for i in range(a - 1, a + 2) for j in range(b - 1, b + 2)]
            places = [(i, j) for i, j in places if 0 <= i < len(ridges) and 0 <= j < len(couplings)]
        return {"ridge": float(ridges[a]), "coupling": float(couplings[b])}

    def fit(
        self,
        method: str,
        case: Holdout,
        setting: dict[str, float],
        net: Network | None = None,
        start: np.ndarray | None = None,
    ) -> np.ndarray:
        """(K, D): every agent's model."""
        task = case.task(setting["ridge"])
        if method == "local":
            return coupled(task, alone(case.agents), 0.0, start)
        if method == "coupled":
            return coupled(task, net or self.net(case), setting["coupling"], start)
        one = pooled(task)
        if method == "FedAvg":
            one = fedavg(task, self.step, self.local_steps, one)
        return np.repeat(one[None], case.agents, axis=0)

    def net(self, case: Holdout) -> Network:
        """The network, or one of agents whose gradients at the pooled model are alike."""
        return self.network or self._alike(case)

    def _alike(self, case: Holdout) -> Network:
        task = case.task(float(self.ridges[len(self.ridges) // 2]))
        gradients = task.fields(pooled(task).reshape(task.start().shape))
        return Network.knn(gradients.reshape(case.agents, -1), min(self.neighbours, case.agents - 1))

    def _couplings(self, case: Holdout, net: Network | None) -> np.ndarray:
        if self.couplings is not None:
            return self.couplings
        assert net is not None
        if not len(net.edges):
            raise FedpointError("the network has no edge: there is nothing to couple")
        degree = np.median(net.degrees[net.degrees > 0])
        return np.median(case.curvature) / (2 * degree) * np.logspace(-DECADES / 2, DECADES / 2, COUPLINGS)
