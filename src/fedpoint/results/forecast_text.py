"""A forecast to be read: what is exact and what is not, a few lines of text, plain types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.core.numbers import counted, finite, with_error
from fedpoint.core.types import Plain
from fedpoint.results.labels import short
from fedpoint.theory.choice import KINDS
from fedpoint.theory.jumps import Jumps
from fedpoint.theory.late_answers import LateAnswers
from fedpoint.theory.outlook import GOOD
from fedpoint.theory.trajectory import OwnChains, unclosed, unsuited

if TYPE_CHECKING:
    from fedpoint.results.forecast import Forecast


NO_SLOPE, LONG, ROUNDING = 1e-8, 100, 1e-8


def notes(f: Forecast) -> list[str]:
    s, said = f.setting, []
    settles = f.state is not None
    if s.problem.linear and s.affine and (f.noise_by == "exact" or f.by_node) and not s.moments.sampled:
        said.append("exact: fields are affine and the hub merges linearly")
    if settles and (f.noise_by == "closure" or (f.noise_by == "messages" and not s.problem.linear)):
        said.append(f"to second order: {_curved(f)}; mean and covariance are followed together")
    elif f.limit_error and f.noise_by == "columns":
        said.append(f"to second order: {_curved(f)}; drawn rounds tell how far noise moves the mean")
    elif not s.problem.linear and settles:
        where = "around the given point" if f.around is not None else "at the fixed point"
        path = "" if f.jumps is not None else "; the mean path is followed without linearising"
        said.append(f"linearised {where}: fields are not affine{path}")
    if s.lineups is not None:
        count = f"{len(s.lineups.chance):,}"
        which = f"{count} drawn sets of participants, which leave the limit a standard error of {f.limit_error:.2g}"
        which = which if s.lineups.drawn else f"all {count} sets of participants"
        why = (
            f"{s.bound.merged_by} does not merge linearly" if s.bound.merged_by else "the hub multiplies what it hears"
        )
        said.append(f"{why}: the mean round is the mean over {which}")
    if f.noise_by == "trajectory":
        said.append("exact along trajectories: fields are affine, and the joint states of all chains are followed")
    elif isinstance(f.outlook, OwnChains):
        said.append(
            f"along trajectories, each beside the model: {unsuited(s)}; what they do to each other is left out, "
            f"at most about {f.outlook.doubt:.1%} of the floor"
        )
    elif not s.exact and s.oracle.moves and settles:
        said.append(f"samples along trajectories are taken as independent ones: {unclosed(s)}")
    elif not s.exact and not s.oracle.independent and settles:
        said.append("samples of a round depend on each other: limit and rate are those of independent ones")
    if s.moments.sampled:
        said.append("the schedule's moments are estimated from 32,768 drawn rounds (about 1 %)")
    if len(s.bound.channel.noise_coefficients()) > 1:
        said.append("noise that the hub added before is part of the state, as some of it is taken back")
    if f.noise_by == "messages" and not s.told_channel:
        said.append(
            f"messages are taken as normal: what {_lossy(f)} makes of their mean and covariance is followed with them"
        )
        if f.noise_bias:
            said.append(
                "what arrives of spread messages on average is not what arrives of their mean: it moves the mean of "
                f"runs by {f.noise_bias:.2g}"
            )
    elif not s.bound.channel.lossless:
        said.append(f"limit and rate are those of what arrives over {_channels(f)} on average")
    if settles and s.budget.seconds < np.inf:
        _ = f.limit, f.rate, f.accuracy  # which may leave something out
    said += [f"left out, which would take too long at this size: {what}" for what in s.budget.left_out]
    if f.standard_error is not None and f.jumps is None:
        said.append(f"the variance comes from sampled rounds, standard error {f.standard_error:.2g}")
        if f.noise_bias and f.noise_by == "sampled":
            why = "" if s.bound.channel.lossless else ": what arrives is not the channel's expected(message)"
            said.append(f"the mean of sampled rounds settles {f.noise_bias:.2g} from the fixed point{why}")
    if f.noiseless and f.jumps is not None:
        turns = "turns, delays and losses are random, and leave the limit where it is"
        said.append(f"no noise: {'nothing is random' if f.certain else turns}")
    elif f.noise_by not in KINDS:
        said.append(f"no floor: {f.noise_by}" if not f.noiseless else "no noise: nothing is random")
    if isinstance(f.jumps, LateAnswers):
        said.append(
            "a round is a merge of answers as they come: times are exponential, so that who answers is drawn anew; "
            "how late an answer is has no bound, so that no worst case stands beside it"
        )
    if f.optimum is None:
        why = f.algorithm.why_no_aim(s.problem, f.network)
        said.append(f"{why}: no bias, and the floor is around the limit")
    if s.problem.convex is None:
        said.append("a local forecast: convexity is not known, other limits may exist")
    return said + _of_gather(f) + _of_network(f)


def _of_gather(f: Forecast) -> list[str]:
    """What a robust mean costs, and an attack does."""
    b, moved = f.setting.bound, f.moved_by_gather
    said = [b.loses_a_sum] if b.loses_a_sum else []
    if moved is None:
        return said
    deviation = f.deviation
    of = "" if not deviation else f", {moved / deviation:.2g} of the standard deviation of a single run"
    who = b.merged_by if b.attack is None else f"{b.merged_by}, gathered by {type(b.gather).__name__},"
    sure = f" (standard error {f.limit_error:.1g})" if f.limit_error else ""
    said.append(f"{who} moves the limit by {moved:.2g}{sure} from that of honest weighted sums{of}")
    return said


def _channels(f: Forecast) -> str:
    """The channels that a message passes."""
    return ", ".join(type(stage).__name__ for stage in f.setting.bound.experiment.channel.stages())


def _lossy(f: Forecast) -> str:
    """Those of them that change what arrives."""
    return ", ".join(
        type(stage).__name__ for stage in f.setting.bound.experiment.channel.stages() if not stage.lossless
    )


def _curved(f: Forecast) -> str:
    """What is not affine."""
    if not f.setting.problem.linear:
        return "fields are not affine"
    if f.setting.straight and f.setting.own_kind:
        return "the method is your own, and drawn rounds bear it out"
    if f.setting.multiplies_luck:
        return "the hub multiplies what depends on how many steps agents took"
    return "the method is not affine in what the hub hears"


def _of_network(f: Forecast) -> list[str]:
    said = []
    if isinstance(f.jumps, Jumps) and f.jumps.drawn:
        count, worst = len(f.jumps.laws.each), f.jumps.relative_error
        said.append(
            f"at which places nodes work in any case is a sample of {count}: the curve's standard error is {worst:.1%}"
        )
    if not (f.in_step or f.noise_if_settled == "jumps"):
        said.append(
            "rate and curve are those of all nodes working in every round; under "
            f"{type(f.timing).__name__} the limit is the same, and bound(ticks) says what is certain"
        )
    if f.network is not None and f.network.caution():
        said.append(f.network.caution())
    if f.without_noise:
        said.append("a curve without noise")
    return said


def text(f: Forecast) -> str:
    lines = [_title(f)]
    if f.setting.scheduled:
        lines.append("  no steady state: only curve(rounds) is forecast")
    elif f.state is None or f.diverges:
        lines.append(f"  {'diverges' if f.diverges else 'no limit'}: {f.reason}")
    else:
        lines += _numbers(f)
    if f.accuracy is not None:
        lines.insert(1 if not f.accuracy.good else len(lines), f"  accuracy    {f.accuracy}")
    if _doubt(f) > GOOD:
        lines.insert(1, f"  accuracy    rough: the standard error of the floor is {_doubt(f):.0%} of it")
    if f.step_limit is not None:
        lines.append(f"  step limit  {f.step_limit:.4g}")
    lines += [f"  note        {note}" for note in f.notes]
    lines += [
        f"  not met     {a.text}" + (f" ({a.detail})" if a.detail else "") for a in f.assumptions if a.holds is False
    ]
    return "\n".join(lines)


def _doubt(f: Forecast) -> float:
    """The standard error of the floor, over the floor: beyond what theories may differ by, the forecast is rough."""
    return f.standard_error / f.floor if f.standard_error and f.floor else 0.0


def _title(f: Forecast) -> str:
    what = f"{f.algorithm.card.title} on {type(f.problem).__name__}"
    if f.network is not None:
        return f"{what} over {counted(f.network.nodes, 'node')} and {counted(len(f.network.edges), 'edge')}"
    size = counted(len(f.setting.flatten(f.setting.start)), "parameter")
    regions = f.setting.bound.experiment.regions
    below = "" if regions is None else f", {regions.text(f.problem.agents)}"
    return f"{what}: {counted(f.problem.agents, 'agent')}, {size}, {short(f.timing)}{below}"


def _numbers(f: Forecast) -> list[str]:
    goal = f.algorithm.goal
    if f.bias is None:
        lines = [f"  ends at     {'its limit' if f.noise_bias else 'its fixed point'}"]
    else:
        itself = goal if f.own_models else "w* itself"
        lines = [f"  ends at     {itself if f.bias == 0 else f'{with_error(f.bias, f.limit_error)} from {goal}'}"]
        if f.noise_bias:
            rest = "samples that depend on each other" if f.along_trajectories else "noise"
            lines.append(
                f"  of which    drift {f.drift:.4g} (different agents, local steps), {rest} {f.noise_bias:.4g}"
            )
    if f.burn_in is not None:
        return [*lines, *_of_mean(f)]
    hidden = f.rate_ms is None or (f.by_node and f.jumps is None)
    square = "" if hidden else f" (mean square {f.rate_ms:.6g})"
    lines.append(_squared(f) or f"  rate        {f.rate:.6g} per round{square}")
    if f.contraction is not None:
        kappa = f.contraction.kappa
        said = f"none: {f.contraction.reason}" if kappa is None else f"{kappa:.6g} in the block-maximum norm"
        lines.append(f"  contraction {said}")
    if f.floor is not None:
        variance = with_error(f.variance, f.standard_error)
        lines.append(f"  floor       {f.floor:.4g} = bias^2 {f.bias2:.4g} + variance {variance}")
    return lines + _without_channel(f)


def _squared(f: Forecast) -> str:
    """Where the round has no slope at its fixed point: errors are squared, and a rate would say nothing."""
    if not f.noiseless or f.problem.linear or f.rate is None or f.rate > NO_SLOPE:
        return ""
    path = f.curve(LONG)
    there = np.flatnonzero(path - path[-1] <= ROUNDING**2 * path[0])
    return f"  rate        quadratic: errors are squared; there to {ROUNDING:.0e} in about {counted(there[0], 'round')}"


def _without_channel(f: Forecast) -> list[str]:
    """What the channel costs: where it would end without it, and how noisily."""
    plain = f.without_channel
    if plain is None or f.floor is None or plain.floor is None:
        return []
    bias = "" if plain.bias is None else f"{'w* itself' if plain.bias == 0 else f'{plain.bias:.4g} from w*'}, "
    return [f"  without     {_channels(f)}: {bias}floor {plain.floor:.4g}, variance {plain.variance:.4g}"]


def _of_mean(f: Forecast) -> list[str]:
    """What a running mean has in the long run."""
    since = f" after round {f.burn_in}" if f.burn_in else ""
    lines = [f"  reads       the mean of the models{since}: no rate, its variance falls like one over their number"]
    if f.long_run:
        lines.append(f"  variance    {f.long_run:.4g} over that number, once it is large")
    if f.floor is not None:
        lines.append(f"  floor       {f.floor:.4g} = bias^2, in the long run")
    return lines


def as_dict(f: Forecast) -> dict[str, Plain]:
    limit = f.limit
    of_network: dict[str, Plain] = {}
    if f.contraction is not None:
        of_network = {"contraction": f.contraction.kappa, "step_limit": f.step_limit}
    return {
        "algorithm": f.algorithm.card.name,
        "limit": None if limit is None else [np.asarray(a).tolist() for a in jax.tree.leaves(limit)],
        "limit_error": finite(f.limit_error),
        "bias": finite(f.bias),
        "rate": finite(f.rate),
        "rate_ms": finite(f.rate_ms),
        **of_network,
        "variance": finite(f.variance),
        "floor": finite(f.floor),
        "drift": finite(f.drift),
        "noise_bias": finite(f.noise_bias),
        "standard_error": finite(f.standard_error),
        "accuracy": None if f.accuracy is None else {**f.accuracy._asdict(), "good": f.accuracy.good},
        "rough": _doubt(f) > GOOD,
        "exact": f.exact,
        "diverges": f.diverges,
        "reason": f.reason,
        "notes": list(f.notes),
        "assumptions": [{"text": a.text, "holds": a.holds, "detail": a.detail} for a in f.assumptions],
        "bounds": [
            {"lecture": b.lecture, "name": b.name, "quantity": b.quantity, "value": b.value, "void": b.void}
            for b in f.bounds
        ],
    }
