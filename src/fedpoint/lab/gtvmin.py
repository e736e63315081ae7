"""Lecture 003: nodes with few rows, in clusters. What does the coupling do, and how fast is it reached?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedpoint.algorithms import FedGD, FedRelax
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.numbers import counted, with_error
from fedpoint.core.types import Model
from fedpoint.graphs import gtv
from fedpoint.graphs.network import Network
from fedpoint.lab.study import Findings, LabStudy, Tell
from fedpoint.metrics.means import mean_and_error
from fedpoint.problems import LeastSquares
from fedpoint.theory.networks import iteration_matrix, spectral_rate
from fedpoint.verbs.run import run


class Draw(NamedTuple):
    """One draw of everybody's rows, fitted."""

    task: LeastSquares
    path: gtv.Path
    choice: gtv.Choice
    error: np.ndarray  # (couplings,): mean over nodes of |w_i - truth_i|^2
    chosen: float  # that of the chosen coupling
    local: float
    pooled: float
    known: float  # one fit per cluster, were the clusters known


class Descent(NamedTuple):
    """A method on the way to GTVMin's solution."""

    title: str
    error: np.ndarray  # (rounds + 1,)
    exact: np.ndarray
    rate: float  # the factor of the distance per round, after many


@dataclass(frozen=True)
class GTVMin(LabStudy):
    clusters: int
    size: int
    dim: int
    rows: int
    noise: float
    degree: int
    between: float
    world: int
    seed: int
    repeats: int
    couplings: list[float]
    count: int
    folds: int
    rounds: int

    changes: ClassVar[dict[str, str]] = {"rounds": "rounds", "repeats": "repeats"}

    @property
    def grid(self) -> np.ndarray:
        """The couplings."""
        least, most = self.couplings
        return np.geomspace(least, most, self.count)

    def nodes(self) -> tuple[np.ndarray, np.ndarray, Network]:
        """Labels (K,), true models (K, d), network."""
        labels = np.repeat(np.arange(self.clusters), self.size)
        models = np.random.default_rng(self.world).normal(size=(self.clusters, self.dim))
        return (
            labels,
            models[labels],
            Network.clusters(labels, between=self.between, degree=self.degree, seed=self.world),
        )

    def perform(self, tell: Tell) -> Findings:
        labels, truth, network = self.nodes()
        draws = []
        for r in range(self.repeats):
            tell(f"coupling path, draw {r + 1} of {self.repeats}")
            draws.append(self._draw(r, labels, truth, network))
        tell("FedGD and FedRelax")
        descents = self._descents(draws[0], network)
        return self._findings(network, truth, draws, descents)

    def _draw(self, repeat: int, labels: np.ndarray, truth: np.ndarray, network: Network) -> Draw:
        rng = np.random.default_rng([self.seed, repeat])
        X = rng.normal(size=(len(labels), self.rows, self.dim))
        y = np.einsum("krd,kd->kr", X, truth) + np.sqrt(self.noise) * rng.normal(size=X.shape[:2])
        task = LeastSquares(list(X), list(y), mean=True, half=False)
        path = gtv.path(task, network, self.grid)
        choice = gtv.choose(task, network, self.grid, folds=self.folds, seed=repeat)
        known = np.empty_like(truth)
        for label in range(self.clusters):
            own = labels == label
            known[own] = LeastSquares(list(X[own]), list(y[own])).solution()

        def error(models: Model) -> float:
            return float(((models - truth) ** 2).sum(1).mean())

        return Draw(
            task,
            path,
            choice,
            np.array([error(models) for models in path.models]),
            error(choice.models),
            error(task.local_solutions()),
            error(task.solution()),
            error(known),
        )

    def _descents(self, draw: Draw, network: Network) -> list[Descent]:
        coupling = draw.choice.coupling
        slopes = np.linalg.eigvalsh(iteration_matrix("fedgd", draw.task, network, coupling, step=1.0))
        step = 2.0 / (2.0 - slopes[0] - slopes[-1])  # the fastest fixed step, 2/(least + largest curvature)
        methods: list[Algorithm] = [FedGD(step=step, coupling=coupling), FedRelax(coupling=coupling)]
        found = []
        for algorithm in methods:
            M = iteration_matrix(algorithm, draw.task, network)
            done = run(algorithm, draw.task, network=network, rounds=self.rounds, record_every=1)
            error = ((done.history[0] - draw.choice.models) ** 2).sum(2).mean(1)
            exact, e = [], -draw.choice.models.ravel()  # models start at zero
            for _ in range(self.rounds + 1):
                exact.append(e @ e / network.nodes)
                e = M @ e
            rate = spectral_rate(algorithm, draw.task, network)
            found.append(Descent(type(algorithm).card.title, error, np.array(exact), rate))
        return found

    def _findings(self, network: Network, truth: np.ndarray, draws: list[Draw], descents: list[Descent]) -> Findings:
        from fedpoint.lab.network_pictures import gtvmin_picture

        errors = np.array([d.error for d in draws])
        best = int(errors.mean(0).argmin())
        fits = {
            "local": np.array([d.local for d in draws]),
            "coupled, by validation": np.array([d.chosen for d in draws]),
            "coupled, at best": errors[:, best],
            "pooled": np.array([d.pooled for d in draws]),
            "clusters known": np.array([d.known for d in draws]),
        }
        chosen = np.array([d.choice.coupling for d in draws])
        at = ["0", f"{np.median(chosen):.2g}", f"{self.grid[best]:.2g}", "large", ""]
        rows = [[name, place, _measured(fits[name])] for name, place in zip(fits, at, strict=True)]
        validated, alone, one = (fits[name].mean() for name in ("coupled, by validation", "local", "pooled"))
        lost = 100 * (validated / errors[:, best].mean() - 1)
        says = [
            (
                "coupling",
                f"{self.rows} rows a node for {self.dim} parameters: GTVMin's error is {alone / validated:.1f} times "
                f"smaller than that of fits alone, {one / validated:.1f} times smaller than that of one model for all.",
            ),
            (
                "validation",
                f"{self.folds} folds choose couplings from {chosen.min():.2g} to {chosen.max():.2g}; what they lose "
                f"against the best one is {lost:.0f} %.",
            ),
            *(
                (
                    d.title,
                    f"a round multiplies the distance to GTVMin's solution by {_slope(d.error):.4f}, in the end by "
                    f"{d.rate:.4f} (predicted).",
                )
                for d in descents
            ),
        ]
        numbers = {
            "nodes": network.nodes,
            "edges": len(network.edges),
            "repeats": self.repeats,
            "couplings": self.grid.tolist(),
            "error": errors.mean(0).tolist(),
            "held_out": np.mean([d.choice.errors for d in draws], axis=0).tolist(),
            "chosen": chosen.tolist(),
            "fits": {
                name: dict(zip(("error", "standard_error"), mean_and_error(v), strict=True)) for name, v in fits.items()
            },
            "methods": [
                {
                    "method": d.title,
                    "predicted_rate": d.rate,
                    "measured_rate": _slope(d.error),
                    "largest_gap": float(np.abs(d.error / d.exact - 1)[d.exact > 1e-20].max()),
                }
                for d in descents
            ],
        }
        return Findings(
            ["fit", "coupling", "error"],
            rows,
            says,
            numbers,
            f"|w_i - truth_i|^2, mean over {network.nodes} nodes and {counted(self.repeats, 'draw')} of rows "
            "± standard error.",
            lambda: gtvmin_picture(self, network, truth, draws, descents),
        )


def _slope(error: np.ndarray) -> float:
    """The factor of the distance per round over the second half of what is above rounding."""
    error = error[error > 1e-24]
    half = error[len(error) // 2 :]
    return float((half[-1] / half[0]) ** (0.5 / (len(half) - 1))) if len(half) > 1 else float("nan")


def _measured(values: np.ndarray) -> str:
    return with_error(*mean_and_error(values))


STUDY = GTVMin
