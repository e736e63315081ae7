"""What is to be planned? The [problem] of a TOML file, and its [plan]; or all its mistakes at once.

    [plan]
    target = 1e-3
    measure = "error"                       # or "loss"
    minimise = "time"                       # or "communication", "bytes", "computation"
    prices = {per_float = 1e-8, per_message = 0.05, per_gradient = 1e-4}
    budget = 60.0
    confidence = 0.95                       # of single runs that reach the target; without: their mean does
    seconds = 30.0                          # for the search, which then returns the best so far
    privacy = {epsilon = 2.0, delta = 1e-5} # that a run may spend: clip, noise and rounds are chosen together
    methods = ["fedavg", {name = "fedprox", pull = 2.0}]
    local_steps = [1, 4, 16]
    server_steps = [2.0, 4.0]               # how many times as far the hub may go, beside once
    participation = ["everyone", 10, {scheme = "importance", count = 5}]

Only the target has to be there. What the file says for `fedpoint run` is passed over, but for `exact` and `seed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypedDict, Unpack, cast

from pydantic import Field, JsonValue, SkipValidation

from fedpoint.algorithms.catalogue import find_maker
from fedpoint.config import methods, schemes
from fedpoint.config.experiment import Content, read_toml
from fedpoint.config.kinds import Seed, Table
from fedpoint.config.mistakes import FileMistake, Mistakes, validated
from fedpoint.config.problems import read_problem
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.types import Plain
from fedpoint.privacy import Privacy
from fedpoint.problems.base import Problem
from fedpoint.theory.planning_cost import Prices
from fedpoint.timing.schemes import Participation
from fedpoint.verbs.plan.planner import PlanOptions

Cost = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class Overrides(TypedDict, total=False):
    """What the command line may say instead of the file; None: what the file says."""

    target: float | None
    budget: float | None
    minimise: str | None
    measure: str | None
    confidence: float | None
    seconds: float | None
    seed: int | None


class PriceTable(Table):
    """What sending and computing cost, in seconds."""

    explained_by = (Prices,)
    per_float: Cost = 0.0
    per_message: Cost = 0.0
    per_gradient: Cost = 0.0
    parallel: bool = False


class PrivacyTable(Table):
    """The privacy that a run may spend."""

    explained_by = (Privacy,)
    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]


class PlanTable(Table):
    """The keys of [plan].

    Args:
        target: the error (or loss above its minimum) to reach.
        measure: "error": E|w - w*|^2; "loss": the loss above its minimum.
        minimise: "communication" (numbers sent), "bytes", "computation" (evaluations of local fields) or "time".
        prices: what things cost in seconds, for "time".
        budget: at most so much of what is minimised.
        rounds: at most so many.
        confidence: promise that so large a share of single runs reaches the target, instead of the mean.
        seconds: for the search.
        privacy: what a run may spend.
        methods: names or tables of methods; left out: those whose floor is known.
        local_steps: numbers to choose from.
        server_steps: factors of the hub's step to choose from beside 1.
        participation: numbers of participants, or schemes, to choose from.
    """

    target: Positive = Field(description="write target = ... into [plan], or give --target")
    measure: Literal["error", "loss"] = "error"
    minimise: Literal["communication", "bytes", "computation", "time"] = "communication"
    prices: PriceTable | None = None
    budget: Positive | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None
    confidence: Annotated[float, Field(ge=0.5, lt=1)] | None = None
    seconds: Positive | None = None
    privacy: PrivacyTable | None = None
    methods: SkipValidation[list[JsonValue]] | None = None
    local_steps: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] | None = None
    server_steps: Annotated[list[Positive], Field(min_length=1)] | None = None
    participation: SkipValidation[list[JsonValue]] | None = None


class PlanContent(Table):
    """The keys of a file that a plan reads.

    Args:
        problem: as in the file of an experiment.
        plan: what to reach, and at which costs.
        seed: of runs that verify a choice.
        exact: exact fields: no sampling noise.
    """

    problem: SkipValidation[JsonValue]
    plan: PlanTable
    seed: Seed = 0
    exact: bool = False


class Arguments(PlanOptions, total=False):
    """Those of `fp.plan` beside the problem."""

    target: float
    methods: list[str | Algorithm]
    local_steps: list[int]
    participation: list[Participation | int]


@dataclass(frozen=True)
class Planned:
    """What a file asks a plan for: the problem, and the arguments of `fp.plan`."""

    name: str
    problem: Problem
    arguments: Arguments


def read_plan(path: str | Path, **instead: Unpack[Overrides]) -> Planned:
    """The plan of a TOML file, with what is given instead."""
    path = Path(path)
    content, text = read_toml(path)
    given = cast(dict[str, Plain], {key: value for key, value in instead.items() if value is not None})
    seed = {"seed": given.pop("seed")} if "seed" in given else {}
    table = content.get("plan", {})
    if isinstance(table, Mapping):
        content = {**content, "plan": {**table, **given}, **seed}
    return _parse(content, path, text)


def _parse(content: Mapping[str, Plain], path: Path, text: str) -> Planned:
    known = {*Content.model_fields, *PlanContent.model_fields}
    wrong = [
        FileMistake((key,), f"unknown key; {nearest(key, known)}", value)
        for key, value in content.items()
        if key not in known
    ]
    checked, mistakes = validated(PlanContent, {k: v for k, v in content.items() if k in PlanContent.model_fields})
    wrong += mistakes
    table = content.get("plan")
    table = table if isinstance(table, Mapping) else {}
    chosen, mistakes = _methods(table.get("methods"))
    wrong += mistakes
    who, mistakes = _schemes(table.get("participation"), path.parent)
    wrong += mistakes
    built, mistakes = read_problem(content["problem"], base=path.parent) if "problem" in content else (None, [])
    wrong += mistakes
    if wrong or checked is None or built is None:
        raise Mistakes(str(path), wrong, text)
    arguments = cast(
        Arguments, checked.plan.model_dump(exclude={"methods", "participation", "prices", "privacy"}, exclude_none=True)
    )
    if checked.plan.prices is not None:
        arguments["prices"] = Prices(**checked.plan.prices.model_dump())
    if checked.plan.privacy is not None:
        arguments["privacy"] = Privacy(**checked.plan.privacy.model_dump())
    if chosen is not None:
        arguments["methods"] = chosen
    if who is not None:
        arguments["participation"] = who
    return Planned(path.stem, built.problem, {**arguments, "seed": checked.seed, "exact": checked.exact})


def _methods(given: Plain) -> tuple[list[str | Algorithm] | None, list[FileMistake]]:
    if not isinstance(given, list):
        return None, []
    found: list[str | Algorithm] = []
    wrong = []
    if not given:
        wrong.append(FileMistake(("plan", "methods"), "the list is empty: name at least one", given))
    for i, one in enumerate(given):
        try:
            if isinstance(one, Mapping):
                found.append(methods.build({"step": 1.0, **one}))
            else:
                found.append(find_maker(cast(str, one))[0])  # which refuses what is no name
        except (FedpointError, KeyError) as error:
            what = 'must have a name, for instance {name = "fedprox"}' if isinstance(error, KeyError) else str(error)
            wrong.append(FileMistake(("plan", "methods", i), what, one))
    return found, wrong


def _schemes(given: Plain, base: Path) -> tuple[list[Participation | int] | None, list[FileMistake]]:
    if not isinstance(given, list):
        return None, []
    wrong = [m for one in given for m in schemes.mistakes(one, ("plan", "participation"), base)]
    if not given:
        wrong.append(
            FileMistake(("plan", "participation"), "the list is empty: give a number, a name or a table", given)
        )
    return (None if wrong else [schemes.scheme_of(one, base) for one in given]), wrong
