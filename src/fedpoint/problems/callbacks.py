"""How does a compiled program call a function of the host?"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.types import Data, Function, Tree


def call_back(function: Function, like: Tree, *arguments: Tree, batched: bool = False) -> Tree:
    """function(*arguments), when the program gets there. A thread of XLA's knows nothing of the scope of double
    precision: such numbers go to and fro as pairs of words.

    like: shapes and types of what it returns. batched: it takes arguments with any axes before their own, and returns
    what leads with these.
    """

    def on_words(*words: Tree) -> Tree:
        return jax.tree.map(_words, function(*jax.tree.map(_numbers, words, kinds)))

    kinds = jax.tree.map(lambda a: jnp.result_type(a).name, arguments)
    said = jax.tree.map(lambda a: jax.ShapeDtypeStruct(*_as_words(a.shape, a.dtype)), like)
    packed = jax.tree.map(lambda a: lax.bitcast_convert_type(a, jnp.uint32) if _long(a.dtype) else a, arguments)
    found = jax.pure_callback(on_words, said, *packed, vmap_method="broadcast_all" if batched else "sequential")
    return jax.tree.map(lambda a, b: lax.bitcast_convert_type(a, b.dtype) if _long(b.dtype) else a, found, like)


def _long(kind: np.dtype) -> bool:
    return np.dtype(kind).itemsize == 8


def _as_words(shape: tuple[int, ...], kind: np.dtype) -> tuple[tuple[int, ...], np.dtype]:
    return ((*shape, 2), np.dtype(np.uint32)) if _long(kind) else (shape, kind)


def _numbers(words: Array, kind: str) -> Data:
    return np.array(np.asarray(words).view(kind)[..., 0]) if _long(np.dtype(kind)) else words


def _words(numbers: Data) -> np.ndarray:
    numbers = np.asarray(numbers)
    return np.ascontiguousarray(numbers[..., None]).view(np.uint32) if _long(numbers.dtype) else numbers
