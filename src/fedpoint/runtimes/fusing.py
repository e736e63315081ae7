"""What must XLA not fuse? Two fences: around what is dear, and around what rounds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpoint.runtimes.layout import Layout
from fedpoint.runtimes.state import Inputs


def apart(once: Array, function: Any, *arguments: Any) -> Any:
    """function(*arguments), computed once and kept.

    XLA fuses a cheap expression into every place that uses it: a key would be hashed again for each number drawn from
    it, an index for each number of its row. A loop whose length (1) the compiler does not know stands in between.
    """
    shapes = jax.eval_shape(function, *arguments)
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return lax.fori_loop(0, once, lambda *_: function(*arguments), empty)


def separate(layout: Layout, inputs: Inputs, function: Any, *arguments: Any) -> Any:
    """function(*arguments), on several processes computed apart from what is around it.

    How XLA fuses decides where it contracts products and sums, so that the same expression among arrays of other sizes
    may end in other bits: what rounds is computed from arrays whose shapes do not depend on the number of processes. In
    the loop that stands in between, arguments depend on its counter, or XLA would move what it can in front of it.
    """
    if layout.blocks is None:
        return function(*arguments)
    shapes = jax.eval_shape(function, *arguments)
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def body(i, _):
        return function(*jax.tree.map(lambda a: jnp.where(i == 0, a, jnp.zeros_like(a)), arguments))

    return lax.fori_loop(0, jnp.minimum(inputs.part.count, 1), body, empty)
