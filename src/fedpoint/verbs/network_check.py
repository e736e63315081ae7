"""Did it happen on a network? A run beside its forecast: path, floor, and what is certain under its schedule."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from fedpoint.experiment.experiment import Experiment
from fedpoint.results.network_forecast import NetworkForecast
from fedpoint.results.verdict import EXACT, THRESHOLD, Check, Verdict
from fedpoint.verbs.network_forecast import network_forecast

ROUNDING = 1e-20  # of the squared error at the start: below it a run only rounds
FEW = 4  # repeats, from which a mean has a standard error worth the name
SETTLED = 1e-3  # of the start: what the mean has forgotten where the tail begins


def check_network(run: Any, experiment: Experiment) -> Verdict:
    """The verdict on a run on a network; see `fp.check`."""
    algorithm = experiment.algorithm
    f = network_forecast(experiment)
    checks = [_path(run, f), _certain(run, f), _floor(run, f)]
    made = [c for c in checks if c.ok is not None]
    wrong = [c for c in made if not c.ok]
    if wrong:
        words = f"{type(algorithm).card.title} on this network does not do what its forecast says: {wrong[0].words}"
    elif made:
        words = f"{type(algorithm).card.title} does what its forecast says"
    else:
        words = "nothing could be compared: " + "; ".join(c.words for c in checks)
    return Verdict(not wrong, words, checks, f)


def _path(run: Any, f: NetworkForecast) -> Check:
    if not (f.noiseless and f.in_step) or run.error is None:
        return Check("path", None, None, None, None, "only without noise, all nodes working in every round")
    expected = f.curve(int(run.rounds[-1]))[run.rounds]
    some = expected > ROUNDING * expected[0]
    gap = np.abs(run.error[:, some] / expected[some] - 1).max(initial=0.0)
    return Check("path", gap <= EXACT, gap, 0.0, None, f"follows the forecast to {gap:.1e} (relative)")


def _certain(run: Any, f: NetworkForecast) -> Check:
    kappa = f.contraction.kappa
    if not f.noiseless or f.schedule.bound() is None or kappa is None or f.limit is None:
        return Check("bound", None, None, None, None, "no bound holds here")
    pairs = zip(jax.tree.leaves(run.history), jax.tree.leaves(f.limit), strict=True)
    squares = sum(((a - b) ** 2).reshape(*a.shape[:3], -1).sum(-1) for a, b in pairs)
    far = np.sqrt(squares).max(axis=2)
    safe = f.bound(int(run.rounds[-1])).safe[run.rounds]
    over = float((far / np.maximum(safe * far[:, :1] + 1e-12, 1e-300)).max())
    return Check("bound", over <= 1 + 1e-9, over, 1.0, None, f"at most {over:.3g} of what the contraction allows")


def _floor(run: Any, f: NetworkForecast) -> Check:
    if f.noiseless or f.floor is None or not f.in_step or run.error is None or f.rate is None:
        return Check("floor", None, None, None, None, "no noise, or no forecast of it")
    first = math.log(SETTLED) / math.log(max(f.rate, 1e-3)) if f.rate < 1 else math.inf
    tail = run.error[:, run.rounds > first]
    if len(tail) < FEW or tail.shape[1] < 1:
        return Check("floor", None, None, f.floor, None, f"needs {FEW} repeats and more than {first:.0f} rounds")
    means = tail.mean(1)
    z = (means.mean() - f.floor) / (means.std(ddof=1) / math.sqrt(len(means)))
    words = f"settles at {means.mean():.4g}, forecast {f.floor:.4g}"
    return Check("floor", abs(z) <= THRESHOLD, means.mean(), f.floor, z, words)
