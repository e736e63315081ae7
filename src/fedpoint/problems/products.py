"""What of a loss is slow inside a compiled loop, and what is computed in its place?

XLA computes convolutions, and the derivative of pooling, on processors some ten times slower inside a loop than outside
of one, and local steps are loops. The same numbers come from products of patches with the kernel and from maxima of
slices, whose derivatives are products and slices again; `benchmarks/convolutions.py` measures both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fedpoint.core.types import Data, Setting, Tree

AS_PRODUCTS = "convolutions as products"
INLINED = ("jit", "pjit", "closed_call", "checkpoint")  # calls whose programs are a part of their caller's


@dataclass(frozen=True, eq=False)
class AsProducts:
    """A function with its convolutions as products. It is traced each time that it is called, as the function is."""

    function: Callable[..., Tree]

    def __call__(self, *arguments: Data) -> Tree:
        program, shapes = jax.make_jaxpr(self.function, return_shape=True)(*arguments)
        found = _run(program.jaxpr, program.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), found)


def as_products(function: Callable[..., Tree], *arguments: Data) -> Callable[..., Tree]:
    """The function as it is, or, where it convolves what `arguments` are like, with products, on processors."""
    if jax.default_backend() != "cpu":
        return function
    return AsProducts(function) if _slow(jax.make_jaxpr(function)(*arguments).jaxpr) else function


def _slow(program: Jaxpr) -> bool:
    return any(
        _way(eqn) is not None or (eqn.primitive.name in INLINED and _slow(_inner(eqn).jaxpr)) for eqn in program.eqns
    )


def _inner(eqn: JaxprEqn) -> ClosedJaxpr:
    program = eqn.params["jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"]
    return program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, ())


def _run(program: Jaxpr, consts: Sequence[Data], given: Sequence[Data]) -> list[Data]:
    """The program on these arrays, equation by equation."""
    known: dict[object, Data] = dict(zip((*program.constvars, *program.invars), (*consts, *given), strict=True))
    for eqn in program.eqns:
        inputs = [v.val if isinstance(v, Literal) else known[v] for v in eqn.invars]
        way = _way(eqn)
        if way is not None:
            outputs = [way(*inputs, eqn.params)]
        elif eqn.primitive.name in INLINED and _slow(_inner(eqn).jaxpr):
            inner = _inner(eqn)
            outputs = _run(inner.jaxpr, inner.consts, inputs)
        else:
            came = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
            outputs = came if eqn.primitive.multiple_results else [came]
        known |= zip(eqn.outvars, outputs, strict=True)
    return [v.val if isinstance(v, Literal) else known[v] for v in program.outvars]


Way = Callable[..., Array]


def _way(eqn: JaxprEqn) -> Way | None:
    """How an operation is computed otherwise; None: as it is."""
    name, params = eqn.primitive.name, eqn.params
    if name == "conv_general_dilated":
        plain = params["feature_group_count"] == params["batch_group_count"] == 1 and set(params["lhs_dilation"]) <= {1}
        return _convolved if plain else None
    if name not in ("reduce_window_max", "reduce_window_sum"):
        return None
    window, ones = params["window_dimensions"], {1}
    apart = window == params["window_strides"] and not np.any(params["padding"])
    plain = set(params["base_dilation"]) <= ones and set(params["window_dilation"]) <= ones
    if not (apart and plain):
        return None
    return _largest if name == "reduce_window_max" else _summed


def _convolved(x: Array, kernel: Array, params: Mapping[str, Setting]) -> Array:
    """(rows, places) patches times the kernel."""
    numbers = params["dimension_numbers"]
    batch, channel, *space = numbers.lhs_spec
    out, into, *inside = numbers.rhs_spec
    x, kernel = x.transpose(batch, *space, channel), kernel.transpose(*inside, into, out)
    sizes, steps, apart = kernel.shape[:-2], params["window_strides"], params["rhs_dilation"]
    zero = jnp.zeros((), x.dtype)
    x = lax.pad(x, zero, [(0, 0, 0), *((low, high, 0) for low, high in params["padding"]), (0, 0, 0)])
    places = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(x.shape[1:-1], sizes, apart, steps, strict=True)]

    def shifted(offset: Sequence[int]) -> Array:
        first = [o * d for o, d in zip(offset, apart, strict=True)]
        last = [f + (p - 1) * s + 1 for f, p, s in zip(first, places, steps, strict=True)]
        return lax.slice(x, (0, *first, 0), (x.shape[0], *last, x.shape[-1]), (1, *steps, 1))

    patches = lax.concatenate([shifted(o) for o in itertools.product(*map(range, sizes))], x.ndim - 1)
    flat = patches.reshape(-1, patches.shape[-1])
    said = lax.dot_general(
        flat,
        kernel.reshape(-1, kernel.shape[-1]),
        (((1,), (0,)), ((), ())),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )
    return said.reshape(*patches.shape[:-1], -1).transpose(np.argsort([numbers.out_spec[i] for i in _order(x.ndim)]))


def _order(axes: int) -> tuple[int, ...]:
    """Batch, space, channel: where these stand in a specification of batch, channel, space."""
    return (0, *range(2, axes), 1)


def _parts(x: Array, axis: int, size: int) -> Iterator[Array]:
    """Each place of the windows along an axis."""
    count = x.shape[axis] // size
    for i in range(size):
        yield lax.slice_in_dim(x, i, i + (count - 1) * size + 1, size, axis)


def _largest(x: Array, params: Mapping[str, Setting]) -> Array:
    """Of equal ones the first counts, as in the derivative of the operation itself: the last axis goes first."""
    for axis, size in reversed(list(enumerate(params["window_dimensions"]))):
        if size > 1:
            best, *others = _parts(x, axis, size)
            for other in others:
                best = jnp.where((best >= other) | jnp.isnan(best), best, other)
            x = best
    return x


def _summed(x: Array, params: Mapping[str, Setting]) -> Array:
    for axis, size in enumerate(params["window_dimensions"]):
        if size > 1:
            first, *others = _parts(x, axis, size)
            for other in others:
                first = first + other
            x = first
    return x
