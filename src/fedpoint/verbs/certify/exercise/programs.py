"""What does an algorithm object decide? The engine's program again, which now also notes how its decisions come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params

from fedpoint.core.precision import double
from fedpoint.core.types import Tree
from fedpoint.engine.cpu.tuning import PLAIN
from fedpoint.engine.program import all_lanes
from fedpoint.engine.session import Session
from fedpoint.experiment import Experiment
from fedpoint.results.certificate import Unexercised
from fedpoint.verbs.certify.exercise.arrays import combined
from fedpoint.verbs.certify.exercise.decisions import Decisions, Expression, expression_at
from fedpoint.verbs.certify.exercise.lines import Coverage
from fedpoint.verbs.certify.exercise.source import owner_of

MOST, WAYS = 256, 3  # decisions that are watched, and ways in which one may come out
COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
Arrays: TypeAlias = list[Array]
Which: TypeAlias = tuple[str, tuple[int, ...]]  # of the decisions in one expression: an operation, and where it is


@double
def watch_experiments(experiments: Sequence[tuple[Experiment, int]]) -> list[Unexercised]:
    """What so many rounds of each never put to use."""
    lines, decisions = Coverage(), Decisions()
    for experiment, rounds in experiments:
        session = Session(experiment.bind(), every=1)
        session.prepare(rounds)
        program = partial(all_lanes, replace(session.layout, tuning=PLAIN), False)
        given = (session.inputs, session.state, session.seeds, *map(np.int32, (0, rounds, 1)))
        with lines.watched():
            closed = jax.make_jaxpr(program)(*given)
        Census().take(closed, jax.tree.leaves(given), decisions)
    return combined(lines, decisions)


class Census:
    """A program with a tally of its decisions: a row for each, with a column for each way in which it came out."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Expression, Which], int] = {}

    def take(self, program: ClosedJaxpr, given: Arrays, decisions: Decisions) -> None:
        """Run the program, and note how its decisions came out."""
        if not _decides(program.jaxpr):
            return

        def tallied(given: Arrays) -> Array:
            nothing = jnp.zeros((MOST, WAYS), bool)
            return self._run(program.jaxpr, program.consts, given, nothing)[1]

        tally = np.asarray(jax.jit(tallied)(given))
        for (place, which), row in self._rows.items():
            decisions.note(place, which, np.flatnonzero(tally[row]).tolist())

    def _run(
        self,
        jaxpr: Jaxpr,
        consts: Sequence[Array],
        given: Sequence[Array],
        tally: Array,
        of: Expression | None = None,
        path: tuple[int, ...] = (),
    ) -> tuple[Arrays, Array]:
        """Its results, and the tally. of: the user's expression that all of it belongs to, path: where in that."""
        known: dict[Var, Array] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *given), strict=True))

        def values(names: Sequence[Var | Literal]) -> Arrays:
            return [name.val if isinstance(name, Literal) else known[name] for name in names]

        for number, equation in enumerate(jaxpr.eqns):
            inside = () if of is None else (*path, number)
            results, tally = self._equation(equation, values(equation.invars), tally, of, inside)
            known.update(zip(equation.outvars, results, strict=True))
        return values(jaxpr.outvars), tally

    def _equation(
        self, equation: JaxprEqn, given: Arrays, tally: Array, of: Expression | None, path: tuple[int, ...]
    ) -> tuple[Arrays, Array]:
        name, params = equation.primitive.name, equation.params
        place = of or _users_expression(equation)
        if place is not None or any(map(_decides, jaxprs_in_params(params))):
            if name == "jit":
                inner: ClosedJaxpr = params["jaxpr"]
                return self._run(inner.jaxpr, inner.consts, given, tally, place, path)
            if name in ("cond", "while", "scan"):
                tally = self._noted(tally, place, (name, path), _outcomes(name, given, []))
                going = {"cond": self._cond, "while": self._while, "scan": self._scan}[name]
                return going(params, given, tally, place)
        results = equation.primitive.bind(*given, **equation.primitive.get_bind_params(params))
        results = list(results) if equation.primitive.multiple_results else [results]
        return results, self._noted(tally, place, (name, path), _outcomes(name, given, results))

    def _noted(self, tally: Array, place: Expression | None, which: Which, outcomes: list[Array]) -> Array:
        if place is None or not outcomes or len(self._rows) == MOST:
            return tally
        row = self._rows.setdefault((place, which), len(self._rows))
        seen = jnp.stack([jnp.any(mask) for mask in outcomes])
        return tally.at[row, : len(outcomes)].set(tally[row, : len(outcomes)] | seen)

    def _inner(self, closed: ClosedJaxpr) -> Callable[[Array, Sequence[Array]], tuple[Arrays, Array]]:
        return lambda tally, given: self._run(closed.jaxpr, closed.consts, given, tally)

    def _cond(
        self, params: dict[str, Tree], given: Arrays, tally: Array, place: Expression | None
    ) -> tuple[Arrays, Array]:
        return lax.switch(given[0], list(map(self._inner, params["branches"])), tally, given[1:])

    def _while(
        self, params: dict[str, Tree], given: Arrays, tally: Array, place: Expression | None
    ) -> tuple[Arrays, Array]:
        first = params["cond_nconsts"]
        second = first + params["body_nconsts"]
        condition, body = self._inner(params["cond_jaxpr"]), self._inner(params["body_jaxpr"])

        def asked(tally: Array, state: Arrays) -> tuple[Array, Array]:
            (more,), tally = condition(tally, [*given[:first], *state])
            return more, self._noted(tally, place, ("while", ()), [~more, more])

        def step(carry: tuple[Array, Array, Arrays]) -> tuple[Array, Array, Arrays]:
            more, tally, state = carry
            new, tally = body(tally, [*given[first:second], *state])
            # Batched loops go on until the last is done; the others keep what they have.
            kept = [jnp.where(_like(more, a), a, b) for a, b in zip(new, state, strict=True)]
            return *asked(tally, kept), kept

        begun = (*asked(tally, given[second:]), given[second:])
        _, tally, state = lax.while_loop(lambda carry: jnp.any(carry[0]), step, begun)
        return state, tally

    def _scan(
        self, params: dict[str, Tree], given: Arrays, tally: Array, place: Expression | None
    ) -> tuple[Arrays, Array]:
        first, carried = params["num_consts"], params["num_carry"]
        body = self._inner(params["jaxpr"])

        def step(carry: tuple[Array, Arrays], row: Arrays) -> tuple[tuple[Array, Arrays], Arrays]:
            results, tally = body(carry[0], [*given[:first], *carry[1], *row])
            return (tally, results[:carried]), results[carried:]

        begun, rows = (tally, given[first : first + carried]), given[first + carried :]
        (tally, state), made = lax.scan(step, begun, rows, params["length"], params["reverse"])
        return [*state, *made], tally


def _decides(jaxpr: Jaxpr) -> bool:
    """Whether there is a decision of the user's in it."""
    return any(_users_expression(e) or any(map(_decides, jaxprs_in_params(e.params))) for e in jaxpr.eqns)


def _like(more: Array, a: Array) -> Array:
    """A truth value for each number of an array, from one for each of its rows."""
    return more.reshape(more.shape + (1,) * (a.ndim - more.ndim))


def _outcomes(name: str, given: Arrays, results: Arrays) -> list[Array]:
    """Where a decision came out in each of its ways; empty of what decides nothing."""
    if name in COMPARISONS:
        return [~results[0], results[0]]
    if name in ("min", "max"):
        a, b = given
        return [a < b, a > b]
    if name == "clamp":
        low, x, high = given
        return [(low <= x) & (x <= high), x < low, x > high]
    return [given[0] == i for i in range(WAYS)] if name in ("select_n", "cond") else []


def _users_expression(equation: JaxprEqn) -> Expression | None:
    """The user's expression that an operation comes from; None where the library's code lies in between."""
    trace = equation.source_info.traceback
    if trace is None:
        return None
    for code, instruction in zip(*trace.raw_frames(), strict=True):
        owner = owner_of(code.co_filename)
        if owner != "plumbing":
            return expression_at(code, instruction) if owner == "user" else None
    return None
