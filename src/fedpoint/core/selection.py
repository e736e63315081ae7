"""Which numbers of a model are meant? `fp.only` says it by names, a mask or a predicate; a `Split` takes them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.numbers import counted
from fedpoint.core.record import Record
from fedpoint.core.settings import positive
from fedpoint.core.steps import Step
from fedpoint.core.types import Model, Tree
from fedpoint.core.vector import ARRAYS, Vector, unwrap

Predicate: TypeAlias = Callable[[str, Array], bool]


class Only(Record):
    """What `fp.only` and `fp.all_but` make."""

    names: tuple[str, ...] = ()
    mask: Tree = None
    predicate: Predicate | None = None
    others: bool = False  # all but these are meant
    own_steps: int | None = None
    own_step: Step | None = positive(default=None, scheduled=True)

    def check(self) -> None:
        if self.own_steps is not None:
            check_count("own_steps", self.own_steps, 1)

    @property
    def plain(self) -> bool:
        """It names parts, and says nothing else."""
        return bool(self.names) and not self.others and self.own_steps is None and self.own_step is None

    def words(self) -> tuple[str, ...]:
        """What is meant, in words: names where there are some."""
        if not self.names:
            return ("those of a mask" if self.predicate is None else "those that a function names",)
        return (f"all but {', '.join(self.names)}",) if self.others else self.names

    def split(self, where: str, model: Model) -> Split:
        """The model's numbers, those that are meant apart from the others; where: who asks, for messages."""
        found, _ = jax.tree_util.tree_flatten_with_path(unwrap(model))
        paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found]
        leaves = [leaf for _, leaf in found]
        if self.mask is not None:
            meant = self._by_mask(where, unwrap(model))
        elif self.predicate is not None:
            meant = [np.full(np.shape(a), self._says(where, path, a)) for path, a in zip(paths, leaves, strict=True)]
        else:
            meant = self._by_name(where, paths, leaves)
        return Split(tuple(_Leaf.of(m != self.others) for m in meant), tuple(paths))

    def names_this(self, path: str) -> bool:
        """Whether it names the part of this path."""
        return any(_matches(name, path) for name in self.names)

    def _by_name(self, where: str, paths: list[str], leaves: list[Array]) -> list[np.ndarray]:
        if paths == [""]:
            raise FedpointError(
                f"{where} the model is one array of shape {np.shape(leaves[0])}, whose parts have no names: give a "
                "mask, one truth value for each number, as in fp.only([True, False])"
            )
        for name in self.names:
            if not any(_matches(name, path) for path in paths):
                raise FedpointError(f"{where} the model has no part {name!r}: {nearest(name, _known(paths))}")
        some = [any(_matches(name, path) for name in self.names) for path in paths]
        return [np.full(np.shape(a), mine) for a, mine in zip(leaves, some, strict=True)]

    def _by_mask(self, where: str, model: Tree) -> list[np.ndarray]:
        mask = np.asarray(self.mask) if isinstance(model, ARRAYS) else self.mask
        try:
            meant = jax.tree.map(lambda a, m: np.broadcast_to(np.asarray(m), np.shape(a)), model, mask)
        except ValueError as error:
            raise FedpointError(f"{where} the mask does not fit the model: {str(error).splitlines()[0]}") from None
        found = jax.tree.leaves(meant)
        if any(m.dtype != bool for m in found):
            raise FedpointError(f"{where} a mask is made of truth values, True for what is meant")
        return found

    def _says(self, where: str, path: str, leaf: Array) -> bool:
        assert self.predicate is not None
        said = self.predicate(path, leaf)
        if not isinstance(said, bool | np.bool_):
            raise FedpointError(f"{where} the predicate must return True or False; for {path!r} it returned {said!r}")
        return bool(said)


@checked
def only(*which: object, own_steps: int | None = None, own_step: Step | None = None) -> Only:
    """These numbers of a model, for `share=` of an experiment or `learn=` of a problem.

    Args:
        which: names of parts, where `*` stands for anything: "body" is the part `body` and all below it, "*.bias" every
            bias, "layers.0" the first of a list; or one mask, a truth value for each number or each array of the
            model; or one predicate (name, array) -> bool.
        own_steps: with `share=`: what stays at an agent takes so many steps of its own before the method's local steps,
            during which it rests (FedRep). Default: it moves along with every local step (FedPer).
        own_step: with `share=`: the length of these steps; default: the method's local step.

    >>> import fedpoint as fp, numpy as np
    >>> model = {"body": {"w": np.zeros((2, 3)), "b": np.zeros(3)}, "head": np.zeros(3)}
    >>> fp.only("body").split("share=:", model)
    <Split: 9 of 12 numbers: body.b, body.w>
    >>> fp.only("*.b", "head").split("share=:", model)
    <Split: 6 of 12 numbers: body.b, head>
    >>> fp.only([True, False, False]).split("share=:", np.zeros(3))
    <Split: 1 of 3 numbers: a part of the only array>
    """
    return _made(which, False, own_steps, own_step)


@checked
def all_but(*which: object, own_steps: int | None = None, own_step: Step | None = None) -> Only:
    """All numbers of a model but these.

    Args:
        which: names, one mask or one predicate, as of `only`.
        own_steps: as of `only`: so many steps of what stays at an agent, before the method's.
        own_step: the length of these steps.

    >>> import fedpoint as fp, numpy as np
    >>> fp.all_but("head").split("share=:", {"body": np.zeros(2), "head": np.zeros(3)})
    <Split: 2 of 5 numbers: body>
    """
    return _made(which, True, own_steps, own_step)


def _made(which: tuple[object, ...], others: bool, own_steps: int | None, own_step: Step | None) -> Only:
    rest: dict[str, Tree] = {"others": others, "own_steps": own_steps, "own_step": own_step}
    names = tuple(name for name in which if isinstance(name, str) and name)
    if which and len(names) == len(which):
        return Only(names=names, **rest)
    if len(which) != 1 or isinstance(which[0], str):
        raise FedpointError(
            f"give the names of parts of a model, a mask or a predicate; got {', '.join(map(repr, which))}"
        )
    if callable(which[0]) and jax.tree_util.all_leaves([which[0]]):  # a module can be called too
        return Only(predicate=which[0], **rest)
    return Only(mask=which[0], **rest)


def _matches(pattern: str, path: str) -> bool:
    """A part is all below it too."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, pattern + ".*")


def _known(paths: list[str]) -> list[str]:
    """Names of arrays, and of what they are in."""
    return list(dict.fromkeys([path.split(".")[0] for path in paths] + paths))


@dataclass(frozen=True)
class _Leaf:
    """Which numbers of an array are meant: all, none, or those of a mask, as bytes: it is structure, compiled in."""

    shape: tuple[int, ...]
    count: int
    bits: bytes = b""  # where it is a part

    @classmethod
    def of(cls, meant: np.ndarray) -> _Leaf:
        count = int(meant.sum())
        return cls(meant.shape, count, b"" if count in (0, meant.size) else np.packbits(meant.ravel()).tobytes())

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def mask(self) -> np.ndarray:
        return np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.size).astype(bool)

    def halves(self, a: Array) -> tuple[Array | None, Array | None]:
        """What is meant of an array, and the rest; None where there is nothing. Parts are flat."""
        if not self.bits:
            return (a, None) if self.count or not self.size else (None, a)
        mask = self.mask()
        flat = jnp.ravel(a) if isinstance(a, jax.Array) else np.ravel(a)
        return flat[np.flatnonzero(mask)], flat[np.flatnonzero(~mask)]

    def whole(self, meant: Array | None, rest: Array | None) -> Array:
        if rest is None:
            assert meant is not None
            return meant
        if meant is None:
            return rest
        mask = self.mask()
        order = np.empty(self.size, int)  # where each number of the whole is in both halves, one after the other
        order[mask], order[~mask] = np.arange(self.count), self.count + np.arange(self.size - self.count)
        return jnp.concatenate([meant, rest])[order].reshape(self.shape)


@dataclass(frozen=True)
class Split:
    """A model in two parts: what is meant, and the rest. Both are built as the model, with None where there is nothing;
    of a model that is one array both are flat."""

    leaves: tuple[_Leaf, ...]
    paths: tuple[str, ...]

    @property
    def count(self) -> int:
        return sum(leaf.count for leaf in self.leaves)

    @property
    def size(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    def indices(self) -> np.ndarray:
        """Where the numbers that are meant are, in the order of `ravel_pytree`."""
        each = [leaf.mask() if leaf.bits else np.full(leaf.size, leaf.count > 0) for leaf in self.leaves]
        return np.flatnonzero(np.concatenate(each))

    def halves(self, model: Model) -> tuple[Model, Model]:
        """What is meant, and the rest."""
        leaves, built = jax.tree.flatten(unwrap(model))
        pairs = [leaf.halves(a) for leaf, a in zip(self.leaves, leaves, strict=True)]
        some, rest = (jax.tree.unflatten(built, side) for side in zip(*pairs, strict=True))
        return (Vector(some), Vector(rest)) if isinstance(model, Vector) else (some, rest)

    def whole(self, meant: Model, rest: Model) -> Model:
        """The model again."""

        def flat(tree: Model) -> tuple[list[Array | None], jax.tree_util.PyTreeDef]:
            return jax.tree.flatten(unwrap(tree), is_leaf=lambda a: a is None)

        (one, built), (other, _) = flat(meant), flat(rest)
        mine: Iterator[_Leaf] = iter(self.leaves)
        joined = [None if a is None and b is None else next(mine).whole(a, b) for a, b in zip(one, other, strict=True)]
        model = jax.tree.unflatten(built, joined)
        return Vector(model) if isinstance(meant, Vector) else model

    def within(self, other: Split, model: Model) -> tuple[Split, Split]:
        """The same of both halves that another split makes of the model."""
        leaves, built = jax.tree.flatten(unwrap(model))
        meant = [
            leaf.mask() if leaf.bits else np.full(leaf.size, leaf.count > 0)
            for leaf, _ in zip(self.leaves, leaves, strict=True)
        ]
        whole = [m.reshape(leaf.shape) for m, leaf in zip(meant, self.leaves, strict=True)]
        halves = other.halves(jax.tree.unflatten(built, whole))
        one, two = (Split(tuple(_Leaf.of(np.asarray(m)) for m in jax.tree.leaves(half)), ()) for half in halves)
        return one, two

    def __repr__(self) -> str:
        whole = [path or "the only array" for path, leaf in zip(self.paths, self.leaves, strict=True) if leaf.count]
        part = [bool(leaf.bits) for leaf in self.leaves if leaf.count]
        said = [f"a part of {path}" if some else path for path, some in zip(whole, part, strict=True)]
        return f"<Split: {self.count:,} of {counted(self.size, 'number')}: {', '.join(said)}>"


def selection(given: Only | str | Sequence[str], argument: str = "share") -> Only:
    """What a user may write for one: names, or a selection."""
    if isinstance(given, Only):
        return given
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) and name for name in names):
        raise FedpointError(f"{argument} must be the names of parts of a model, or fp.only(...); got {given!r}")
    return Only(names=tuple(names))
