"""A plan to be read: the ranked table, what is excluded and why, what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpoint.core.numbers import counted, with_error
from fedpoint.core.record import values_of
from fedpoint.core.text_table import aligned
from fedpoint.results.labels import short
from fedpoint.timing.schemes import Everyone, Participation, Uniform

if TYPE_CHECKING:
    from fedpoint.results.plan import Choice, Measured, Plan

MINIMISE = {"communication": "numbers sent", "bytes": "bytes", "computation": "field evaluations", "time": "seconds"}
MEASURES = {"error": "E|w - w*|^2", "loss": "E f(w) - f*"}
SINGLE = {"error": "|w - w*|^2", "loss": "f(w) - f*"}  # of one run
LOSS = "E f(w)"  # what is planned for where its minimum is not known


def table(plan: Plan) -> str:
    """The ranked choices, those excluded with the reason, what was measured."""
    lines = [_title(plan)]
    if plan.choices:
        lines += ["", *aligned([_heading(plan), *(_row(plan, c) for c in plan.choices)])]
    elif plan.affordable is not None:
        a = plan.affordable
        lines += [
            "",
            f"Nothing reaches it within the budget of {amount(plan.budget)} {MINIMISE[plan.minimise]}.",
            f"The budget buys {a.error:.2g}: {a.label}, {counted(a.rounds, 'round')}.",
        ]
    elif plan.unseen:
        lines += ["", f"Nothing that reaches it was found within {plan.seconds:g} s."]
    else:
        lines += ["", f"Nothing reaches it{f': {plan.advice}' if plan.advice else ''}."]
    if plan.excluded:
        width = max(len(e.method) for e in plan.excluded)
        lines += ["", "Excluded", *(f"  {e.method.ljust(width)}  {e.reason}" for e in plan.excluded)]
    if plan.unseen:
        lines += ["", f"Not looked at within {plan.seconds:g} s", *_unseen(plan)]
    if plan.missed:
        lines += ["", "Run, and above the target", *(f"  {_missed(m)}" for m in plan.missed)]
    if plan.measured and plan.confidence is not None:
        shares = [
            [m.choice.title, f"{m.confidence:.3g}", f"{m.share:.3g}", "met" if m.met else "missed"]
            for m in plan.measured
        ]
        heading = ["method", "promised", f"share of {counted(plan.measured[0].repeats, 'run')}", "target"]
        lines += ["", "Run", *aligned([heading, *shares])]
    elif plan.measured:
        rows = [
            [
                m.choice.title,
                f"{m.choice.error:.3g}",
                with_error(m.mean, m.standard_error),
                f"{m.z:+.1f}",
                "met" if m.met else "missed",
            ]
            for m in plan.measured
        ]
        heading = ["method", "forecast", f"mean of {counted(plan.measured[0].repeats, 'run')}", "z", "target"]
        lines += ["", "Run", *aligned([heading, *rows])]
    return "\n".join([*lines, "", *(f"Note: {note}" for note in plan.notes)])


def _missed(m: Measured) -> str:
    if m.confidence is not None:
        return f"{m.choice.label}: promised in {m.confidence:.3g} of runs, {m.share:.3g} of {m.repeats} were below it"
    return (
        f"{m.choice.label}: promised {m.choice.error:.3g}, mean of {m.repeats} runs "
        f"{with_error(m.mean, m.standard_error)}"
    )


def _unseen(plan: Plan) -> list[str]:
    """A line for each method: which local steps with whom."""
    found: dict[str, dict[str, list[int]]] = {}
    for one in plan.unseen:
        found.setdefault(one.method, {}).setdefault(_who(one.participation), []).append(one.local_steps)
    width = max(map(len, found))
    return [
        f"  {method.ljust(width)}  "
        + "; ".join(f"E = {', '.join(map(str, sorted(steps)))} with {who}" for who, steps in by.items())
        for method, by in found.items()
    ]


def _title(plan: Plan) -> str:
    K = plan.problem.agents
    share = "" if plan.confidence is None else f" in {plan.confidence:.3g} of runs"
    what = plan.what if plan.confidence is None else SINGLE[plan.measure]
    within = "" if plan.budget is None else f", within {amount(plan.budget)} {MINIMISE[plan.minimise]}"
    if plan.privacy is not None:
        share += f", spending at most epsilon {plan.privacy.epsilon:g} at delta {plan.privacy.delta:g},"
    return (
        f"{what} <= {plan.target:g}{share} with the least {plan.minimise}{within}: "
        f"{type(plan.problem).__name__}, {counted(K, 'agent')}"
    )


def _heading(plan: Plan) -> list[str]:
    extra = ["seconds"] if plan.minimise == "time" else []
    return [
        "method",
        "local step",
        "E",
        "participants",
        *(["clip", "noise"] if plan.privacy is not None else []),
        "rounds",
        "bytes" if plan.minimise == "bytes" else "floats",
        "gradients",
        *extra,
        "expected" if plan.confidence is None else f"{plan.confidence:.3g} below",
        "floor",
        "promise",
    ]


def _row(plan: Plan, c: Choice) -> list[str]:
    extra = [amount(c.seconds)] if plan.minimise == "time" else []
    return [
        c.title,
        "-" if c.step is None else f"{c.step:.3g}",
        f"{c.local_steps}",
        _who(c.participation),
        *(_noise(c) if plan.privacy is not None else []),
        f"{c.rounds:,}",
        amount(c.bytes if plan.minimise == "bytes" else c.floats),
        amount(c.evaluations),
        *extra,
        f"{c.error:.3g}",
        "-" if c.floor is None else f"{c.floor:.3g}",
        c.promise,
    ]


def _noise(c: Choice) -> list[str]:
    """The norm and the multiplier of a private choice."""
    assert c.channel is not None
    clip, noise = c.channel.stages()
    return [f"{values_of(clip)['norm']:.3g}", f"{values_of(noise)['multiplier']:.3g}"]


def _who(scheme: Participation) -> str:
    return (
        "all" if isinstance(scheme, Everyone) else f"{scheme.count}" if isinstance(scheme, Uniform) else short(scheme)
    )


def amount(value: float | None) -> str:
    """A cost in a table.

    >>> [amount(value) for value in (None, 0.125, 990, 115_200, 999_700, 5_950_000, 12_345_678)]
    ['-', '0.125', '990', '115k', '1,000k', '5,950k', '12.3M']
    """
    if value is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size:
            count = float(f"{value / size:.3g}")
            return f"{count:,.0f}{unit}" if count >= 1000 else f"{count:.3g}{unit}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
