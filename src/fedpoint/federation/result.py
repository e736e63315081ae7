"""What came of a study? Read from the hub's folder: models, who answered, who was refused and why; and it replayed."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.federation.shapes import tree_of
from fedpoint.federation.study import Study, read
from fedpoint.store.describe import describe_algorithm
from fedpoint.store.disk import read_lines, read_npz
from fedpoint.store.folder import export_model
from fedpoint.store.statement import versions
from fedpoint.timing.participation import Answering
from fedpoint.timing.trace import Recorded
from fedpoint.timing.turns import Replay


class Federated:
    """A study's folder, as far as it got.

    rounds: (n,) those recorded. history: the models at them, (n, ...), on a network (n, sites, ...). events: what
    happened in each round. refused: how often "site reason". measures: what sites said of the last model.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        if not (self.folder / "hub.npz").exists():
            raise FedpointError(f"{self.folder} holds no study that has begun")
        self.study: Study = read(self.folder / "study.toml")
        _, about = read_npz(self.folder / "hub.npz", "hub")
        self.round, self.setup = about["round"], about["setup"]
        self.refused: Counter[str] = Counter(about["refused"])
        self.measures: dict[str, dict[str, float]] = about.get("measures", {})

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / "rounds.jsonl")[0][: self.round]

    @cached_property
    def rounds(self) -> np.ndarray:
        return np.array(sorted(int(path.stem) for path in (self.folder / "models").glob("[0-9]*.npz")))

    @cached_property
    def history(self) -> Any:
        files = [self.folder / "models" / f"{number}.npz" for number in self.rounds]
        models = [read_npz(path, "model-of-round")[0] for path in files]
        stacked = {name: np.stack([model[name] for model in models]) for name in models[0]}
        return stacked["model"] if list(stacked) == ["model"] else tree_of(self.study.generated().start(), stacked)

    @property
    def model(self) -> Any:
        import jax

        return jax.tree.map(lambda a: a[-1], self.history)

    @property
    def weights(self) -> np.ndarray:
        return np.array(self.setup["weights"])

    @property
    def loss(self) -> float | None:
        """sum_k p_k f_k at the last model."""
        losses = [self.measures.get(site, {}).get("loss") for site in self.study.sites]
        return None if None in losses else float(self.weights @ np.array(losses, float))

    def replay(self, names: list[str] | None = None) -> dict[str, Any]:
        """What `fp.run` must be given to see the same again: who answered when. `names`: of the simulation's agents."""
        study, names = self.study, names or self.study.sites
        called = dict(zip(study.sites, names, strict=True))
        shared = {"exact": study.exact, "seed": study.seed, "rounds": self.round}
        if study.network is None and study.asynchronous is not None:
            late: Any = study.late()
            pairs = [zip(event["answered"], event["ages"], strict=True) for event in self.events]
            rows = tuple(tuple((called[site], age) for site, age in some) for some in pairs)
            return shared | {"schedule": Recorded(rows, study.staleness(), late.mixing, late.models)}
        if study.network is None:
            came = np.array([[s in e["answered"] and e["merged"] for s in study.sites] for e in self.events], np.uint8)
            scheme = study.scheme()
            if all(e["merged"] and not set(e["refused"].values()) - {"twice", "round"} for e in self.events):
                return shared | {"participation": scheme}
            if study.problem.get("sampling") == "trajectory":
                raise FedpointError(
                    "some answers got lost: here a trajectory then goes on from the last one that was merged, "
                    "in simulation from the lost one, so that this study cannot be replayed"
                )
            return shared | {"participation": Answering(scheme, trace=came)}  # nobody came to an abandoned round
        graph = study.graph()
        shared["network"] = graph
        if study.asynchronous is None and all(len(e["answered"]) == len(names) for e in self.events):
            return shared
        around = {site: [graph.names[j] for j in graph.arcs.says[a:b]] for site, a, b in _spans(graph)}
        events = [
            (event["round"], called[site], called[other], age)
            for event in self.events
            if event["merged"]
            for site, age in zip(event["answered"], event.get("ages", [0] * len(names)), strict=False)
            for other in around[site]
        ]
        return shared | {"schedule": Replay(tuple(events))}

    def export(self, path: str | Path) -> None:
        """The model for `fedpoint predict`."""
        table = self.study.table
        if table is None or self.study.network is not None:
            raise FedpointError("only the one model of a table can be exported")
        width = int(np.shape(self.model)[0]) - table.intercept
        use = {"problem": "LeastSquares" if table.model == "linear" else "Logistic", "classes": self.setup["classes"]}
        use |= {"intercept": table.intercept, "features": width, "columns": self._columns()}
        about = {"algorithm": describe_algorithm(self.study.method()), **use, "rounds": self.round}
        export_model(
            path, {"model": self.model}, {**about, "seed": self.study.seed, "versions": versions(), "repeat": 0}
        )

    def _columns(self) -> list[dict[str, Any]]:
        from fedpoint.data.tables import Feature

        return [Feature(**feature).plain() for feature in self.setup["recipe"]]

    def __repr__(self) -> str:
        title = type(self.study.method()).card.title
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        study = self.study
        return f"<{study.name}: {title}, round {self.round} of {study.rounds}, {len(study.sites)} sites{loss}>"


def _spans(graph: Any) -> Any:
    return zip(graph.names, graph.arcs.first[:-1], graph.arcs.first[1:], strict=True)
