"""Which random number belongs to (seed, repeat, purpose, round, agent, step, index)?

A counter-based generator: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011). Every number is an elementwise function of its coordinates, so it is the same wherever and
in whatever order it is computed: in chunks or on the spot, in one process or in ten. Elementwise also means
that XLA vectorises it whole: two to three times the normals per second of `jax.random.normal`, and a tenth of
its compile time (`benchmarks/engine.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import batching, mlir

from fedpoint.core.types import Number
from fedpoint.core.vector import take, write

Word: TypeAlias = np.ndarray | np.uint32 | Array  # or several, in an array
W = TypeVar("W")  # words of NumPy, of JAX, or of a program in the making
Operation: TypeAlias = Callable[[W, W | np.uint32], W]
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA


def _hash(
    words: Sequence[W], add: Operation[W], xor: Operation[W], left: Operation[W], right: Operation[W]
) -> tuple[W, W]:
    """Two 32-bit words from a 64-bit key and a 64-bit counter, two words each, by these operations on words."""
    k0, k1, c0, c1 = words
    schedule = (k0, k1, xor(xor(k0, k1), np.uint32(PARITY)))
    x0, x1 = add(c0, k0), add(c1, k1)
    for i in range(20):
        r = ROTATIONS[i % 8]
        x0 = add(x0, x1)
        x1 = xor(xor(left(x1, np.uint32(r)), right(x1, np.uint32(32 - r))), x0)  # the parts have no bit in common
        if i % 4 == 3:
            j = i // 4 + 1
            x0, x1 = add(x0, schedule[j % 3]), add(add(x1, schedule[(j + 1) % 3]), np.uint32(j))
    return x0, x1


def _lowered(_: mlir.LoweringRuleContext, *words: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The operations themselves: tracing them for every shape would take ten times as long."""
    kind = words[0].type

    def made(operation: Callable[[ir.Value, ir.Value], ir.Value]) -> Operation[ir.Value]:
        def of(a: ir.Value, b: ir.Value | np.uint32) -> ir.Value:
            if isinstance(b, np.uint32):
                value = ir.IntegerAttr.get(kind.element_type, int(b))
                b = stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, value))
            return operation(a, b)

        return of

    operations = (stablehlo.add, stablehlo.xor, stablehlo.shift_left, stablehlo.shift_right_logical)
    return _hash(words, *map(made, operations))


# One operation to JAX, not the 125 that it is made of: these would be traced and batched for every place that draws,
# which was most of what a run's first call took.
threefry_p = Primitive("threefry")
threefry_p.multiple_results = True
threefry_p.def_impl(jax.jit(threefry_p.bind))
threefry_p.def_abstract_eval(lambda *words: words[:2])
mlir.register_lowering(threefry_p, _lowered)


def _batched(words: Sequence[Word], axes: Sequence[int | None]) -> tuple[tuple[Array, Array], tuple[int, int]]:
    rank = max(np.ndim(w) - (axis is not None) for w, axis in zip(words, axes, strict=True))

    def in_front(w: Word, axis: int | None) -> Word:
        if axis is None:
            return w
        w = jnp.moveaxis(w, axis, 0)
        return w.reshape(w.shape[0], *(1,) * (rank + 1 - w.ndim), *w.shape[1:])

    return _bind([in_front(w, axis) for w, axis in zip(words, axes, strict=True)]), (0, 0)


batching.primitive_batchers[threefry_p] = _batched


def _bind(words: Sequence[Word]) -> tuple[Array, Array]:
    shape = np.broadcast_shapes(*(np.shape(w) for w in words))
    first, second = threefry_p.bind(*(w if np.shape(w) == shape else jnp.broadcast_to(w, shape) for w in words))
    return first, second


def threefry(key: Sequence[Word], counter: Sequence[Word]) -> tuple[Array, Array]:
    """Two words for each counter."""
    return _bind([*key, *counter])


def _word(x: Number) -> Word:
    x = x if isinstance(x, Array) else np.asarray(x)  # NumPy's stays NumPy's: a program would have to be compiled
    return x.astype(np.uint32)


class Row(NamedTuple):
    """One row of a stream: where numbers are drawn. Its numbers are told apart by their index.

    Attributes:
        low: the lower 32 bits of the stream's key.
        high: the upper 32 bits.
        at: the number of the row.
    """

    low: Word
    high: Word
    at: Word

    def words(self, shape: tuple[int, ...] = (), first: int = 0) -> tuple[Array, Array]:
        """Two words for each element; `first` starts further on in the row."""
        size = int(np.prod(shape, dtype=np.int64))
        index = (jnp.arange(size, dtype=jnp.uint32) + jnp.uint32(first)).reshape(shape)
        return self.words_at(index)

    def words_at(self, index: Number) -> tuple[Array, Array]:
        """Two words for each given index: an agent's luck does not depend on who else is asked."""
        word = _word(index)
        return threefry((self.low, self.high), (jnp.broadcast_to(self.at, word.shape), word))

    def uniform_at(self, index: Number) -> Array:
        """Uniform on (0, 1) for each given index."""
        return _uniform(*self.words_at(index))

    def uniform(self, shape: tuple[int, ...] = (), first: int = 0) -> Array:
        """Uniform on the open interval (0, 1), 52 bits: odd multiples of 2^-53, none of which is rounded to 1."""
        return _uniform(*self.words(shape, first))

    def normal(self, shape: tuple[int, ...] = (), first: int = 0) -> Array:
        """Standard normal by Box and Muller's cosine: one word for the radius, one for the angle.

        Elementwise on purpose (the sine is not used): no pairing, no concatenation, all vectorised. The
        radius has 32 bits, so the largest value is 6.76.
        """
        a, b = self.words(shape, first)
        return jnp.sqrt(-2.0 * _log((_float(a) + 0.5) * 2.0**-32)) * _cos_turn(b)

    def normal_single(self, shape: tuple[int, ...] = (), first: int = 0) -> Array:
        """The same in single precision, for models that are: three times as fast. The radius has 31 bits, so the
        largest value is 6.66."""
        a, b = self.words(shape, first)
        # Floats of unsigned words would not be vectorised.
        u = ((a >> jnp.uint32(1)).astype(jnp.int32).astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-31)
        turn = lax.bitcast_convert_type(b, jnp.int32).astype(jnp.float32) * np.float32(2.0**-32)
        return jnp.sqrt(np.float32(-2.0) * _log_single(u)) * _polynomial(COS_TURN, turn * turn)

    def integers(self, bound: Number, shape: tuple[int, ...] = (), first: int = 0) -> Array:
        """Uniform integers in [0, bound), from 64 bits: the bias is below 2^-32 for any bound below 2^32."""
        a, b = self.words(shape, first)
        limit = _word(bound)
        low = a * limit
        carry = low + _high(b, limit) < low
        return (_high(a, limit) + carry.astype(jnp.uint32)).astype(jnp.int32)

    def permutation(self, length: Number, size: int) -> Array:
        """A uniform permutation of 0 .. length-1, followed by padding up to the static `size`.

        Sorts (random word, index) packed into one integer: a sort of one operand is a native one in XLA.
        """
        index = jnp.arange(size, dtype=jnp.uint64)
        packed = (self.words((size,))[0].astype(jnp.uint64) << jnp.uint64(32)) | index
        packed = jnp.where(index < jnp.asarray(length).astype(jnp.uint64), packed, ~jnp.uint64(0) ^ index)
        return (jnp.sort(packed) & jnp.uint64(0xFFFFFFFF)).astype(jnp.int32)

    def subset(self, count: int, population: int) -> Array:
        """A uniform subset of `count` of `population`, in no particular order; the cost grows with `count` only."""
        if 2 * count > population:
            return self.permutation(population, population)[:count]
        return self._few(count, population) if count <= 32 else self._many(count, population)

    def _few(self, count: int, population: int) -> Array:
        """Floyd's algorithm, O(count^2) without a sort."""
        slots = jnp.arange(count)
        bounds = jnp.arange(population - count + 1, population + 1, dtype=jnp.int32)
        draws = self.integers(bounds, (count,))

        def insert(i: Array, chosen: Array) -> Array:
            mine, last = take((draws, bounds), i)
            taken = jnp.any((chosen == mine) & (slots < i))
            return write(chosen, jnp.where(taken, last - 1, mine), i)

        return lax.fori_loop(0, count, insert, jnp.full(count, -1, jnp.int32))

    def _many(self, count: int, population: int) -> Array:
        """The first `count` different ones of a sequence of draws with replacement.

        The sequence is long enough by twelve standard deviations of the coupon collector's time.
        """
        left = population - np.arange(count)
        mean, variance = (population / left).sum(), (population * (population - left) / left**2).sum()
        length = int(np.ceil(mean + 12 * np.sqrt(variance))) + 16
        order = jnp.arange(length, dtype=jnp.uint64)
        draws = self.integers(population, (length,)).astype(jnp.uint64)
        by_value = jnp.sort((draws << jnp.uint64(32)) | order)
        value = by_value >> jnp.uint64(32)
        first = jnp.concatenate([jnp.ones(1, bool), value[1:] != value[:-1]])
        # Those seen before go to the end; the others stay in the order of their draws.
        place = (by_value & jnp.uint64(0xFFFFFFFF)) | (jnp.where(first, 0, 1).astype(jnp.uint64) << jnp.uint64(32))
        chosen = jnp.sort(place)[:count]
        return draws[chosen & jnp.uint64(0xFFFFFFFF)].astype(jnp.int32)

    def jax(self) -> Array:
        """This stream as a key of `jax.random`, for draws that are not offered here."""
        low, high = threefry((self.low, self.high), (self.at, jnp.uint32(0xFFFFFFFF)))
        return jax.random.wrap_key_data(jnp.stack([low, high]), impl="threefry2x32")


class Key(NamedTuple):
    """A stream of random numbers, named by its coordinates; `Key.of` makes one from a seed.

    Attributes:
        low: the lower 32 bits of the key.
        high: the upper 32 bits.
    """

    low: Word
    high: Word

    @classmethod
    def of(cls, seed: int, repeat: int | np.ndarray = 0, purpose: int = 0) -> Key:
        """The key of a run. Computed by NumPy: a run begins with it, and a program for it would take longer to compile.

        Args:
            seed: of the experiment.
            repeat: which of its repeats; an array of them gives an array of keys.
            purpose: what is drawn, as a number.
        """
        root = [np.full(np.shape(repeat), word & 0xFFFFFFFF, np.uint32) for word in (seed, seed >> 32)]
        words: list[Word] = [*root, np.asarray(repeat).astype(np.uint32), np.uint32(purpose)]
        with np.errstate(over="ignore"):  # words wrap around
            return cls(*_hash(words, operator.add, operator.xor, operator.lshift, operator.rshift))

    def fold(self, first: Number, second: Number = 0) -> Key:
        """The stream named by two more coordinates, for instance round and agent.

        Args:
            first, second: the coordinates.
        """
        return Key(*threefry((self.low, self.high), (_word(first), _word(second))))

    def row(self, at: Number = 0) -> Row:
        """The `at`-th row of this stream, for instance that of a local step.

        Args:
            at: the number of the row.
        """
        return Row(self.low, self.high, _word(at))


NO_LUCK = Key(np.uint32(0), np.uint32(0))  # for what draws nothing


class Stream(NamedTuple):
    """An agent's stream in a round. All agents' rows of a step share one key, in which the agent is the row: a key is
    hashed for every step, not for every agent."""

    key: Key
    round: Number
    agent: Number

    def row(self, at: Number = 0) -> Row:
        return self.key.fold(self.round, at).row(self.agent)


def _high(a: Array, b: Word) -> Array:
    """The high word of a product, by halves: there is no vector operation for the product of 64-bit words."""
    half, mask = jnp.uint32(16), jnp.uint32(0xFFFF)
    a1, a0, b1, b0 = a >> half, a & mask, b >> half, b & mask
    middle = a0 * b1 + (a0 * b0 >> half)
    return a1 * b1 + (middle >> half) + (a1 * b0 + (middle & mask) >> half)


def _float(word: Array) -> Array:
    return word.astype(jnp.float64)


def _uniform(a: Array, b: Array) -> Array:
    return _float(a >> jnp.uint32(6)) * 2.0**-26 + (_float(b >> jnp.uint32(6)) + 0.5) * 2.0**-52


@partial(jax.jit, inline=True)
def _log(x: Array) -> Array:
    """Natural logarithm of 0 < x < 1 to 1e-13: atanh's series, in operations that vectorise (libm's does not)."""
    bits = lax.bitcast_convert_type(x, jnp.int64)
    exponent = (bits - jnp.int64(0x3FE6A09E667F3BCD)) >> 52
    mantissa = lax.bitcast_convert_type(bits - (exponent << 52), jnp.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    t = s * s
    series = jnp.full_like(t, 1.0 / 15.0)
    for odd in (13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        series = 1.0 / odd + t * series
    return exponent.astype(jnp.float64) * np.log(2.0) + 2.0 * s * series


@partial(jax.jit, inline=True)
def _cos_turn(word: Array) -> Array:
    """cos(2 pi word / 2^32) to 1e-11: Taylor series on the nearest quarter turn."""
    quarter = (word + jnp.uint32(1 << 29)) >> jnp.uint32(30)
    angle = (word - (quarter << jnp.uint32(30))).astype(jnp.int32).astype(jnp.float64) * (2 * np.pi / 2**32)
    t = angle * angle
    sine = angle * (1 + t * (-1 / 6 + t * (1 / 120 + t * (-1 / 5040 + t * (1 / 362880 - t / 39916800)))))
    cosine = 1 + t * (-1 / 2 + t * (1 / 24 + t * (-1 / 720 + t * (1 / 40320 + t * (-1 / 3628800 + t / 479001600)))))
    value = jnp.where((quarter & jnp.uint32(1)) == 1, sine, cosine)
    return jnp.where((quarter == 1) | (quarter == 2), -value, value)


# Chebyshev's approximations: log(1 + u) / u on sqrt(1/2) <= 1 + u <= sqrt(2), and cos(2 pi sqrt(t)) on 0 <= t <= 1/4.
LOG_SERIES = (
    0.999999974,
    -0.49999987,
    0.333341833,
    -0.250021535,
    0.199569775,
    -0.16560696,
    0.149490955,
    -0.143773306,
    0.0874394536,
)
COS_TURN = (0.999999989, -19.7392045, 64.9391175, -85.4501395, 60.167631, -25.9675992, 6.52865816)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    value = jnp.full_like(x, np.float32(coefficients[-1]))
    for c in coefficients[-2::-1]:
        value = np.float32(c) + x * value
    return value


def _log_single(x: Array) -> Array:
    """Natural logarithm of 0 < x <= 1 to 1e-7 of it, and never above 0."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - jnp.int32(0x3F3504F3)) >> 23
    u = lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32) - np.float32(1.0)
    return exponent.astype(jnp.float32) * np.float32(np.log(2.0)) + u * _polynomial(LOG_SERIES, u)


def normal_like(row: Row, like: Array, first: int = 0) -> Array:
    """Standard normal numbers of an array's shape and kind, drawn in double precision where it is double."""
    kind = jnp.result_type(like)
    draw = row.normal if kind == jnp.float64 else row.normal_single
    return draw(jnp.shape(like), first).astype(kind)
