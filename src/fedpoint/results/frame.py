"""A run as a data frame of pandas, which need not be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.errors import FedpointError

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedpoint.results.run import Run


def frame_of(run: Run) -> DataFrame:
    """A row for each recorded round of each repeat, repeats one after the other."""
    try:
        import pandas
    except ImportError:
        raise FedpointError("to_frame needs pandas, which is not installed: pip install pandas") from None
    repeats, n = run.used.shape[:2]
    columns = {"round": np.tile(run.rounds, repeats), "repeat": np.repeat(np.arange(repeats), n)}
    columns |= {name: values.reshape(repeats * n) for name, values in _values(run).items()}
    return pandas.DataFrame(columns)


def _values(run: Run) -> dict[str, np.ndarray]:
    """(repeats, n) of every column."""
    found = {"error": run.error} if run.has_error else {}
    found |= {"loss": run.loss} if run.has_loss else {}
    asked, heard, evaluations = np.moveaxis(np.asarray(run.used), -1, 0)
    down, up, width, up_bytes = run.info.message
    found |= {"messages": asked + heard, "floats": asked * down + heard * up}
    found |= {"bytes": asked * down * width + heard * up_bytes, "evaluations": evaluations}
    for name, values in run.metrics.items():
        found |= _single(name, np.asarray(values))
    for name, values in run.evaluation.items():
        whole = np.full(run.used.shape[:2], np.nan)
        whole[:, np.searchsorted(run.rounds, run.evaluated_rounds)] = values
        found[f"held-out {name.removeprefix('held-out ')}"] = whole
    return found


def _single(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """A metric of several numbers as a column for each of them."""
    if values.ndim == 2:
        return {name: values}
    places = np.ndindex(values.shape[2:])
    return {f"{name}[{','.join(map(str, at))}]": values[:, :, *at] for at in places}
