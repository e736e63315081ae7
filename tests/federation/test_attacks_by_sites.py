"""Each attack by a site has its outcome: the model is as without that answer, or within the bound."""

import math
from collections import Counter
from pathlib import Path

import attacks_by_sites as attacks
import numpy as np
import pytest
from attacks_by_sites import COLUMNS, FINITE, MALFORMED, MEASURES, MOMENTS, SITE
from studies import AVERAGE, BOWLS, CONTROL, SITES, content

import fedpoint as fp
from fedpoint.federation import wire
from fedpoint.federation.hub import examine, norms, statements, validate
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.study import Study, parse

FIRST = 2  # orders before the rounds: columns, ready


def test_there_are_enough_of_them():
    assert len(MALFORMED) + len(COLUMNS) + len(MOMENTS) >= 60
    assert len(FINITE) >= 20


def test_the_page_counts_them():
    page = (Path(__file__).parents[2] / "docs" / "federation.md").read_text()
    impossible = sum(attack.outcome == "fatal" for attack in (COLUMNS | MOMENTS).values())
    assert len(COLUMNS | MOMENTS) == len(COLUMNS) + len(MOMENTS)
    for said in (f"lists {len(attacks.EVERY)} such", f"| {len(MALFORMED)} malformed", f"{impossible} in all |"):
        assert said in page, said


# Malformed answers: one study, in every round of which the site sends another one.

STUDY = content(CONTROL, BOWLS, rounds=len(MALFORMED), quorum=2, norm_cap=1e6)


@pytest.fixture(scope="module")
def refused():
    faults = [Fault(SITE, FIRST + number, attack.change) for number, attack in enumerate(MALFORMED.values())]
    return fp.federate(STUDY, faults=faults)


@pytest.fixture(scope="module")
def without():
    """The study in which the site says nothing."""
    return fp.federate(STUDY, faults=[Fault(SITE, FIRST + number, "lost") for number in range(len(MALFORMED))])


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_answer_is_as_none(name, refused, without):
    number, attack = list(MALFORMED).index(name), MALFORMED[name]
    event = refused.events[number]
    reason = "deadline" if attack.why in validate.STALE else attack.why  # the true answer may still come
    assert event["refused"] == {SITE: reason}
    assert event["answered"] == [site for site in SITES if site != SITE]
    assert np.array_equal(refused.history[number + 1], without.history[number + 1])


def test_each_is_refused_for_its_own_reason(refused):
    expected = Counter(f"{SITE} {attack.why}" for attack in MALFORMED.values())
    assert {why: refused.refused[why] for why in expected} == expected


@pytest.mark.parametrize(
    ("check", "broken", "name"),
    [
        ("opened", lambda data, site, expected: wire.decode(data), "a round to come"),
        ("opened", lambda data, site, expected: wire.decode(data), "somebody else"),
        ("opened", lambda data, site, expected: wire.decode(data), "another order's word"),
        ("opened", lambda data, site, expected: wire.decode(data), "chain: text"),
        ("willing", lambda packet: None, "a failure of memory"),
        ("message", lambda packet, like, share, cap: packet.arrays, "a huge weight"),
        ("norm", lambda message, cap: None, "longer than norm_cap"),
        ("misfit", lambda like, arrays: None, "an array more"),
    ],
)
def test_without_a_check_its_attack_passes(check, broken, name, monkeypatch):
    """The tests above can fail: each of these is merged, or ends in an error of somebody else's."""
    monkeypatch.setattr(validate, check, broken)
    study = content(CONTROL, BOWLS, rounds=3, quorum=2, norm_cap=1e6)
    made = fp.federate(study, faults=[Fault(SITE, FIRST + 1, MALFORMED[name].change)])
    assert SITE in made.events[1]["answered"]


# Finite answers of the right shape.

LONG = content(CONTROL, BOWLS, rounds=10, quorum=2)
AT = 8  # after some rounds a site has a past


@pytest.fixture(scope="module")
def abandoned():
    """The study whose round was abandoned for another reason."""
    return fp.federate(LONG, faults=[Fault(site, FIRST + AT, lambda data: b"") for site in "ab"])


@pytest.fixture(scope="module")
def honest():
    return fp.federate(LONG)


def attacked(attack):
    """Stale answers must have heard the rounds before."""
    before = [Fault(SITE, FIRST + 3, attack.change)] if isinstance(attack.change, attacks.Stale) else []
    return fp.federate(LONG, faults=[*before, Fault(SITE, FIRST + AT, attack.change)])


# Of every outcome and kind the one nearest to the rule's bounds is quick.
BEYOND = ("1.79e308 of both signs", "1e300", "1e150", "1e100 times", "1e12 times", "1e9 times", "1e3 times")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in BEYOND else n for n in FINITE])
def test_a_finite_answer_has_its_outcome(name, abandoned, honest):
    attack, made = FINITE[name], attacked(FINITE[name])
    event, usual = made.events[AT], norms.usual(honest.events[0]["norms"].values())
    assert np.array_equal(made.history[AT], honest.history[AT])
    assert (SITE in event["marks"]) == (attack.outcome in ("marked", "abandoned"))
    assert set(event["marks"]) <= {SITE}
    if attack.outcome == "abandoned":
        assert not event["merged"] and f"the answer of {SITE} is over ten thousand" in event["abandoned"]
        assert np.array_equal(made.history, abandoned.history)
        return
    assert event["merged"]
    share = 1 / 3
    moved = np.abs(made.history[AT + 1] - honest.history[AT + 1]).max()
    lengths = event["norms"][SITE] + honest.events[AT]["norms"][SITE]
    assert not np.array_equal(made.history, honest.history)
    assert moved <= share * lengths * 1.01 and moved < examine.BOUND * usual  # its weight, and no more
    assert np.isfinite(made.history).all()


def test_without_the_rule_nobody_is_marked(monkeypatch):
    monkeypatch.setattr(norms, "FIRST", math.inf)
    monkeypatch.setattr(norms, "LONGER", math.inf)
    assert not attacked(FINITE["1e3 times"]).events[AT]["marks"]


def test_as_long_as_norm_cap_allows():
    """A cap that is far from what answers are does not replace the bound."""
    study = {**LONG, "norm_cap": 1e9}
    huge = attacks.numbers(lambda array: np.full_like(array, 4e8))
    made = fp.federate(study, faults=[Fault(SITE, FIRST + AT, huge)])
    assert not made.events[AT]["merged"] and f"the answer of {SITE}" in made.events[AT]["abandoned"]
    made = fp.federate({**study, "norm_cap": 100.0}, faults=[Fault(SITE, FIRST + AT, huge)])
    assert made.events[AT]["refused"] == {SITE: "norm"} and made.events[AT]["merged"]


# What sites say of their data.

TABLE = {
    "kind": "table",
    "model": "logistic",
    "target": "label",
    "features": ["age", "dose", "kind"],
    "missing": "mean",
}
ROWS = {"rows": {SITE: [30, 3000]}}


def write_tables(folder):
    """A file a site: age and dose of the same people everywhere, thirty of them at the site that lies."""
    rng, found = np.random.default_rng(5), {site: folder / f"{site}.csv" for site in SITES}
    for site, path in found.items():
        rows = 30 if site == SITE else 60
        lines = ["age,dose,kind,label"]
        lines += [f"{rng.normal(50, 9):.3f},{rng.normal(3, 1):.3f},{'xyz'[i % 3]},{'ny'[i % 2]}" for i in range(rows)]
        path.write_text("\n".join(lines) + "\n")
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("tables"))


def prepared(files, faults, rounds=1, **more):
    study = content(AVERAGE, TABLE, rounds=rounds, **{**ROWS, **more})
    return fp.federate(study, files, faults=faults)


@pytest.mark.parametrize(
    ("number", "name"), [(0, name) for name in COLUMNS] + [(1, name) for name in MOMENTS], ids=lambda value: str(value)
)
def test_what_a_site_says_of_its_data_must_be_possible(number, name, files):
    attack = (COLUMNS, MOMENTS)[number][name]
    if attack.outcome == "fatal":
        with pytest.raises(fp.FedpointError) as error:
            prepared(files, [Fault(SITE, number, attack.change)])
        assert str(error.value).startswith(f"{SITE} ") and attack.why in str(error.value)
        return
    made = prepared(files, [Fault(SITE, number, attack.change)])
    noted = [note for note in made.setup["notes"] if note.startswith(f"{SITE}'s")]
    assert bool(noted) == (attack.outcome == "noted")
    assert attack.why in "".join(noted)
    assert [feature["column"] for feature in made.setup["recipe"]] == TABLE["features"]  # none is removed
    assert np.isfinite([feature["scale"] for feature in made.setup["recipe"]]).all()


@pytest.mark.parametrize(
    ("check", "name", "number"),
    [("columns", "more values than rows", 0), ("encoded", "means of 1e160, which overflow when merged", 1)],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_without_its_check_a_statement_is_believed(check, name, number, files, monkeypatch):
    """The tests above can fail: without it a feature is gone, or rows that are not there count."""
    monkeypatch.setattr(statements, check, lambda *arguments: None)
    monkeypatch.setattr(statements, "strange", lambda *arguments: [])
    attack = (COLUMNS, MOMENTS)[number][name]
    made = prepared(files, [Fault(SITE, number, attack.change)])
    assert made.round == 1
    if check == "encoded":
        assert "age" not in [feature["column"] for feature in made.setup["recipe"]]


def test_without_bounds_any_share_is_believed(files, monkeypatch):
    """Those of rows, of measures and of what is strange can fail too."""
    monkeypatch.setattr(Study, "too_many_or_few", lambda self, site, rows: "")
    monkeypatch.setattr(statements, "strange", lambda *arguments: [])
    monkeypatch.setattr(statements, "measures", lambda packet, asked: packet.header["measures"])
    lies = [Fault(SITE, number, attacks.words(twice_as_many)) for number in (0, 1)]
    made = prepared(files, [*lies, Fault(SITE, 4, MEASURES["an accuracy of 2"].change)], rows={SITE: [10, 50]})
    assert made.weights[1] == pytest.approx(1 / 3)
    assert made.measures[SITE] == {"accuracy": 2.0}
    assert prepared(files, [Fault(SITE, 1, MOMENTS["other units"].change)]).setup["notes"] == []


def test_honest_sites_are_not_noted(files):
    told = []
    study = content(AVERAGE, TABLE, rounds=1, **ROWS)
    made = fp.federate(study, files, tell=told.append)
    assert made.setup["notes"] == []
    (shares,) = (event for event in told if "shares" in event)
    assert shares == {"shares": {"a": 0.4, "b": 0.2, "c": 0.4}, "rows": {"a": 60, "b": 30, "c": 60}}
    assert ["round" in event for event in told].index(True) > told.index(shares)


def twice_as_many(h, a):
    """A lie that is consistent: every row counted twice."""
    if h["kind"] == "columns":
        columns = {k: {**v, **({"count": 2 * v["count"]} if "count" in v else {})} for k, v in h["columns"].items()}
        return {**h, "rows": 60, "columns": columns}, {
            k: v if "mean" in k or "rest" in k else 2 * v for k, v in a.items()
        }
    return {**h, "count": 60}, {**a, "square": 2 * a["square"]}


def test_rows_within_the_bounds_are_believed_and_the_share_is_told(files):
    """The hub has no way to count them. Bounds keep the share within limits, and it is told before the first round."""
    faults, told = [Fault(SITE, number, attacks.words(twice_as_many)) for number in (0, 1)], []
    study = content(AVERAGE, TABLE, rounds=1, **ROWS)
    made = fp.federate(study, files, faults=faults, tell=told.append)
    assert made.events[0]["merged"]
    (shares,) = (event for event in told if "shares" in event)
    assert shares["shares"][SITE] == pytest.approx(1 / 3)
    with pytest.raises(fp.FedpointError, match=r"b cannot take part \(rows\): it has 60 rows, and the study allows b"):
        prepared(files, faults, rows={SITE: [10, 50]})


@pytest.mark.parametrize("name", MEASURES)
def test_measures_must_be_numbers(name, files):
    attack = MEASURES[name]
    made = prepared(files, [Fault(SITE, 4, attack.change)])  # columns, moments, ready, work, measure
    assert (SITE in made.measures) == (attack.outcome == "believed")
    assert set(made.measures) >= {"a", "c"}
    assert (made.refused[f"{SITE} {attack.why}"] > 0) == (attack.outcome == "refused")


# The study's bounds.


def test_a_site_does_not_take_part_with_other_rows_than_allowed(files):
    """It says so itself, before the hub hears of it."""
    from fedpoint.federation.announcement import announce, lines

    study = content(AVERAGE, TABLE, rounds=1, rows={SITE: [500, 5000]})
    said = "it has 30 rows, and the study allows b from 500 to 5,000"
    with pytest.raises(fp.FedpointError, match=r"b cannot take part \(rows\)") as error:
        fp.federate(study, files)
    assert "(rows)" in str(error.value)
    found = announce(parse(study), files[SITE], site=SITE)
    assert found["refused"] == [said] and f"Refused: {said}" in lines(found)
    assert "The study allows this site from 500 to 5,000 rows" in lines(found)
    assert announce(parse(study), files["a"], site="a")["refused"] == []


def test_mistakes_in_bounds_are_told_together():
    wrong = {"rows": {"nrth": [1, 5], "b": [9, 3], "c": [0, 5], "a": [1, 2, 3]}}
    with pytest.raises(fp.FedpointError) as error:
        parse(content(AVERAGE, TABLE, rounds=1, **wrong))
    for part in ("rows.b", "rows.c", "rows.a", "such as [500, 5000]"):
        assert part in str(error.value), error.value
    with pytest.raises(fp.FedpointError, match=r"rows\.bb: not a site of this study; did you mean 'b'\?"):
        parse(content(AVERAGE, TABLE, rounds=1, rows={"bb": [1, 5]}))
    with pytest.raises(fp.FedpointError, match="these data are generated"):
        parse(content(AVERAGE, BOWLS, rounds=1, rows={"a": [1, 5]}))
