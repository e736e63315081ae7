"""What must happen on a network? Where every node ends, how fast, and what asynchrony costs at worst."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fedpoint.algorithms import FedGD, FedRelax, FedSGD
from fedpoint.core.errors import FedpointError, check_count
from fedpoint.core.numbers import finite
from fedpoint.graphs.gtv.curvature import step_limit
from fedpoint.results.forecast import LONGEST, Rounds
from fedpoint.theory import networks
from fedpoint.theory.asynchronous import Bounds, asynchronous
from fedpoint.theory.network_operator import LARGEST, NetworkSetting
from fedpoint.theory.steady import NoLimit, fixed_point, mean_rate
from fedpoint.timing.schedule import Synchronous
from fedpoint.timing.turns import InStep


class NetworkForecast:
    """What theory says of a run on a network. Everything is computed when first asked for.

    limit: the models (K, ...) at which the nodes end: GTVMin's solution for FedGD and FedRelax. bias: the root of the
    nodes' mean squared distance to what the run is after. rate: factor per round of the deviation, all nodes working in
    every round. contraction: the factor in the block-maximum norm, from which `bound` follows for a schedule.
    step_limit: the step at which FedGD begins to grow. floor: bias^2 + variance, a mean over nodes.
    """

    measure = "error"

    def __init__(self, setting: NetworkSetting, schedule: Any, exact: bool):
        self.setting, self.schedule, self.exact_fields = setting, schedule, exact
        self.algorithm, self.problem, self.network = setting.algorithm, setting.problem, setting.network

    @property
    def nodes(self) -> int:
        return self.network.nodes

    @cached_property
    def aim(self) -> np.ndarray | None:
        """(K d,): what the run is after, flattened."""
        aim = self.setting.session.bound.solution
        return None if aim is None else flat_models(aim)

    @cached_property
    def state(self) -> np.ndarray | None:
        """The state in the limit; None where steps decay or it has none."""
        s = self.setting
        if s.scheduled:
            return None
        if self.aim is not None and self.algorithm.at_agents:
            x = s.at(s.session.bound.solution)
            if np.abs(s.step(x) - x).max() <= 1e-9 * (1 + np.abs(x).max()):
                return x
        try:
            return fixed_point(s, s.origin)  # type: ignore[arg-type]
        except NoLimit:
            return None

    @property
    def limit(self) -> Any:
        return None if self.state is None else self.setting.models_of(self.setting.read(self.state))

    @cached_property
    def bias2(self) -> float:
        if self.state is None or self.aim is None:
            return 0.0
        gap = float(((self.setting.read(self.state) - self.aim) ** 2).sum() / self.nodes)
        return gap if math.sqrt(gap) > 1e-9 * (1 + np.abs(self.aim).max()) else 0.0

    @property
    def bias(self) -> float | None:
        return None if self.aim is None or self.state is None else math.sqrt(self.bias2)

    @cached_property
    def rate(self) -> float | None:
        return None if self.state is None else mean_rate(self.setting, self.state)  # type: ignore[arg-type]

    @property
    def diverges(self) -> bool:
        if self.setting.scheduled:
            return False
        return self.state is None or (self.rate is not None and self.rate >= 1)

    @property
    def reason(self) -> str:
        if not self.diverges:
            return ""
        limit = self.step_limit
        return "the step is too long" + ("" if limit is None else f": it must stay below {limit:.4g}")

    @cached_property
    def step_limit(self) -> float | None:
        """The largest step of FedGD and FedSGD, 2 over the largest curvature of the whole objective; else None."""
        if not isinstance(self.algorithm, FedGD | FedSGD) or not self.problem.linear:
            return None
        return step_limit(self.problem, self.network, float(self.algorithm.coupling))

    @cached_property
    def contraction(self) -> networks.Contraction:
        a = self.algorithm
        if not isinstance(a, FedGD | FedSGD | FedRelax) or a.local_steps != 1:
            return networks.Contraction(None, None, "", "known for FedGD, FedRelax and FedSGD with one step a tick")
        if self.setting.scheduled:
            return networks.Contraction(None, None, "", "steps decay")
        name, step = ("FedRelax", {}) if isinstance(a, FedRelax) else ("FedGD", {"step": a.step})
        return networks.contraction(name, self.problem, self.network, float(a.coupling), **step)

    def bound(self, ticks: int) -> Bounds:
        """How far max_i |w_i - w_i*| has fallen at worst, under the schedule's bound B."""
        B = self.schedule.bound()
        if B is None:
            name = type(self.schedule).__name__
            raise FedpointError(f"{name} has no bound B on delays and idleness: nothing is certain")
        return asynchronous(self.contraction, B, ticks)

    @cached_property
    def _no_floor(self) -> str:
        """Why there is no variance; empty where there is."""
        oracle, a = self.setting.layout.oracle, self.algorithm
        if not self.problem.linear:
            return "fields are not affine"
        if not (oracle.known_noise and oracle.independent):
            return "the problem does not tell the covariance of its samples"
        if not isinstance(a, FedSGD) or not isinstance(a.local_steps, int) or a.local_steps != 1:
            return "it is computed for FedSGD with one step a tick"
        if len(self.setting.read(self.setting.origin)) > LARGEST:
            return f"it is computed up to {LARGEST} numbers of all models together"
        if not self.in_step:
            return "it is computed for nodes in step"
        return ""

    @cached_property
    def noiseless(self) -> bool:
        full = self.problem.batch is None and self.problem.local_rows() is not None
        quiet = self.exact_fields or self.algorithm.full or full
        return bool(quiet or not self.setting.layout.oracle.noisy)

    @cached_property
    def variance(self) -> float | None:
        """E of the nodes' mean squared deviation from the limit, once settled."""
        if self.state is None:
            return None
        if self.diverges:
            return math.inf
        if self.noiseless:
            return 0.0
        if self._no_floor:
            return None
        S = self.setting.covariance(self.setting.read(self.state), *self._moves)
        return float(np.trace(S)) / self.nodes

    @cached_property
    def _moves(self) -> tuple[np.ndarray, np.ndarray]:
        """What a tick of FedSGD does to deviations, (K d, K d), and the nodes' steps."""
        a = self.algorithm
        assert isinstance(a, FedSGD)  # `_no_floor` asked
        M = networks.iteration_matrix("FedGD", self.problem, self.network, float(a.coupling), a.step)
        return M, np.broadcast_to(np.asarray(a.step, float), self.nodes)

    @property
    def floor(self) -> float | None:
        return None if self.variance is None else self.variance + self.bias2

    def curve(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): the expected mean squared distance of the nodes to what the run is after; see `proviso`."""
        check_count("rounds", rounds, 0)
        target = self.aim
        if target is None:
            if self.state is None:
                raise FedpointError("neither a solution nor a limit is known: there is nothing to measure from")
            target = self.setting.read(self.state)
        path = self.setting.path(rounds)
        far = ((path - target) ** 2).sum(1)
        if self._spreads:
            far = far + self.setting.variances(path, *self._moves)
        return far / self.nodes

    @property
    def _spreads(self) -> bool:
        """Whether noise is in the curve."""
        return not (self.noiseless or self._no_floor or self.setting.scheduled or self.diverges)

    @property
    def in_step(self) -> bool:
        """Whether all nodes work in every round and hear what is fresh."""
        return isinstance(self.schedule, Synchronous | InStep)

    @property
    def proviso(self) -> str:
        """What the curve leaves out; empty where it is the expected error of the run."""
        left_out = ["without noise"] if not (self.noiseless or self._spreads) else []
        return ", ".join([*left_out, *([] if self.in_step else ["all nodes in step"])])

    def rounds_to(self, target: float) -> Rounds:
        """The first round at which the curve is down to a target; never, with the reason."""
        if self.diverges:
            return Rounds(math.inf, f"it diverges: {self.reason}")
        lowest = self.bias2 + (self.variance or 0.0) * self._spreads
        if not target > lowest:
            return Rounds(math.inf, f"it ends at a squared distance of {lowest:.3g}")
        rounds = 64
        while rounds <= LONGEST:
            curve = self.curve(rounds)
            if (curve <= target).any():
                return Rounds(int((curve <= target).argmax()))
            if self.rate:
                left = math.log(max(curve[-1] / target, 1.0)) / max(-2 * math.log(self.rate), 1e-12)
                rounds = max(4 * rounds, min(int(1.2 * (rounds + left)), LONGEST))
            else:
                rounds *= 4
        return Rounds(math.inf, f"not within {LONGEST:,} rounds")

    @cached_property
    def notes(self) -> list[str]:
        said = ["exact: fields are affine" if self.problem.linear else "linearised at the fixed point"]
        if not self.in_step:
            said.append(
                "rate and curve are those of all nodes working in every round; under "
                f"{type(self.schedule).__name__} the limit is the same, and bound(ticks) says what is certain"
            )
        if self.network.caution():
            said.append(self.network.caution())
        if not self.noiseless and self._no_floor:
            said.append(f"no floor, and a curve without noise: {self._no_floor}")
        return said

    def text(self) -> str:
        """A few lines."""
        title, K = type(self.algorithm).card.title, self.nodes
        lines = [f"{title} on {type(self.problem).__name__} over {K} nodes and {len(self.network.edges)} edges"]
        if self.setting.scheduled:
            lines.append("  steps decay: only curve(rounds) is forecast")
        elif self.diverges:
            lines.append(f"  diverges: {self.reason}")
        else:
            goal = "GTVMin's solution" if self.algorithm.at_agents else "w*"
            away = goal if not self.bias else f"{self.bias:.4g} from {goal}"
            lines.append(f"  ends at     {'its fixed point' if self.bias is None else away}")
            lines.append(f"  rate        {self.rate:.6g} per round")
            kappa = self.contraction.kappa
            said = f"{kappa:.6g} in the block-maximum norm" if kappa is not None else f"none: {self.contraction.reason}"
            lines.append(f"  contraction {said}")
            if self.floor is not None:
                lines.append(f"  floor       {self.floor:.4g} = bias^2 {self.bias2:.4g} + variance {self.variance:.4g}")
        if self.step_limit is not None:
            lines.append(f"  step limit  {self.step_limit:.4g}")
        return "\n".join([*lines, *(f"  note        {note}" for note in self.notes)])

    __str__ = text

    def _repr_html_(self) -> str:
        from fedpoint.show.html import forecast_html

        return forecast_html(self)

    def __repr__(self) -> str:
        return f"<Forecast of {type(self.algorithm).card.title} over {self.nodes} nodes>"

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        limit = self.limit
        return {
            "algorithm": type(self.algorithm).card.name,
            "limit": None if limit is None else [np.asarray(a).tolist() for a in jax.tree.leaves(limit)],
            "bias": self.bias,
            "rate": self.rate,
            "contraction": self.contraction.kappa,
            "step_limit": self.step_limit,
            "variance": finite(self.variance),
            "floor": finite(self.floor),
            "diverges": self.diverges,
            "reason": self.reason,
            "notes": list(self.notes),
        }

    def plot(self, path: str | None = None, rounds: int | None = None, run: Any = None, title: str | None = None):
        """The curve, with lines at floor and bias, and a run beside it where given."""
        from fedpoint.show.plots import forecast_curve

        return forecast_curve(self, path, rounds, run, title)


def flat_models(models: Any) -> np.ndarray:
    """Models that lead with the nodes, as one vector in the order of `NetworkSetting.read`."""
    return np.concatenate([np.ravel(np.asarray(a, float)) for a in jax.tree.leaves(models)])
