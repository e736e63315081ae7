"""What must happen? A forecast: where a run ends, how far from the optimum, how fast and how noisy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.algorithm import samples_per_round
from fedpoint.core.arguments import check_kind, checked_methods
from fedpoint.core.errors import FedpointError, check_count
from fedpoint.core.kinds import Count, NonNegative, Probability, Whole
from fedpoint.core.types import Plain
from fedpoint.results import forecast_text as words
from fedpoint.results.ending import Ending
from fedpoint.results.rounds_to import Rounds, rounds_to
from fedpoint.theory.affine import Affine, Still
from fedpoint.theory.assumptions import Condition, assumptions
from fedpoint.theory.asynchronous import Bounds, Contraction, asynchronous
from fedpoint.theory.bounds import Bound, bounds
from fedpoint.theory.changing_rounds import ChangingRounds
from fedpoint.theory.choice import KINDS, Asked, outlook_of
from fedpoint.theory.closed_forms import closed_forms
from fedpoint.theory.jumps import Jumps
from fedpoint.theory.late_answers import LateAnswers
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Accuracy, Law, Outlook
from fedpoint.theory.quadratic_forms import distribution, quantile
from fedpoint.theory.steady import NoLimit, Steady, mean_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedpoint.results.run import Run


@checked_methods
class Forecast(Ending):
    """What theory says of a run before it runs. Everything is computed when first asked for.

    Args:
        setting: the experiment, prepared for theory.
        floor: how the floor is found, as in `fp.forecast`.
        around: the model around which a local forecast is made; None: it is not local.
        measure: what floor, variance and curve are in: "error" or "loss".

    Attributes:
        fixed_point: of the expected round, reached from the start; on a network the models of all nodes.
        limit: where the mean of runs settles: the fixed point, moved by noise where fields or the hub's merge are
            curved.
        bias: the limit's distance to w*, or the root of the nodes' mean squared distance to what the run is after.
        drift: the part of the bias that comes from different agents and local steps: the fixed point's distance to w*.
        noise_bias: the part that comes from noise: the limit's distance to the fixed point.
        rate: factor per round of the mean's deviation, asymptotically.
        rate_ms: the same of the second moment.
        floor: E|w - w*|^2 once settled = bias^2 + variance, a mean over nodes. inf when it diverges; None where it is
            not computed (`notes`).
        contraction: on a network, what is certain under a schedule; None with a fusion center.
        step_limit: on a network, the step below which it settles; None with a fusion center.
        burn_in: rounds after which models are averaged; None: the last one is read.
        notes: what is exact, what is approximate, what is left out, and why.

    Arguments of methods:
        rounds: how many.
    """

    burn_in: int | None = None  # rounds after which models are averaged; None: the last one is read

    # How fast

    @property
    def changes(self) -> bool:
        """Rounds are not alike: steps decay, or what is read is a running mean."""
        return self.setting.scheduled or self.burn_in is not None

    @cached_property
    def rate(self) -> float | None:
        """Factor per round of the mean's deviation from the limit, asymptotically; see `proviso`."""
        if self.state is None:
            return None
        if self.jumps is not None:
            return self.jumps.mean_rate
        if self._settled is not None:
            return self._settled.rate
        along = self.outlook if self.along_trajectories or self.noise_if_settled == "messages" else None
        own = along.own_rate if isinstance(along, Outlook) else None
        return self._rate_expected if own is None else own

    @property
    def pace(self) -> float | None:
        """Factor per round by which the run itself approaches its limit, also where a running mean is read."""
        return self.rate

    @cached_property
    def _rate_expected(self) -> float:
        """The rate of the expected round."""
        told = self.outlook.own_rate if self._told_rate and isinstance(self.outlook, Outlook) else None
        return mean_rate(self.setting, self._settles()) if told is None else told

    @property
    def _told_rate(self) -> bool:
        """The theory that answers about noise finds the rate of the mean on its way."""
        return self.noise_if_settled == "columns" and not self.noiseless

    @cached_property
    def rate_ms(self) -> float | None:
        """The same of the second moment."""
        if self.rate is None:
            return None
        if self.jumps is not None:
            return self.jumps.rate
        if self.noiseless or self.rate >= 1:
            return self.rate**2
        return max(self.outlook.rate, self.rate**2) if isinstance(self.outlook, Outlook) else None

    @property
    def diverges(self) -> bool:
        """The mean, or the mean square, grows without bound."""
        if self.setting.scheduled:
            return False
        if self.state is None:
            return self._found.grows if isinstance(self._found, NoLimit) else False
        return any(r is not None and r >= 1 for r in (self.rate, self.rate_ms))

    @property
    def reason(self) -> str:
        """Why it diverges or has no limit; an empty text where it settles."""
        if self.setting.scheduled:
            return ""
        if self.state is None:
            return str(self._found)
        if not self.diverges:
            return ""
        if self.rate is not None and self.rate >= 1:
            known = self.step_limit is not None and self.in_step
            limit = f", and must stay below {self.step_limit:.4g}" if known else ""
            return f"the mean grows by {self.rate:.4g} per round: the step is above its stability limit{limit}"
        return f"the mean settles, the mean square grows by {self.rate_ms:.4g} per round: noise is amplified"

    # How noisy

    @cached_property
    def moved_by_gather(self) -> float | None:
        """How far a robust gather (or an attack) moves the limit from that of honest weighted sums: the price of a
        robust mean where nobody lies. None with weighted sums, and where one of the two has no limit."""
        if not self.setting.bound.merged_by or self._end is None:
            return None
        plain = self.setting.bound.experiment.replace(gather=None, attack=None)
        sums = Forecast(Setting(plain.bind(), self.setting.coarse), self._how, self.around, self.measure)
        return None if sums._end is None else self._distance(self._end - sums._end)

    @property
    def deviation(self) -> float | None:
        """The root of the variance of single runs once settled; None where it is not computed, or nothing settles."""
        known = self.variance is not None and math.isfinite(self.variance)
        return math.sqrt(self.variance) if known else None  # type: ignore[arg-type]

    @cached_property
    def noise_by(self) -> str:
        """How second moments are computed: "exact" (affine rounds), "trajectory" (the same beside the joint states of
        Markov chains), "chains" (beside each agent's own), "closure" (mean and covariance together, to second order),
        "columns" (large models: of a round's noise), "messages" (messages of a normal law, over channels that are not
        linear), "sampled" (from drawn rounds), or why not."""
        if self.noise_if_settled not in KINDS:
            return self.noise_if_settled
        if self.state is None:
            return "there is no limit"
        return self.outlook if isinstance(self.outlook, str) else self.outlook.how

    @cached_property
    def outlook(self) -> Outlook | str:
        """The theory that answers about noise, or why there is none."""
        if self.noise_if_settled not in KINDS:
            return self.noise_if_settled
        if self.jumps is not None:
            return self.jumps
        if self.state is None:
            return "there is no limit"
        if self.noiseless:
            return Still(self.setting, self.state, self.origin, self.gauge, self.rate)
        rate, seed = math.nan if self._told_rate else self._rate_expected, self.setting.bound.experiment.seed
        asked = Asked(self.setting, self.state, self.origin, self.gauge, rate, self.optimum is not None, seed)
        return outlook_of(self.noise_if_settled, asked)

    @cached_property
    def jumps(self) -> Jumps | LateAnswers | None:
        """The theory of agents that do not wait for each other; None where they do, or nothing is known of it."""
        if self.noise_if_settled != "jumps" or self.state is None:
            return None
        if self._merges is not None:
            return LateAnswers(self._merges, self.gauge)
        return Jumps(self.setting, self.state, self.origin, self.gauge)

    @property
    def certain(self) -> bool:
        """Nothing is random, turns of nodes included: one run is all runs."""
        return self.noiseless and (self.in_step or (self.jumps is not None and self.jumps.certain))

    @property
    def steady(self) -> Steady | None:
        """Second moments around the limit, where rounds are affine."""
        return self.outlook.steady if isinstance(self.outlook, Affine) else None

    @cached_property
    def variance(self) -> float | None:
        """E|w - E w|^2 once settled; inf when it grows without bound."""
        if self.state is None:
            return math.inf if self.diverges else None
        if self._settled is None and self.rate is not None and self.rate >= 1:
            return math.inf
        if self.noiseless:
            return 0.0
        return self.outlook.variance if isinstance(self.outlook, Outlook) else None

    @property
    def long_run(self) -> float | None:
        """Of running means: the variance times the rounds that count, once these are many; None where not known."""
        return None

    @property
    def standard_error(self) -> float | None:
        """Of the floor, where it comes from sampled rounds."""
        return self.outlook.error if isinstance(self.outlook, Outlook) else None

    @property
    def accuracy(self) -> Accuracy | None:
        """How well a second-order forecast is known: beside a Gaussian theory; None where it is exact or sampled."""
        return self.outlook.accuracy if isinstance(self.outlook, Outlook) else None

    @property
    def floor(self) -> float | None:
        """bias^2 + variance; without a known w*, around the limit. measure="loss": E f - f* likewise."""
        return None if self.variance is None else self.variance + self.bias2

    @cached_property
    def without_channel(self) -> Forecast | None:
        """The same with messages that arrive as they were sent; None where they do."""
        s = self.setting
        if not s.lossy:
            return None
        plain = s.bound.experiment.replace(channel=None).bind()
        return Forecast(Setting(plain, s.coarse), self._how, self.around, self.measure)

    # On the way

    def curve(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): E|w_t - w*|^2 from the start on (without a known w*, around the limit); see `proviso`."""
        check_count("rounds", rounds, 0)
        s = self.setting
        if s.scheduled and (not self.by_node or self.optimum is None or s.counts_at_agents):
            return self._changing.path(rounds)
        if self.jumps is None and (self.noiseless or self.without_noise):
            return self.gauge.squares(s.path(self.origin, rounds) - self.gauge.target)
        if self.state is None:
            raise FedpointError("there is no curve: the expected round does not settle")
        if isinstance(self.outlook, str):
            raise FedpointError(f"no curve: {self.outlook}")
        return self.outlook.path(rounds).total

    def curve_error(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): the standard error of the curve, where what is drawn once for a run is a sample; else 0."""
        check_count("rounds", rounds, 0)
        return np.zeros(rounds + 1) if self.jumps is None else self.jumps.path_error(rounds)

    def mean_path(self, rounds: int) -> np.ndarray:
        """(rounds + 1, d): the mean of the model, or of those of all nodes, from the start on."""
        check_count("rounds", rounds, 0)
        return self.setting.path(self.origin, rounds) if self.jumps is None else self.jumps.mean_path(rounds)

    @cached_property
    def _changing(self) -> ChangingRounds:
        """With a fusion center, of runs whose rounds change; refused where they cannot be followed."""
        if self.setting.counts_at_agents:
            raise FedpointError("no curve of rounds that change with what agents have counted")
        if self.optimum is None:
            raise FedpointError("with rounds that change and an unknown solution there is nothing to measure from")
        return ChangingRounds(self.setting, self.origin, self.reading, self.gauge)

    def quantile(self, probability: Probability, rounds: Whole | None = None) -> float:
        """The error that a single run stays below with this probability after so many rounds; None: once settled.

        Models are taken as normal around their mean: good where many small changes add up (small steps, some rounds
        after the start), and less so where a few samples decide: after one or two rounds of few participants, or
        where large steps multiply the noise of single samples, whose errors are mostly small and rarely huge.

        Args:
            probability: between 0 and 1.
            rounds: after how many; None: once settled.
        """
        return quantile(self._law(rounds), probability)

    def probability(self, error: NonNegative, rounds: Whole | None = None) -> float:
        """That a single run's error is at most this after so many rounds; None: once settled. See `quantile`.

        Args:
            error: a squared distance.
            rounds: after how many; None: once settled.
        """
        return distribution(self._law(rounds), error)

    def _law(self, rounds: int | None) -> Law:
        """Of the error of a single run."""
        if self.diverges:  # rare huge errors make the mean, and normal models tell nothing of them
            raise FedpointError(f"no quantiles: it diverges: {self.reason}")
        if self.certain or (self.noiseless and self.jumps is None):
            certain = self.floor if rounds is None else float(self.curve(rounds)[-1])
            if certain is None:
                raise FedpointError(f"no quantiles once settled: {self.reason or self.noise_by}")
            return Law(np.zeros(0), np.zeros(0), certain)
        if self.setting.scheduled and self.in_step and not self.by_node:
            if rounds is None:
                raise FedpointError("no quantiles once settled: rounds that change never settle; say after how many")
            return self._changing.law(rounds)
        if isinstance(self.outlook, str) or self.without_noise:
            raise FedpointError(f"no quantiles: {self.reason or self.proviso or self.noise_by}")
        law = self.outlook.law(rounds)
        if law is None:
            raise FedpointError(f"no quantiles: {self.reason or 'drawn rounds tell means only'}")
        return law

    @cached_property
    def without_noise(self) -> bool:
        """The curve is that of the mean: where noise does not follow from the update of nodes, or from the rounds of a
        scheme that depend on each other."""
        if not self.setting.moments.independent:
            return True
        if not self.by_node or self.noiseless:
            return False
        return isinstance(self.outlook, str) or not self.outlook.on_the_way or self.diverges

    @property
    def along_trajectories(self) -> bool:
        """Samples are followed along the trajectories that they come from."""
        return self.noise_if_settled in ("trajectory", "chains")

    @property
    def dependent(self) -> bool:
        """Samples depend on each other, along many trajectories or in an order of rows: limit, rate and curve are those
        of independent ones, which the run's are not."""
        s = self.setting
        several = s.oracle.moves or samples_per_round(self.algorithm) != 1
        return bool(not s.exact and not s.oracle.independent and several and not self.along_trajectories)

    @property
    def proviso(self) -> str:
        """What the curve leaves out; empty where it is the expected error of the run."""
        left_out = {
            "as if samples were independent": self.dependent,
            "without what trajectories do to each other": self.noise_if_settled == "chains",
            "without noise": self.without_noise,
            "as if rounds were independent": not self.setting.moments.independent,
            "all nodes in step": not (self.in_step or self.noise_if_settled == "jumps"),
        }
        return ", ".join(words for words, so in left_out.items() if so)

    @cached_property
    def exact(self) -> bool:
        """Whether the curve is the expected error of the run itself: nothing is sampled, linearised or left out."""
        s = self.setting
        told = self.noise_by if self.noise_if_settled == "jumps" else self.noise_if_settled
        known = s.problem.linear and s.affine and told in ("exact", "trajectory") and not s.moments.sampled
        return not self.proviso and bool(self.certain or known)

    def rounds_to(self, target: float) -> Rounds:
        """The first round at which the expected error is at most `target`; or never, and why.

        Args:
            target: a squared distance.
        """
        return rounds_to(self, target)

    # Networks: what is certain

    @cached_property
    def contraction(self) -> Contraction | None:
        """The factor in the block-maximum norm, from which `bound` follows for a schedule."""
        a, network = self.algorithm, self.network
        if network is None:
            return None
        if a.own_kind() or a.innermost() is not a or not a.coupled or a.local_steps != 1:
            return Contraction(None, None, "", "known for FedGD, FedRelax and FedSGD with one step a tick")
        if self.setting.scheduled:
            return Contraction(None, None, "", "later rounds move less")
        if self.setting.bound.merged_by:
            return Contraction(None, None, "", f"{self.setting.bound.merged_by} is not a weighted sum of neighbours")
        from fedpoint.theory.networks import contraction  # loads scipy

        try:
            return contraction(a, self.problem, network)
        except FedpointError as error:  # there is no minimum to contract to
            return Contraction(None, None, "", str(error))

    @cached_property
    def step_limit(self) -> float | None:
        """The largest step of FedGD and FedSGD, 2 over the largest curvature of the whole objective; else None."""
        a = self.algorithm
        if self.network is None or not a.coupled or a.proximal or a.own_kind() or self.setting.bound.merged_by:
            return None
        if not (self.problem.linear and self.problem.has_loss):
            return None
        from fedpoint.theory.networks import coupling_of  # loads scipy

        return self.network.step_limit(self.problem, coupling_of(a.innermost()))

    def bound(self, ticks: int) -> Bounds:
        """How far max_i |w_i - w_i*| has fallen at worst, under the schedule's bound B.

        Args:
            ticks: how many.
        """
        B, name = self.timing.bound(), type(self.timing).__name__
        if self.contraction is None:
            raise FedpointError(f"bound(ticks) is about the nodes of a network; with a fusion center see {name}'s rate")
        if B is None:
            raise FedpointError(f"{name} has no bound B on delays and idleness: nothing is certain")
        return asynchronous(self.contraction, B, ticks)

    # Theory beside it

    @cached_property
    def closed(self) -> dict[str, float | np.ndarray]:
        """Closed forms that apply here, by name: fixed_point, rate, floor, ...; of a fusion center."""
        e = self.setting.bound.experiment
        mixed = self.by_node or self.setting.topology.nested or e.share is not None
        if mixed or not self.in_step or self.setting.bound.merged_by:
            return {}
        return closed_forms(e.algorithm, self.problem, self.timing, self.setting.exact)

    @cached_property
    def bounds(self) -> Sequence[Bound]:
        """The lectures' bounds: value or the reason why one is void here; those on a last iterate after 1000 rounds."""
        return self.bounds_after(1000)

    def bounds_after(self, rounds: int) -> Sequence[Bound]:
        """What is proved of a federated round after so many rounds."""
        check_count("rounds", rounds, 0)
        s = self.setting
        if self.own_models or s.topology.nested or not self.in_step:
            return []
        channel = s.bound.channel
        changed = s.bound.merged_by or ("" if channel.is_identity() else type(channel).__name__)
        return bounds(s.algorithm, s.problem, s.timing, s.start, s.exact, rounds, changed)

    @cached_property
    def assumptions(self) -> list[Condition]:
        """Convexity, smoothness, length of the step, and which agent is in the way; with a fusion center."""
        return [] if self.own_models else assumptions(self.setting, self.rate, self.rate_ms)

    # To be read

    @cached_property
    def notes(self) -> list[str]:
        """What is exact, what is approximate, what is left out, and why."""
        return words.notes(self)

    def to_dict(self) -> dict[str, Plain]:
        """Plain types, for programs; infinite and unknown numbers are null."""
        return words.as_dict(self)

    def text(self) -> str:
        """The forecast in a few lines."""
        return words.text(self)

    def plot(
        self,
        path: str | Path | None = None,
        rounds: Count | None = None,
        run: Run | None = None,
        title: str | None = None,
    ) -> Figure:
        """The expected error, the band that holds 80 % of single runs, bias and floor, before anything has run; a run
        fills it in, each repeat thin and their mean thick. Saved when `path` is given.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            rounds: how many are drawn; default: those of the run, else until it has settled.
            run: a run of the same experiment.
            title: above it.
        """
        from fedpoint.results.run import Run  # which knows forecasts
        from fedpoint.show.plots import forecast_curve

        check_kind("Forecast.plot", "run", run, Run | None)
        return forecast_curve(self, path=path, rounds=rounds, run=run, title=title)

    def _repr_html_(self) -> str:
        from fedpoint.show.html import forecast_html

        return forecast_html(self)

    def __repr__(self) -> str:
        return self.text()
