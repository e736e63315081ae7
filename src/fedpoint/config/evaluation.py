"""When are the rows that a file holds out looked at?

[evaluation]
every = 10
patience = 5
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedpoint.config.kinds import Table
from fedpoint.core.types import Data
from fedpoint.metrics.evaluation import Evaluation


class EvaluationTable(Table):
    """Held-out rows, looked at every so many rounds while a run goes on."""

    explained_by = (Evaluation,)
    every: Annotated[int, Field(ge=1)] = 1
    patience: Annotated[int, Field(ge=1)] | None = None
    on: str | None = None
    higher: bool | None = None

    def of(self, held_out: Data) -> Evaluation:
        """With the rows that the file holds out."""
        return Evaluation(held_out, **self.model_dump())
