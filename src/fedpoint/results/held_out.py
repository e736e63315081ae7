"""How well does a finished run do on held-out rows?"""

from __future__ import annotations

import numpy as np

from fedpoint.core.types import Data
from fedpoint.engine.base import measured
from fedpoint.metrics.held_out import HeldOut
from fedpoint.results.info import take_record
from fedpoint.results.run import Run

MOST = 200  # recorded rounds that are evaluated


def at_records(run: Run, data: Data) -> None:
    """Held-out metrics at (at most 200 of) the recorded rounds, into `run.evaluation`."""
    measure = run.session.measure(data)
    if run.info.fitted:
        at = np.array([round for round in run.rounds if round in run.session.watched], int)
        rows = [[run.session.watched[round][r] for round in at] for r in range(run.repeats)]
        run.evaluated_rounds, run.evaluation = at, _by_name(rows)
        return
    n = len(run.rounds)
    chosen = np.unique(np.linspace(0, n - 1, min(n, MOST)).round().astype(int))
    at_records = [[take_record(run.history, r, i) for i in chosen] for r in range(run.repeats)]
    run.evaluated_rounds = run.rounds[chosen]
    run.evaluation = _by_name([[measured(measure, model) for model in models] for models in at_records])
    at_end(run, data)


def at_end(run: Run, data: Data) -> None:
    """The agents' own metrics of the final model, into `run.held_out`."""
    measure = run.session.measure(data)
    if isinstance(measure, HeldOut) and measure.agent is not None:
        each = [measure.agents(run.final(r)) or {} for r in range(run.repeats)]
        run.held_out = {name: np.stack([found[name] for found in each]) for name in each[0]}


def _by_name(rows: list[list[dict[str, float]]]) -> dict[str, np.ndarray]:
    """(repeats, m) of each name, of dictionaries by repeat and record."""
    names = rows[0][0] if rows and rows[0] else ()
    return {name: np.array([[found[name] for found in row] for row in rows]) for name in names}
