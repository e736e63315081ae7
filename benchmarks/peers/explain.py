"""Why does a peer's SCAFFOLD end at another model? A plain loop with one thing done otherwise, and what it ends at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import common
import numpy as np

# What is done otherwise: the sign of what an agent's control learns, and whose share of all agents moves the server's.
VARIANTS: dict[str, dict[str, Any]] = {
    "an agent's control learns from its change of the model with the opposite sign": {"sign": -1.0},
    "the server's control moves by the mean change of those who took part, whatever part of all they are": {
        "share": 1.0
    },
}


def scaffold(job: common.Job, rounds: int, sign: float = 1.0, share: float | None = None) -> np.ndarray:
    """The model after so many rounds: c_k+ = c_k - c + sign (w - y) / (E step), c+ = c + share mean_k (c_k+ - c_k)."""
    w = job.parameters["w"].astype(float)
    c, own = 0.0 * w, np.zeros((job.agents, *w.shape))
    for r in range(rounds):
        ends, changes, who = [], [], job.participants(r)
        for k in who:
            y, batches = w, job.batches(r, k)
            for rows in batches:
                y = y - job.step * (common.gradient(job, {"w": y}, rows)["w"] - own[k] + c)
            changes.append(sign * (w - y) / (len(batches) * job.step) - c)
            ends.append(y)
            own[k] += changes[-1]
        w = np.mean(ends, axis=0)
        c = c + (len(who) / job.agents if share is None else share) * np.mean(changes, axis=0)
    return common.flatten({"w": w})


def explain(folder: Path, model: np.ndarray, rounds: int) -> tuple[str, float]:
    """The variant that comes closest to a model, and how close, relative."""
    job, found = common.Job(folder), []
    for name, options in VARIANTS.items():
        with np.errstate(all="ignore"):  # some diverge
            end = scaffold(job, rounds, **options)
        apart = np.abs(end - model).max() / (1 + np.abs(model).max())
        found.append((float(apart) if np.isfinite(apart) else np.inf, name))
    apart, name = min(found)
    return name, apart
