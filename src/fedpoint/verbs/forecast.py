"""What must happen? `fp.forecast` says where a run ends, how far from the optimum, how fast and how noisy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpoint.core.participation import as_participation
from fedpoint.errors import FedpointError
from fedpoint.theory.bounds import Bound, bounds
from fedpoint.theory.closed import closed_forms
from fedpoint.theory.moments import along_path
from fedpoint.theory.operator import Setting
from fedpoint.theory.sampled import LARGEST, Sampled, sampled_floor
from fedpoint.theory.steady import Steady, fixed_point, mean_rate
from fedpoint.verbs.run import check_count, check_inputs, check_start

LARGEST_STATE = 2500  # numbers of a state whose covariance is computed
LARGEST_MODEL = 200
LONGEST = 1 << 22  # rounds that `rounds_to` looks ahead
FLOORS = ("auto", "exact", "sampled")


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


class Condition(NamedTuple):
    """What theory assumes, and whether it holds here (None: not known)."""

    text: str
    holds: bool | None
    detail: str = ""


class Forecast:
    """What theory says of a run before it runs. Everything is computed when first asked for.

    limit: the fixed point of the expected round, reached from the start. bias: its distance to w*.
    rate, rate_ms: factor per round of the mean's and of the second moment's deviation, asymptotically.
    floor: E|w - w*|^2 once settled = bias^2 + variance. inf when it diverges; None where it is not computed (`notes`).
    notes: what is exact, what is approximate, what is left out, and why.
    """

    def __init__(self, setting: Setting, floor: str, around: Any, measure: str, seed: int):
        self._setting, self._how, self._around, self._seed = setting, floor, around, seed
        self.measure = measure
        self.algorithm, self.problem, self.participation = setting.algorithm, setting.problem, setting.participation
        self.exact_fields = setting.exact

    # Where it ends

    @cached_property
    def _w(self) -> np.ndarray | None:
        w = self.problem.solution()
        return None if w is None else self._setting.flatten(w)

    @cached_property
    def _origin(self) -> np.ndarray:
        x = self._setting.origin.copy()
        if self._around is not None:  # the hub's model moved to the point, all else as at the start
            R, w = self._setting.reading, self._setting.flatten(self._around)
            k = R.shape[1]
            x[:k] += np.linalg.pinv(R) @ (w - R @ x[:k])
        return x

    @cached_property
    def _settled(self) -> _Iterated | None:
        return iterate(self._setting) if self._setting.adaptive else None

    @cached_property
    def _x(self) -> np.ndarray | None:
        """The state in the limit."""
        s = self._setting
        if s.scheduled:
            return None
        if self._settled is not None:
            return self._settled.x
        return fixed_point(s, self._origin)

    @property
    def limit(self) -> Any:
        return None if self._x is None else self._setting.model_of(self._setting.read(self._x))

    @cached_property
    def _gap(self) -> np.ndarray | None:
        if self._x is None or self._w is None:
            return None
        return self._setting.read(self._x) - self._w

    @cached_property
    def _root(self) -> np.ndarray | None:
        """L with |L (w - w*)|^2 what is measured; None is the plain distance."""
        if self.measure == "error":
            return None
        w = self._w if self._w is not None else self._setting.read(self._x)  # type: ignore[arg-type]
        values, axes = np.linalg.eigh(self._setting.curvature(w))
        return np.sqrt(np.maximum(values, 0) / 2)[:, None] * axes.T

    def _measured(self, difference: np.ndarray) -> np.ndarray:
        """The part of a difference of models whose square is measured; rows where there are several."""
        return difference if self._root is None else difference @ self._root.T

    @cached_property
    def _R(self) -> np.ndarray:
        R = self._setting.reading
        return R if self._root is None else self._root @ R

    @property
    def bias(self) -> float | None:
        """|limit - w*|; None where w* is not known."""
        if self._gap is None:
            return None
        size = float(np.linalg.norm(self._gap))
        model = jax.tree.leaves(self.problem.start())  # in single precision w* is known to its rounding
        rounding = max(1e-10, *(8 * float(np.finfo(np.result_type(a, np.float32)).eps) for a in model))
        return size if size > rounding * (1 + float(np.linalg.norm(self._w))) else 0.0  # type: ignore[arg-type]

    # How fast

    @cached_property
    def rate(self) -> float | None:
        if self._x is None:
            return None
        if self._settled is not None:
            return self._settled.rate
        return mean_rate(self._setting, self._x)

    @cached_property
    def rate_ms(self) -> float | None:
        if self._steady is not None:
            return max(self._steady.rate, self.rate**2)  # type: ignore[operator]
        if self._sampled is not None:
            return max(self._sampled.rate, self.rate**2)  # type: ignore[operator]
        return None if self.rate is None else self.rate**2 if self._noiseless else None

    @property
    def diverges(self) -> bool:
        """The mean, or the mean square, grows without bound."""
        if self._settled is not None:
            return self._settled.x is None
        return any(r is not None and r >= 1 for r in (self.rate, self.rate_ms))

    # How noisy

    @cached_property
    def _noiseless(self) -> bool:
        """Nothing is random."""
        s = self._setting
        full = s.problem.batch is None and s.problem.local_rows() is not None
        silent = s.exact or full or not getattr(s.oracle, "noisy", True)
        no_luck = not s.participation.drawn and s.numbers.drawn.hub is None and s.numbers.drawn.agent is None
        return bool(silent and no_luck)

    @cached_property
    def _method(self) -> str:
        """How second moments are computed: "exact", "sampled" or why not."""
        s = self._setting
        if s.scheduled:
            return "decaying steps have no steady state: only the curve is forecast"
        if s.adaptive:
            return "adaptive optimisers rescale changes by their history: only limit and rate are forecast"
        if self._x is None:
            return "there is no limit"
        doubt = None
        if not s.exact and not s.oracle.known_noise:
            doubt = "the problem does not tell the covariance of its samples"
        elif not s.exact and not s.oracle.independent:
            doubt = "samples within a round depend on each other"
        elif s.own_kind:
            doubt = "the algorithm is your own"
        model = len(s.read(self._x))
        wanted = self._how if self._how != "auto" else "sampled" if doubt else "exact"
        if wanted == "sampled":
            if s.size <= LARGEST:
                return "sampled"
            return f"the state has {s.size} numbers: sampled rounds are differentiated up to {LARGEST}" + (
                f", and {doubt}" if doubt else ""
            )
        if s.size > LARGEST_STATE or model > LARGEST_MODEL:
            return (
                f"the state has {s.size} numbers ({model} of them the model): covariances are computed up to "
                f"{LARGEST_STATE} ({LARGEST_MODEL})"
            )
        return "exact"

    @cached_property
    def _steady(self) -> Steady | None:
        return Steady.of(self._setting, self._x, self._R) if self._method == "exact" else None  # type: ignore[arg-type]

    @cached_property
    def _sampled(self) -> Sampled | None:
        return sampled_floor(self._setting, self._x, self._R, seed=self._seed) if self._method == "sampled" else None  # type: ignore[arg-type]

    @cached_property
    def variance(self) -> float | None:
        """E|w - E w|^2 once settled; inf when it grows without bound."""
        if self._x is None:
            return None
        if self._settled is None and self.rate is not None and self.rate >= 1:
            return math.inf
        if self._noiseless:
            return 0.0
        if self._steady is not None:
            return self._steady.variance
        return None if self._sampled is None else self._sampled.variance

    @property
    def standard_error(self) -> float | None:
        """Of the variance, where it comes from sampled rounds."""
        return None if self._sampled is None else self._sampled.error

    @property
    def floor(self) -> float | None:
        """bias^2 + variance; without a known w*, the variance around the limit. measure="loss": E f - f* likewise."""
        return None if self.variance is None else self.variance + self._bias2

    @property
    def _bias2(self) -> float:
        """What the bias contributes to what is measured."""
        if not self.bias or self._gap is None:
            return 0.0
        return float((self._measured(self._gap) ** 2).sum())

    # On the way

    def curve(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): E|w_t - w*|^2 from the start on (without a known w*, around the limit)."""
        check_count("rounds", rounds, 0)
        s = self._setting
        target = self._w
        if s.scheduled:
            if target is None:
                raise FedpointError("with decaying steps and an unknown solution there is nothing to measure from")
            if s.size > LARGEST or not (s.exact or s.oracle.known_noise):
                raise FedpointError(
                    f"the curve of decaying steps is forecast for states up to {LARGEST} numbers and problems that "
                    f"tell the covariance of their samples; this one has {s.size}"
                )
            mean, variance = along_path(s, self._origin, self._R, rounds)
            return (self._measured(mean - target) ** 2).sum(1) + variance
        if self._x is None:
            raise FedpointError("there is no curve: the expected round does not settle")
        target = s.read(self._x) if target is None else target
        gap = self._measured(s.read(self._x) - target)
        if self._steady is not None and s.problem.linear and s.straight and not self._noiseless:
            return self._steady.curve(self._origin, gap, rounds)
        mean = (self._measured(s.path(self._origin, rounds) - target) ** 2).sum(1)
        if self._noiseless:
            return mean
        if self._steady is not None:
            return mean + self._steady.growth(rounds)
        if self._sampled is not None and self.rate_ms is not None and self.rate_ms < 1:
            return mean + self._sampled.variance * (1 - self.rate_ms ** np.arange(rounds + 1))
        raise FedpointError(f"no curve: {self._method}")

    def rounds_to(self, target: float) -> Rounds:
        """The first round at which the expected error is at most `target`; or never, and why."""
        if not target > 0:
            raise FedpointError(f"target must be above 0, got {target}")
        never = "" if self._setting.scheduled else self._never(target)
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
            if self._setting.scheduled and rounds >= 1 << 14:
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
            f"the floor {self.floor:.3g} (bias^2 {self._bias2:.3g} + variance {self.variance:.3g}) "
            f"lies above {target:g}"
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
        return closed_forms(self.algorithm, self.problem, self.participation, self.exact_fields)

    @cached_property
    def bounds(self) -> Sequence[Bound]:
        """The lectures' bounds: value or the reason why one is void here; those on a last iterate after 1000 rounds."""
        return self.bounds_after(1000)

    def bounds_after(self, rounds: int) -> Sequence[Bound]:
        return bounds(self.algorithm, self.problem, self.participation, self._setting.start, self.exact_fields, rounds)

    @cached_property
    def assumptions(self) -> list[Condition]:
        """Convexity, smoothness, length of the step, and which agent is in the way."""
        c, names = self.problem.constants(), self.problem.names
        step, limit = self._local_step(), self.problem.step_limits()
        if self.problem.has_loss:
            found = [Condition("every agent's loss is convex", self.problem.convex)]
            strong = None if c.nu is None else bool(c.nu > 0)
            found.append(
                Condition("the aggregate is strongly convex", strong, f"nu = {c.nu:.4g}" if c.nu is not None else "")
            )
            smooth = f"delta = {c.delta:.4g}" if c.delta is not None else ""
            found.append(Condition("the aggregate is smooth", None if c.delta is None else True, smooth))
        else:
            found = [Condition("every agent's field is monotone", self.problem.convex)]
            if limit is not None:
                bad = [names[k] for k in np.flatnonzero(~(limit > 0))]
                which = f"agent {bad[0]} is not" + (f", nor are {len(bad) - 1} more" if bad[1:] else "") if bad else ""
                found.append(Condition("every agent is stable by itself, with steps that are short", not bad, which))
        if step is not None and limit is not None:
            over = np.flatnonzero(np.broadcast_to(step, limit.shape) >= limit)
            if len(over):
                worst = over[np.argmin(limit[over])]
                more = f" and {len(over) - 1} more" if len(over) > 1 else ""
                detail = f"agent {names[worst]} allows {limit[worst]:.4g}{more}"
            else:
                detail = f"the strictest agent, {names[int(limit.argmin())]}, allows {limit.min():.4g}"
            found.append(Condition("local steps are below every agent's limit", not len(over), detail))
        if self.rate is not None:
            found.append(Condition("the mean settles", bool(self.rate < 1), f"rate {self.rate:.6g}"))
        if self.rate_ms is not None:
            found.append(Condition("the mean square settles", bool(self.rate_ms < 1), f"rate {self.rate_ms:.6g}"))
        if not self._setting.exact:
            found.append(Condition("samples of a round are independent", bool(self._setting.oracle.independent)))
        return found

    def _local_step(self) -> Any:
        step = getattr(self.algorithm, "step", None)
        if step is None or hasattr(step, "_leaves") or getattr(self.algorithm, "exact", False):
            return None
        steps = getattr(self.algorithm, "local_steps", 1)
        steps = np.asarray(getattr(steps, "steps", 1 if steps is None else steps), dtype=float)
        return np.asarray(step, float) / (steps if getattr(self.algorithm, "normalise", False) else 1.0)

    @cached_property
    def notes(self) -> list[str]:
        s, said = self._setting, []
        if s.problem.linear and s.affine and self._method == "exact" and not s.moments.sampled:
            said.append("exact: fields are affine and the hub merges linearly")
        if not s.problem.linear and self._x is not None:
            where = "around the given point" if self._around is not None else "at the fixed point"
            said.append(f"linearised {where}: fields are not affine; the mean path is followed without linearising")
        elif not s.affine and self._x is not None:
            said.append("linearised: the method is not affine in what the hub hears")
        if not s.exact and not s.oracle.independent and self._x is not None:
            said.append("samples of a round depend on each other: limit and rate are those of independent ones")
        if s.moments.sampled:
            said.append("the schedule's moments are estimated from 32,768 drawn rounds (about 1 %)")
        if self._sampled is not None:
            said.append(f"the variance comes from sampled rounds, standard error {self._sampled.error:.2g}")
        if self._method not in ("exact", "sampled"):
            said.append(f"no floor: {self._method}" if not self._noiseless else "no noise: nothing is random")
        if self._w is None:
            said.append("w* is not known: no bias, and the floor is around the limit")
        if s.problem.convex is None:
            said.append("a local forecast: convexity is not known, other limits may exist")
        return said

    # To be read

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for programs; infinite and unknown numbers are null."""

        def number(value: Any) -> float | None:
            return float(value) if value is not None and math.isfinite(value) else None

        limit = self.limit
        return {
            "algorithm": type(self.algorithm).card.name,
            "limit": None if limit is None else [np.asarray(a).tolist() for a in jax.tree.leaves(limit)],
            "bias": number(self.bias),
            "rate": number(self.rate),
            "rate_ms": number(self.rate_ms),
            "variance": number(self.variance),
            "floor": number(self.floor),
            "standard_error": number(self.standard_error),
            "diverges": self.diverges,
            "reason": self.reason,
            "notes": list(self.notes),
            "assumptions": [{"text": a.text, "holds": a.holds, "detail": a.detail} for a in self.assumptions],
            "bounds": [
                {"lecture": b.lecture, "name": b.name, "quantity": b.quantity, "value": b.value, "void": b.void}
                for b in self.bounds
            ],
        }

    def text(self) -> str:
        """The forecast in a few lines."""
        from fedpoint.report.labels import short

        title = type(self.algorithm).card.title
        lines = [
            f"{title} on {type(self.problem).__name__}: {self.problem.agents} agents, "
            f"{len(self._setting.flatten(self._setting.start))} parameters, {short(self.participation)}"
        ]
        if self._setting.scheduled:
            lines.append("  steps decay: only curve(rounds) is forecast")
        elif self.diverges:
            lines.append(f"  diverges: {self.reason}")
        else:
            if self.bias is None:
                lines.append("  ends at     its fixed point; w* is not known")
            else:
                lines.append(f"  ends at     {'w* itself' if self.bias == 0 else f'{self.bias:.4g} from w*'}")
            lines.append(f"  rate        {self.rate:.6g} per round" + self._mean_square())
            if self.floor is not None:
                error = "" if self.standard_error is None else f" +- {self.standard_error:.1g}"
                lines.append(
                    f"  floor       {self.floor:.4g} = bias^2 {self._bias2:.4g} + variance {self.variance:.4g}{error}"
                )
        lines += [f"  note        {note}" for note in self.notes]
        lines += [
            f"  not met     {a.text}" + (f" ({a.detail})" if a.detail else "")
            for a in self.assumptions
            if a.holds is False
        ]
        return "\n".join(lines)

    def _mean_square(self) -> str:
        return "" if self.rate_ms is None else f" (mean square {self.rate_ms:.6g})"

    def plot(self, path: str | None = None, rounds: int | None = None, run: Any = None, title: str | None = None):
        """The expected curve with bias and floor, and a run beside it where given; saved when `path` is given."""
        from fedpoint.report.plots import forecast_curve

        return forecast_curve(self, path=path, rounds=rounds, run=run, title=title)

    def __repr__(self) -> str:
        return self.text()


@dataclass(frozen=True)
class _Iterated:
    x: np.ndarray | None
    rate: float | None


def iterate(setting: Setting, most: int = 1 << 16) -> _Iterated:
    """The limit by going there, for methods without a linear map near it, and the rate of the last stretch."""
    x, done, chunk = setting.origin, 0, 256
    gaps: list[tuple[int, float]] = []
    while done < most:
        new = setting.travel(x, chunk, done)
        after = setting.travel(new, 1, done + chunk)
        done += chunk
        gap = float(np.linalg.norm(setting.read(after) - setting.read(new)))
        if not np.isfinite(gap):
            return _Iterated(None, None)
        gaps.append((done, gap))
        x = new
        if gap <= 1e-13 * (1 + float(np.linalg.norm(setting.read(x)))):
            break
        chunk = min(2 * chunk, 8192)
    else:
        return _Iterated(None, None)
    return _Iterated(x, _tail_rate(setting))


def _tail_rate(setting: Setting) -> float | None:
    """From the changes of the model while they are above rounding."""
    path = setting.path(setting.origin, 4096)
    change = np.linalg.norm(np.diff(path, axis=0), axis=1)
    good = np.flatnonzero(change > 1e-11 * (1 + np.abs(path[-1]).max()))
    if len(good) < 8:
        return 0.0
    last = good[-1]
    first = last - max(4, min(64, last // 4))
    return float((change[last] / change[first]) ** (1.0 / (last - first)))


def forecast(
    algorithm: Any,
    problem: Any,
    participation: Any = None,
    start: Any = None,
    exact: bool = False,
    around: Any = None,
    floor: str = "auto",
    measure: str = "error",
    seed: int = 0,
) -> Forecast:
    """Where a run will end, how far from the optimum, how fast and how noisy.

    Args:
        algorithm, problem, participation, start, exact: as in `fp.run`.
        around: a model: the forecast is local, around the fixed point near it. Needed where convexity is not known.
        floor: "auto", "exact" (by a Lyapunov equation, the method's own samples taken as independent) or "sampled"
            (from drawn rounds, with a standard error: the default for your own algorithms).
        measure: what floor, variance and curve are in: "error" (squared distance to w*) or "loss" (the objective
            above its minimum, to second order around it).
        seed: of the sampled rounds.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
    >>> f = fp.forecast(fp.FedAvg(step=0.5, local_steps=5), quad)
    >>> print(f"{f.bias:.4f} {f.rate:.4f} {f.floor:.4f} {f.rounds_to(1e-2)}")
    0.0452 0.4591 0.0039 4
    """
    check_inputs(algorithm, problem, seed)
    if floor not in FLOORS:
        raise FedpointError(f'floor must be "auto", "exact" or "sampled", got {floor!r}')
    if measure not in ("error", "loss"):
        raise FedpointError(f'measure must be "error" or "loss", got {measure!r}')
    if measure == "loss" and not problem.has_loss:
        raise FedpointError(f"{type(problem).__name__} has no loss: its field is not a gradient. Forecast the error")
    model = check_start(problem, start)
    if around is not None:
        around = check_start(problem, around)
    elif problem.convex is None:
        raise FedpointError(
            "this loss may have many minima: a forecast would promise too much. Give around=, a model near which to "
            "forecast (for instance the end of a run), or promise convexity: Loss(..., convex=True)"
        )
    setting = Setting(algorithm, problem, as_participation(participation), model, exact)
    return Forecast(setting, floor, around, measure, seed)
