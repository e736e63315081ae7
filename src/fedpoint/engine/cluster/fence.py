"""What must XLA not fuse, on several processes? What rounds: a fence around it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpoint.core.types import Function, Tree
from fedpoint.core.vector import zeros
from fedpoint.engine.layout import Layout
from fedpoint.engine.state import Inputs


def separate(layout: Layout, inputs: Inputs, function: Function, *arguments: Tree) -> Tree:
    """function(*arguments), on several processes computed apart from what is around it.

    How XLA fuses decides where it contracts products and sums, so that the same expression among arrays of other sizes
    may end in other bits: what rounds is computed from arrays whose shapes do not depend on the number of processes. In
    the loop that stands in between, arguments depend on its counter, or XLA would move what it can in front of it.
    """
    if layout.blocks is None or inputs.part is None:
        return function(*arguments)

    def body(i: Array, _: Tree) -> Tree:
        return function(*jax.tree.map(lambda a: jnp.where(i == 0, a, jnp.zeros_like(a)), arguments))

    return lax.fori_loop(0, jnp.minimum(inputs.part.blocks, 1), body, zeros(jax.eval_shape(function, *arguments)))
