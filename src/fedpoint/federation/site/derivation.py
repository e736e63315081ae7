"""Does a recipe follow from the study and from what this site has said? Then it may say how its columns are written.

A server chooses which categories others have, how gaps are filled and how numbers are scaled; nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.data.dates import FORMS
from fedpoint.data.tables import CATEGORIES, CLASSES
from fedpoint.federation.site.refusal import forbidden
from fedpoint.federation.site_table import SiteTable
from fedpoint.federation.study import Study
from fedpoint.federation.wire import Classes, ColumnSaid, Header, OwnSetup, Written
from fedpoint.problems.base import check_weights


def check_recipe(table: SiteTable, said: Header, recipe: Sequence[Written]) -> None:
    """The recipe of "moments", against the study and this site's answer to "columns": not scaled yet."""
    _check_columns(table, said, recipe)
    for one in recipe:
        if (one["mean"], one["scale"]) != (0.0, 1.0):
            raise forbidden(f"moments of {one['column']!r} scaled were asked for: the study takes them as they are")


def _check_columns(table: SiteTable, said: Header, recipe: Sequence[Written]) -> None:
    names = [one["column"] for one in recipe]
    if not names:
        raise forbidden("a recipe without a column: the study has features")
    if table.target in names:
        raise forbidden(f"the target {table.target!r} was asked for as a feature: the study has it as target only")
    for name in names:
        if name not in table.features:
            raise forbidden(f"column {name!r} was asked for: it is not among the study's features")
    if names != [name for name in table.features if name in names]:
        raise forbidden("features twice, or in another order than the study's")
    for one in recipe:
        _check_column(table, said["columns"][one["column"]], one)


def _check_column(table: SiteTable, said: ColumnSaid, one: Written) -> None:
    """One column, as this site holds it; where it holds nothing, as any site may."""
    name, words, dates = one["column"], one["categories"], one["dates"]
    kind = said["kind"] if said["kind"] != "empty" else "words" if words is not None else "dates" if dates else "number"
    if (words is not None) != (kind == "words"):
        raise forbidden(f"column {name!r} holds {kind} here: it cannot be written otherwise")
    if words is not None:
        _check_categories(name, said.get("words", []), words)
    known = said.get("forms", list(FORMS))
    if (dates is not None) != (kind == "dates") or (dates is not None and dates not in known):
        raise forbidden(f"column {name!r}: dates {dates!r}, which it does not hold here")
    _check_fill(table, one)


def _check_categories(name: str, own: Sequence[str], words: Sequence[str]) -> None:
    if list(words) != sorted(set(words)):
        raise forbidden(f"the categories of {name!r} are not sorted, or one is there twice")
    if not set(own) <= set(words):
        raise forbidden(f"the categories of {name!r} leave out some that this site has")
    if not 2 <= len(words) <= CATEGORIES:
        raise forbidden(f"{counted(len(words), 'category')} of {name!r}: from 2 to {CATEGORIES} are supported")


def _check_fill(table: SiteTable, one: Written) -> None:
    name, fill, words = one["column"], one["fill"], one["categories"]
    if table.missing != "mean":
        if fill is not None:
            raise forbidden(f"gaps of {name!r} were to be filled, but the study has missing = {table.missing!r}")
    elif words is not None and fill not in words:
        raise forbidden(f"gaps of {name!r} are filled by one of its categories, not by {fill!r}")
    elif words is None and not isinstance(fill, float):
        raise forbidden(f"gaps of {name!r} are filled by a number, not by {fill!r}")


def check_setup(table: SiteTable, said: Header, setup: OwnSetup, recipe: Sequence[Written]) -> None:
    """What later orders name, against the recipe of "moments"."""
    _check_columns(table, said, setup["recipe"])
    for one in setup["recipe"]:
        plain = (one["mean"], one["scale"]) == (0.0, 1.0)
        if not plain and (one["categories"] is not None or not table.scale):
            raise forbidden(f"column {one['column']!r} scaled, which the study does not do")
        if not one["scale"] > 0:
            raise forbidden(f"column {one['column']!r} has the scale {one['scale']}: it must be above 0")
    before = {one["column"]: _unscaled(one) for one in recipe}
    for one in setup["recipe"]:
        if before.get(one["column"]) != _unscaled(one):
            raise forbidden(f"column {one['column']!r} is written otherwise than when its moments were asked for")
    _check_classes(table, said["classes"], setup["classes"])


def _unscaled(one: Written) -> Written:
    return {**one, "mean": 0.0, "scale": 1.0}


def _check_classes(table: SiteTable, own: Classes, classes: Classes) -> None:
    if own is None or classes is None:
        if own is not classes:
            raise forbidden(f"classes of {table.target!r}: the study's model is {table.model}")
        return
    kinds = {type(one) for one in [*own, *classes]}
    if len(kinds) > 1 or not set(own) <= set(classes):
        raise forbidden(f"the classes of {table.target!r} leave out some that this site has")
    if list(classes) != sorted(set(classes)) or not 2 <= len(classes) <= CLASSES:
        raise forbidden(
            f"the classes of {table.target!r} are not sorted, one is there twice, or they are not 2 or more"
        )


def check_share(study: Study, name: str, setup: OwnSetup) -> None:
    """Whose setup it is, and how much its answers count."""
    sites = study.sites
    if not 0 <= setup["index"] < len(sites) or sites[setup["index"]] != name:
        raise forbidden(f"the order is for site number {setup['index']}: {name} is number {sites.index(name)}")
    if not (math.isfinite(setup["share"]) and 0 < setup["share"] <= 1):
        raise forbidden(f"the share {setup['share']} is not above 0 and at most 1")
    if not setup["share"] <= setup["heaviest"] <= 1:
        raise forbidden(f"the largest share is said to be {setup['heaviest']}: this site's is {setup['share']}")
    if study.site_weights is not None:
        agreed = float(check_weights(np.asarray(study.site_weights, float), len(sites))[setup["index"]])
        if setup["share"] != agreed:
            raise forbidden(f"the share is said to be {setup['share']}: by the study's weights it is {agreed}")
