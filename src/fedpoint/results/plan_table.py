"""A plan to be read: the ranked table, what is excluded and why, what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpoint.core.numbers import counted
from fedpoint.core.text_table import aligned
from fedpoint.results.labels import short
from fedpoint.timing.participation import Everyone, Uniform

if TYPE_CHECKING:
    from fedpoint.results.plan import Choice, Plan

MINIMISE = {"communication": "numbers sent", "computation": "field evaluations", "time": "seconds"}
MEASURES = {"error": "E|w - w*|^2", "loss": "E f(w) - f*"}


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
    else:
        lines += ["", "Nothing reaches it."]
    if plan.excluded:
        width = max(len(e.method) for e in plan.excluded)
        lines += ["", "Excluded", *(f"  {e.method.ljust(width)}  {e.reason}" for e in plan.excluded)]
    if plan.missed:
        said = [
            f"  {m.choice.label}: promised {m.choice.error:.3g}, mean of {m.repeats} runs "
            f"{m.mean:.3g} ± {m.standard_error:.1g}"
            for m in plan.missed
        ]
        lines += ["", "Run, and above the target", *said]
    if plan.measured:
        rows = [
            [
                m.choice.title,
                f"{m.choice.error:.3g}",
                f"{m.mean:.3g} ± {m.standard_error:.1g}",
                f"{m.z:+.1f}",
                "met" if m.met else "missed",
            ]
            for m in plan.measured
        ]
        heading = ["method", "forecast", f"mean of {counted(plan.measured[0].repeats, 'run')}", "z", "target"]
        lines += ["", "Run", *aligned([heading, *rows])]
    return "\n".join([*lines, "", *(f"Note: {note}" for note in plan.notes)])


def _title(plan: Plan) -> str:
    K = plan.problem.agents
    within = "" if plan.budget is None else f", within {amount(plan.budget)} {MINIMISE[plan.minimise]}"
    return (
        f"{MEASURES[plan.measure]} <= {plan.target:g} with the least {plan.minimise}{within}: "
        f"{type(plan.problem).__name__}, {counted(K, 'agent')}"
    )


def _heading(plan: Plan) -> list[str]:
    extra = ["seconds"] if plan.minimise == "time" else []
    return [
        "method",
        "local step",
        "E",
        "participants",
        "rounds",
        "floats",
        "gradients",
        *extra,
        "expected",
        "floor",
        "promise",
    ]


def _row(plan: Plan, c: Choice) -> list[str]:
    scheme = c.participation
    who = "all" if isinstance(scheme, Everyone) else f"{scheme.count}" if isinstance(scheme, Uniform) else short(scheme)
    extra = [amount(c.seconds)] if plan.minimise == "time" else []
    return [
        c.title,
        f"{c.step:.3g}",
        f"{c.local_steps}",
        who,
        f"{c.rounds:,}",
        amount(c.floats),
        amount(c.evaluations),
        *extra,
        f"{c.error:.3g}",
        "-" if c.floor is None else f"{c.floor:.3g}",
        c.promise,
    ]


def amount(value: float | None) -> str:
    if value is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
