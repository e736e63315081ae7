"""What is to be done, by whom, on which data? A study file: every party reads the same one.

    name = "credit"
    sites = ["bank-a", "bank-b", "bank-c"]
    server = "fl.example.org:8102"
    rounds = 50
    deadline = 60.0            # seconds that a site has for an answer
    quorum = 2                 # with fewer good answers a round is abandoned; default: all that are asked
    rows = {bank-a = [500, 5000]}  # how many a site may claim to have, as its share follows from that

    [problem]
    kind = "table"             # every site's own CSV or Parquet file
    model = "logistic"
    target = "default"
    features = ["income", "age", "purpose"]

    [algorithm]
    name = "scaffold"
    step = 0.1
    local_steps = 5

A study is an experiment and its terms. What a file of experiments may say (participation, network, channel, gather,
seed, exact, record_every) it may say too; the terms are name, sites, server, rounds, runs, measurements, deadline,
quorum, patience, norm_cap, rows, asynchronous, secure and privacy (`protection.py`). A problem may be one that is
generated: each site then makes its own part of it, for trials. Sites in alphabetical order are agents 0, 1, ...
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, JsonValue

from fedpoint import config
from fedpoint.config.experiment import read_toml
from fedpoint.config.kinds import Count, Positive, Table
from fedpoint.config.mistakes import FileMistake, Mistakes, validated
from fedpoint.config.problems import build, read_problem
from fedpoint.config.schedules import staleness_of
from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.errors import MOST_ROUNDS, FedpointError, nearest
from fedpoint.core.numbers import counted, there_are
from fedpoint.core.types import Model, Plain
from fedpoint.experiment import Experiment
from fedpoint.federation.installed import InstalledProblem
from fedpoint.federation.measurement import BY_CLASS, Measure
from fedpoint.federation.outline import Outline
from fedpoint.federation.protection import PrivacyTerms, misfits
from fedpoint.federation.regression import table_kind, with_method
from fedpoint.federation.site_table import SiteTable, distinct
from fedpoint.federation.texts import foreign_code, unprintable
from fedpoint.problems.base import Problem
from fedpoint.store.disk import canonical
from fedpoint.timing.answering import Answering
from fedpoint.timing.schedule import Synchronous
from fedpoint.timing.schemes import Participation, Poisson, Uniform
from fedpoint.timing.staleness import Staleness

NOT_HERE = {  # what experiments have and studies do not
    "experiment": "a study is one experiment: write its tables as they are",
    "stop": "a study ends after its rounds: leave it out",
    "evaluation": "sites evaluate at the end of a study: leave it out",
    "metrics": "nobody sees the whole state of a study: leave it out",
    "start": "a study starts from the problem's own model: leave it out",
    "memories": "each site keeps what it remembers in its own records: leave it out",
}
NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
RowCounts = int | Sequence[int] | np.ndarray | None  # one for all, or each its own
ADDRESS = re.compile(r"([A-Za-z0-9.-]+):(\d{1,5})")


def _name(text: str) -> str:
    if not NAME.fullmatch(text) or text in ("server", "admin"):
        raise ValueError(
            "must be lower-case letters, digits and dashes, starting with a letter; server and admin are taken"
        )
    return text


def _address(text: str) -> str:
    found = ADDRESS.fullmatch(text)
    if not found or not 0 < int(found[2]) < 65535:
        raise ValueError('must be a host and a port, such as "fl.example.org:8102"')
    return text


def _low_to_high(bounds: list[int]) -> list[int]:
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        raise ValueError("must be two numbers of rows, the lowest and the highest, such as [500, 5000]")
    return bounds


Name = Annotated[str, AfterValidator(_name)]
RowBounds = Annotated[list[Count], AfterValidator(_low_to_high)]


def _staleness(text: Plain) -> Plain:
    try:
        staleness_of(text)
    except FedpointError as error:
        raise ValueError(str(error)) from None
    return text


class Asynchronous(Table):
    """Answers are merged as they come: `fp.Arrivals` without its clock."""

    buffer: Count = 1
    staleness: Annotated[JsonValue, AfterValidator(_staleness)] = "constant"
    mixing: Annotated[float, Field(gt=0, le=1)] = 1.0
    models: bool = False

    def weight(self) -> Staleness:
        return staleness_of(self.staleness)


class Terms(Table):
    """What a study says beside its experiment: who takes part, where they meet, and how long is waited for whom."""

    name: Name
    sites: Annotated[list[Name], AfterValidator(distinct), Field(max_length=1000)]
    server: Annotated[str, AfterValidator(_address)]
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
    purpose: Annotated[str, Field(max_length=2000)] | None = None  # what the model is for, in words
    runs: Count = 3  # times that the study may be begun from its start
    measurements: Annotated[int, Field(ge=0)] = 1  # of a run: evenly spaced, the last after the last round
    measures: Annotated[list[Measure], AfterValidator(distinct)] = ["loss", "accuracy"]  # what each of them says
    share_model: bool = False  # sites get the model at the end
    deadline: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    quorum: Count | None = None
    patience: Count = 3  # rounds in a row that may be abandoned
    norm_cap: Positive | None = None
    rows: dict[str, RowBounds] | None = None  # what a site may claim to have, lowest and highest
    on_alarm: Literal["tell", "stop"] = "tell"  # what an alarm about a site does
    asynchronous: Asynchronous | None = None
    secure: bool = False  # the hub sees sums only
    privacy: PrivacyTerms | None = None


def _apart(content: Mapping[str, Plain]) -> tuple[dict[str, Plain], dict[str, Plain]]:
    """Terms, and the experiment."""
    terms = {name: value for name, value in content.items() if name in Terms.model_fields}
    return terms, {name: value for name, value in content.items() if name not in terms}


@dataclass(frozen=True)
class Study:
    """What a study file says, checked; `content` makes the same study again, anywhere."""

    content: dict[str, Plain]

    @cached_property
    def terms(self) -> Terms:
        return Terms.model_validate(_apart(self.content)[0])

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def sites(self) -> list[str]:
        return self.terms.sites

    @property
    def server(self) -> str:
        return self.terms.server

    @property
    def rounds(self) -> int:
        return self.terms.rounds

    @property
    def measured_after(self) -> list[int]:
        """The numbers of rounds after which sites say how good the model is for them."""
        return evenly_spaced(self.rounds, self.terms.measurements)

    def too_many_or_few(self, site: str, rows: int) -> str:
        """Why a site may not claim so many rows; empty where it may."""
        bounds = (self.terms.rows or {}).get(site)
        if bounds is None or bounds[0] <= rows <= bounds[1]:
            return ""
        return f"it has {counted(rows, 'row')}, and the study allows {site} from {bounds[0]:,} to {bounds[1]:,}"

    @property
    def network(self) -> Plain:
        return self.content.get("network")

    @cached_property
    def algorithm(self) -> dict[str, Plain]:
        return dict(self.content["algorithm"])  # type: ignore[arg-type]

    @cached_property
    def problem(self) -> dict[str, Plain]:
        return dict(self.content["problem"])  # type: ignore[arg-type]

    @cached_property
    def table(self) -> SiteTable | None:
        """The columns of the sites' files; None where the problem is generated."""
        kind = table_kind(self.problem)
        return None if kind is None else kind.model_validate(self.problem)

    @cached_property
    def installed(self) -> InstalledProblem | None:
        """The model that sites have installed; None where fedpoint has it."""
        return InstalledProblem.model_validate(self.problem) if self.problem.get("kind") == "installed" else None

    @property
    def of_files(self) -> bool:
        """Whether sites bring files; else every one of them makes its part of the problem."""
        return self.table is not None or self.installed is not None

    @property
    def shares_by_rows(self) -> bool:
        """Whether sites count by their rows, which each of them knows of itself alone."""
        return self.of_files and self.site_weights is None

    @property
    def site_weights(self) -> list[float] | None:
        """What the study says that sites count for; None: their rows do, or what they generate."""
        brought = self.table or self.installed
        return None if brought is None else brought.site_weights

    def generated(self) -> Problem:
        return build(self.problem)

    def start(self) -> Model:
        """The model before the first round, where that does not depend on the columns of a table."""
        return self.generated().start() if self.installed is None else self.installed.start()

    @property
    def placeholder(self) -> Model:
        """A model, where columns are not known yet."""
        if self.installed is not None:
            return self.installed.start()
        return np.zeros(1) if self.table is None else self.table.placeholder

    def method(self) -> Algorithm:
        return self.experiment(self.outline(self.placeholder, rows=1)).algorithm

    def outline(self, start: Model, weights: Sequence[float] | None = None, rows: RowCounts = None) -> Outline:
        """What is known of the sites' data."""
        counts = None if rows is None else np.broadcast_to(rows, len(self.sites))
        batch = self.problem.get("batch")
        return Outline(self.sites, start, weights, counts, batch if isinstance(batch, int) else None)

    def experiment(self, problem: Problem, heaviest: float | None = None) -> Experiment:
        """What is run: on an outline at the hub, or on the problem itself by a simulation. heaviest: the largest share,
        where the problem does not know it."""
        made, privacy = config.experiment_of(_apart(self.content)[1], problem), self.terms.privacy
        if privacy is None:
            return made
        largest = float(np.max(problem.weights)) if heaviest is None else heaviest
        least = self.terms.quorum or made.timing.slots(len(self.sites))
        return made.replace(channel=privacy.channel(self.rounds, largest, least))

    @cached_property
    def least(self) -> int:
        """Good answers that a round needs."""
        return self.terms.quorum or self.experiment(self.outline(self.placeholder, rows=1)).timing.slots(
            len(self.sites)
        )

    @property
    def fingerprint(self) -> str:
        """Of all that a site consents to."""
        return hashlib.sha256(canonical(self.content)).hexdigest()


def evenly_spaced(rounds: int, count: int) -> list[int]:
    """So many of the numbers 1 .. rounds, the last included.

    >>> evenly_spaced(10, 3), evenly_spaced(10, 1), evenly_spaced(10, 0)
    ([4, 7, 10], [10], [])
    """
    return [-(-k * rounds // count) for k in range(1, count + 1)]


def read(path: str | Path) -> Study:
    """The study of a TOML file, or all its mistakes at once."""
    content, text = read_toml(Path(path))
    return parse(content, str(path), text, Path(path).parent)


def parse(content: Mapping[str, Plain], source: str = "study", text: str = "", base: Path | None = None) -> Study:
    """The study of the content of a file; all its mistakes in one error."""
    given, own = _apart(content)
    own = with_method(own)
    terms, wrong = validated(Terms, given)
    wrong += [FileMistake((key,), said, own[key]) for key, said in NOT_HERE.items() if own.get(key) is not None]
    foreign = [*foreign_code(own)]
    if foreign:  # not even looked up
        raise Mistakes(source, [*wrong, *foreign], text)
    wrong += unprintable(content)
    outline, table, more = _outlined(content, base)
    wrong += [*more, *([] if terms is None else _foreign_rows(terms, own.get("problem")))]
    rest = {name: value for name, value in own.items() if name not in NOT_HERE}
    try:
        made = config.parse(rest, source, text, config.FileOrigin(base, (), outline))
    except Mistakes as error:
        raise Mistakes(source, [*wrong, *error.mistakes], text) from None
    if terms is not None:
        wrong += _misfits(terms, made, rest)
    if wrong or terms is None:
        raise Mistakes(source, wrong, text)
    network = _without_file(rest.get("network"), made[0].experiment)
    said = {name: value for name, value in made.content.items() if name not in NOT_HERE}
    whole: dict[str, Plain] = {**said, **network, **terms.model_dump(exclude_none=True), "problem": table}
    whole["sites"] = [*sorted(terms.sites)]
    return Study(whole)


def _outlined(content: Mapping[str, Plain], base: Path | None) -> tuple[Outline, Plain, list[FileMistake]]:
    """What the hub will know of the problem, the table that makes it again, and what is wrong with that."""
    text, named = content.get("problem"), content.get("sites")
    sites = sorted({str(site) for site in named}) if isinstance(named, list) and named else [""]
    nobody = Outline(sites, np.zeros(1), rows=np.ones(len(sites), int))
    if text is None:
        return nobody, None, [FileMistake(("problem",), "is missing")]
    kind = table_kind(text)
    if kind is not None:
        table, wrong = validated(kind, text, ("problem",))
        if table is None:
            return nobody, None, wrong
        if table.site_weights is not None and len(table.site_weights) != len(sites):
            said = f"{counted(len(table.site_weights), 'weight')} for {counted(len(sites), 'site')}"
            wrong.append(FileMistake(("problem", "weights"), said))
        outline = Outline(sites, table.placeholder, rows=np.ones(len(sites), int))
        return outline, table.content(), wrong
    if isinstance(text, dict) and text.get("kind") == "installed":
        return _installed_outline(text, sites, nobody)
    built, wrong = read_problem(text, ("problem",), base)
    if built is None:
        return nobody, None, wrong
    problem = built.problem
    if problem.agents != len(sites):
        return (
            nobody,
            None,
            [FileMistake(("problem",), f"has {counted(problem.agents, 'agent')}, but {there_are(len(sites), 'site')}")],
        )
    return Outline(sites, problem.start(), rows=problem.local_rows(), batch=problem.batch), built.table, []


def _installed_outline(
    text: Mapping[str, Plain], sites: list[str], nobody: Outline
) -> tuple[Outline, Plain, list[FileMistake]]:
    model, wrong = validated(InstalledProblem, text, ("problem",))
    if model is None:
        return nobody, None, wrong
    if model.weights is not None and len(model.weights) != len(sites):
        said = f"{counted(len(model.weights), 'weight')} for {counted(len(sites), 'site')}"
        return nobody, None, [FileMistake(("problem", "weights"), said)]
    try:
        start = model.start()
    except FedpointError as error:
        return nobody, None, [FileMistake(("problem", "name"), str(error))]
    return Outline(sites, start, rows=np.ones(len(sites), int), batch=model.batch), model.content(), []


def _misfits(terms: Terms, made: config.File, own: Mapping[str, Plain]) -> list[FileMistake]:
    """What is right by itself and wrong together."""
    wrong: list[FileMistake] = []
    e, count, late = made[0].experiment, len(terms.sites), terms.asynchronous
    slots, card = e.timing.slots(count), e.algorithm.card
    if made.comparison:
        what = "participation" if isinstance(own.get("participation"), list) else "algorithm"
        wrong.append(FileMistake((what,), f"one study runs one {what}: give one value a key"))
    if e.repeats != 1:
        wrong.append(FileMistake(("repeats",), "a study is run once: leave it out", e.repeats))
    if e.attack is not None:
        wrong.append(FileMistake(("attack",), "attacks are for simulation: leave it out", own["attack"]))
    if e.regions is not None:
        said = "sites answer to one hub, whose address they know: leave it out"
        wrong.append(FileMistake(("regions",), said, own["regions"]))
    if e.timing.on_clock or not isinstance(e.timing, Participation | Synchronous):
        said = "sites answer when they do: give deadline and quorum, or asynchronous"
        wrong.append(FileMistake(("schedule",), said, own["schedule"]))
    if isinstance(e.timing, Answering):
        said = "sites answer or do not: give deadline and quorum instead of probability, trace, keep and minimum"
        wrong.append(FileMistake(("participation",), said, own["participation"]))
    if isinstance(e.timing, Poisson):
        said = "a round of a study asks somebody, and the hub sees whom: give a number of sites"
        wrong.append(FileMistake(("participation",), said, own["participation"]))
    if e.algorithm.conserves_a_sum() and not e.gather.conserves:
        said = f"{card.title} conserves a sum over all agents, which this mean does not keep: use fedavg, or no gather"
        wrong.append(FileMistake(("gather",), said, own["gather"]))
    if e.channel.noises():
        said = "a study's luck follows from its seed, which all sites know: noise drawn from it would hide nobody"
        wrong.append(FileMistake(("channel",), said, own["channel"]))
    if bind_algorithm(e.algorithm, e.problem).survey() is not None:
        said = f"{card.title} asks more than once in a round, and sites answer once: use scaffold"
        wrong.append(FileMistake(("algorithm",), said))
    if terms.quorum is not None and terms.quorum > slots:
        wrong.append(FileMistake(("quorum",), f"only {counted(slots, 'site')} asked in a round", terms.quorum))
    if terms.measurements > terms.rounds:
        said = f"only {counted(terms.rounds, 'round')} to measure after"
        wrong.append(FileMistake(("measurements",), said, terms.measurements))
    wrong += [*_unmeasurable(terms, own.get("problem")), *misfits(terms, e, own)]
    reason = e.algorithm.invalid_under(Uniform(1))
    if reason and (late is not None or (terms.quorum or slots) < count):
        said = f"{card.title} needs everybody: {card.restriction or reason}"
        wrong.append(FileMistake(("asynchronous",) if late is not None else ("quorum",), said))
    return wrong + ([] if late is None else _late_misfits(terms, late, e))


def _unmeasurable(terms: Terms, problem: Plain) -> Iterator[FileMistake]:
    """Measures of a classifier, where there is none."""
    classes = isinstance(problem, dict) and problem.get("kind") == "table" and problem.get("model") != "linear"
    asked = [] if classes else [name for name in terms.measures if name in BY_CLASS]
    if asked:
        yield FileMistake(("measures",), f"{', '.join(asked)}: only for tables whose target is a class: leave it out")


def _foreign_rows(terms: Terms, problem: Plain) -> Iterator[FileMistake]:
    """Bounds of nobody's rows."""
    if terms.rows and isinstance(problem, dict) and table_kind(problem) is None and problem.get("kind") != "installed":
        yield FileMistake(
            ("rows",), "bounds the rows of the sites' own files, and these data are generated: leave it out"
        )
    for site in sorted(set(terms.rows or ()) - set(terms.sites)):
        yield FileMistake(("rows", site), f"not a site of this study; {nearest(site, terms.sites)}")


def _late_misfits(terms: Terms, late: Asynchronous, e: Experiment) -> list[FileMistake]:
    wrong, where, algorithm = [], ("asynchronous",), e.algorithm
    title = algorithm.card.title
    if isinstance(e.timing, Participation) and not e.timing.everyone:
        wrong.append(FileMistake(("participation",), "answers are merged as they come, from all: leave it out"))
    if late.buffer > len(terms.sites):
        wrong.append(
            FileMistake((*where, "buffer"), f"never fills with {counted(len(terms.sites), 'site')}", late.buffer)
        )
    if terms.measurements > 1:
        said = "sites that work at their own pace are measured after the last round only: give 1 or 0"
        wrong.append(FileMistake(("measurements",), said, terms.measurements))
    if late.models and not algorithm.sends_changes():
        wrong.append(FileMistake((*where, "models"), f"{title} sends no changes of one model"))
    if e.bind().topology.by_node:
        if late != Asynchronous():
            wrong.append(FileMistake(where, "on a network a tick is one node's update: give asynchronous = {}"))
        if not algorithm.at_agents:
            wrong.append(FileMistake(("algorithm",), f"{title} keeps step on a network: leave out asynchronous"))
        elif not (e.exact or algorithm.full or algorithm.proximal):
            said = "on a network only with exact fields, which do not depend on when: exact = true"
            wrong.append(FileMistake(where, said))
        if algorithm.scheduled():
            wrong.append(FileMistake(where, "on a network only with steps that do not depend on when: give a number"))
    return wrong


def _without_file(text: Plain, e: Experiment) -> dict[str, Plain]:
    """The edges of a network written out: sites have no file of them."""
    graph = e.network
    if graph is None or not (isinstance(text, dict) and "file" in text):
        return {}
    pairs: Plain = [[graph.names[i], graph.names[j]] for i, j in graph.edges.tolist()]
    return {"network": {"edges": pairs, "weights": graph.weights.tolist()}}


__all__ = ["Asynchronous", "SiteTable", "Study", "Terms", "parse", "read"]
