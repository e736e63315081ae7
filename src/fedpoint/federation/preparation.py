"""How are columns scaled and categories encoded when rows stay at the sites? In two questions to every site.

"columns": how many rows, which categories, and where gaps are filled in the moments of what is there. "moments": those
of the encoded columns. What the hub makes of the answers equals `fp.data.read_table` on all files together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.types import Model
from fedpoint.data.column import Column
from fedpoint.data.dates import as_days, open_order, possible_forms, taken
from fedpoint.data.moments import ColumnMoments, merge
from fedpoint.data.recipe import Feature, encode
from fedpoint.data.tables import CATEGORIES, CLASSES
from fedpoint.federation.site_table import SiteTable, labels_of
from fedpoint.federation.wire import Classes, ColumnSaid, Header, Packet, Recipe, Written
from fedpoint.problems.base import Problem

PARTS = ("mean", "rest", "square")
KINDS = {"number": "numbers", "dates": "dates", "words": "words"}


class Setup(Recipe):
    """What all sites together say of their data, and what follows."""

    weights: list[float]
    rows: list[int] | None  # of a site that has said nothing yet: what is expected
    notes: list[str]
    unscaled: list[Written]  # the recipe that moments are asked for with
    absent: list[str]  # sites that were not there, and have not come since


def features(recipe: Sequence[Written]) -> list[Feature]:
    return [Feature(**written) for written in recipe]


def written(recipe: Sequence[Feature]) -> list[Written]:
    return [
        Written(column=f.column, mean=f.mean, scale=f.scale, categories=_words(f), fill=f.fill, dates=f.dates)
        for f in recipe
    ]


def _words(feature: Feature) -> list[str] | None:
    return None if feature.categories is None else [str(word) for word in feature.categories]


def _parts(moments: ColumnMoments) -> dict[str, np.ndarray]:
    return dict(zip(PARTS, (moments.mean, moments.rest, moments.square), strict=True))


# At a site.


def columns_of(table: SiteTable, columns: Mapping[str, Column]) -> tuple[Header, dict[str, np.ndarray]]:
    """A site's answer to "columns"."""
    said: dict[str, ColumnSaid] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in table.features:
        forms = [] if name in table.categorical else possible_forms(name, columns[name])
        said[name], own = _said(columns[name], forms, table.missing == "mean")
        arrays |= {f"{name}.{part}": values for part, values in own.items()}
    return Header(rows=table.rows_of(columns), columns=said, classes=_classes(table, columns)), arrays


def _said(column: Column, forms: list[str], fills: bool) -> tuple[ColumnSaid, dict[str, np.ndarray]]:
    """What a site says of a column, with the moments or counts that gaps are filled by. forms: how dates may be
    written; of dates no words leave."""
    there = ~column.missing
    if not there.any():
        return {"kind": "empty"}, {}
    if forms:
        each = {f"{form}.": as_days(column, form).values for form in forms}
        said: ColumnSaid = {"kind": "dates", "forms": forms}
    elif column.words is None:
        each, said = {"": column.values}, {"kind": "number"}
    else:
        counts = np.bincount(column.values[there], minlength=len(column.words))
        used = np.flatnonzero(counts)
        said = {"kind": "words", "words": [column.words[i] for i in used]}
        return said, {"counts": counts[used].astype(np.int64)} if fills else {}
    if not fills:
        return said, {}
    moments = {mark: ColumnMoments.of(values[there, None]) for mark, values in each.items()}
    arrays = {f"{mark}{part}": values for mark, own in moments.items() for part, values in _parts(own).items()}
    return {**said, "count": int(there.sum())}, arrays


def _classes(table: SiteTable, columns: Mapping[str, Column]) -> Classes:
    if table.target is None:
        return None
    target = columns[table.target]
    if not table.of_classes:
        if target.words is not None:
            raise FedpointError(f"{table.target!r} holds words: a linear model needs numbers")
        return None
    return np.unique(labels_of(target)).tolist()


def moments_of(columns: Mapping[str, Column], recipe: Sequence[Feature]) -> tuple[int, dict[str, np.ndarray]]:
    """A site's answer to "moments"."""
    own = ColumnMoments.of(encode(recipe, columns)[0])
    return int(own.count), _parts(own)


def problem_of(
    table: SiteTable,
    sites: Sequence[Mapping[str, Column]],
    recipe: Sequence[Feature],
    classes: Classes,
    held_out: bool = False,
) -> Problem:
    """The problem of the columns of some sites, each an agent; of one, at a site. held_out: categories may be new,
    as in predictions."""
    return table.problem(sites, recipe, classes, held_out)


# At the hub.


def first_recipe(table: SiteTable, answers: Sequence[Packet]) -> tuple[list[Feature], Classes, list[str]]:
    """Of all sites' answers to "columns": how columns will be written, not yet scaled; classes; notes."""
    recipe: list[Feature] = []
    notes: list[str] = []
    for name in table.features:
        feature, note = _first_feature(name, answers, table.missing == "mean")
        recipe += [] if feature is None else [feature]
        notes += [note] if note else []
    if not recipe:
        raise FedpointError("every feature is constant: there is nothing to learn from")
    return recipe, _all_classes(table, answers), notes


def _first_feature(name: str, answers: Sequence[Packet], fills: bool) -> tuple[Feature | None, str]:
    """How a column will be written, None where it is left out; and a note."""
    said = [packet.header["columns"][name] for packet in answers]
    kinds = sorted({one["kind"] for one in said} - {"empty"})
    if not kinds:
        return None, f"without any value, and left out: {name}"
    if len(kinds) > 1:
        first, second = (KINDS[kind] for kind in kinds[:2])
        raise FedpointError(f"column {name!r} holds {first} at some sites and {second} at others: make it categorical")
    there = [(a, s) for a, s in zip(answers, said, strict=True) if s["kind"] == kinds[0]]
    if kinds == ["words"]:
        return _of_words(name, there, fills)
    form = _common_form(name, [s["forms"] for _, s in there]) if kinds == ["dates"] else None
    fill = None
    if fills:
        mark = "" if form is None else f"{form}."
        parts = [ColumnMoments(s["count"], *(a.arrays[f"{name}.{mark}{p}"] for p in PARTS)) for a, s in there]
        fill = float(merge(parts).mean[0])
    note = "" if form is None else f"column {name!r}: dates, {taken(form)}"
    return Feature(name, fill=fill, dates=form), note


def _common_form(name: str, forms: Sequence[list[str]]) -> str:
    """The one way in which the dates of all sites can be read."""
    common = sorted(set.intersection(*map(set, forms)))
    if not common:
        known = " and ".join(sorted({form for some in forms for form in some}))
        raise FedpointError(f"column {name!r} holds dates that sites write differently ({known}): write YYYY-MM-DD")
    if len(common) > 1:
        raise FedpointError(open_order(name, "01/02/2020"))
    return common[0]


def _of_words(name: str, there: Sequence[tuple[Packet, ColumnSaid]], fills: bool) -> tuple[Feature | None, str]:
    categories = sorted({word for _, one in there for word in one["words"]})
    if len(categories) > CATEGORIES:
        raise FedpointError(f"column {name!r} has {len(categories)} categories, too many: leave it out")
    if len(categories) == 1:
        return None, f"constant, and left out: {name}"
    counts = dict.fromkeys(categories, 0)
    for packet, one in there if fills else ():
        for word, count in zip(one["words"], packet.arrays[f"{name}.counts"].tolist(), strict=True):
            counts[word] += count
    fill = max(categories, key=lambda word: counts[word]) if fills else None
    return Feature(name, categories=categories, fill=fill), ""


def _all_classes(table: SiteTable, answers: Sequence[Packet]) -> Classes:
    if not table.of_classes:
        return None
    found = {value for packet in answers for value in packet.header["classes"] or ()}
    if len({type(value) for value in found}) > 1:
        raise FedpointError(f"{table.target!r} holds numbers at some sites and words at others")
    if not 2 <= len(found) <= CLASSES:
        raise FedpointError(f"{table.target!r} has {counted(len(found), 'class')}: from 2 to {CLASSES} are supported")
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


def misfit(recipe: Sequence[Feature], classes: Classes, said: Header) -> str:
    """Why the columns of a site that comes late do not fit a recipe that was made without it; nothing where they do."""
    for feature in recipe:
        name, one = feature.column, said["columns"][feature.column]
        kind = "words" if feature.categories is not None else "dates" if feature.dates is not None else "number"
        if one["kind"] not in ("empty", kind):
            return f"its column {name!r} holds {KINDS[one['kind']]}, that of the others {KINDS[kind]}"
        if feature.dates is not None and feature.dates not in one.get("forms", [feature.dates]):
            return f"its dates in column {name!r} are written differently from those of the others"
        new = sorted(set(one.get("words", [])) - set(feature.categories or []))
        if new:
            return f"no site had the category {new[0]!r} of column {name!r} when the study was prepared"
    strange = [value for value in said["classes"] or () if classes is None or value not in classes]
    return f"no site had the class {strange[0]!r} when the study was prepared" if strange else ""


def start_of(table: SiteTable, recipe: Sequence[Feature], classes: Classes) -> Model:
    """The model before the first round."""
    return table.start(recipe, classes)
