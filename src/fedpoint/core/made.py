"""From what was an object made? Its constructor's arguments, where they are few enough to be written down."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Self

import jax
import numpy as np

from fedpoint.core.types import Data, Tree

INLINE = 1000  # numbers, up to which a description holds them and not their fingerprint


class Made:
    """Remembers what its constructor was given, where that is little: it can then be described and made again."""

    given: Mapping[str, Data] | None = None

    def __new__(cls, *values: Data, **named: Data) -> Self:
        self = super().__new__(cls)
        if count((values, named)) <= INLINE:
            self.given = _by_name(cls, values, named)
        return self

    def __getstate__(self) -> dict[str, Data]:
        return {name: value for name, value in vars(self).items() if name != "given"}  # a copy may become another


def _by_name(cls: type, values: tuple[Data, ...], named: dict[str, Data]) -> dict[str, Data] | None:
    """The arguments of a constructor; None where they do not fit, of which it has more to say itself."""
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    try:
        found = dict(signature.bind(None, *values, **named).arguments)
    except TypeError:
        return None
    kinds = {p.kind: name for name, p in signature.parameters.items()}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    found |= found.pop(kinds.get(inspect.Parameter.VAR_KEYWORD, ""), {})
    return dict(list(found.items())[1:])  # without self


def count(tree: Tree) -> int:
    """How many numbers or words a tree holds; counting stops above INLINE."""
    if isinstance(tree, Made):
        return INLINE + 1 if tree.given is None else count(tree.given)
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if not isinstance(tree, list | tuple):
        return tree.size if isinstance(tree, np.ndarray | jax.Array) else 1
    found = 0
    for item in tree:
        found += count(item)
        if found > INLINE:
            break
    return found
