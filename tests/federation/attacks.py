"""Orders that no honest hub gives, one of each kind, for a site that an honest hub has asked for some time."""

import numpy as np

COLUMNS, MOMENTS, READY, ROUND, DONE = 1, 2, 3, 4, 7  # orders of an honest run that were answered before the attack


def recipe(server, **changes):
    """The honest recipe with its first column changed."""
    return [{**server.recipe[0], **changes}, *server.recipe[1:]]


def setup(server, **changes):
    return {**server.setup, **changes}


def scaled(server, **changes):
    """The honest setup with the first column of its recipe changed."""
    first, *rest = server.setup["recipe"]
    return setup(server, recipe=[{**first, **changes}, *rest])


def words(server, *categories):
    return [*server.recipe[:2], {**server.recipe[2], "categories": list(categories)}]


def heard(server, **changes):
    model = np.zeros(server.width)
    for at, value in changes.items():
        model[int(at[1:])] = value
    return {"model": model}


ATTACKS = {  # when, the order, the reason, and what the site says about it
    # Rounds.
    "a round beyond the study": (
        ROUND,
        lambda s: s.work(999),
        "terms",
        r"round 999 was asked for, but the study has 3 rounds \(rounds = 3\)",
    ),
    "the round after the last": (
        ROUND,
        lambda s: s.work(3),
        "terms",
        r"round 3 was asked for, but the study has 3 rounds",
    ),
    "a negative round": (ROUND, lambda s: s.work(-5), "terms", r"round -5 was asked for, but the study has 3 rounds"),
    "a round again, of another model": (
        ROUND,
        lambda s: s.work(0, arrays=heard(s, _0=9.0)),
        "terms",
        "round 0 was asked for again, with other content",
    ),
    "an earlier round": (
        ROUND + 1,
        lambda s: s.work(0),
        "terms",
        "round 0 was asked for after round 1: rounds only go forward",
    ),
    "a round after the measurement": (
        DONE,
        lambda s: s.work(2, arrays=heard(s, _0=1.0)),
        "terms",
        "round 2 was asked for again",
    ),
    "a round after a skipped one and the measurement": (
        "skip",
        lambda s: s.work(1, merged=0),
        "terms",
        "round 1 was asked for after the measurement",
    ),
    "merged, though never sent": (
        ROUND,
        lambda s: s.work(2, merged=1),
        "terms",
        "the hub says that it has merged round 1 of this site",
    ),
    "merged before it was sent": (
        READY,
        lambda s: s.work(1, merged=7),
        "terms",
        "the hub says that it has merged round 7",
    ),
    "merged goes back": (
        ROUND + 1,
        lambda s: s.work(2, merged=-1),
        "terms",
        "the hub says that it has merged round -1",
    ),
    "rounds before the preparation": (
        0,
        lambda s: s.work(0),
        "terms",
        "work was asked for out of turn: it comes after moments",
    ),
    # Measurements.
    "a measurement before the end": (
        ROUND,
        lambda s: s.measure(1),
        "terms",
        r"a measurement after round 1 was asked for, but the study measures after round 3 \(measurements = 1\)",
    ),
    "a measurement after round 0": (READY, lambda s: s.measure(0, merged=-1), "terms", "a measurement after round 0"),
    "a second measurement": (
        DONE,
        lambda s: s.measure(3, heard(s, _1=0.3)),
        "terms",
        "the measurement after round 3 was asked for again, of another model",
    ),
    "a measurement beyond the study": (DONE, lambda s: s.measure(4), "terms", "a measurement after round 4"),
    # Preparation.
    "columns after moments": (
        "no columns",
        lambda s: s.order("columns"),
        "terms",
        "columns were asked for after what follows from them",
    ),
    "moments by another recipe": (
        MOMENTS,
        lambda s: s.order("moments", recipe=s.recipe[:1]),
        "terms",
        "moments were asked for again, by another recipe",
    ),
    "moments after the rounds began": (
        "no moments",
        lambda s: s.order("moments"),
        "terms",
        "moments were asked for out of turn",
    ),
    "moments before columns": (0, lambda s: s.order("moments"), "terms", "moments were asked for out of turn"),
    "the target as a feature": (
        COLUMNS,
        lambda s: s.order("moments", recipe=recipe(s, column="ill")),
        "terms",
        "the target 'ill' was asked for as a feature",
    ),
    "a column that the study does not name": (
        COLUMNS,
        lambda s: s.order("moments", recipe=recipe(s, column="name")),
        "terms",
        "column 'name' was asked for: it is not among the study's features",
    ),
    "a column twice": (
        COLUMNS,
        lambda s: s.order("moments", recipe=[s.recipe[0], *s.recipe]),
        "terms",
        "features twice",
    ),
    "columns in another order": (
        COLUMNS,
        lambda s: s.order("moments", recipe=s.recipe[::-1]),
        "terms",
        "in another order than the study's",
    ),
    "no column": (COLUMNS, lambda s: s.order("moments", recipe=[]), "terms", "a recipe without a column"),
    "moments of scaled columns": (
        COLUMNS,
        lambda s: s.order("moments", recipe=recipe(s, scale=1e-9)),
        "terms",
        "moments of 'age' scaled",
    ),
    "moments of shifted columns": (
        COLUMNS,
        lambda s: s.order("moments", recipe=recipe(s, mean=50.0)),
        "terms",
        "moments of 'age' scaled",
    ),
    "gaps filled by a word": (
        COLUMNS,
        lambda s: s.order("moments", recipe=recipe(s, fill="x")),
        "terms",
        "filled by a number",
    ),
    "gaps not filled": (
        COLUMNS,
        lambda s: s.order("moments", recipe=recipe(s, fill=None)),
        "terms",
        "filled by a number",
    ),
    "a number as a category": (
        COLUMNS,
        lambda s: s.order("moments", recipe=recipe(s, categories=["20", "30"])),
        "terms",
        "column 'age' holds number here",
    ),
    "a number as a date": (
        COLUMNS,
        lambda s: s.order("moments", recipe=recipe(s, dates="iso")),
        "terms",
        "dates 'iso', which it does not hold here",
    ),
    "categories without some": (
        COLUMNS,
        lambda s: s.order("moments", recipe=words(s, "x", "y")),
        "terms",
        "leave out some that this site has",
    ),
    "a category twice": (
        COLUMNS,
        lambda s: s.order("moments", recipe=words(s, "x", "y", "z", "z")),
        "terms",
        "one is there twice",
    ),
    "too many categories": (
        COLUMNS,
        lambda s: s.order("moments", recipe=words(s, *sorted(["x", "y", "z", *(f"c{i:05}" for i in range(999))]))),
        "terms",
        "1,002 categories of 'kind'",
    ),
    # What is fixed.
    "a target among the features of the rounds": (
        MOMENTS,
        lambda s: s.order("ready", setup=scaled(s, column="ill")),
        "terms",
        "the target 'ill'",
    ),
    "a scale of zero": (MOMENTS, lambda s: s.order("ready", setup=scaled(s, scale=0.0)), "terms", "must be above 0"),
    "a negative scale": (MOMENTS, lambda s: s.order("ready", setup=scaled(s, scale=-1.0)), "terms", "must be above 0"),
    "gaps filled otherwise": (
        MOMENTS,
        lambda s: s.order("ready", setup=scaled(s, fill=1e9)),
        "terms",
        "written otherwise than when its moments",
    ),
    "classes without some": (
        MOMENTS,
        lambda s: s.order("ready", setup=setup(s, classes=[0, 2])),
        "terms",
        "the classes of 'ill' leave out some",
    ),
    "no classes": (
        MOMENTS,
        lambda s: s.order("ready", setup=setup(s, classes=None)),
        "terms",
        "the study's model is logistic",
    ),
    "the setup of another site": (
        MOMENTS,
        lambda s: s.order("ready", setup=setup(s, index=1)),
        "terms",
        "the order is for site number 1: north is number 0",
    ),
    "an index from the end": (
        MOMENTS,
        lambda s: s.order("ready", setup=setup(s, index=-2)),
        "terms",
        "the order is for site number -2",
    ),
    "a share above 1": (MOMENTS, lambda s: s.order("ready", setup=setup(s, share=5.0)), "terms", "the share 5.0"),
    "a share of nothing": (MOMENTS, lambda s: s.order("ready", setup=setup(s, share=0.0)), "terms", "the share 0.0"),
    "another scale in a later round": (
        ROUND,
        lambda s: s.work(1, setup=scaled(s, scale=3.0)),
        "terms",
        "not those with which this run began",
    ),
    "another share in a later round": (
        ROUND,
        lambda s: s.work(1, setup=setup(s, share=0.25)),
        "terms",
        "not those with which this run began",
    ),
    # Models.
    "a model that is not a number": (READY, lambda s: s.work(0, arrays=heard(s, _0=np.nan)), "terms", "is not finite"),
    "an infinite model": (READY, lambda s: s.work(0, arrays=heard(s, _0=np.inf)), "terms", "is not finite"),
    "a model of another shape": (READY, lambda s: s.work(0, arrays={"model": np.zeros(s.width + 1)}), "terms", "shape"),
    "a model of another type": (
        READY,
        lambda s: s.work(0, arrays={"model": np.zeros(s.width, np.float32)}),
        "terms",
        "dtype",
    ),
    "more than a model": (READY, lambda s: s.work(0, arrays={**heard(s), "more": np.zeros(3)}), "terms", "keys"),
    "a measurement of an infinite model": (
        DONE - 1,
        lambda s: s.measure(3, heard(s, _0=-np.inf)),
        "terms",
        "is not finite",
    ),
    "a measurement of another shape": (
        DONE - 1,
        lambda s: s.measure(3, {"model": np.zeros((2, s.width))}),
        "terms",
        "shape",
    ),
    # No orders at all.
    "an unknown kind": (READY, lambda s: s.order("erase"), "order", "unknown order 'erase'"),
    "a run that is a path": (READY, lambda s: s.order("ready", run="../../etc"), "order", "the name of a run"),
    "a run of 33 letters": (READY, lambda s: s.order("ready", run="a" * 33), "order", "the name of a run"),
    "a round that is a fraction": (
        READY,
        lambda s: s.order("work", heard(s), round=0.5),
        "order",
        "round is not a whole number",
    ),
    "a round that is true": (
        READY,
        lambda s: s.order("work", heard(s), round=True),
        "order",
        "round is not a whole number",
    ),
    "no setup": (READY, lambda s: s.work(0, setup=None), "order", "a setup has the fields"),
    "a setup with more": (
        MOMENTS,
        lambda s: s.order("ready", setup=setup(s, path="/etc")),
        "order",
        "a setup has the fields",
    ),
    "a recipe that is a text": (
        COLUMNS,
        lambda s: s.order("moments", recipe="all"),
        "order",
        "the recipe is not a list",
    ),
    "a column with more": (
        COLUMNS,
        lambda s: s.order("moments", recipe=recipe(s, every=True)),
        "order",
        "a column of a recipe has the fields",
    ),
    "a scale that is a text": (
        COLUMNS,
        lambda s: s.order("moments", recipe=recipe(s, scale="1")),
        "order",
        "the scale of 'age' is not a finite number",
    ),
    "a share that is a list": (
        MOMENTS,
        lambda s: s.order("ready", setup=setup(s, share=[1])),
        "order",
        "the share is not a finite number",
    ),
    "classes that are fractions": (
        MOMENTS,
        lambda s: s.order("ready", setup=setup(s, classes=[0.5, 1])),
        "order",
        "a class is neither",
    ),
    "arrays where none are": (0, lambda s: s.order("columns", {"a": np.zeros(2)}), "order", "has no arrays"),
    "a word of ten thousand letters": (
        0,
        lambda s: s.order("columns", order="w" * 10_000),
        "order",
        "the word of an order",
    ),
    "bytes": (READY, lambda s: b"FEDP and more", "order", "cut short"),
}
