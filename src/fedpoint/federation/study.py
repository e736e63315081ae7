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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator

from fedpoint.config import methods, networks, schedules, schemes
from fedpoint.config.data import TableFile
from fedpoint.config.experiment import read_toml
from fedpoint.config.kinds import Count, Kind, Positive, Seed, Table, Variance
from fedpoint.config.mistakes import Mistake, Mistakes, of_table
from fedpoint.config.problems import KINDS, AnyKind
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.engine.session import bind_algorithm, check_place, check_valid
from fedpoint.store.disk import canonical
from fedpoint.timing.participation import Answering, Importance
from fedpoint.timing.schedule import Synchronous
from fedpoint.timing.staleness import Constant

NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
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


class Content(Table):
    """The keys of a study file. Algorithm, participation and network are validated by their own classes."""

    name: Name
    sites: Annotated[list[Name], AfterValidator(_distinct), Field(max_length=1000)]
    server: Annotated[str, AfterValidator(_address)]
    rounds: Annotated[int, Field(ge=1, le=2**31 - 1)]
    problem: Any
    algorithm: Any
    seed: Seed = 0
    exact: bool = False
    deadline: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    quorum: Count | None = None
    patience: Count = 3  # rounds in a row that may be abandoned
    norm_cap: Positive | None = None
    record_every: Count | None = None
    participation: Any = None
    network: Any = None
    asynchronous: Any = None


class Asynchronous(Table):
    """Answers are merged as they come: `fp.Arrivals` without its clock."""

    buffer: Count = 1
    staleness: Any = "constant"
    mixing: Annotated[float, Field(gt=0, le=1)] = 1.0
    models: bool = False


class Outline:
    """What a hub knows of a problem: names, weights and counts, never data."""

    def __init__(self, names: list[str], weights: Any, rows: Any = None, batch: int | None = None):
        self.names, self.weights, self.rows, self.batch = names, np.asarray(weights, float), rows, batch

    @property
    def agents(self) -> int:
        return len(self.names)

    def local_rows(self) -> Any:
        return self.rows


@dataclass(frozen=True)
class Study:
    """What a study file says, checked; `content` makes the same study again, anywhere."""

    content: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        content = object.__getattribute__(self, "content")
        if name in Content.model_fields:
            return content.get(name)
        raise AttributeError(name)

    @property
    def table(self) -> SiteTable | None:
        """The columns of the sites' files; None where the problem is generated."""
        if self.problem["kind"] != "table":
            return None
        return SiteTable.model_validate(self.problem)

    def generated(self) -> Any:
        return TypeAdapter(AnyKind).validate_python(self.problem).build()[0]

    def method(self) -> Any:
        return methods.build(self.algorithm)

    def scheme(self) -> Any:
        return schemes.scheme_of(self.participation)

    def graph(self) -> Any:
        """The network, its nodes the sites in their order; None with a fusion center."""
        if self.network is None:
            return None
        return networks.network_of(self.network, None, Outline(self.sites, np.ones(len(self.sites))))

    def late(self) -> Asynchronous | None:
        return None if self.asynchronous is None else Asynchronous.model_validate(self.asynchronous)

    def staleness(self) -> Any:
        late = self.late()
        return Constant() if late is None else schedules.staleness_of(late.staleness)

    @property
    def fingerprint(self) -> str:
        """Of all that a site consents to."""
        return hashlib.sha256(canonical(self.content)).hexdigest()

    @property
    def least(self) -> int:
        """Good answers that a round needs."""
        asked = len(self.sites) if self.network is not None else self.scheme().slots(len(self.sites))
        return asked if self.quorum is None else self.quorum


def read(path: str | Path) -> Study:
    """The study of a TOML file, or all its mistakes at once."""
    content, text = read_toml(Path(path))
    return parse(content, str(path), text, Path(path).parent)


def parse(content: dict[str, Any], source: str = "study", text: str = "", base: Path | None = None) -> Study:
    checked, wrong = _keys(content)
    wrong += _problem(content.get("problem"))
    tables, more = methods.variants(content["algorithm"], ("algorithm",)) if "algorithm" in content else ([], [])
    wrong += more
    if len(tables) > 1:
        wrong.append(Mistake(("algorithm",), "one study runs one algorithm: give one value a key"))
    wrong += _participation(content.get("participation"), base)
    wrong += networks.mistakes(content.get("network"), ("network",), base)
    if content.get("asynchronous") is not None:
        wrong += _asynchronous(content["asynchronous"])
    if checked is not None and not wrong:
        wrong += _misfits(checked, tables[0], base)
    if wrong or checked is None:
        raise Mistakes(source, wrong, text)
    return Study(_whole(checked, tables[0], base))


def _keys(content: dict[str, Any]) -> tuple[Content | None, list[Mistake]]:
    try:
        return Content.model_validate(content), []
    except ValidationError as error:
        return None, [_mistake(e, (), Content) for e in error.errors(include_url=False)]


def _mistake(error: Any, where: tuple, kind: type[Table]) -> Mistake:
    """One of pydantic's errors in our words."""
    path = (*where, *error["loc"])
    if error["type"] == "extra_forbidden":
        return Mistake(path, f"unknown key; {nearest(str(path[-1]), kind.model_fields)}", error["input"])
    if error["type"] == "missing":
        return Mistake(path, "is missing")
    said = methods.must(error["msg"])
    return Mistake(path, said) if error["loc"] == () else Mistake(path, said, error["input"])


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
    kind = known[table["kind"]]
    try:
        kind.model_validate(table)
    except ValidationError as error:
        return [_mistake(e, ("problem",), kind) for e in error.errors(include_url=False)]
    return []


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


def _asynchronous(text: Any) -> list[Mistake]:
    try:
        late = Asynchronous.model_validate(text)
    except ValidationError as error:
        return [_mistake(e, ("asynchronous",), Asynchronous) for e in error.errors(include_url=False)]
    return of_table(late.staleness, ("asynchronous", "staleness"), lambda t: list(t), schedules.staleness_of)


def _misfits(checked: Content, table: dict[str, Any], base: Path | None) -> list[Mistake]:
    """What is right by itself and wrong together."""
    wrong: list[Mistake] = []

    def attempt(path: tuple, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except FedpointError as error:
            wrong.append(Mistake(path, str(error)))

    count, rows = len(checked.sites), None
    names, batch = sorted(checked.sites), checked.problem.get("batch")
    if checked.problem["kind"] == "table":
        rows = np.ones(count, int)
        weights = checked.problem.get("weights")
        if weights is not None and len(weights) != count:
            wrong.append(Mistake(("problem", "weights"), f"{len(weights)} weights for {count} sites"))
    else:
        made = attempt(("problem",), lambda: TypeAdapter(AnyKind).validate_python(checked.problem).build()[0])
        if made is not None and made.agents != count:
            wrong.append(Mistake(("problem",), f"has {made.agents} agents, but there are {count} sites"))
        rows = None if made is None else made.local_rows()
    outline = Outline(names, np.ones(count) / count, rows, batch)
    network = attempt(("network",), networks.network_of, checked.network, base, outline)
    algorithm = methods.build(table)
    attempt(("algorithm",), bind_algorithm, algorithm, outline)
    attempt(("algorithm",), check_place, algorithm, network)
    scheme = Synchronous() if checked.network is not None else schemes.scheme_of(checked.participation, base)
    attempt(("algorithm",), check_valid, algorithm, scheme)
    slots = attempt(("participation",), scheme.slots, count) or count
    late = None if checked.asynchronous is None else Asynchronous.model_validate(checked.asynchronous)
    if checked.quorum is not None and checked.quorum > slots:
        wrong.append(Mistake(("quorum",), f"only {slots} sites are asked in a round", checked.quorum))
    card = type(algorithm).card
    if card.participation == ("Everyone",) and (late is not None or (checked.quorum or slots) < count):
        said = f"{card.title} needs everybody: {card.restriction}"
        wrong.append(Mistake(("quorum",) if late is None else ("asynchronous",), said))
    if checked.network is not None and checked.participation is not None:
        wrong.append(Mistake(("participation",), "on a network every site works: leave it out"))
    return wrong + ([] if late is None else _late_misfits(checked, late, algorithm, count))


def _late_misfits(checked: Content, late: Asynchronous, algorithm: Any, count: int) -> list[Mistake]:
    wrong, where = [], ("asynchronous",)
    if checked.participation is not None:
        wrong.append(Mistake(("participation",), "answers are merged as they come, from all: leave it out"))
    if late.buffer > count:
        wrong.append(Mistake((*where, "buffer"), f"never fills with {count} sites", late.buffer))
    if late.models and algorithm.base is None:
        wrong.append(Mistake((*where, "models"), f"{type(algorithm).card.title} sends no changes of one model"))
    if checked.network is not None:
        if late != Asynchronous():
            wrong.append(Mistake(where, "on a network a tick is one node's update: give asynchronous = {}"))
        if algorithm.hello is None:
            title = type(algorithm).card.title
            wrong.append(Mistake(("algorithm",), f"{title} keeps step on a network: leave out asynchronous"))
        elif not (checked.exact or algorithm.full or algorithm.proximal):
            wrong.append(
                Mistake(where, "on a network only with exact fields, which do not depend on when: exact = true")
            )
        if hasattr(getattr(algorithm, "step", None), "_leaves"):
            wrong.append(Mistake(where, "on a network only with steps that do not depend on when: give a number"))
    return wrong


def _whole(checked: Content, table: dict[str, Any], base: Path | None) -> dict[str, Any]:
    """The content with its defaults, sites in order: it makes the same study anywhere."""
    whole = checked.model_dump(exclude_none=True)
    whole |= {"sites": sorted(checked.sites), "algorithm": table}
    if checked.problem["kind"] == "table":
        whole["problem"] = SiteTable.model_validate(checked.problem).content()
    else:
        whole["problem"] = TypeAdapter(AnyKind).validate_python(checked.problem).content()
    if isinstance(checked.network, dict) and "file" in checked.network:
        outline = Outline(whole["sites"], np.ones(len(checked.sites)))
        graph: Any = networks.network_of(checked.network, base, outline)
        pairs = [[graph.names[i], graph.names[j]] for i, j in graph.edges.tolist()]
        whole["network"] = {"edges": pairs, "weights": graph.weights.tolist()}
    return whole


__all__ = ["Asynchronous", "Outline", "SiteTable", "Study", "parse", "read"]
