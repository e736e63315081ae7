"""What is to be run? A TOML file as an `Experiment`: one run, or a comparison; or all its mistakes at once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from fedpoint.algorithms.catalogue import title_of
from fedpoint.config import methods, networks, schedules, schemes
from fedpoint.config.data import Partition
from fedpoint.config.lines import Path as Where
from fedpoint.config.mistakes import NOTHING, Mistake, Mistakes
from fedpoint.config.problems import KINDS, AnyKind, Seed, Table
from fedpoint.config.text import absolute, read_text
from fedpoint.core.algorithm import bind_algorithm
from fedpoint.core.errors import MOST_ROUNDS, FedpointError, nearest
from fedpoint.core.memory_limits import check_room
from fedpoint.data.columns import BadTable
from fedpoint.experiment.checks import check_place, check_timing, check_valid
from fedpoint.graphs.network import Network
from fedpoint.problems.base import Problem
from fedpoint.results.labels import labels_of, short
from fedpoint.store.disk import read_toml as read_toml_text
from fedpoint.timing.base import Context
from fedpoint.timing.schedule import Synchronous

WHO: dict[str, Any] = {"participation": schemes, "schedule": schedules}  # two ways to say who works when


class Content(Table):
    """The keys of a file. Algorithms and participation are validated by their own classes."""

    problem: AnyKind
    algorithm: Any
    participation: Any = None
    network: Any = None
    schedule: Any = None
    rounds: Annotated[int, Field(ge=0, le=MOST_ROUNDS)] = 100
    seed: Seed = 0
    repeats: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    exact: bool = False
    record_every: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = None
    stop: Annotated[float, Field(gt=0)] | None = None
    plan: Any = None  # what `fedpoint plan` reads of the same file


@dataclass(frozen=True)
class Member:
    """One run of an experiment. `content` is the file that would make this run alone."""

    label: str
    algorithm: Any
    participation: Any = None
    schedule: Any = None
    content: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """What a file describes, with the problem built."""

    name: str
    content: dict[str, Any]
    problem: Problem
    held_out: Any
    members: list[Member]
    network: Network | None = None

    @property
    def comparison(self) -> bool:
        return len(self.members) > 1

    @property
    def notes(self) -> list[str]:
        """What was done to the data that the file names."""
        return getattr(self.problem, "notes", [])

    def with_rounds(self, rounds: int) -> Experiment:
        members = [replace(m, content={**m.content, "rounds": rounds}) for m in self.members]
        return replace(self, content={**self.content, "rounds": rounds}, members=members)


def read(path: str | Path, **overrides: Any) -> Experiment:
    """The experiment of a TOML file. `overrides` (rounds, seed) replace what the file says, unless None."""
    path = Path(path)
    content, text = read_toml(path)
    given = {key: value for key, value in overrides.items() if value is not None}
    return parse({**content, **given}, path.stem, text, path.parent, str(path))


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """The content of a TOML file, and its text, in which mistakes are looked up."""
    text = read_text(path, advice=": a TOML file must be")
    try:
        return read_toml_text(text), text
    except ValueError as error:  # numbers of thousands of digits too
        raise FedpointError(f"{path}: {syntax(str(error))}") from None


def syntax(message: str) -> str:
    """tomllib's message, the line first."""
    found = re.fullmatch(r"(.*) \(at (.*)\)", message, re.DOTALL)
    return f"{found.group(2)}: not TOML: {found.group(1)}" if found else f"not TOML: {message}"


def parse(
    content: Mapping[str, Any], name: str, text: str = "", base: Path | None = None, source: str | None = None
) -> Experiment:
    """An experiment from the content of a file; all its mistakes in one error."""
    checked, mistakes = _check_keys(content, base)
    tables, wrong = _algorithms(content)
    mistakes += wrong
    key, choices, wrong = _participations(content, base)
    mistakes += wrong
    wrong = networks.mistakes(content.get("network"), ("network",), base)
    mistakes += wrong
    problem = held_out = network = None
    if not any(m.path[:1] in ((), ("problem",)) for m in mistakes):
        problem, held_out, more = _problem(content["problem"], base)
        mistakes += more
    if problem is not None and not wrong:
        try:
            network = networks.network_of(content.get("network"), base, problem)
        except FedpointError as error:
            mistakes.append(Mistake(("network",), str(error)))
        else:
            mistakes += _misfits(tables, key, choices, problem, network, base)
    if mistakes or checked is None:
        raise Mistakes(source or name, mistakes, text)
    assert problem is not None  # or its mistakes were raised
    whole = _content(checked, [table for _, table in tables], key, choices, base)
    return Experiment(name, whole, problem, held_out, _members(whole, key), network)


def _check_keys(content: Mapping, base: Path | None) -> tuple[Content | None, list[Mistake]]:
    try:
        return Content.model_validate(dict(content), context={"base": base}), []
    except ValidationError as error:
        return None, [_mistake(e) for e in error.errors(include_url=False)]


def _mistake(error: Any) -> Mistake:
    """One of pydantic's errors in our words."""
    kind, path = "", tuple(error["loc"])
    if path[:1] == ("problem",) and len(path) > 1:
        kind, path = path[1], ("problem", *path[2:])  # the kind is in pydantic's path, not in the file's
    value = error["input"]
    match error["type"]:
        case "extra_forbidden":
            known: type[Table] = KINDS[kind] if kind else Content
            if path[:2] == ("problem", "partition") and len(path) > 2:
                known = Partition
            return Mistake(path, f"unknown key; {nearest(str(path[-1]), known.model_fields)}", value)
        case "missing":
            hint = f"; it has a kind: {', '.join(KINDS)}" if path == ("problem",) else ""
            return Mistake(path, f"is missing{hint}")
        case "union_tag_not_found":
            return Mistake(("problem",), f"say its kind: {', '.join(KINDS)}")
        case "union_tag_invalid":
            return Mistake(("problem", "kind"), f"unknown kind; {nearest(str(value['kind']), KINDS)}", value["kind"])
        case "value_error" if path == ("problem",):
            return Mistake(path, methods.must(error["msg"]))
    return Mistake(path, methods.must(error["msg"]), value)


def _algorithms(content: Mapping) -> tuple[list[tuple[Where, dict]], list[Mistake]]:
    """Every algorithm with one value a key, and where it stands."""
    if "algorithm" not in content:
        return [], []  # already reported as missing
    given = content["algorithm"]
    if given == []:
        return [], [Mistake(("algorithm",), "the list is empty: name at least one", given)]
    places: list[tuple[Where, Any]] = [(("algorithm",), given)]
    if isinstance(given, list):
        places = [(("algorithm", i), table) for i, table in enumerate(given)]
    tables, mistakes = [], []
    for where, table in places:
        some, wrong = methods.variants(table, where)
        tables += [(where, one) for one in some]
        mistakes += wrong
    if len(tables) > methods.MOST:
        mistakes.append(Mistake(("algorithm",), f"makes {len(tables)} runs; compare at most {methods.MOST}"))
    return tables, mistakes


def _participations(content: Mapping, base: Path | None) -> tuple[str, list[Any], list[Mistake]]:
    """Every participation or schedule to compare (mostly one), without those that are wrong; and which of the two."""
    key = "schedule" if content.get("schedule") is not None else "participation"
    given = content.get(key)
    choices, mistakes = given if isinstance(given, list) else [given], []
    if given == []:
        mistakes = [Mistake((key,), "the list is empty: give a number, a name or a table", given)]
    if key == "schedule" and content.get("participation") is not None:
        mistakes = [Mistake(("participation",), "a schedule says who works: leave one of the two out")]
    good = []
    for choice in choices:
        wrong = WHO[key].mistakes(choice, (key,), base)
        good += [] if wrong else [choice]
        mistakes += wrong
    return key, good, mistakes


def _problem(table: Any, base: Path | None) -> tuple[Any, Any, list[Mistake]]:
    try:
        kind = TypeAdapter(AnyKind).validate_python(table, context={"base": base})
        check_room(kind.numbers(), "it", "make it smaller")
        problem, held_out = kind.build()
    except BadTable as error:
        return None, None, [_of_table(key, said, table) for key, said in error.shown()]
    except FedpointError as error:
        return None, None, [Mistake(("problem",), str(error))]
    return problem, held_out, []


def _of_table(key: str, said: str, table: Mapping) -> Mistake:
    """A mistake in the data, at the key that leads there."""
    if key in ("file", "files"):
        return Mistake(("problem", "files" if "files" in table else "file"), said)
    return Mistake(("problem", key), said, table.get(key, NOTHING))


def _misfits(
    tables: list, key: str, choices: list, problem: Problem, network: Network | None, base: Path | None
) -> list[Mistake]:
    """What is right by itself and wrong together: more participants than agents, lists of a wrong length, ..."""
    wrong = {}
    for choice in choices:
        scheme = WHO[key].scheme_of(choice, base)
        if network is not None and choice is None:
            scheme = Synchronous()
        try:
            given = {key: None if choice is None else scheme}
            check_timing(given.get("participation"), given.get("schedule"), network is not None)
            scheme.slots(problem.agents)
            if network is not None:
                scheme.bind(Context(problem, network=network))
        except FedpointError as error:
            wrong[key, str(error)] = Mistake((key,), str(error), choice)
        for where, table in tables:
            try:
                algorithm = methods.build(table)
                check_place(algorithm, network)
                check_valid(algorithm, scheme)
                problem.prepare(bind_algorithm(algorithm, problem))
            except FedpointError as error:
                wrong[where, str(error)] = Mistake(where, str(error))
    return list(wrong.values())


def _content(checked: Content, tables: list, key: str, choices: list, base: Path | None) -> dict[str, Any]:
    """The whole content with its defaults, lists multiplied out: it makes the same experiment anywhere."""
    own = {"algorithm", "participation", "schedule", "network", "problem", "plan"}
    whole = checked.model_dump(exclude_none=True, exclude=own)
    who = [absolute(choice, base) for choice in choices]
    asked = {} if who == [None] else {key: who[0] if len(who) == 1 else who}
    if checked.network is not None:
        asked["network"] = absolute(checked.network, base)
    return {
        **whole,
        **asked,
        "problem": checked.problem.content(),
        "algorithm": tables[0] if len(tables) == 1 else tables,
    }


def _members(content: dict[str, Any], key: str) -> list[Member]:
    """The runs of an experiment, algorithms before participations."""
    tables, who = content["algorithm"], content.get(key)
    tables = tables if isinstance(tables, list) else [tables]
    pairs = list(itertools.product(tables, who if isinstance(who, list) else [who]))
    algorithms = [methods.build(table) for table, _ in pairs]
    with_hub = key == "participation" and "network" not in content
    choices = [WHO[key].scheme_of(choice) if choice is not None or with_hub else None for _, choice in pairs]
    labels = labels_of(algorithms, [short(scheme) for scheme in choices])
    members = []
    for (table, choice), algorithm, scheme, label in zip(pairs, algorithms, choices, labels, strict=True):
        # A preset has a name of its own, FedAdam say, where its class is FedOpt.
        label = label.replace(type(algorithm).card.title, title_of(table["name"]), 1)
        own = {name: value for name, value in content.items() if name not in ("algorithm", key)}
        own |= {"algorithm": table} | ({} if choice is None else {key: choice})
        members.append(Member(label, algorithm, content=own, **{key: scheme}))
    return members


def experiment_of(content: Mapping[str, Any], problem: Problem | None = None) -> Any:
    """The one experiment of a table."""
    from fedpoint.experiment.experiment import Experiment as Asked

    made = parse(content, "experiment")
    member = made.members[0]
    numbers = {key: made.content[key] for key in ("exact", "seed", "repeats")}
    return Asked(
        member.algorithm,
        problem or made.problem,
        participation=member.participation,
        network=made.network,
        schedule=member.schedule,
        record_every=made.content.get("record_every"),
        **numbers,
    )
