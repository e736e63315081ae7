"""What is to be run? The experiments of a TOML file with their rounds, or all its mistakes at once.

    rounds = 100                       # also seed, repeats, exact, record_every, stop
    participation = [10, 20]           # or schedule, network; also regions, channel, gather, attack, share, start

    [problem]
    kind = "linear_stream"
    agents = 100

    [algorithm]                        # [[algorithm]] where there are several
    name = "fedavg"
    step = [0.1, 0.2]                  # a list is compared: this file makes four experiments

    [[experiment]]                     # or one after the other: each says what it has of its own
    name = "noisy"
    problem.noise = 0.1

Every part may also be a table as `Experiment.describe()` writes it. The tables [plan] and [lab] are for `fedpoint plan`
and `fedpoint lab`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, JsonValue, SkipValidation

from fedpoint import attack, gather
from fedpoint.algorithms.catalogue import makers, title_of
from fedpoint.attack import Attack
from fedpoint.channel import Cast, Channel, Clip, Erase, FixedPoint, Gaussian, Quantise, RandK, Sign, TopK
from fedpoint.channel.chain import as_channel
from fedpoint.config import methods, networks, schedules, schemes
from fedpoint.config.evaluation import EvaluationTable
from fedpoint.config.file import Entry, File
from fedpoint.config.kinds import Seed, Table
from fedpoint.config.lines import Path as Where
from fedpoint.config.mistakes import FileMistake, Mistakes, validated
from fedpoint.config.problems import KINDS, Built, read_problem
from fedpoint.config.records import Family, only, snake
from fedpoint.config.text import absolute, read_text
from fedpoint.core.arguments import checked
from fedpoint.core.describe import Allow
from fedpoint.core.errors import MOST_ROUNDS, FedpointError
from fedpoint.core.types import Plain, Tree
from fedpoint.experiment.checks import check_timing
from fedpoint.experiment.describe import rebuild_part
from fedpoint.experiment.experiment import Experiment
from fedpoint.gather import Gather
from fedpoint.graphs.network import Network
from fedpoint.graphs.regions import Regions
from fedpoint.problems.base import Problem
from fedpoint.results.labels import labels_of, short
from fedpoint.store import disk
from fedpoint.store.disk import Table as Raw
from fedpoint.timing.base import Context, Timing
from fedpoint.verbs.warm_start import warm_start

ONE = (Cast, Channel, Clip, Erase, FixedPoint, Gaussian, Quantise, RandK, Sign, TopK)
CHANNELS: Family[Channel] = Family("a channel", {snake(cls.__name__): cls for cls in ONE})
GATHERS: Family[Gather] = Family(
    "a gather",
    {snake(name): vars(gather)[name] for name in gather.__all__ if name != "Gather"},
    keys={"then": Annotated[JsonValue, AfterValidator(lambda text: only(GATHERS.read(text, ("then",))))]},
)
ATTACKS: Family[Attack] = Family(
    "an attack", {snake(name): vars(attack)[name] for name in attack.__all__ if name not in ("Attack", "Heard")}
)
TIMINGS = {"participation": schemes.read, "schedule": schedules.FAMILY.read}
OWN = ("problem", "algorithm", "participation", "schedule", "network")  # keys that have readers of their own
BESIDE = ("plan", "lab", "sums", "start_sha256", "not_rebuildable", "name")  # what does not change an experiment


AsItIs = SkipValidation[JsonValue]  # read elsewhere


class RegionsTable(Table):
    """Hubs of hubs: the regions of agents, and the rounds that these go through by themselves."""

    explained_by = (Regions,)
    of: AsItIs = Field(description="a number of regions, or the region of each agent")
    rounds: int = 1


def _read_regions(text: Plain, where: Where, base: Path | None) -> tuple[Regions | None, list[FileMistake]]:
    made, wrong = validated(RegionsTable, text, where)
    return None if made is None else Regions(made.of, made.rounds), wrong  # type: ignore[arg-type]


def _read_channels(text: Plain, where: Where, base: Path | None) -> tuple[Channel | None, list[FileMistake]]:
    """One channel, or a list of them: one behind the other."""
    if not isinstance(text, list):
        return CHANNELS.read(text, where, base)
    read = [CHANNELS.read(item, (*where, i), base) for i, item in enumerate(text)]
    wrong = [mistake for _, mistakes in read for mistake in mistakes]
    return None if wrong else as_channel([made for made, _ in read if made is not None]), wrong


class Content(Table):
    """The keys of an experiment. Problem, algorithm, timing, network, channel and gather have tables of their own.

    Args:
        problem: what agents hold: a table with a `kind`.
        algorithm: the method: a table with its `name`; several tables are compared.
        participation: who takes part in a round: a number, "everyone", or a table with a `scheme`; a list is compared.
        schedule: who works when, on networks and clocks: a table with a `kind`; a list is compared.
        network: which agents are joined: a table with a `kind`, `edges` or a `file`.
        regions: hubs of hubs: the regions of agents, as a table.
        channel: what happens to a message on its way: a table with a `kind`; a list: one after the other.
        gather: how a hub makes one inbox of many messages; left out: weighted sums.
        attack: which agents lie, and how, for simulation.
        share: which parts of a model are shared; left out: all.
        start: the model at round 0, or {file = "model.npz"}, an exported one; left out: the problem's own.
        metrics: what is recorded beside the model, by name.
        rounds: how many to run.
        seed: of all random numbers.
        repeats: independent runs, batched.
        exact: exact fields: no sampling noise.
        record_every: rounds between records; left out: 1, or more where all models would not fit into memory.
        memories: "disk" keeps what agents remember in a file, where it does not fit into memory.
        stop: end the run when the mean squared error (without a known solution: the squared change of the model between
            records) falls below this.
        evaluation: when the rows that the problem holds out are looked at, and whether they end the run.
        plan: what `fedpoint plan` reads of the same file.
        lab: what `fedpoint lab` reads of the same file.
        sums: sums over the problem's arrays, by which a run's folder is checked; runs write it.
        start_sha256: of the start, where it is too long for the file; runs write it.
        not_rebuildable: what the file could not hold; runs write it.
        name: of this experiment, in a comparison.
        experiment: several experiments in one file, each a table of the keys in which it differs from the rest.
    """

    problem: AsItIs = Field(description=f"it has a kind: {', '.join(KINDS)}")
    algorithm: AsItIs
    participation: AsItIs = None
    schedule: AsItIs = None
    network: AsItIs = None
    regions: AsItIs = None
    channel: AsItIs = None
    gather: AsItIs = None
    attack: AsItIs = None
    share: AsItIs = None
    start: AsItIs = None
    metrics: AsItIs = None
    rounds: Annotated[int, Field(ge=0, le=MOST_ROUNDS)] = 100
    seed: Seed = 0
    repeats: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    exact: bool = False
    record_every: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = None
    memories: Literal["memory", "disk"] = "memory"
    stop: Annotated[float, Field(gt=0)] | None = None
    evaluation: EvaluationTable | None = None
    plan: AsItIs = None  # what `fedpoint plan` reads of the same file
    lab: AsItIs = None  # and `fedpoint lab`
    # What the folder of a run says besides.
    sums: str | None = None
    start_sha256: str | None = None
    not_rebuildable: list[str] | None = None
    name: str | None = None


Reader = Callable[[Plain, Where, Path | None], tuple[Tree, list[FileMistake]]]
Choices = list[tuple[Plain, Timing | None]]  # what a file says of who works when, and what that means


@checked
def read(path: str | Path, *, allow: Allow = (), problem: Problem | None = None, **overrides: int | None) -> File:
    """Read the experiments of a TOML file: a sequence of entries with `name`, `experiment` and `rounds`.

    Args:
        path: the TOML file.
        allow: modules of your own whose classes and functions the file may name; they are imported, which runs their
            code.
        problem: in place of the file's, which may then say nothing of it, or not hold its data.
        overrides: `rounds` or `seed`, which replace what the file says, unless they are None.

    >>> import fedpoint as fp
    >>> [(e.name, e.rounds) for e in fp.read("examples/drift.toml")]
    [('FedAvg', 60), ('SCAFFOLD', 60)]
    """
    path = Path(path)
    content, text = read_toml(path)
    given = {key: value for key, value in overrides.items() if value is not None}
    return parse({**content, **given}, path.stem, text, FileOrigin(path.parent, allow, problem), str(path))


def read_toml(path: Path) -> tuple[Raw, str]:
    """The content of a TOML file, and its text, in which mistakes are looked up."""
    text = read_text(path, advice=": a TOML file must be")
    try:
        return disk.read_toml(text), text
    except ValueError as error:  # numbers of thousands of digits too
        raise FedpointError(f"{path}: {syntax(str(error))}") from None


def syntax(message: str) -> str:
    """tomllib's message, the line first."""
    found = re.fullmatch(r"(.*) \(at (.*)\)", message, re.DOTALL)
    return f"{found.group(2)}: not TOML: {found.group(1)}" if found else f"not TOML: {message}"


class FileOrigin(NamedTuple):
    """Where a content comes from: the folder that paths begin at, modules that may be imported, a problem it is for."""

    base: Path | None = None
    allow: Allow = ()
    problem: Problem | None = None


HERE = FileOrigin()


def parse(
    content: Mapping[str, Tree], name: str, text: str = "", origin: FileOrigin = HERE, source: str | None = None
) -> File:
    """The experiments of the content of a file; all its mistakes in one error."""
    if isinstance(content.get("experiment"), dict):  # the folder of a run holds the file that it comes from
        return parse(content["experiment"], name, "", origin, source)
    built: dict[str, Built] = {}
    mistakes: dict[str, FileMistake] = {}  # each once, though several experiments may share it
    entries: list[Entry] = []
    wholes: list[Raw] = []
    for where, own, one in _experiments(content, origin.allow):
        reader = _Reader(one, origin, built)
        found = reader.entries(str(own.get("name", "")) if where else "")
        mistakes |= {m.text({}): m for m in (_moved(m, where, own) for m in reader.mistakes)}
        entries += found
        wholes.append(reader.whole)
    if mistakes or not entries:
        raise Mistakes(source or name, list(mistakes.values()), text)
    whole = wholes[0] if len(wholes) == 1 else {"experiment": wholes}
    return File(name, whole, tuple(entries))


def experiment_of(content: Mapping[str, Tree], problem: Problem | None = None) -> Experiment:
    """The one experiment of a table. With `problem`, it is for this one: what the table says of it is passed over."""
    return parse(content, "experiment", origin=FileOrigin(problem=problem))[0].experiment


def _experiments(content: Mapping[str, Tree], allow: Allow) -> Iterator[tuple[Where, Mapping[str, Tree], Raw]]:
    """Every table of [[experiment]]: where it stands, what it says, and that with what is said for all."""
    several = content.get("experiment")
    common = {key: item for key, item in content.items() if key != "experiment"}
    if several is None:
        yield (), {}, common
        return
    for i, own in enumerate(several if isinstance(several, list) else [several]):
        if isinstance(own, dict):
            yield ("experiment", i), own, _merged(common, own, allow)


def _merged(common: Mapping[str, Tree], own: Mapping[str, Tree], allow: Allow) -> Raw:
    """What is said for all under what an experiment says itself: key by key, unless its table is of another kind."""
    found = {**common, **own}
    for key, item in own.items():
        under = common.get(key)
        if not isinstance(item, dict) or not isinstance(under, dict) or {"kind", "class"} & set(item):
            continue
        found[key] = methods.merged(under, item, allow) if key == "algorithm" else {**under, **item}
    return found


def _moved(mistake: FileMistake, where: Where, own: Mapping[str, Tree]) -> FileMistake:
    """A mistake at the place where the file says it: in the experiment's own table, or for all."""
    first, *rest = mistake.path or ("",)
    inside = own.get(str(first))
    elsewhere = first not in own or (isinstance(inside, dict) and bool(rest) and rest[0] not in inside)
    return mistake if elsewhere else replace(mistake, path=(*where, *mistake.path))


class _Reader:
    """Reads the table of an experiment, or of several to compare. Every mistake is noted, and what can be read is."""

    def __init__(self, content: Mapping[str, Tree], origin: FileOrigin, built: dict[str, Built]):
        self.content, self.origin, self.built = content, origin, built
        self.mistakes: list[FileMistake] = []
        self.whole: Raw = {}

    def note(self, path: Where, message: str | FedpointError, *value: Plain) -> None:
        self.mistakes.append(FileMistake(path, str(message), *value))

    def entries(self, name: str) -> list[Entry]:
        """The experiments of the table."""
        needless = {} if self.origin.problem is None else {"problem": None}
        checked, wrong = validated(Content, {**needless, **self.content})
        self.mistakes += wrong
        tables = self._algorithms()
        key, choices = self._timings()
        parts = self._parts()
        built = self._problem()
        network = None if built is None else self._network(built.problem)
        if built is not None and (file := _file_of(self.content.get("start"))):
            try:
                parts["start"] = warm_start((self.origin.base or Path()) / file, built.problem)
            except FedpointError as error:
                self.note(("start",), error)
        watched = checked is not None and checked.evaluation is not None
        if watched and built is not None and built.held_out is None and self.origin.problem is None:
            self.note(
                ("evaluation",), "no rows are held out: set held_out = 0.2 in the problem (test = 0.2 for digits)"
            )
        if self.mistakes or checked is None or built is None:
            if built is not None and not any(m.path[:1] == ("network",) for m in self.mistakes):
                self._together(tables, key, choices, {**parts, "problem": built.problem, "network": network})
            return []
        numbers = checked.model_dump(include={"exact", "seed", "repeats", "record_every", "memories"})
        parts |= {**numbers, "problem": built.problem, "network": network}
        experiments = self._together(tables, key, choices, parts)
        if self.mistakes:
            return []
        self.whole = self._whole(checked, built, [table for _, table in tables], key, choices)
        return self._named(experiments, checked, built, name)

    # The parts.

    def _algorithms(self) -> list[tuple[Where, Raw]]:
        """Every algorithm with one value a key, and where it stands."""
        given = self.content.get("algorithm")
        if given is None:
            return []  # already reported as missing
        if given == []:
            self.note(("algorithm",), "the list is empty: name at least one", given)
        tables: list[tuple[Where, Raw]] = []
        places: list[tuple[Where, Plain]] = [(("algorithm",), given)]
        if isinstance(given, list):
            places = [(("algorithm", i), table) for i, table in enumerate(given)]
        for where, table in places:
            some, wrong = methods.variants(table, where, self.origin.allow)
            tables += [(where, one) for one in some]
            self.mistakes += wrong
        if len(tables) > methods.MOST:
            self.note(("algorithm",), f"makes {len(tables)} runs; compare at most {methods.MOST}")
        return tables

    def _timings(self) -> tuple[str, Choices]:
        """Which of participation and schedule is given, and every one to compare that is right by itself."""
        key = "schedule" if self.content.get("schedule") is not None else "participation"
        given = self.content.get(key)
        if given == []:
            self.note((key,), "the list is empty: give a number, a name or a table", given)
        if key == "schedule" and self.content.get("participation") is not None:
            self.note(("participation",), "a schedule already says who takes part: leave out one of the two")
        found: Choices = []
        for choice in given if isinstance(given, list) else [given]:
            made = None if choice is None else self._one(key, choice, TIMINGS[key])
            found += [(choice, made)] if made is not None or choice is None else []
        return key, found

    def _one(self, key: str, text: Plain, read_own: Reader) -> Tree:
        """A part as its description has it, or as the words of files do."""
        try:
            if isinstance(text, dict) and "class" in text:
                return rebuild_part(key, text, self.origin.allow)
            made, wrong = read_own(text, (key,), self.origin.base)
        except FedpointError as error:
            made, wrong = None, [FileMistake((key,), str(error), text)]
        self.mistakes += wrong
        return made

    def _parts(self) -> dict[str, Tree]:
        """Regions, channel, gather, attack, start, metrics and what is shared, where they are given."""
        readers: dict[str, Reader] = {
            "regions": _read_regions,
            "channel": _read_channels,
            "gather": GATHERS.read,
            "attack": ATTACKS.read,
        }
        given = {key: self.content[key] for key in readers if self.content.get(key) is not None}
        found = {key: self._one(key, text, readers[key]) for key, text in given.items()}
        for key in ("start", "metrics", "share"):
            if self.content.get(key) is not None and not (key == "start" and _file_of(self.content[key])):
                try:
                    found[key] = rebuild_part(key, self.content[key], self.origin.allow)
                except FedpointError as error:
                    self.note((key,), error)
        return found

    def _problem(self) -> Built | None:
        if self.origin.problem is not None:
            return Built(self.origin.problem, None, {})
        if "problem" not in self.content:
            return None  # already reported as missing
        text = self.content["problem"]
        key = json.dumps(text, sort_keys=True, default=str)
        if key not in self.built:
            made, wrong = read_problem(text, ("problem",), self.origin.base, self.origin.allow)
            self.mistakes += wrong
            if made is None:
                return None
            self.built[key] = made
        return self.built[key]

    def _network(self, problem: Problem) -> Network | None:
        text = self.content.get("network")
        if text is None:
            return None
        return self._one("network", text, lambda own, where, base: networks.read(own, where, base, problem))

    # What they make together.

    def _together(
        self,
        tables: Sequence[tuple[Where, Raw]],
        key: str,
        choices: Choices,
        parts: Mapping[str, Tree],
    ) -> list[Experiment]:
        """The experiments; what is right by itself and wrong together is noted, each once."""
        wrong: dict[tuple[Where, str], FileMistake] = {}
        found = []
        good = []
        for choice, timing in choices:
            try:
                _fits(key, timing, parts["problem"], parts["network"])
                good.append(timing)
            except FedpointError as error:
                wrong[(key,), str(error)] = FileMistake((key,), str(error), choice)
        for (where, table), timing in itertools.product(tables, good):
            try:
                e = Experiment(methods.build(table, self.origin.allow), **{**parts, key: timing})
                e.bind().oracle  # noqa: B018 - per-agent numbers and samples that do not fit the data
                found.append(e)
            except FedpointError as error:
                wrong[where, str(error)] = FileMistake(where, str(error))
        self.mistakes += wrong.values()
        return found

    def _whole(self, checked: Content, built: Built, tables: list[Raw], key: str, choices: Choices) -> Raw:
        """The table with its defaults, lists multiplied out: it makes the same experiments anywhere."""
        whole = checked.model_dump(exclude_none=True, exclude={*OWN, *BESIDE})
        who = [absolute(choice, self.origin.base) for choice, _ in choices]
        whole |= {key: who[0] if len(who) == 1 else who, "network": absolute(checked.network, self.origin.base)}
        whole |= {"start": absolute(checked.start, self.origin.base)}
        whole |= {"problem": built.table, "algorithm": tables[0] if len(tables) == 1 else tables}
        return {name: item for name, item in whole.items() if item is not None}

    def _named(self, experiments: list[Experiment], checked: Content, built: Built, name: str) -> list[Entry]:
        """The experiments, algorithms before participations, each by what tells it from the others."""
        key = "schedule" if "schedule" in self.whole else "participation"
        tables, who = self.whole["algorithm"], self.whole.get(key)
        pairs = itertools.product(*(item if isinstance(item, list) else [item] for item in (tables, who)))
        labels = labels_of([e.algorithm for e in experiments], [short(e.timing) for e in experiments])
        common = {k: item for k, item in self.whole.items() if k not in ("algorithm", key)}
        entries, watched = [], checked.evaluation
        held_out = built.held_out if watched is None or built.held_out is None else watched.of(built.held_out)
        for (table, choice), e, label in zip(pairs, experiments, labels, strict=True):
            # A preset has a name of its own, FedAdam say, where its class is FedOpt.
            if table["name"] in makers():
                label = label.replace(e.algorithm.card.title, title_of(table["name"]), 1)
            label = label if not name else name if len(experiments) == 1 else f"{name}: {label}"
            own = {**common, "algorithm": table} | ({} if choice is None else {key: choice})
            entries.append(Entry(label, e, checked.rounds, checked.stop, held_out, own))
        return entries


def _file_of(start: Plain) -> str | None:
    """The file whose model is the start, where a table names one."""
    file = start.get("file") if isinstance(start, dict) else None
    return file if isinstance(file, str) else None


def _fits(key: str, timing: Timing | None, problem: Problem, network: Network | None) -> None:
    """Refuse a timing that does not fit the agents or the network."""
    given: dict[str, Tree] = {key: timing}
    made = check_timing(given.get("participation"), given.get("schedule"), bool(network))
    made.slots(problem.agents)
    if made.on_network:
        made.bind(Context(problem, network=network))
