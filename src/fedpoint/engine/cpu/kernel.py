"""How is a loop of small operations computed without dispatching each of them? As one kernel, and what that needs.

XLA on the CPU dispatches the operations of a loop's body one by one, which takes longer than a small operation does: a
minibatch step of a small model is a dozen of them. A call marked `xla_cpu_small_call` is compiled into one function.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from fedpoint.core.operations import Operations, computed_by
from fedpoint.core.types import Function, Tree
from fedpoint.core.vector import zeros

# What a kernel may hold. XLA ends the process at operations that it cannot compile there (sorting, scattering, calls of
# libraries), so that only what is known to work is let in.
ELEMENTWISE = """abs add add_any and atan2 bitcast_convert_type ceil clamp convert_element_type copy cos div eq erf
    exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg not or pow rem round
    rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sqrt square stop_gradient sub tan
    tanh threefry xor"""
SHAPING = """broadcast_in_dim concatenate dynamic_slice dynamic_update_slice gather iota pad reshape rev slice
    squeeze stack transpose"""
SUMMING = "dot_general reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum"
NESTING = "cond custom_jvp_call jit scan while"
KNOWN = frozenset(f"{ELEMENTWISE} {SHAPING} {SUMMING} {NESTING}".split())
KINDS = frozenset(("bool", "int32", "int64", "uint32", "uint64", "float32", "float64"))
LONG, SHORT = 128, 32  # XLA vectorises products of matrices up to these sizes itself, and larger ones not at all


def traced(function: Function, *arguments: Tree) -> tuple[Function, Tree]:
    """The function, traced for arguments of these shapes and not again, and the shapes of its results."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)

    def again(*arguments: Tree) -> Tree:
        results = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return again, shapes


def in_one_kernel(once: Array, function: Function, *arguments: Tree) -> Tree:
    """function(*arguments) as one kernel on one thread, where all that it does is known to work there.

    once is 1, in a way that the compiler does not know. The function makes what it loops over each time anew: JAX keeps
    what it traced by function, and inside a kernel another thing is traced than outside.
    """

    def fenced(once: Array, arguments: Tree) -> Tree:
        with computed_by(InKernel(once)):
            return function(*arguments)

    closed, shapes = jax.make_jaxpr(fenced, return_shape=True)(once, arguments)
    if not fits(closed.jaxpr):
        return function(*arguments)

    given = [*closed.consts, *jax.tree.leaves((once, arguments))]
    # XLA ends the process at an argument that it finds to be of no use: one number of each is returned, and JAX shall
    # not find out that nobody reads it.
    used = [a for a in given if np.size(a)]

    def kernel(used: list[Array]) -> tuple[list[Array], list[Array]]:
        rest = iter(used)
        values = [next(rest) if np.size(a) else jnp.zeros_like(a) for a in given]
        outer = len(closed.consts)
        return jax.core.eval_jaxpr(closed.jaxpr, values[:outer], *values[outer:]), [_first(a) for a in used]

    results, read = jax.jit(kernel)([jnp.asarray(a) for a in used])
    results[0] = set_xla_metadata(results[0], xla_cpu_small_call="true", inlineable="false")
    results, _ = lax.optimization_barrier((results, read))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def _first(a: Array) -> Array:
    return lax.reshape(lax.slice(a, (0,) * a.ndim, (1,) * a.ndim), ())


def keep_out_of_fusion(once: Array, function: Function, *arguments: Tree) -> Tree:
    """function(*arguments), computed once and kept.

    XLA fuses a cheap expression into every place that uses it: a key would be hashed again for each number drawn from
    it, an index for each number of its row. A branch that is always taken, which the compiler does not know, stands in
    between.
    """
    shapes = jax.eval_shape(function, *arguments)
    return lax.cond(once > 0, lambda: function(*arguments), lambda: zeros(shapes))


class InKernel(Operations):
    """What pays in a kernel."""

    def __init__(self, once: Array) -> None:
        self.once = once

    def products(self, a: Array, b: Array) -> Array:
        """Row by row, without a transposed copy."""
        return lax.map(lambda row: b @ row, a)

    def softmax(self, z: Array) -> Array:
        """All exponentials in one loop, without a rest in each row."""
        low = keep_out_of_fusion(self.once, lambda z: z - z.max(0), z)
        e = keep_out_of_fusion(self.once, lambda low: jnp.exp(low.ravel()), low).reshape(z.shape)
        return e / e.sum(0)


def fits(jaxpr: Jaxpr) -> bool:
    """Whether a kernel can hold it, and is not slower for it."""
    return all(_fits(equation) for equation in jaxpr.eqns)


def _fits(equation: JaxprEqn) -> bool:
    made: list[Tree] = [v.aval for v in equation.outvars]  # of abstract values only arrays have shape and kind
    name, kinds = equation.primitive.name, {str(a.dtype) for a in made}
    if name not in KNOWN or not kinds <= KINDS or (name == "dot_general" and not _vectorised(equation)):
        return False
    return all(fits(inner) for inner in jaxprs_in_params(equation.params))


def _vectorised(product: JaxprEqn) -> bool:
    """Whether XLA itself writes the loops of this product, and vectorises them."""
    (left, _), batched = product.params["dimension_numbers"]
    factors: list[Tree] = [v.aval for v in product.invars]
    a, b = factors
    deep = int(np.prod([a.shape[axis] for axis in left]))
    m, n = sorted((a.size // max(deep, 1), b.size // max(deep, 1)))
    return batched == ((), ()) and (m <= 1 or (deep <= LONG and m <= SHORT and n <= LONG))
