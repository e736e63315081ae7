"""What does a traced program do to vectors of any dimension? It is run on their coefficients over a basis.

A model is traced with `WIDTH` coordinates, a number that no other axis has. A vector is then a row of coefficients: its
i-th coordinate is the coefficient of the i-th basis vector. Every operation that vectors meet must be linear and the
same in every coordinate, which is checked at every one: it must commute with a linear map of the coordinates.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var

from fedpoint.core.errors import FedpointError

WIDTH = 101  # coordinates of a traced model: a basis may have so many vectors
TOLERANCE = 1e-9
LINEAR = frozenset(
    (
        *("add", "add_any", "sub", "mul", "div", "neg", "copy", "copy_p", "convert_element_type", "reduce_precision"),
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "concatenate", "slice", "pad", "rev"),
        *("dynamic_slice", "dynamic_update_slice", "gather", "scatter", "scatter-add", "select_n", "reduce_sum"),
        *("cumsum", "dot_general", "split", "stop_gradient", "optimization_barrier", "real", "integer_pow"),
    )
)
CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr"}
CALLS |= {"checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
CALLS |= {"custom_vjp_call_jaxpr": "fun_jaxpr"}


class Vectors(NamedTuple):
    """An array of vectors: the axis of length WIDTH holds their coefficients."""

    array: np.ndarray


Value: TypeAlias = "Vectors | np.ndarray"
Answer: TypeAlias = Callable[[Sequence[Value], JaxprEqn], Value]


class Interpreter:
    """Runs a traced program; `answers` says what primitives of our own do, by name."""

    def __init__(self, owner: str, answers: dict[str, Answer]) -> None:
        self.owner, self.answers = owner, answers
        self._around: list[JaxprEqn] = []  # the calls and loops that are being run
        self._mixing = np.random.default_rng(0).normal(size=(WIDTH, WIDTH))

    def run(self, program: ClosedJaxpr, values: Sequence[Value]) -> list[Value]:
        return self._body(program.jaxpr, [np.asarray(c) for c in program.consts], values)

    def _body(self, jaxpr: Jaxpr, consts: Sequence[Value], values: Sequence[Value]) -> list[Value]:
        known: dict[Var, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, values, strict=True))

        def value(atom: Var | Literal) -> Value:
            return np.asarray(atom.val) if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            known.update(zip(eqn.outvars, self._equation(eqn, [value(a) for a in eqn.invars]), strict=True))
        return [value(a) for a in jaxpr.outvars]

    def _equation(self, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        if name in self.answers:
            return [self.answers[name](given, eqn)]
        if name in CALLS or name in ("scan", "while", "cond"):
            self._around.append(eqn)
            try:
                return self._inside(name, eqn, given)
            finally:
                self._around.pop()
        if not any(isinstance(a, Vectors) for a in given):
            return [*_evaluate(eqn, given)]
        return self._linear(eqn, given)

    def _inside(self, name: str, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
        if name in CALLS:
            return self.run(_closed(eqn.params[CALLS[name]]), given)
        return {"scan": self._scan, "while": self._while, "cond": self._cond}[name](eqn, given)

    def place(self, eqn: JaxprEqn) -> str:
        """The line that an operation comes from; of one in a function that was compiled before, that of the call."""
        return next((found for one in (eqn, *reversed(self._around)) if (found := place(one))), "")

    def _linear(self, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        vectors = [a for a in given if isinstance(a, Vectors)]
        if name not in LINEAR:
            raise self.refused(eqn, f"{name} is not linear in vectors")
        if name == "mul" and len(vectors) == 2:
            raise self.refused(eqn, "it multiplies two vectors")
        came = _evaluate(eqn, given)
        mixed = _evaluate(eqn, [Vectors(self._mix(a.array)) if isinstance(a, Vectors) else a for a in given])
        for a, b in zip(came, mixed, strict=True):
            if a.shape.count(WIDTH) != 1:
                raise self.refused(eqn, f"{name} looks at single coordinates of a vector, or adds them up")
            expected, scale = self._mix(a), 1 + np.abs(b).max(initial=0.0)
            if not np.abs(expected - b).max(initial=0.0) <= TOLERANCE * scale:
                raise self.refused(eqn, _why(name))
        return [Vectors(a) for a in came]

    def _mix(self, array: np.ndarray) -> np.ndarray:
        axis = array.shape.index(WIDTH)
        return np.moveaxis(np.moveaxis(array, axis, -1) @ self._mixing, -1, axis)

    def _scan(self, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
        p = eqn.params
        consts, carries = p["num_consts"], p["num_carry"]
        fixed, carry, rows = given[:consts], given[consts : consts + carries], given[consts + carries :]
        order = range(p["length"])
        noted: list[list[Value]] = []
        for i in reversed(order) if p["reverse"] else order:
            out = self.run(p["jaxpr"], [*fixed, *carry, *(_at(row, i) for row in rows)])
            carry = out[:carries]
            noted.append(out[carries:])
        if p["reverse"]:
            noted.reverse()
        shapes: list[Any] = [v.aval for v in eqn.outvars[carries:]]
        return [*carry, *(_stack([row[j] for row in noted], aval) for j, aval in enumerate(shapes))]

    def _while(self, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
        p = eqn.params
        first, second = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        asks, does, carry = given[:first], given[first:second], given[second:]
        while True:
            (going,) = self.run(p["cond_jaxpr"], [*asks, *carry])
            if isinstance(going, Vectors):
                raise self.refused(eqn, "a loop goes on as long as vectors say")
            if not np.any(going):
                return carry
            carry = self.run(p["body_jaxpr"], [*does, *carry])

    def _cond(self, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
        which, *rest = given
        if isinstance(which, Vectors):
            raise self.refused(eqn, "a branch is taken as vectors say")
        branches = eqn.params["branches"]
        return self.run(branches[int(np.clip(which, 0, len(branches) - 1))], rest)

    def refused(self, eqn: JaxprEqn, reason: str) -> FedpointError:
        """What cannot be interpreted, with the line that asks for it."""
        where = self.place(eqn)
        return FedpointError(
            f"fp.prove reads {self.owner} as sums of vectors times numbers, and cannot read this: {reason}{where}"
        )


def _why(name: str) -> str:
    if name in ("add", "sub", "add_any"):
        return "it adds numbers to a vector that are not zero, which depends on where the origin is"
    if name in ("mul", "div"):
        return "it divides by a vector, or multiplies its coordinates with different numbers"
    return f"{name} does not treat all coordinates of a vector alike"


def _closed(program: ClosedJaxpr | Jaxpr) -> ClosedJaxpr:
    return program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, ())


def _evaluate(eqn: JaxprEqn, given: Sequence[Value]) -> list[np.ndarray]:
    """The operation on numbers."""
    plain = [a.array if isinstance(a, Vectors) else a for a in given]
    primitive: Primitive = eqn.primitive
    fast = NUMPY.get(primitive.name)
    if fast is not None:
        aval: Any = eqn.outvars[0].aval
        return [np.asarray(fast(*plain), dtype=aval.dtype)]
    out = primitive.bind(*plain, **eqn.params)
    return [np.asarray(a) for a in (out if primitive.multiple_results else [out])]


NUMPY: dict[str, Callable[..., np.ndarray]] = {  # what would be compiled for every shape
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
}


def _at(rows: Value, i: int) -> Value:
    return Vectors(rows.array[i]) if isinstance(rows, Vectors) else rows[i]


def _stack(values: Sequence[Value], aval: jax.core.ShapedArray) -> Value:
    if not values:
        return np.zeros(aval.shape, aval.dtype)
    array = np.stack([a.array if isinstance(a, Vectors) else a for a in values])
    return Vectors(array) if any(isinstance(a, Vectors) for a in values) else array


def place(eqn: JaxprEqn) -> str:
    """The user's line that an operation comes from, in brackets; else that of the method in the catalogue."""
    package, libraries = Path(__file__).parents[1], Path(jax.__file__).parents[1]
    ours = ""
    frames: list[Any] = [] if eqn.source_info.traceback is None else list(eqn.source_info.traceback.frames)
    for frame in frames:  # innermost first
        path = Path(frame.file_name)
        if path.is_relative_to(package / "engine"):  # who calls from further out does not compute
            break
        if path.is_relative_to(package):
            in_method = path.is_relative_to(package / "algorithms") and not ours
            ours = _said(path, frame.line_num) if in_method else ours
        elif not path.is_relative_to(libraries) and not frame.file_name.startswith("<frozen"):
            return _said(path, frame.line_num)
    return ours


def _said(path: Path, number: int) -> str:
    source = linecache.getline(str(path), number).strip()
    return f" ({path.name}, line {number}{f': {source}' if source else ''})"
