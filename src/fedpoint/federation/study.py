"""What is to be done, by whom, on which data? A study file: every party reads the same one.

    name = "credit"
    sites = ["bank-a", "bank-b", "bank-c"]
    server = "fl.example.org:8102"
    rounds = 50
    deadline = 60.0            # seconds that a site has for an answer
    quorum = 2                 # with fewer good answers a round is abandoned; default: all that are asked

    [problem]
    kind = "table"             # every site's own CSV or Parquet file
    model = "logistic"
    target = "default"
    features = ["income", "age", "purpose"]

    [algorithm]
    name = "scaffold"
    step = 0.1
    local_steps = 5

Also: seed, exact, norm_cap, record_every, patience, participation, network, asynchronous. A problem may be one that is
generated too: each site then makes its own part of it, for trials. Sites in alphabetical order are agents 0, 1, ...
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from fedpoint.config import methods, networks, schedules, schemes
from fedpoint.config.data import TableFile
from fedpoint.config.experiment import read_toml
from fedpoint.config.kinds import Count, Kind, Positive, Seed, Table, Variance
from fedpoint.config.mistakes import Mistake, Mistakes, validated
from fedpoint.config.problems import KINDS, AnyKind
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import MOST_ROUNDS, FedpointError, nearest
from fedpoint.core.types import Model, Plain
from fedpoint.experiment import Bound, Experiment
from fedpoint.federation.outline import Outline
from fedpoint.problems.base import Problem
from fedpoint.store.disk import canonical
from fedpoint.timing.participation import Answering, Importance, Uniform
from fedpoint.timing.staleness import Staleness

NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
RowCounts = int | Sequence[int] | np.ndarray | None  # one for all, or each its own
ADDRESS = re.compile(r"([A-Za-z0-9.-]+):(\d{1,5})")


def _name(text: str) -> str:
    if not NAME.fullmatch(text) or text in ("server", "admin"):
        raise ValueError("must be small letters, digits and dashes, a letter first, and neither server nor admin")
    return text


def _address(text: str) -> str:
    found = ADDRESS.fullmatch(text)
    if not found or not 0 < int(found[2]) < 65535:
        raise ValueError('must be a host and a port, such as "fl.example.org:8102"')
    return text


def _distinct(names: list[str]) -> list[str]:
    if not names or len(set(names)) < len(names):
        raise ValueError("must name at least one, and none twice")
    return names


Name = Annotated[str, AfterValidator(_name)]


class SiteTable(Kind):
    """Rows that stay where they are: every site's own file, of the same columns."""

    kind: Literal["table"]
    target: str
    features: Annotated[list[str], AfterValidator(_distinct)]
    model: Literal["linear", "logistic", "softmax"]
    categorical: list[str] = []
    missing: Literal["refuse", "mean", "drop"] = "refuse"
    scale: bool = True
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    ridge: Variance | None = None
    intercept: bool = True
    batch: Count | None = None
    sampling: Literal["iid", "shuffle"] = "iid"
    weights: list[Positive] | None = None

    @model_validator(mode="after")
    def _columns(self) -> Any:
        if self.target in self.features:
            raise ValueError(f"{self.target!r} is the target: leave it out of features")
        if self.sampling == "shuffle" and self.batch is None:
            raise ValueError('sampling = "shuffle" needs batch')
        if self.sampling == "shuffle" and self.model == "linear" and self.ridge:
            raise ValueError('least squares with a ridge samples by "iid" only')
        return self

    def build(self) -> tuple[Any, Any]:
        raise FedpointError("the rows of this problem are at the sites")


def _staleness(text: Plain) -> Plain:
    try:
        schedules.staleness_of(text)
    except FedpointError as error:
        raise ValueError(str(error)) from None
    return text


class Asynchronous(Table):
    """Answers are merged as they come: `fp.Arrivals` without its clock."""

    buffer: Count = 1
    staleness: Annotated[Any, AfterValidator(_staleness)] = "constant"
    mixing: Annotated[float, Field(gt=0, le=1)] = 1.0
    models: bool = False

    def weight(self) -> Staleness:
        return schedules.staleness_of(self.staleness)


class Terms(Table):
    """What a study says beside its experiment: who takes part, where they meet, and how long is waited for whom."""

    name: Name
    sites: Annotated[list[Name], AfterValidator(_distinct), Field(max_length=1000)]
    server: Annotated[str, AfterValidator(_address)]
    deadline: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    quorum: Count | None = None
    patience: Count = 3  # rounds in a row that may be abandoned
    norm_cap: Positive | None = None
    asynchronous: Asynchronous | None = None


class Content(Terms):
    """The keys of a study file: its terms, and those of an experiment. These are validated by their own classes."""

    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
    problem: Any
    algorithm: Any
    seed: Seed = 0
    exact: bool = False
    record_every: Count | None = None
    participation: Any = None
    network: Any = None


@dataclass(frozen=True)
class Study:
    """What a study file says, checked; `content` makes the same study again, anywhere."""

    content: dict[str, Any]

    @cached_property
    def terms(self) -> Terms:
        return Terms.model_validate({name: self.content[name] for name in Terms.model_fields if name in self.content})

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def sites(self) -> list[str]:
        return self.terms.sites

    @property
    def rounds(self) -> int:
        return self.content["rounds"]

    @property
    def problem(self) -> dict[str, Any]:
        return self.content["problem"]

    @property
    def network(self) -> Plain:
        return self.content.get("network")

    @property
    def table(self) -> SiteTable | None:
        """The columns of the sites' files; None where the problem is generated."""
        return SiteTable.model_validate(self.problem) if self.problem["kind"] == "table" else None

    def generated(self) -> Problem:
        return TypeAdapter(AnyKind).validate_python(self.problem).build()[0]

    def method(self) -> Algorithm:
        return methods.build(self.content["algorithm"])

    def outline(self, start: Model, weights: Sequence[float] | None = None, rows: RowCounts = None) -> Outline:
        """What is known of the sites' data."""
        counts = None if rows is None else np.broadcast_to(rows, len(self.sites))
        return Outline(self.sites, start, weights, counts, self.problem.get("batch"))

    def experiment(self, problem: Problem) -> Experiment:
        """What is run: on an outline at the hub, or on the problem itself by a simulation."""
        network = networks.network_of(self.network, None, problem)
        scheme = self.content.get("participation")
        return Experiment(
            self.method(),
            problem,
            participation=None if scheme is None else schemes.scheme_of(scheme),
            network=network,
            exact=self.content["exact"],
            seed=self.content["seed"],
            record_every=self.content.get("record_every"),
        )

    @cached_property
    def least(self) -> int:
        """Good answers that a round needs."""
        return self.terms.quorum or self.experiment(self.outline(np.zeros(1), rows=1)).timing.slots(len(self.sites))

    @property
    def fingerprint(self) -> str:
        """Of all that a site consents to."""
        return hashlib.sha256(canonical(self.content)).hexdigest()


def read(path: str | Path) -> Study:
    """The study of a TOML file, or all its mistakes at once."""
    content, text = read_toml(Path(path))
    return parse(content, str(path), text, Path(path).parent)


def parse(content: dict[str, Any], source: str = "study", text: str = "", base: Path | None = None) -> Study:
    checked, wrong = validated(Content, content)
    wrong += _problem(content.get("problem"))
    tables, more = methods.variants(content["algorithm"], ("algorithm",)) if "algorithm" in content else ([], [])
    wrong += more
    if len(tables) > 1:
        wrong.append(Mistake(("algorithm",), "one study runs one algorithm: give one value a key"))
    wrong += _participation(content.get("participation"), base)
    wrong += networks.mistakes(content.get("network"), ("network",), base)
    if wrong or checked is None:
        raise Mistakes(source, wrong, text)
    study = Study(_whole(checked, tables[0], base))
    wrong = _misfits(study)
    if wrong:
        raise Mistakes(source, wrong, text)
    return study


def _problem(table: Any) -> list[Mistake]:
    if table is None:
        return []  # already reported as missing
    known: dict[str, Any] = {
        **{name: kind for name, kind in KINDS.items() if kind is not TableFile},
        "table": SiteTable,
    }
    if not isinstance(table, dict) or table.get("kind") not in known:
        given = table.get("kind") if isinstance(table, dict) else table
        return [Mistake(("problem", "kind"), f"say its kind: {nearest(str(given), known)}", given)]
    return validated(known[table["kind"]], table, ("problem",))[1]


def _participation(text: Any, base: Path | None) -> list[Mistake]:
    wrong = schemes.mistakes(text, ("participation",), base)
    if not wrong:
        scheme = schemes.scheme_of(text, base)
        if isinstance(scheme, Answering):
            said = "sites answer or do not: give deadline and quorum instead of probability, trace, keep and minimum"
            wrong.append(Mistake(("participation",), said, text))
        elif isinstance(scheme, Importance) and scheme.probabilities is None:
            said = "the best probabilities take everybody's data: give probabilities"
            wrong.append(Mistake(("participation",), said, text))
    return wrong


def _misfits(study: Study) -> list[Mistake]:
    """What is right by itself and wrong together."""
    count, table, terms = len(study.sites), study.table, study.terms
    rows, start = None, np.zeros(1)
    if table is not None:
        rows = np.ones(count, int)
        if table.weights is not None and len(table.weights) != count:
            return [Mistake(("problem", "weights"), f"{len(table.weights)} weights for {count} sites")]
    else:
        try:
            made = study.generated()
        except FedpointError as error:
            return [Mistake(("problem",), str(error))]
        if made.agents != count:
            return [Mistake(("problem",), f"has {made.agents} agents, but there are {count} sites")]
        rows, start = made.local_rows(), made.start()
    try:
        bound = study.experiment(study.outline(start, rows=rows)).bind()
    except FedpointError as error:
        return [Mistake((_about(error),), str(error))]
    wrong, slots = [], bound.timing.slots(count)
    if terms.quorum is not None and terms.quorum > slots:
        wrong.append(Mistake(("quorum",), f"only {slots} sites are asked in a round", terms.quorum))
    if bound.algorithm.invalid_under(Uniform(1)) and (terms.asynchronous or (terms.quorum or slots) < count):
        card = bound.algorithm.card
        said = f"{card.title} needs everybody: {card.restriction}"
        wrong.append(Mistake(("asynchronous",) if terms.asynchronous else ("quorum",), said))
    return wrong + ([] if terms.asynchronous is None else _late_misfits(study, bound, terms.asynchronous))


def _late_misfits(study: Study, bound: Bound, late: Asynchronous) -> list[Mistake]:
    wrong, where, algorithm = [], ("asynchronous",), bound.algorithm
    title = algorithm.card.title
    if study.content.get("participation") is not None:
        wrong.append(Mistake(("participation",), "answers are merged as they come, from all: leave it out"))
    if late.buffer > len(study.sites):
        wrong.append(Mistake((*where, "buffer"), f"never fills with {len(study.sites)} sites", late.buffer))
    if late.models and not algorithm.sends_changes():
        wrong.append(Mistake((*where, "models"), f"{title} sends no changes of one model"))
    if bound.topology.by_node:
        if late != Asynchronous():
            wrong.append(Mistake(where, "on a network a tick is one node's update: give asynchronous = {}"))
        if not algorithm.at_agents:
            wrong.append(Mistake(("algorithm",), f"{title} keeps step on a network: leave out asynchronous"))
        elif not (bound.exact or algorithm.proximal):
            wrong.append(
                Mistake(where, "on a network only with exact fields, which do not depend on when: exact = true")
            )
        if algorithm.scheduled():
            wrong.append(Mistake(where, "on a network only with steps that do not depend on when: give a number"))
    return wrong


def _about(error: FedpointError) -> str:
    return "participation" if "participa" in str(error) else "algorithm"


def _whole(checked: Content, table: dict[str, Any], base: Path | None) -> dict[str, Any]:
    """The content with its defaults, sites in order: it makes the same study anywhere."""
    whole = checked.model_dump(exclude_none=True)
    whole |= {"sites": sorted(checked.sites), "algorithm": table}
    if checked.problem["kind"] == "table":
        whole["problem"] = SiteTable.model_validate(checked.problem).content()
    else:
        whole["problem"] = TypeAdapter(AnyKind).validate_python(checked.problem).content()
    if isinstance(checked.network, dict) and "file" in checked.network:
        outline = Outline(whole["sites"], np.zeros(1))
        graph: Any = networks.network_of(checked.network, base, outline)
        pairs = [[graph.names[i], graph.names[j]] for i, j in graph.edges.tolist()]
        whole["network"] = {"edges": pairs, "weights": graph.weights.tolist()}
    return whole


__all__ = ["Asynchronous", "SiteTable", "Study", "Terms", "parse", "read"]
