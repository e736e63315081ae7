"""How are columns scaled and categories encoded when rows stay at the sites? In two questions to every site.

"columns": how many rows, which categories, and where gaps are filled in the moments of what is there. "moments": those
of the encoded columns. What the hub makes of the answers equals `fp.data.read_table` on all files together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.data.column import Column
from fedpoint.data.moments import ColumnMoments, merge
from fedpoint.data.recipe import Feature, encode
from fedpoint.data.tables import CATEGORIES, CLASSES, Table
from fedpoint.federation.study import SiteTable
from fedpoint.federation.wire import Classes, ColumnSaid, Header, Packet, Recipe, Written
from fedpoint.problems.base import Problem

PARTS = ("mean", "rest", "square")


class Setup(Recipe):
    """What all sites together say of their data, and what follows."""

    weights: list[float]
    rows: list[int] | None
    notes: list[str]


def features(recipe: Sequence[Written]) -> list[Feature]:
    return [Feature(**written) for written in recipe]


def written(recipe: Sequence[Feature]) -> list[Written]:
    return [Written(column=f.column, mean=f.mean, scale=f.scale, categories=f.categories, fill=f.fill) for f in recipe]


def _parts(moments: ColumnMoments) -> dict[str, np.ndarray]:
    return dict(zip(PARTS, (moments.mean, moments.rest, moments.square), strict=True))


# At a site.


def columns_of(table: SiteTable, columns: Mapping[str, Column]) -> tuple[Header, dict[str, np.ndarray]]:
    """A site's answer to "columns"."""
    said: dict[str, ColumnSaid] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in table.features:
        column, there = columns[name], ~columns[name].missing
        if not there.any():
            said[name] = {"kind": "empty"}
        elif column.words is None:
            said[name] = {"kind": "number"}
            if table.missing == "mean":
                own = ColumnMoments.of(column.values[there, None])
                said[name]["count"] = own.count
                arrays |= {f"{name}.{part}": values for part, values in _parts(own).items()}
        else:
            counts = np.bincount(column.values[there], minlength=len(column.words))
            used = np.flatnonzero(counts)
            said[name] = {"kind": "words", "words": [column.words[i] for i in used]}
            if table.missing == "mean":
                arrays[f"{name}.counts"] = counts[used].astype(np.int64)
    rows = len(columns[table.target].values)
    return Header(rows=rows, columns=said, classes=_classes(table, columns)), arrays


def _classes(table: SiteTable, columns: Mapping[str, Column]) -> Classes:
    target = columns[table.target]
    if table.model == "linear":
        if target.words is not None:
            raise FedpointError(f"{table.target!r} holds words: a linear model needs numbers")
        return None
    return np.unique(labels_of(target)).tolist()


def labels_of(target: Column) -> np.ndarray:
    """The classes of rows: words, or whole numbers."""
    if target.words is not None:
        return np.array(target.words)[target.values]
    if not (target.values == np.round(target.values)).all() or np.abs(target.values).max() >= 2**53:
        raise FedpointError('the target holds fractions, which cannot be classes: choose model = "linear"')
    return target.values.astype(np.int64)


def moments_of(columns: Mapping[str, Column], recipe: Sequence[Feature]) -> tuple[int, dict[str, np.ndarray]]:
    """A site's answer to "moments"."""
    own = ColumnMoments.of(encode(recipe, columns)[0])
    return own.count, _parts(own)


def problem_of(table: SiteTable, columns: Mapping[str, Column], recipe: Sequence[Feature], classes: Classes) -> Problem:
    """A site's own problem: one agent."""
    X, unknown = encode(recipe, columns)
    if unknown:
        raise FedpointError(f"{unknown} cells hold categories that no site had when the study was prepared")
    target = columns[table.target]
    y = target.values if table.model == "linear" else labels_of(target)
    names = [name for feature in recipe for name in feature.names]
    known = None if classes is None else np.array(classes)
    made = Table(X, y, np.zeros(len(y), int), names, table.target, known)
    return made.problem(table.model, table.ridge, table.batch, table.sampling, None, table.intercept)


# At the hub.


def first_recipe(table: SiteTable, answers: Sequence[Packet]) -> tuple[list[Feature], Classes, list[str]]:
    """Of all sites' answers to "columns": how columns will be written, not yet scaled; classes; notes."""
    recipe, notes = [], []
    for name in table.features:
        said = [packet.header["columns"][name] for packet in answers]
        kinds = {one["kind"] for one in said} - {"empty"}
        if len(kinds) > 1:
            raise FedpointError(f"column {name!r} holds numbers at some sites and words at others: make it categorical")
        if not kinds:
            notes.append(f"without any value, and left out: {name}")
            continue
        fill: float | str | None = None
        if kinds == {"number"}:
            if table.missing == "mean":
                there = [(a, s) for a, s in zip(answers, said, strict=True) if s["kind"] == "number"]
                parts = [ColumnMoments(s["count"], *(a.arrays[f"{name}.{p}"] for p in PARTS)) for a, s in there]
                fill = float(merge(parts).mean[0])
            recipe.append(Feature(name, fill=fill))
            continue
        categories = sorted({word for one in said for word in one.get("words", [])})
        if len(categories) > CATEGORIES:
            raise FedpointError(f"column {name!r} has {len(categories)} categories, too many: leave it out")
        if len(categories) == 1:
            notes.append(f"constant, and left out: {name}")
            continue
        if table.missing == "mean":
            counts = dict.fromkeys(categories, 0)
            for packet, one in zip(answers, said, strict=True):
                own = packet.arrays.get(f"{name}.counts", np.zeros(0, np.int64))
                for word, count in zip(one.get("words", []), own.tolist(), strict=True):
                    counts[word] += count
            fill = max(categories, key=lambda word: counts[word])
        recipe.append(Feature(name, categories=categories, fill=fill))
    if not recipe:
        raise FedpointError("every feature is constant: there is nothing to learn from")
    return recipe, _all_classes(table, answers), notes


def _all_classes(table: SiteTable, answers: Sequence[Packet]) -> Classes:
    if table.model == "linear":
        return None
    found = {value for packet in answers for value in packet.header["classes"] or ()}
    if len({type(value) for value in found}) > 1:
        raise FedpointError(f"{table.target!r} holds numbers at some sites and words at others")
    if not 2 <= len(found) <= CLASSES:
        raise FedpointError(f"{table.target!r} has {len(found)} classes: from 2 to {CLASSES} are supported")
    return sorted(found)


def last_recipe(
    table: SiteTable, recipe: Sequence[Feature], answers: Sequence[Packet]
) -> tuple[list[Feature], list[str]]:
    """Of all sites' answers to "moments": constant columns left out, the others scaled; notes."""
    whole = merge(ColumnMoments(a.header["count"], *(a.arrays[part] for part in PARTS)) for a in answers)
    made, gone, at = [], [], 0
    for feature in recipe:
        if feature.categories is not None:
            made.append(feature)
        elif whole.constant[at]:
            gone.append(feature.column)
        elif table.scale:
            made.append(replace(feature, mean=float(whole.mean[at]), scale=float(whole.scale[at])))
        else:
            made.append(feature)
        at += len(feature.names)
    if not made:
        raise FedpointError("every feature is constant: there is nothing to learn from")
    return made, ([f"constant, and left out: {', '.join(gone)}"] if gone else [])


def start_of(table: SiteTable, recipe: Sequence[Feature], classes: Classes) -> np.ndarray:
    """The model before the first round."""
    width = sum(len(feature.names) for feature in recipe) + table.intercept
    return np.zeros((len(classes), width) if classes is not None and len(classes) > 2 else width)
