"""What came of a study? Read from the hub's folder: models, who answered, who was refused and why; and it replayed."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

import jax
import numpy as np

from fedpoint.core.arguments import checked_methods
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.types import Model, Tree
from fedpoint.experiment import Experiment
from fedpoint.federation.exported import about_model
from fedpoint.federation.held_out import divide, luck_in
from fedpoint.federation.hub.ledger import StudyProgress
from fedpoint.federation.preparation import features, problem_of
from fedpoint.federation.regression import SiteRegression
from fedpoint.federation.shapes import tree_of
from fedpoint.federation.study import Study, read
from fedpoint.federation.transport import Alarm, Event
from fedpoint.graphs.network import Network
from fedpoint.problems.base import Problem
from fedpoint.store.disk import read_lines, read_npz
from fedpoint.store.folder import export_model
from fedpoint.timing.answering import Answering
from fedpoint.timing.participation import as_participation
from fedpoint.timing.schedule import Schedule, Synchronous
from fedpoint.timing.schemes import Participation
from fedpoint.timing.trace import Recorded
from fedpoint.timing.turns import Replay

if TYPE_CHECKING:
    from fedpoint.statistics.cox import CoxFit
    from fedpoint.statistics.glm_fit import GLMFit
    from fedpoint.statistics.table_one import TableOne


@checked_methods
class StudyResult:
    """A study's folder, as far as it got.

    rounds: (n,) those recorded. history: the models at them, (n, ...), on a network (n, sites, ...). events: what
    happened in each round. refused: how often "site reason". measured: what sites said of the model after so many
    rounds, rounded by them. measures: what they said of the last model; tables: calibration and confusion of it. ended:
    the sites that have heard of the end. sent: by site and kind how many messages came, their bytes and numbers.
    releases: the fedpoint of each site. watched: the hub knew which rows to expect. chains: the last seal of each
    site's own record, for `fedpoint federate audit`.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        if not (self.folder / "hub.npz").exists():
            raise FedpointError(f"{self.folder} does not hold a study that has begun")
        self.study: Study = read(self.folder / "study.toml")
        progress = cast(StudyProgress, read_npz(self.folder / "hub.npz", "hub")[1])
        self.round, self.setup = progress["round"], progress["setup"]
        self.measured = {int(after): said for after, said in progress["measured"].items()}
        self.measures = self.measured.get(self.study.rounds, {})
        self.tables = progress["tables"].get(str(self.study.rounds), {})
        self.ended, self.sent, self.releases = progress["ended"], progress["sent"], progress["releases"]
        self.watched = bool(progress["watch"])
        self.refused, self.chains = Counter(progress["refused"]), progress["chains"]

    @cached_property
    def events(self) -> list[Event]:
        return cast(list[Event], read_lines(self.folder / "rounds.jsonl")[0][: self.round])

    @property
    def alarms(self) -> list[Alarm]:
        """The sites whose answers were not those that their expected rows give, and why, likely."""
        return [alarm for event in self.events for alarm in event.get("alarms", [])]

    @cached_property
    def rounds(self) -> np.ndarray:
        return np.array(sorted(int(path.stem) for path in (self.folder / "models").glob("[0-9]*.npz")))

    @cached_property
    def history(self) -> Tree:
        if not len(self.rounds):
            raise FedpointError(f"{self.folder} holds no model yet: run the study first, or again")
        files = [self.folder / "models" / f"{number}.npz" for number in self.rounds]
        models = [read_npz(path, "model-of-round")[0] for path in files]
        stacked = {name: np.stack([model[name] for model in models]) for name in models[0]}
        return stacked["model"] if list(stacked) == ["model"] else tree_of(self._start(), stacked)

    def _start(self) -> Model:
        table = self.study.table
        if table is None:
            return self.study.start()
        return table.start(features(self.setup["recipe"]), self.setup["classes"])

    @property
    def is_regression(self) -> bool:
        return isinstance(self.study.table, SiteRegression)

    @cached_property
    def fit(self) -> GLMFit | CoxFit | TableOne:
        """What a study of kind "glm", "cox" or "table_one" has found: as `fp.glm`, `fp.cox` and
        `fp.statistics.table_one` return it, without what takes a site's rows."""
        table = self.study.table
        if not isinstance(table, SiteRegression):
            raise FedpointError(f"{self.study.name} is not a regression: see its model, measures and history")
        counts = dict(zip(self.study.sites, self.setup["rows"] or [], strict=True))
        return table.fit(self.model, self.setup, counts, list(self.setup["notes"]), self.round)

    @property
    def model(self) -> Model:
        return jax.tree.map(lambda a: a[-1], self.history)

    @property
    def weights(self) -> np.ndarray:
        return np.array(self.setup["weights"])

    @property
    def loss(self) -> float | None:
        """sum_k p_k f_k at the last model, of losses that sites round to 3 digits; None where one is missing."""
        losses = [self.measures.get(site, {}).get("loss") for site in self.study.sites]
        return None if None in losses else float(self.weights @ np.array(losses, float))

    def problem(self, data: Mapping[str, str | Path], records: Mapping[str, str | Path] | None = None) -> Problem:
        """The rows of all sites' files together, encoded and scaled as the study did: what `replay` is given.

        records: each site's folder of records, which knows the rows that its own luck held out; only where the study
        holds out a share.
        """
        table, model = self.study.table, self.study.installed
        if not self.study.of_files:
            return self.study.generated()
        missing = [site for site in self.study.sites if site not in data]
        if missing:
            raise FedpointError(f"no file of {', '.join(missing)}: give one of each site")
        if model is not None:
            return model.problem([data[site] for site in self.study.sites])
        assert table is not None  # the other kind of files
        columns = [
            divide(table, table.read(data[site]), self._luck(site, records or {})).trained for site in self.study.sites
        ]
        return problem_of(table, columns, features(self.setup["recipe"]), self.setup["classes"])

    def _luck(self, site: str, records: Mapping[str, str | Path]) -> bytes:
        table = self.study.table
        if table is None or not isinstance(table.held_out, float):
            return b""
        found = luck_in(Path(records[site])) if site in records else None
        if found is None:
            raise FedpointError(
                f"the luck of {site} chose its held-out rows: give records= a folder of each site's records"
            )
        return found

    def replay(self, problem: Problem) -> Experiment:
        """What `fp.run` sees the same again with: who answered when. The agents are called as the sites are, and have
        the shares that were fixed at the start."""
        if not self.events:
            raise FedpointError(f"{self.folder} tells of no round yet: there is nothing to replay")
        problem = copy.copy(problem)
        problem.names, problem.weights = self.study.sites, self.weights
        e, late = self.study.experiment(problem), self.study.terms.asynchronous
        if e.network is not None:
            return e.replace(schedule=self._turns(e.network))
        if late is None:
            return e.replace(participation=self._answers(as_participation(e.participation)))
        if not all(event["merged"] for event in self.events):
            raise FedpointError("some answers came late and were not merged, so that this study cannot be replayed")
        rows = tuple(tuple(zip(event["answered"], event["ages"], strict=True)) for event in self.events)
        return e.replace(schedule=Recorded(rows, late.weight(), late.mixing, late.models))

    def _answers(self, scheme: Participation) -> Participation:
        """Who was asked and answered; nobody came to an abandoned round."""
        if all(e["merged"] and not set(e["refused"].values()) - {"twice", "late"} for e in self.events):
            return scheme
        if self.study.problem.get("sampling") == "trajectory":
            raise FedpointError(
                "some answers were lost: sites then continue from the last merged answer, "
                "a simulation from the lost one, so this study cannot be replayed"
            )
        came = [[site in e["answered"] and e["merged"] for site in self.study.sites] for e in self.events]
        return Answering(scheme, trace=np.array(came, np.uint8))

    def _turns(self, network: Network) -> Schedule:
        """Which nodes worked when, and how old was what they had heard."""
        sites = self.study.sites
        if self.study.terms.asynchronous is None and all(
            e["merged"] and len(e["answered"]) == len(sites) for e in self.events
        ):
            return Synchronous()
        arcs = network.arcs
        spans = zip(network.names, arcs.first[:-1], arcs.first[1:], strict=True)
        around = {site: [network.names[j] for j in arcs.says[a:b]] for site, a, b in spans}
        events = [
            (event["round"], site, other, age)
            for event in self.events
            if event["merged"]
            for site, age in zip(event["answered"], event.get("ages", [0] * len(sites)), strict=False)
            for other in around[site]
        ]
        return Replay(tuple(events))

    def export(self, path: str | Path) -> None:
        """The model for `fedpoint predict`."""
        table = self.study.table
        if table is None or self.study.network:
            raise FedpointError("only the model of a study of tables with one hub can be exported")
        about = about_model(self.study, table, self.setup, np.asarray(self.model), self.round)
        export_model(path, {"model": self.model}, about)

    def __repr__(self) -> str:
        title = self.study.method().card.title
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        study = self.study
        return (
            f"<{study.name}: {title}, round {self.round} of {study.rounds}, {counted(len(study.sites), 'site')}{loss}>"
        )
