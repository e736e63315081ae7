"""Which numbers are shown, and how? Finite ones, to a few digits, of many only some, and counts with their nouns."""

from __future__ import annotations

import math
from typing import SupportsFloat, SupportsInt

import numpy as np
from numpy.typing import ArrayLike


def finite(value: SupportsFloat | None) -> float | None:
    """The number, or None where there is none, or none that JSON has.

    >>> [finite(v) for v in (1, np.float32(0.5), float("nan"), float("inf"), None)]
    [1.0, 0.5, None, None, None]
    """
    return float(value) if value is not None and math.isfinite(value) else None


def rounded(values: ArrayLike, digits: int = 5) -> list[float | None]:
    """Numbers to as many digits as can be seen in a picture, one after the other.

    >>> rounded([[1 / 3, np.inf]])
    [0.33333, None]
    """
    return [finite(float(f"{v:.{digits}g}")) for v in np.asarray(values, float).ravel().tolist()]


def with_error(mean: float | None, spread: float | None, digits: int = 4) -> str:
    """A mean and its standard error, to the digit that the error allows; a mean without one to so many digits.

    >>> with_error(0.0069213, 0.00062), with_error(1234.5, 30.0), with_error(6.9e-6, 6e-7), with_error(8.25, 1e-9)
    ('0.0069 ± 0.0006', '1,230 ± 30', '(6.9 ± 0.6)e-06', '8.2500 ± 0.0001')
    >>> with_error(0.123456, None), with_error(None, None)
    ('0.1235', '-')
    """
    if mean is None:
        return "-"
    if spread is None or not has_error(mean, spread):
        return f"{mean:.{digits}g}"
    text, power = to_its_error(mean, spread)
    return f"({text})e{power:+03d}" if power else text


def has_error(mean: float, spread: float) -> bool:
    """Whether a standard error says anything."""
    return math.isfinite(mean + spread) and spread > 0


def to_its_error(mean: float, spread: float) -> tuple[str, int]:
    """Both numbers to the same digit, and the power of ten that they are to be multiplied with.

    >>> to_its_error(6.9e-6, 6e-7)
    ('6.9 ± 0.6', -6)
    """
    power = 0 if 1e-3 <= abs(mean) < 1e6 else math.floor(math.log10(max(abs(mean), spread)))
    mean, spread = mean / 10.0**power, spread / 10.0**power
    # Five digits of the mean are enough: a smaller error is rounded up to the last of them.
    least = math.floor(math.log10(max(abs(mean), spread))) - 4
    digits = -max(math.floor(math.log10(spread)), least)
    spread, places = max(round(spread, digits), 10.0**-digits), max(digits, 0)
    return f"{round(mean, digits):,.{places}f} ± {spread:,.{places}f}", power


def evenly(count: int, most: int) -> np.ndarray:
    """At most `most` of the numbers 0 .. count - 1, evenly spaced, both ends among them.

    >>> evenly(11, 3), evenly(2, 5), evenly(0, 3)
    (array([ 0,  5, 10]), array([0, 1]), array([], dtype=int64))
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def counted(count: SupportsInt, noun: str) -> str:
    """A count in words: the noun is given in the singular, its last word is put into the plural where it must be.

    >>> [counted(1, "repeat"), counted(0, "class"), counted(2, "local step"), counted(1500, "category")]
    ['1 repeat', '0 classes', '2 local steps', '1,500 categories']
    """
    return f"{int(count):,} {noun if int(count) == 1 else plural(noun)}"


def there_are(count: SupportsInt, noun: str) -> str:
    """The same as the beginning of a clause.

    >>> there_are(1, "row"), there_are(3, "row")
    ('there is 1 row', 'there are 3 rows')
    """
    return f"there {'is' if int(count) == 1 else 'are'} {counted(count, noun)}"


def plural(noun: str) -> str:
    """The plural of a regular noun.

    >>> [plural(noun) for noun in ("cell", "process", "batch", "category", "day", "index")]
    ['cells', 'processes', 'batches', 'categories', 'days', 'indexes']
    """
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"
