"""What must happen? A forecast: where a run ends, how far from the optimum, how fast and how noisy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fedpoint.core.errors import FedpointError, check_count, check_number
from fedpoint.results import forecast_text as words
from fedpoint.theory.assumptions import Condition, assumptions
from fedpoint.theory.bounds import Bound, bounds
from fedpoint.theory.closed_forms import closed_forms
from fedpoint.theory.moments import along_path
from fedpoint.theory.operator import Setting
from fedpoint.theory.sampled import LARGEST, Sampled, sampled_floor
from fedpoint.theory.steady import Iterated, Steady, fixed_point, iterate, mean_rate

LARGEST_STATE = 2500  # numbers of a state whose covariance is computed
LARGEST_MODEL = 200
LONGEST = 1 << 22  # rounds that `rounds_to` looks ahead


class Rounds(float):
    """A number of rounds; infinite when the target is never reached, and then `reason` says why."""

    reason: str

    def __new__(cls, value: float, reason: str = ""):
        self = super().__new__(cls, value)
        self.reason = reason
        return self

    def __repr__(self) -> str:
        return f"never: {self.reason}" if math.isinf(self) else f"{int(self)}"

    __str__ = __repr__


class Forecast:
    """What theory says of a run before it runs. Everything is computed when first asked for.

    limit: the fixed point of the expected round, reached from the start. bias: its distance to w*.
    rate, rate_ms: factor per round of the mean's and of the second moment's deviation, asymptotically.
    floor: E|w - w*|^2 once settled = bias^2 + variance. inf when it diverges; None where it is not computed (`notes`).
    notes: what is exact, what is approximate, what is left out, and why.
    """

    proviso = ""  # nothing is left out of the curve

    def __init__(self, setting: Setting, floor: str, around: Any, measure: str):
        self.setting, self._how, self.around, self._seed = setting, floor, around, setting.bound.experiment.seed
        self.measure = measure
        self.algorithm, self.problem, self.timing = setting.algorithm, setting.problem, setting.timing
        self.exact_fields = setting.exact

    # Where it ends

    @cached_property
    def optimum(self) -> np.ndarray | None:
        """w*, flattened; None where it is not known."""
        w = self.problem.solution()
        return None if w is None else self.setting.flatten(w)

    @cached_property
    def origin(self) -> np.ndarray:
        """The state from which the expected round is followed."""
        x = self.setting.origin.copy()
        if self.around is not None:  # the hub's model moved to the point, all else as at the start
            R, w = self.setting.reading, self.setting.flatten(self.around)
            k = R.shape[1]
            x[:k] += np.linalg.pinv(R) @ (w - R @ x[:k])
        return x

    @cached_property
    def _settled(self) -> Iterated | None:
        return iterate(self.setting) if self.setting.adaptive else None

    @cached_property
    def state(self) -> np.ndarray | None:
        """The state in the limit."""
        s = self.setting
        if s.scheduled:
            return None
        if self._settled is not None:
            return self._settled.x
        return fixed_point(s, self.origin)

    @property
    def limit(self) -> Any:
        """The model in the limit; None where nothing settles."""
        return None if self.state is None else self.setting.model_of(self.setting.read(self.state))

    @cached_property
    def _gap(self) -> np.ndarray | None:
        if self.state is None or self.optimum is None:
            return None
        return self.setting.read(self.state) - self.optimum

    @cached_property
    def _root(self) -> np.ndarray | None:
        """L with |L (w - w*)|^2 what is measured; None is the plain distance."""
        if self.measure == "error":
            return None
        w = self.optimum if self.optimum is not None else self.setting.read(self.state)  # type: ignore[arg-type]
        values, axes = np.linalg.eigh(self.setting.curvature(w))
        return np.sqrt(np.maximum(values, 0) / 2)[:, None] * axes.T

    def measured(self, difference: np.ndarray) -> np.ndarray:
        """The part of a difference of models whose square is measured; rows where there are several."""
        return difference if self._root is None else difference @ self._root.T

    @cached_property
    def reading(self) -> np.ndarray:
        """R with |R u|^2 what is measured of a deviation u of the hub."""
        R = self.setting.reading
        return R if self._root is None else self._root @ R

    @property
    def bias(self) -> float | None:
        """|limit - w*|; None where w* is not known."""
        if self._gap is None:
            return None
        size = float(np.linalg.norm(self._gap))
        model = jax.tree.leaves(self.problem.start())  # in single precision w* is known to its rounding
        rounding = max(1e-10, *(8 * float(np.finfo(np.result_type(a, np.float32)).eps) for a in model))
        return size if size > rounding * (1 + float(np.linalg.norm(self.optimum))) else 0.0  # type: ignore[arg-type]

    # How fast

    @cached_property
    def rate(self) -> float | None:
        """Factor per round of the mean's deviation from the limit, asymptotically."""
        if self.state is None:
            return None
        if self._settled is not None:
            return self._settled.rate
        return mean_rate(self.setting, self.state)

    @cached_property
    def rate_ms(self) -> float | None:
        """The same of the second moment."""
        if self.noiseless:
            return None if self.rate is None else self.rate**2
        if self.steady is not None:
            return max(self.steady.rate, self.rate**2)  # type: ignore[operator]
        if self._sampled is not None:
            return max(self._sampled.rate, self.rate**2)  # type: ignore[operator]
        return None

    @property
    def diverges(self) -> bool:
        """The mean, or the mean square, grows without bound."""
        if self._settled is not None:
            return self._settled.x is None
        return any(r is not None and r >= 1 for r in (self.rate, self.rate_ms))

    # How noisy

    @cached_property
    def noiseless(self) -> bool:
        """Nothing is random."""
        s = self.setting
        full = s.problem.batch is None and s.problem.local_rows() is not None
        silent = s.exact or full or not s.oracle.noisy
        no_luck = not s.timing.drawn and not any(s.numbers.drawn)
        return bool(silent and no_luck)

    @cached_property
    def noise_by(self) -> str:
        """How second moments are computed: "exact" (by the operator), "sampled" or why not."""
        told = self.noise_if_settled
        return "there is no limit" if told in ("exact", "sampled") and self.state is None else told

    @cached_property
    def noise_if_settled(self) -> str:
        """The same, without looking for a limit."""
        s = self.setting
        if s.scheduled:
            return "decaying steps have no steady state: only the curve is forecast"
        if s.adaptive:
            return "adaptive optimisers rescale changes by their history: only limit and rate are forecast"
        doubt = None
        if not s.exact and not s.oracle.known_noise:
            doubt = "the problem does not tell the covariance of its samples"
        elif not s.exact and not s.oracle.independent:
            doubt = "samples within a round depend on each other"
        elif s.own_kind:
            doubt = "the algorithm is your own"
        wanted = self._how if self._how != "auto" else "sampled" if doubt else "exact"
        if wanted == "sampled":
            if s.size <= LARGEST:
                return "sampled"
            return f"the state has {s.size} numbers: sampled rounds are differentiated up to {LARGEST}" + (
                f", and {doubt}" if doubt else ""
            )
        model = len(s.flatten(s.start))
        if s.size > LARGEST_STATE or model > LARGEST_MODEL:
            return (
                f"the state has {s.size} numbers ({model} of them the model): covariances are computed up to "
                f"{LARGEST_STATE} ({LARGEST_MODEL})"
            )
        return "exact"

    @cached_property
    def steady(self) -> Steady | None:
        """Second moments around the limit, where they come from the operator."""
        if self.state is None or self.noise_by != "exact":
            return None
        return Steady.of(self.setting, self.state, self.reading)

    @cached_property
    def _sampled(self) -> Sampled | None:
        if self.state is None or self.noise_by != "sampled":
            return None
        return sampled_floor(self.setting, self.state, self.reading, seed=self._seed)

    @cached_property
    def variance(self) -> float | None:
        """E|w - E w|^2 once settled; inf when it grows without bound."""
        if self.state is None:
            return None
        if self._settled is None and self.rate is not None and self.rate >= 1:
            return math.inf
        if self.noiseless:
            return 0.0
        if self.steady is not None:
            return self.steady.variance
        return None if self._sampled is None else self._sampled.variance

    @property
    def standard_error(self) -> float | None:
        """Of the variance, where it comes from sampled rounds."""
        return None if self._sampled is None else self._sampled.error

    @property
    def floor(self) -> float | None:
        """bias^2 + variance; without a known w*, the variance around the limit. measure="loss": E f - f* likewise."""
        return None if self.variance is None else self.variance + self.bias2

    @property
    def bias2(self) -> float:
        """What the bias contributes to what is measured."""
        if not self.bias or self._gap is None:
            return 0.0
        return float((self.measured(self._gap) ** 2).sum())

    # On the way

    def curve(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): E|w_t - w*|^2 from the start on (without a known w*, around the limit)."""
        check_count("rounds", rounds, 0)
        s = self.setting
        target = self.optimum
        if s.scheduled:
            if target is None:
                raise FedpointError("with decaying steps and an unknown solution there is nothing to measure from")
            if s.size > LARGEST or not (s.exact or s.oracle.known_noise):
                raise FedpointError(
                    f"the curve of decaying steps is forecast for states up to {LARGEST} numbers and problems that "
                    f"tell the covariance of their samples; this one has {s.size}"
                )
            mean, variance = along_path(s, self.origin, self.reading, rounds)
            return (self.measured(mean - target) ** 2).sum(1) + variance
        if self.state is None:
            raise FedpointError("there is no curve: the expected round does not settle")
        target = s.read(self.state) if target is None else target
        gap = self.measured(s.read(self.state) - target)
        if self.steady is not None and s.problem.linear and s.straight and not self.noiseless:
            return self.steady.curve(self.origin, gap, rounds)
        mean = (self.measured(s.path(self.origin, rounds) - target) ** 2).sum(1)
        if self.noiseless:
            return mean
        if self.steady is not None:
            return mean + self.steady.growth(rounds)
        if self._sampled is not None and self.rate_ms is not None and self.rate_ms < 1:
            return mean + self._sampled.variance * (1 - self.rate_ms ** np.arange(rounds + 1))
        raise FedpointError(f"no curve: {self.noise_by}")

    def rounds_to(self, target: float) -> Rounds:
        """The first round at which the expected error is at most `target`; or never, and why."""
        target = check_number("target", target, strict=True)
        never = "" if self.setting.scheduled else self._never(target)
        if never:  # unless the mean passes close to w* on its way to where it stays
            try:
                with np.errstate(all="ignore"):
                    below = np.flatnonzero(self.curve(self._transient()) <= target)
            except FedpointError:
                below = np.array([])
            return Rounds(int(below[0])) if len(below) else Rounds(math.inf, never)
        rounds = 256
        while rounds <= LONGEST:
            below = np.flatnonzero(self.curve(rounds) <= target)
            if len(below):
                return Rounds(int(below[0]))
            if self.setting.scheduled and rounds >= 1 << 14:
                return Rounds(math.inf, f"not within {rounds} rounds, as far as decaying steps are followed")
            rounds *= 8
        return Rounds(math.inf, f"not within {LONGEST} rounds: the rate is {self.rate:.8g} per round")

    def _never(self, target: float) -> str:
        """Why the expected error does not stay below `target`; an empty text where it does."""
        if self.diverges:
            return self.reason
        if self.floor is None or self.floor <= target:
            return ""
        return (
            f"the floor {self.floor:.3g} (bias^2 {self.bias2:.3g} + variance {self.variance:.3g}) lies above {target:g}"
        )

    def _transient(self) -> int:
        """Rounds after which the expected error moves one way only: to its floor, or to infinity."""
        slow = max(self.rate or 0.0, 0.0 if self.rate_ms is None else math.sqrt(self.rate_ms))
        if not 0 < slow < 1:
            return 256
        return int(min(max(256, math.log(1e-6) / math.log(slow)), 1 << 14))

    @property
    def reason(self) -> str:
        """Why it diverges, or an empty text."""
        if self._settled is not None and self._settled.x is None:
            return "it does not settle: its steps do not shrink towards the limit"
        if self.rate is not None and self.rate >= 1:
            return f"the mean grows by {self.rate:.4g} per round: the step is above its stability limit"
        if self.rate_ms is not None and self.rate_ms >= 1:
            return f"the mean settles, the mean square grows by {self.rate_ms:.4g} per round: noise is amplified"
        return ""

    # Theory beside it

    @cached_property
    def closed(self) -> dict[str, Any]:
        """Closed forms that apply here, by name: fixed_point, rate, floor, ..."""
        return closed_forms(self.setting.bound.experiment.algorithm, self.problem, self.timing, self.exact_fields)

    @cached_property
    def bounds(self) -> Sequence[Bound]:
        """The lectures' bounds: value or the reason why one is void here; those on a last iterate after 1000 rounds."""
        return self.bounds_after(1000)

    def bounds_after(self, rounds: int) -> Sequence[Bound]:
        return bounds(self.algorithm, self.problem, self.timing, self.setting.start, self.exact_fields, rounds)

    @cached_property
    def assumptions(self) -> list[Condition]:
        """Convexity, smoothness, length of the step, and which agent is in the way."""
        return assumptions(self.setting, self.rate, self.rate_ms)

    # To be read

    @cached_property
    def notes(self) -> list[str]:
        """What is exact, what is approximate, what is left out, and why."""
        return words.notes(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for programs; infinite and unknown numbers are null."""
        return words.as_dict(self)

    def text(self) -> str:
        """The forecast in a few lines."""
        return words.text(self)

    def plot(self, path: str | None = None, rounds: int | None = None, run: Any = None, title: str | None = None):
        """The expected curve with bias and floor, and a run beside it where given; saved when `path` is given."""
        from fedpoint.show.plots import forecast_curve

        return forecast_curve(self, path=path, rounds=rounds, run=run, title=title)

    def _repr_html_(self) -> str:
        from fedpoint.show.html import forecast_html

        return forecast_html(self)

    def __repr__(self) -> str:
        return self.text()
