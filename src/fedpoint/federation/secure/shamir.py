"""How is a secret shared so that any `threshold` of its shares give it back, and fewer say nothing? Shamir (1979).

The secret is the value at 0 of a random polynomial of degree threshold - 1 over a prime field, share x its value at x.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

PRIME = 2**256 + 297  # the least prime above 2^256: room for any 32 bytes
SECRET = 32  # bytes
SHARE = 33  # bytes
Randomness = Callable[[int], bytes]  # so many bytes that nobody else knows: `os.urandom`


def split(secret: bytes, threshold: int, places: Iterable[int], randomness: Randomness) -> dict[int, bytes]:
    """The share of each place; places are 1 to 2^16, all different."""
    if len(secret) != SECRET:
        raise ValueError(f"a secret has {SECRET} bytes")
    at = list(places)
    if not 1 <= threshold <= len(at) or len(set(at)) < len(at) or not all(1 <= x <= 1 << 16 for x in at):
        raise ValueError("a threshold between 1 and the number of places, which differ and begin with 1")
    polynomial = [int.from_bytes(secret), *(_number(randomness) for _ in range(threshold - 1))]
    return {x: _value(polynomial, x).to_bytes(SHARE) for x in at}


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret again, from `threshold` of its shares or more. ValueError: too few, or no shares of one secret."""
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares of a secret that needs {threshold}")
    secret = _through(dict(list(shares.items())[:threshold]), 0)
    if any(len(share) != SHARE for share in shares.values()) or secret >= 1 << 8 * SECRET:
        raise ValueError("not the shares of one secret")
    return secret.to_bytes(SECRET)


def _number(randomness: Randomness) -> int:
    """A number of the field, all alike to 2^-128."""
    return int.from_bytes(randomness(SECRET + 16)) % PRIME


def _value(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def fits(shares: Mapping[int, bytes], place: int, share: bytes) -> bool:
    """Whether a share is on the polynomial through others, of which there are as many as the threshold."""
    return int.from_bytes(share) == _through(shares, place)


def _through(shares: Mapping[int, bytes], at: int) -> int:
    """The value at a place of the polynomial through all these shares: Lagrange's."""
    factors = _factors(tuple(shares), at)
    return sum(int.from_bytes(share) * factor for share, factor in zip(shares.values(), factors, strict=True)) % PRIME


@functools.lru_cache(4096)
def _factors(places: tuple[int, ...], at: int) -> tuple[int, ...]:
    """What each share counts; all secrets of a sum are shared among the same places."""
    found = []
    for x in places:
        above = below = 1
        for other in places:
            if other != x:
                above, below = above * (at - other) % PRIME, below * (x - other) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)
