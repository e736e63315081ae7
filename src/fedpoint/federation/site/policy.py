"""Which studies does a site take part in without asking a person? Those that a file at the site allows, item by item.

    studies = ["dialysis"]                         # names; default: any
    sites = ["north", "south", "west"]             # with whom; default: with any. A leader could make sites of its own
    purpose = "quality of care"                    # what a study may be for; default: one that says nothing
    data = "/srv/dialysis.csv"                     # the table that is used
    columns = ["died", "age", "sex", "months"]     # that may be read, the target among them
    models = ["logistic"]                          # or the names of installed ones
    options = {tumour = {width = 32}}              # what a study may say to an installed model; default: nothing
    methods = ["scaffold", "fedavg"]
    rounds = 100                                   # of a run, at most
    runs = 10                                      # at most, of all studies of this site's data together
    measurements = 1                               # of a run, at most
    measures = ["loss", "accuracy"]                # what a measurement may tell
    epsilon = 3.0                                  # at most, of all studies together; one without privacy then waits
    delta = 1e-5                                   # at most, of a study with privacy
    secure = true                                  # only studies whose server sees sums alone
    floor = {rows = 20, per_category = 5, per_class = 5}

What a study says and the policy does not cover waits for a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from fedpoint.config.experiment import read_toml
from fedpoint.config.kinds import Count, Positive, Table
from fedpoint.config.mistakes import Mistakes, validated
from fedpoint.core.files import read_file
from fedpoint.core.numbers import counted
from fedpoint.core.types import Plain
from fedpoint.federation.site.disclosure import Floor
from fedpoint.federation.site.engagement import Engagement, at_work, engagements
from fedpoint.federation.site.stop import ORDERS
from fedpoint.federation.study import Study
from fedpoint.store.disk import read_object

FILE = "policy.toml"
OF = "of earlier versions and other studies"
COVERED = {  # what a study may say without a person looking at it; the rest is compared below, or waits
    "name", "sites", "server", "rounds", "runs", "measurements", "deadline", "quorum", "patience", "norm_cap", "rows",
    "on_alarm", "participation", "repeats", "seed", "record_every", "exact", "problem", "algorithm", "privacy",
    "secure", "measures", "share_model", "purpose",
}  # fmt: skip


class FloorTable(Table):
    """As `Floor`, whose own checks follow."""

    rows: Count = 20
    per_category: Count = 5
    per_class: Count = 5

    @model_validator(mode="after")
    def _is_a_floor(self) -> Self:
        self.floor()
        return self

    def floor(self) -> Floor:
        return Floor(self.rows, self.per_category, self.per_class)


class Policy(Table):
    """What a site has written down."""

    studies: list[str] | None = None
    sites: list[str] | None = None
    purpose: str | None = None
    data: str | None = None
    columns: list[str] = []
    models: list[str] = []
    options: dict[str, dict[str, JsonValue]] = {}
    methods: list[str]
    rounds: Count
    runs: Count
    measurements: Annotated[int, Field(ge=0)] = 1
    measures: list[str] = ["loss", "accuracy"]
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    secure: bool = False
    floor: FloorTable = FloorTable()

    def objections(self, study: Study, used: Used) -> list[str]:
        """Why a study waits for a person; empty where the policy allows it."""
        said = [f"it says {key}, which the policy does not cover" for key in sorted(study.content.keys() - COVERED)]
        if self.studies is not None and study.name not in self.studies:
            said.append(f"the study is {study.name}; the policy is for {_listed(self.studies)}")
        strangers = [] if self.sites is None else [site for site in study.sites if site not in self.sites]
        if strangers:
            said.append(f"its sites are {_listed(strangers)} too; the policy is for {_listed(self.sites or [])}")
        if study.terms.purpose not in (None, self.purpose):
            said.append(f"its purpose is {study.terms.purpose!r}; the policy is for {self.purpose or 'none'!r}")
        said += [
            f"the method is {method}; the policy allows {_listed(self.methods)}"
            for method in _methods(study.algorithm)
            if method not in self.methods
        ]
        said += self._about_data(study)
        more = [measure for measure in study.terms.measures if measure not in self.measures]
        if more:
            said.append(f"its measurements tell {_listed(more)}; the policy allows {_listed(self.measures)}")
        for what, asked, most in (
            ("rounds", study.rounds, self.rounds),
            ("measurements", study.terms.measurements, self.measurements),
        ):
            if asked > most:
                said.append(f"{what} is {asked}; the policy allows {most}")
        runs = used.runs + study.terms.runs
        if runs > self.runs:
            before = f" after {counted(used.runs, 'run')} {OF}" if used.runs else ""
            said.append(f"runs is {study.terms.runs}{before}; the policy allows {self.runs} in all")
        return said + self._about_privacy(study, used)

    def _about_data(self, study: Study) -> list[str]:
        if not study.of_files:
            return []  # each site makes its own part of the problem: no file is read
        said = [] if self.data else ["it reads a table; the policy names none (data)"]
        table, model = study.table, study.installed
        name = model.name if model is not None else table.model if table is not None else ""
        if name not in self.models:
            said.append(f"the model is {name}; the policy allows {_listed(self.models)}")
        if model is not None:  # it reads what it reads; what a study says to it might be which rows
            allowed = self.options.get(model.name, {})
            told = [key for key, value in model.options.items() if key not in allowed or allowed[key] != value]
            said += [f"it says {key} = {model.options[key]!r} to the model, which the policy does not" for key in told]
        if table is None:
            return said
        more = [column for column in table.reads if column not in self.columns]
        if more:
            said.append(f"it reads {_listed(more)}; the policy allows {_listed(self.columns)}")
        return said

    def _about_privacy(self, study: Study, used: Used) -> list[str]:
        said = []
        if self.secure and study.content.get("secure") is not True:
            said.append("its server sees each site's answers; the policy wants secure = true")
        if self.epsilon is not None:
            epsilon, privacy = epsilon_of(study.content), study.terms.privacy
            if privacy is not None and privacy.delta > self.delta:
                said.append(f"delta is {privacy.delta:g}; the policy allows {self.delta:g}")
            if epsilon is None:
                said.append(f"it promises no privacy; the policy wants epsilon of at most {self.epsilon:g}")
            elif used.epsilon + epsilon > self.epsilon:
                before = f" after {used.epsilon:g} {OF}" if used.epsilon else ""
                said.append(f"epsilon is {epsilon:g}{before}; the policy allows {self.epsilon:g} in all")
        return said


class Used(Table):
    """What other studies of this site's data, and earlier versions of this one, have used up or still may."""

    runs: int = 0
    epsilon: float = 0.0


def used_before(kit: Path, part: Engagement) -> Used:
    """What was approved before: of what is no longer at work the runs that were begun, of other studies all that was
    agreed to. Otherwise a leader could have as much as it likes under ever new names."""
    used = Used()
    for one in engagements(kit):
        if one.approved and one.title != part.title and one.study.of_files:
            still = one.name != part.name and at_work(kit, one.title) is not None
            runs = one.study.terms.runs if still else _begun(one)
            used = Used(
                runs=used.runs + runs, epsilon=used.epsilon + (epsilon_of(one.study.content) or 0.0) * bool(runs)
            )
    return used


def _begun(part: Engagement) -> int:
    """The runs of a version that were begun here."""
    orders = part.records / ORDERS
    begun = read_object(read_file(orders)).get("studies") if orders.exists() else {}
    return len(begun.get(part.fingerprint) or {}) if isinstance(begun, dict) else 0


def _methods(algorithm: Mapping[str, Plain]) -> list[str]:
    """The name of a method, and of those that it is around."""
    inner = algorithm.get("inner")
    return [str(algorithm.get("name")), *(_methods(inner) if isinstance(inner, Mapping) else [])]


def epsilon_of(content: Mapping[str, Plain]) -> float | None:
    """What a study promises of privacy; None where it promises nothing."""
    privacy = content.get("privacy")
    epsilon = privacy.get("epsilon") if isinstance(privacy, Mapping) else None
    return float(epsilon) if isinstance(epsilon, int | float) else None


def read_policy(kit: Path) -> Policy | None:
    """The policy in a site's kit; None where there is none, and a person decides."""
    path = kit / FILE
    if not path.exists():
        return None
    content, text = read_toml(path)
    made, wrong = validated(Policy, content)
    if made is None or wrong:
        raise Mistakes(str(path), wrong, text)
    return made


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
