"""Can it be true what a site says of its data? Looked at before anything is made of it; what is wrong, in words.

A single site could otherwise remove a feature for all, by a moment that is too large to be squared, or have any share
it likes. What is possible but strange is not refused: a note names the site and the column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.data.dates import FORMS
from fedpoint.data.moments import ColumnMoments, merge
from fedpoint.data.recipe import Feature
from fedpoint.federation import wire
from fedpoint.federation.hub.validate import Invalid
from fedpoint.federation.preparation import KINDS, PARTS
from fedpoint.federation.site_table import SiteTable

LARGEST = 1e100  # of a measured number: sums of its squares over all sites stay finite
FAR = 10.0  # standard deviations between a site's mean and that of the others
MOST = 100  # classes, and bins, of a table of measures
UNITS = 100.0  # times as wide: units that were mixed up
EPS = float(np.finfo(float).eps)

Parts = Sequence[np.ndarray | None]


def _impossible(what: str) -> Invalid:
    return Invalid("statement", f"what it says about its data is impossible: {what}")


def _count(value: object, what: str, most: int = 2**53) -> int:
    if type(value) is not int or not 1 <= value <= most:
        limit = "" if most == 2**53 else f" of {counted(most, 'row')}"
        raise _impossible(f"{str(value)[:40]!r} as the number of {what}{limit}")
    return value


def columns(packet: wire.Packet, table: SiteTable) -> None:
    """An answer to "columns" that says what it should, and no more."""
    header, arrays = packet.header, dict(packet.arrays)
    rows, said = _count(header.get("rows"), "rows"), header.get("columns")
    if not isinstance(said, dict) or list(said) != table.features:
        raise _impossible("its columns are not those of the study")
    _classes(header.get("classes"), table, rows)
    for name, one in said.items():
        if not isinstance(one, dict) or one.get("kind") not in ("empty", *KINDS):
            raise _impossible(f"column {name!r} is of no known kind")
        if one["kind"] == "words":
            _words(name, one, arrays, table.missing == "mean", rows)
        elif one["kind"] != "empty":
            _numbers(name, one, arrays, table.missing == "mean", rows)
    if arrays:
        raise _impossible(f"it contains more than was asked for ({', '.join(sorted(arrays))[:80]})")


def _classes(classes: object, table: SiteTable, rows: int) -> None:
    if (classes is None) == table.of_classes:
        raise _impossible("classes of a target that has none" if not table.of_classes else "no classes")
    if classes is None:
        return
    if not isinstance(classes, list) or not classes or not all(type(one) in (int, str) for one in classes):
        raise _impossible("its classes are neither whole numbers nor words")
    if len(set(classes)) < len(classes) or len(classes) > rows:
        raise _impossible(f"{counted(len(classes), 'class')} of {counted(rows, 'row')}, or one twice")


def _numbers(name: str, one: wire.ColumnSaid, arrays: dict[str, np.ndarray], fills: bool, rows: int) -> None:
    """Of a column of numbers or dates: one set of moments for each way to read it."""
    marks = [""] if one["kind"] == "number" else [f"{form}." for form in _texts(name, one.get("forms"), FORMS)]
    for mark in marks if fills else ():
        count = _count(one.get("count"), f"values in column {name!r}", rows)
        moments([arrays.pop(f"{name}.{mark}{part}", None) for part in PARTS], count, [name])


def _words(name: str, one: wire.ColumnSaid, arrays: dict[str, np.ndarray], fills: bool, rows: int) -> None:
    words = _texts(name, one.get("words"))
    counts = arrays.pop(f"{name}.counts", None) if fills else np.ones(len(words), np.int64)
    if counts is None or counts.shape != (len(words),) or counts.dtype != np.int64 or (counts < 1).any():
        raise _impossible(f"the counts of the categories of column {name!r}")
    if (counts > rows).any() or sum(counts.tolist()) > rows:
        raise _impossible(
            f"the categories of column {name!r} add up to {sum(counts.tolist()):,} of {counted(rows, 'row')}"
        )


def _texts(name: str, value: object, known: Collection[str] | None = None) -> list[str]:
    """Some different texts, among the known ones."""
    if not isinstance(value, list) or not value or not all(type(word) is str for word in value):
        raise _impossible(f"the categories or forms of column {name!r} are not words")
    if len(set(value)) < len(value) or not (known is None or set(value) <= set(known)):
        raise _impossible(f"the categories or forms of column {name!r}: one twice, or none that is known")
    return value


def moments(parts: Parts, count: int, names: Sequence[str]) -> None:
    """Mean, rest and squares of columns with these names."""
    known: list[np.ndarray] = []
    for what, part in zip(PARTS, parts, strict=True):
        if part is None or part.dtype != np.float64 or part.shape != (len(names),) or not np.isfinite(part).all():
            raise _impossible(f"the {what} of its columns is not {counted(len(names), 'finite number')}")
        known.append(part)
    mean, rest, square = known
    most = np.minimum(np.abs(mean), LARGEST)
    wrong = (
        (np.abs(mean) > LARGEST)
        | (np.abs(rest) > EPS * most)  # what rounding left
        | (square < 0)
        | (square > count * LARGEST**2)
        | ((count == 1) & (square > (EPS * most) ** 2))
    )
    for j in np.flatnonzero(wrong).tolist():
        raise _impossible(
            f"column {names[j]!r} with mean {mean[j]:.3g} and squares {square[j]:.3g} over {counted(count, 'row')}"
        )


def encoded(packet: wire.Packet, recipe: Sequence[Feature], rows: int) -> None:
    """An answer to "moments": of the columns of a recipe, in which a category is a column of zeros and ones."""
    count, names = _count(packet.header.get("count"), "rows"), [name for f in recipe for name in f.names]
    if count != rows:
        raise _impossible(f"it speaks of {counted(rows, 'row')}, and then of {count}")
    moments([packet.arrays.get(part) for part in PARTS], count, names)
    if set(packet.arrays) != set(PARTS):
        raise _impossible(f"it contains more than was asked for ({', '.join(sorted(packet.arrays))[:80]})")
    mean, square = packet.arrays["mean"], packet.arrays["square"]
    at = 0
    for feature in recipe:
        m, s = mean[at : at + len(feature.names)], square[at : at + len(feature.names)]
        at += len(feature.names)
        if feature.categories is None:
            continue
        whole = np.abs(m * count - np.round(m * count)) <= 1e-6 * count**0.5
        fits = np.abs(s - count * m * (1 - m)) <= 1e-6 * count
        if (m < 0).any() or m.sum() > 1 + 1e-9 or not (whole & fits).all():
            raise _impossible(f"the shares of the categories of column {feature.column!r}")


def strange(sites: Sequence[str], recipe: Sequence[Feature], answers: Sequence[wire.Packet]) -> list[str]:
    """Whose numbers would swamp a column for all: a note for each site and column that is far from the others'."""
    if len(sites) < 2:
        return []
    said = [ColumnMoments(a.header["count"], *(a.arrays[part] for part in PARTS)) for a in answers]
    notes: list[str] = []
    for k, site in enumerate(sites):
        others = merge(one for i, one in enumerate(said) if i != k)
        notes += _strange(site, recipe, said[k], others)
    return notes


def _strange(site: str, recipe: Sequence[Feature], own: ColumnMoments, others: ColumnMoments) -> list[str]:
    notes, at = [], 0
    for feature in recipe:
        j, at = at, at + len(feature.names)
        if feature.categories is not None or others.constant[j]:
            continue
        mean, usual, width = float(own.mean[j]), float(others.mean[j]), float(others.scale[j])
        wide = float(np.sqrt(own.variance[j])) / width
        if abs(mean - usual) > FAR * width or wide > UNITS:
            notes.append(
                f"{site}'s {feature.column!r} is unlike the others' (mean {mean:.3g}, standard deviation "
                f"{wide * width:.3g}; theirs {usual:.3g} and {width:.3g}): other units? It is scaled with them"
            )
    return notes


def rows(packet: wire.Packet) -> None:
    """The number of rows, and nothing else: of a model that sites have installed."""
    _count(packet.header.get("rows"), "rows")
    if packet.arrays:
        raise _impossible("it contains more than was asked for")


def measures(packet: wire.Packet, asked: Sequence[str]) -> dict[str, float]:
    """What a site says of a model, as far as it was asked for; of how many held-out rows, where it has any."""
    found = packet.header.get("measures")
    if not isinstance(found, Mapping) or not all(type(v) is float and np.isfinite(v) for v in found.values()):
        raise _impossible("measures that are not finite numbers")
    known = [name for name in ("loss", "accuracy", "auc") if name in found and name in asked]
    said: dict[str, float] = {name: found[name] for name in known}
    for name in said.keys() - {"loss"}:
        if not 0 <= said[name] <= 1:
            raise _impossible(f"{name} = {said[name]:.3g}")
    tables(packet, asked)
    if "count" in packet.header:
        said["rows"] = float(_count(packet.header["count"], "held-out rows"))
    return said


def tables(packet: wire.Packet, asked: Sequence[str]) -> dict[str, list[list[float]]]:
    """Calibration and confusion of a model, in shares; -1 where a class has too few rows."""
    found = packet.header.get("tables", {})
    if not isinstance(found, Mapping):
        raise _impossible("tables that are none")
    known = [name for name in ("calibration", "confusion") if name in found and name in asked]
    said: dict[str, list[list[float]]] = {name: found[name] for name in known}
    for name, table in said.items():
        rows = table if isinstance(table, list) and len(table) <= MOST else [None]
        if not all(isinstance(row, list) and len(row) <= MOST and all(map(_share, row)) for row in rows):
            raise _impossible(f"a table of {name} that holds no shares")
    return said


def _share(value: object) -> bool:
    return type(value) is float and (0 <= value <= 1 or value == -1)
