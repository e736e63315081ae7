"""What a site may send instead of its answer: attacks as data, and what must become of each.

`change` makes of the bytes of an honest answer those that are sent. Outcomes:

refused     the hub does not merge it; `why` is the reason
abandoned   the round is not merged, and the message names the site
marked      merged with the site's weight, and the site is marked by the length of its answer
merged      merged with the site's weight: norms do not show it
fatal       the site is excluded before the first round; `why` is the reason, or words of it
noted       it takes part, and a note names it; `why` are words of it
believed    nothing that the hub knows speaks against it
"""

import json
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpoint.federation import wire

MAX = sys.float_info.max
SITE = "b"  # who attacks


class Attack(NamedTuple):
    change: Callable[[bytes], bytes]
    outcome: str
    why: str = ""
    live: bool = True  # whether it can be sent over the real transport


def header(**other):
    """Other words, the same numbers."""

    def change(data):
        packet = wire.decode(data)
        return wire.encode({**packet.header, **other}, packet.arrays)

    return change


def numbers(of):
    """Other numbers, the same words; `of` is a function of each array."""

    def change(data):
        packet = wire.decode(data)
        return wire.encode(packet.header, {name: of(array.copy()) for name, array in packet.arrays.items()})

    return change


def arrays(of):
    """Other arrays altogether; `of` is a function of all of them."""

    def change(data):
        packet = wire.decode(data)
        return wire.encode(packet.header, of({name: array.copy() for name, array in packet.arrays.items()}))

    return change


def words(of):
    """Other words by a function of the header, and other arrays by it too: (header, arrays) -> (header, arrays)."""

    def change(data):
        packet = wire.decode(data)
        return wire.encode(*of(dict(packet.header), {name: a.copy() for name, a in packet.arrays.items()}))

    return change


def put(at, value):
    def change(array):
        array.flat[at] = value
        return array

    return numbers(change)


def listed(about, body=b"\0" * 64):
    """The header of an honest answer with another list of arrays."""

    def change(data):
        head = json.dumps({**wire.decode(data).header, "arrays": about}).encode()
        return wire.MAGIC + struct.pack("<I", len(head)) + head + body

    return change


def raw(head, body=b""):
    return lambda data: wire.MAGIC + struct.pack("<I", len(head)) + head + body


# Malformed answers to "work".

BYTES = {
    "text": Attack(lambda data: b"hello", "refused", "garbage"),
    "nothing": Attack(lambda data: b"", "refused", "garbage"),
    "cut short": Attack(lambda data: data[:-3], "refused", "garbage"),
    "cut in the header": Attack(lambda data: data[:40], "refused", "garbage"),
    "a byte more": Attack(lambda data: data + b"x", "refused", "garbage"),
    "twice in one": Attack(lambda data: data + data, "refused", "garbage"),
    "another magic": Attack(lambda data: b"FEDQ" + data[4:], "refused", "garbage"),
    "backwards": Attack(lambda data: data[::-1], "refused", "garbage"),
    "a header of 4 GB": Attack(lambda data: data[:4] + b"\xff\xff\xff\xff" + data[8:], "refused", "garbage"),
    "a header of nothing": Attack(lambda data: data[:4] + b"\0\0\0\0" + data[8:], "refused", "garbage"),
    "a header that is no JSON": Attack(raw(b"{round: 1}"), "refused", "garbage"),
    "a header that is a list": Attack(raw(b"[1, 2]"), "refused", "garbage"),
    "a header that is a number": Attack(raw(b"7"), "refused", "garbage"),
    "a header with NaN": Attack(raw(b'{"arrays": [], "weight": NaN}'), "refused", "garbage"),
    "a header nested 100,000 deep": Attack(raw(b"[" * 100_000), "refused", "garbage"),
    "a header that is not UTF-8": Attack(raw(b'{"arrays": [], "site": "\xff"}'), "refused", "garbage"),
    "a pickle": Attack(lambda data: b"\x80\x04\x95\x1d\x00\x00\x00c__builtin__\neval\n.", "refused", "garbage"),
    "not bytes": Attack(lambda data: {"w": 1}, "refused", "garbage", live=False),
    "no list of arrays": Attack(listed(None), "refused", "garbage"),
    "arrays as a table": Attack(listed({"w": 1}), "refused", "garbage"),
    "an array of objects": Attack(listed([[".w", "|O", [2]]]), "refused", "garbage"),
    "an array of texts": Attack(listed([[".w", "<U8", [2]]]), "refused", "garbage"),
    "a negative shape": Attack(listed([[".w", "<f8", [-2]]]), "refused", "garbage"),
    "a shape of 2^78": Attack(listed([[".w", "<f8", [2**39, 2**39]]]), "refused", "garbage"),
    "a shape that is no list": Attack(listed([[".w", "<f8", 2]]), "refused", "garbage"),
    "a shape of fractions": Attack(listed([[".w", "<f8", [2.0]]]), "refused", "garbage"),
    "a name twice": Attack(listed([[".w", "<f8", [4]], [".w", "<f8", [4]]]), "refused", "garbage"),
    "a name that is no text": Attack(listed([[7, "<f8", [8]]]), "refused", "garbage"),
    "20,000 arrays": Attack(listed([[f"a{i}", "<f8", [0]] for i in range(20_000)]), "refused", "garbage"),
    "40 axes": Attack(listed([[".w", "<f8", [1] * 40]]), "refused", "garbage"),
}
VALUES = {"nothing": None, "text": "x", "-1": -1, "a fraction": 1.5, "true": True, "a list": [], "a table": {"a": 1}}
FIELDS = {
    "protocol": "version", "study": "study", "run": "run", "site": "site", "order": "late", "round": "round",
    "kind": "kind", "chain": "chain", "weight": "weight",
}  # fmt: skip
HEADERS = {
    f"{field}: {what}": Attack(header(**{field: value}), "refused", why)
    for field, why in FIELDS.items()
    for what, value in VALUES.items()
} | {
    "an old round": Attack(header(round=0), "refused", "round"),
    "a round to come": Attack(header(round=999), "refused", "round"),
    "the round as text": Attack(words(lambda h, a: ({**h, "round": str(h["round"])}, a)), "refused", "round"),
    "the round as a fraction": Attack(words(lambda h, a: ({**h, "round": float(h["round"])}, a)), "refused", "round"),
    "the next round": Attack(words(lambda h, a: ({**h, "round": h["round"] + 1}, a)), "refused", "round"),
    "another order's word": Attack(header(order="0" * 16), "refused", "late"),
    "somebody else": Attack(header(site="c"), "refused", "site"),
    "another study": Attack(header(study="0" * 64), "refused", "study"),
    "another run": Attack(header(run="abc"), "refused", "run"),
    "another protocol": Attack(header(protocol=999), "refused", "version"),
    "another kind": Attack(header(kind="measure"), "refused", "kind"),
    "a huge weight": Attack(header(weight=1e9), "refused", "weight"),
    "a negative weight": Attack(header(weight=-1.0), "refused", "weight"),
    "no weight at all": Attack(
        words(lambda h, a: ({k: v for k, v in h.items() if k != "weight"}, a)), "refused", "weight"
    ),
    "the weight as text": Attack(words(lambda h, a: ({**h, "weight": str(h["weight"])}, a)), "refused", "weight"),
    "a failure": Attack(header(failure="error"), "refused", "error"),
    "a failure of memory": Attack(header(failure="memory"), "refused", "memory"),
    "a failure of no known kind": Attack(header(failure={"why": 1}), "refused", "error"),
    "a seal in capitals": Attack(header(chain="A" * 64), "refused", "chain"),
}  # fmt: skip
ARRAYS = {
    "NaN": Attack(put(0, np.nan), "refused", "finite"),
    "infinity": Attack(put(-1, -np.inf), "refused", "finite"),
    "all NaN": Attack(numbers(lambda a: a * np.nan), "refused", "finite"),
    "another shape": Attack(numbers(lambda a: np.zeros((5, 2))), "refused", "shape"),
    "one number for all": Attack(numbers(lambda a: a[:1]), "refused", "shape"),
    "one axis more": Attack(numbers(lambda a: a[None]), "refused", "shape"),
    "no axis": Attack(numbers(lambda a: a.sum()), "refused", "shape"),
    "empty arrays": Attack(numbers(lambda a: a[:0]), "refused", "shape"),
    "single precision": Attack(numbers(lambda a: a.astype(np.float32)), "refused", "dtype"),
    "half precision": Attack(numbers(lambda a: a.astype(np.float16)), "refused", "dtype"),
    "whole numbers": Attack(numbers(lambda a: a.astype(np.int64)), "refused", "dtype"),
    "truth values": Attack(numbers(lambda a: a > 0), "refused", "dtype"),
    "other names": Attack(arrays(lambda all: {f"{name}x": a for name, a in all.items()}), "refused", "keys"),
    "an array less": Attack(arrays(lambda all: dict(list(all.items())[1:])), "refused", "keys"),
    "an array more": Attack(arrays(lambda all: {**all, "more": np.zeros(2)}), "refused", "keys"),
    "no arrays": Attack(arrays(lambda all: {}), "refused", "keys"),
    "longer than norm_cap": Attack(numbers(lambda a: a + 1e8), "refused", "norm"),
    "longer than squares": Attack(numbers(lambda a: a * 0 + 1e200), "refused", "norm"),
}
MALFORMED = BYTES | HEADERS | ARRAYS


# Finite answers of the right shape.


def scaled(by):
    def of(array):
        with np.errstate(over="ignore"):
            return np.clip(array * by, -MAX, MAX)

    return numbers(of)


def only(name, by):
    """One array scaled, the others as they are."""
    return arrays(lambda all: {key: a * by if key == name else a for key, a in all.items()})


def one_number(by):
    def of(array):
        array.flat[0] *= by
        return array

    return numbers(of)


def turned(array):
    """Another direction, of the same length."""
    flat = array.ravel()[::-1].copy()
    flat[::2] *= -1
    return flat.reshape(array.shape)


class Stale:
    """The site's first answer under each new label: the hub's words are right, the numbers old."""

    def __init__(self):
        self.first = None

    def __call__(self, data):
        packet = wire.decode(data)
        self.first = packet.arrays if self.first is None else self.first
        return wire.encode(packet.header, self.first)


FINITE = {
    "1.79e308": Attack(numbers(lambda a: np.full_like(a, MAX)), "abandoned"),
    "1.79e308 of both signs": Attack(numbers(lambda a: np.where(np.arange(a.size) % 2, MAX, -MAX)), "abandoned"),
    "1e300": Attack(numbers(lambda a: np.full_like(a, 1e300)), "abandoned"),
    "1e150": Attack(numbers(lambda a: np.full_like(a, -1e150)), "abandoned"),
    "1e100 times": Attack(scaled(1e100), "abandoned"),
    "1e12 times": Attack(scaled(1e12), "abandoned"),
    "1e9 times": Attack(scaled(1e9), "abandoned"),
    "1e8 times, sign flipped": Attack(scaled(-1e8), "abandoned"),
    "one number 1e12 times": Attack(one_number(1e12), "abandoned"),
    "the model's change 1e12 times": Attack(only(".w", 1e12), "abandoned"),
    "the control's change 1e12 times": Attack(only(".c", 1e12), "abandoned"),
    "sign flipped": Attack(scaled(-1.0), "merged"),
    "twice as long": Attack(scaled(2.0), "merged"),
    "half as long": Attack(scaled(0.5), "merged"),
    "another direction": Attack(numbers(turned), "merged"),
    "an old answer, labelled anew": Attack(Stale(), "merged"),
    "the control's change withheld": Attack(only(".c", 0.0), "merged"),
    "1e5 times": Attack(scaled(1e5), "marked"),
    "1e3 times": Attack(scaled(1e3), "marked"),
    "1e3 times, sign flipped": Attack(scaled(-1e3), "marked"),
    "one number 1e4 times": Attack(one_number(1e4), "marked"),
    "the same large number everywhere": Attack(numbers(lambda a: np.full_like(a, 1e3)), "marked"),
    "zeros": Attack(scaled(0.0), "marked"),
    "1e-6 of it": Attack(scaled(1e-6), "marked"),
    "subnormal numbers": Attack(numbers(lambda a: np.full_like(a, 5e-324)), "marked"),
}  # fmt: skip


# What a site says of its data: columns age, dose (numbers), kind (words: x, y, z); gaps are filled in.


def column(name, **other):
    """What is said of one column, changed."""
    return words(lambda h, a: ({**h, "columns": {**h["columns"], name: {**h["columns"][name], **other}}}, a))


def part(name, of):
    return words(lambda h, a: (h, {**a, name: of(a[name])}))


COLUMNS = {
    "no rows": Attack(header(rows=0), "fatal", "statement"),
    "fewer than no rows": Attack(header(rows=-5), "fatal", "statement"),
    "rows as text": Attack(header(rows="30"), "fatal", "statement"),
    "rows as a fraction": Attack(header(rows=30.0), "fatal", "statement"),
    "1e20 rows": Attack(header(rows=10**20), "fatal", "statement"),
    "more rows than the study allows": Attack(header(rows=5000), "fatal", "rows"),
    "fewer rows than the study allows": Attack(header(rows=29), "fatal", "rows"),
    "no columns": Attack(header(columns={}), "fatal", "statement"),
    "columns as a list": Attack(header(columns=["age", "dose", "kind"]), "fatal", "statement"),
    "a column less": Attack(
        words(lambda h, a: ({**h, "columns": {k: v for k, v in h["columns"].items() if k != "dose"}}, a)),
        "fatal", "statement",
    ),
    "a column more": Attack(words(
        lambda h, a: ({**h, "columns": {**h["columns"], "secret": {"kind": "empty"}}}, a)), "fatal", "statement",
    ),
    "columns in another order": Attack(
        words(lambda h, a: ({**h, "columns": dict(reversed(h["columns"].items()))}, a)), "fatal", "statement"
    ),
    "a column of no kind": Attack(column("age", kind="secret"), "fatal", "statement"),
    "a column that is a text": Attack(words(
        lambda h, a: ({**h, "columns": {**h["columns"], "age": "number"}}, a)), "fatal", "statement",
    ),
    "more values than rows": Attack(column("age", count=31), "fatal", "statement"),
    "no values": Attack(column("age", count=0), "fatal", "statement"),
    "categories that are numbers": Attack(column("kind", words=[1, 2, 3]), "fatal", "statement"),
    "a category twice": Attack(column("kind", words=["x", "x", "y"]), "fatal", "statement"),
    "no categories": Attack(column("kind", words=[]), "fatal", "statement"),
    "categories that add up to more": Attack(part("kind.counts", lambda c: c + 20), "fatal", "add up to"),
    "a count that overflows": Attack(part("kind.counts", lambda c: c * 0 + 2**62), "fatal", "add up to"),
    "negative counts": Attack(part("kind.counts", lambda c: -c), "fatal", "statement"),
    "counts as fractions": Attack(part("kind.counts", lambda c: c.astype(float)), "fatal", "statement"),
    "no classes": Attack(header(classes=None), "fatal", "statement"),
    "classes as a table": Attack(header(classes={"0": 1}), "fatal", "statement"),
    "classes of lists": Attack(header(classes=[[0]]), "fatal", "statement"),
    "a class twice": Attack(header(classes=["n", "n"]), "fatal", "statement"),
    "more classes than rows": Attack(header(classes=list(range(99))), "fatal", "statement"),
    "more than was asked": Attack(words(lambda h, a: (h, {**a, "secret": np.zeros(3)})), "fatal", "secret"),
    "no moments": Attack(words(lambda h, a: (h, {})), "fatal", "statement"),
    "a mean of 1e300": Attack(part("age.mean", lambda m: m * 0 + 1e300), "fatal", "'age' with mean 1e+300"),
    "squares of 1e300": Attack(part("age.square", lambda s: s * 0 + 1e300), "fatal", "statement"),
    "a rest that is no rounding": Attack(part("age.rest", lambda r: r + 1e9), "fatal", "statement"),
}  # fmt: skip
MOMENTS = {
    "another number of rows": Attack(header(count=29), "fatal", "speaks of 30 rows, and then of 29"),
    "count as text": Attack(header(count="30"), "fatal", "statement"),
    "a mean that is no number": Attack(part("mean", lambda m: m * np.nan), "fatal", "statement"),
    "means of 1e300": Attack(part("mean", lambda m: m * 0 + 1e300), "fatal", "mean 1e+300"),
    "means of 1e160, which overflow when merged": Attack(part("mean", lambda m: m * 0 + 1e160), "fatal", "statement"),
    "squares of 1.79e308": Attack(part("square", lambda s: s * 0 + MAX), "fatal", "statement"),
    "negative squares": Attack(part("square", lambda s: s - 1e9), "fatal", "statement"),
    "a rest of 1e300": Attack(part("rest", lambda r: r * 0 + 1e300), "fatal", "statement"),
    "fewer columns": Attack(words(lambda h, a: (h, {k: v[:-1] for k, v in a.items()})), "fatal", "statement"),
    "moments in single precision": Attack(part("mean", lambda m: m.astype(np.float32)), "fatal", "statement"),
    "moments and more": Attack(words(lambda h, a: (h, {**a, "secret": np.zeros(3)})), "fatal", "secret"),
    "no squares": Attack(words(lambda h, a: (h, {"mean": a["mean"], "rest": a["rest"]})), "fatal", "statement"),
    "categories with a share of 7": Attack(part("mean", lambda m: np.r_[m[:2], m[2:] * 0 + 7]), "fatal", "'kind'"),
    "categories whose squares do not fit": Attack(
        part("square", lambda s: np.r_[s[:2], s[2:] * 3 + 1]), "fatal", "'kind'"
    ),
    "a mean of 1e99": Attack(words(lambda h, a: (h, {
        **a, "mean": np.r_[1e99, a["mean"][1:]], "rest": a["rest"] * 0})), "noted", "b's 'age' is unlike the others'",
    ),
    "other units": Attack(words(lambda h, a: (h, {
        "mean": np.r_[a["mean"][:1] * 1000, a["mean"][1:]], "rest": a["rest"] * 0,
        "square": np.r_[a["square"][:1] * 1e6, a["square"][1:]]})), "noted", "b's 'age' is unlike the others'",
    ),
    "a spread of 1e6": Attack(part("square", lambda s: np.r_[s[:1] * 1e12, s[1:]]), "noted", "b's 'age' is unlike"),
    "a mean a little off": Attack(words(lambda h, a: (h, {
        **a, "mean": np.r_[a["mean"][:1] + 5, a["mean"][1:]], "rest": a["rest"] * 0})), "believed",
    ),
}  # fmt: skip
MEASURES = {
    "no measures": Attack(header(measures=None), "refused", "statement"),
    "measures as text": Attack(header(measures={"loss": "low"}), "refused", "statement"),
    "measures as whole numbers": Attack(header(measures={"loss": 1}), "refused", "statement"),
    "an accuracy of 2": Attack(header(measures={"accuracy": 2.0}), "refused", "statement"),
    "a loss of 1e308": Attack(header(measures={"loss": 1e308}), "believed"),
    "a loss of -5": Attack(header(measures={"loss": -5.0}), "believed"),
}
PREPARATIONS = {"columns": COLUMNS, "moments": MOMENTS}
EVERY = {
    f"{kind} {name}": (kind, attack)
    for kind, some in (("work", MALFORMED | FINITE), *PREPARATIONS.items(), ("measure", MEASURES))
    for name, attack in some.items()
}
