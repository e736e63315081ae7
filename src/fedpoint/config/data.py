"""How does a file name a table? A CSV or Parquet file, or one per agent, and what its columns are.

    [problem]
    kind = "table"
    file = "loans.csv"        # or files = "sites/*.csv", or a list: one per agent
    target = "default"
    agent = "bank"            # or partition = {kind = "dirichlet", agents = 100, alpha = 0.1}
    held_out = 0.2

Paths are relative to the TOML file. The folder of a run notes the files' SHA-256, so that a run is never continued
with other data.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from fedpoint.config.kinds import Agents, Count, Kind, Positive, Sampling, Seed, Table, Variance
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Data, Plain
from fedpoint.data.columns import opened, shown
from fedpoint.data.pieces import files_of
from fedpoint.data.tables import read_table
from fedpoint.problems.base import Problem


class Partition(Table):
    """Whose row it is, in an experiment: `fp.data.partition`.

    Args:
        kind: "natural": by the column `agent` of the file; else as in `fp.data.partition`.
        agents: how many.
        alpha: of the Dirichlet kinds.
        classes: per agent, of shards.
        seed: of the draw.
    """

    kind: Literal["natural", "iid", "dirichlet", "shards", "quantity"]
    agents: Agents | None = None
    alpha: Positive | None = None
    classes: Count | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _options(self) -> Self:
        given = self.model_fields_set - {"kind", "seed"}
        known = {"natural": set(), "iid": {"agents"}, "shards": {"agents", "classes"}}
        unknown = given - known.get(self.kind, {"agents", "alpha"})
        if unknown:
            raise ValueError(f"{self.kind} has no {', '.join(sorted(unknown))}")
        if self.kind != "natural" and self.agents is None:
            raise ValueError(f'missing the number of agents: write {{kind = "{self.kind}", agents = ...}}')
        return self


class TableFile(Kind):
    """Rows of CSV or Parquet files: least squares for a number, logistic or softmax regression for classes.

    Args:
        file: the path, from the TOML file's folder on.
        files: one per agent: paths, or a pattern such as "sites/*.csv".
        target: the column to predict.
        agent: the column that says whose row it is.
        partition: in place of `agent`, for experiments.
        model: "linear" for a number, "logistic" or "softmax" for classes; left out: what fits the target.
        features: the columns to use; left out: all but those in `leave_out`.
        leave_out: columns that are not used.
        categorical: columns of numbers or dates that are names in fact.
        missing: "refuse" cells without a value, "drop" their rows, or fill in the "mean" of all agents.
        scale: columns of numbers to mean 0 and variance 1.
        separator: of the cells.
        held_out: the share of each agent's rows that nobody trains on.
        ridge: rho of rho/2 |w|^2.
        intercept: append a column of ones.
        sha256: of the files when the run was begun; runs write it.
    """

    kind: Literal["table"]
    file: str | None = None
    files: str | list[str] | None = None
    target: str
    agent: str | None = None
    partition: Partition | None = None
    model: Literal["linear", "logistic", "softmax"] | None = None
    features: list[str] | None = None
    leave_out: list[str] | None = None
    categorical: list[str] | None = None
    missing: Literal["refuse", "mean", "drop"] = "refuse"
    scale: bool = True
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    held_out: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    ridge: Variance | None = None
    intercept: bool = True
    batch: Count | None = None
    sampling: Sampling = "iid"
    weights: list[Positive] | None = None
    seed: Seed = 0
    sha256: str | None = None  # of the files, when the run was begun

    @model_validator(mode="after")
    def _whose(self) -> Self:
        if (self.file is None) == (self.files is None):
            raise ValueError("give either file, or files: one per agent")
        spread = self.partition is not None and self.partition.kind != "natural"
        if spread and self.agent is not None:
            raise ValueError("a partition assigns rows to agents: leave out either agent or the partition")
        if not spread and self.agent is None and self.file is not None:
            raise ValueError("which agent does a row belong to? Give agent = COLUMN, or a partition")
        return self

    @model_validator(mode="after")
    def _relative(self, info: ValidationInfo) -> Self:
        """Paths from the folder of the TOML file on."""
        base = Path((info.context or {}).get("base") or "")
        if self.file is not None:
            self.file = str((base / self.file).absolute())
        elif self.files is not None:
            some = self.files if isinstance(self.files, list) else [self.files]
            absolute = [str((base / one).absolute()) for one in some]
            self.files = absolute if isinstance(self.files, list) else absolute[0]
        return self

    def content(self) -> dict[str, Plain]:
        return {**super().content(), "sha256": self._fingerprint()}

    def _fingerprint(self) -> str:
        """Of names and contents."""
        sha = hashlib.sha256()
        for path in [Path(self.file)] if self.file is not None else files_of(self.files or ()):
            with opened(path) as file:
                sha.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()};".encode())
        return sha.hexdigest()

    def build(self) -> tuple[Problem, Data]:
        if self.sha256 is not None and self.sha256 != self._fingerprint():
            what = shown(self.file) if self.file is not None else f"files = {self.files!r}"
            raise FedpointError(f"{what}: the data have changed since the run was begun; start a new run")
        table = read_table(
            self.file if self.file is not None else self.files,
            self.target,
            self.agent,
            model=self.model,
            features=self.features,
            leave_out=self.leave_out or (),
            categorical=self.categorical or (),
            missing=self.missing,
            scale=self.scale,
            held_out=self.held_out,
            partition=None if self.partition is None else self.partition.model_dump(exclude_none=True),
            seed=self.seed,
            separator=self.separator,
        )
        problem = table.problem(self.model, self.ridge, self.batch, self.sampling, self.weights, self.intercept)
        return problem, table.evaluation(problem)
