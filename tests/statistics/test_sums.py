"""Sums are those of the pooled rows, formulas code as on pooled rows, small sites are silent."""

import numpy as np
import pandas as pd
import pytest
from formulaic import Formula

import fedpoint as fp
from fedpoint.statistics import Floor
from fedpoint.statistics.formula import designs
from fedpoint.statistics.sites import sites_of
from fedpoint.statistics.sums import Collect, SumsProblem, collect


@pytest.fixture(scope="module")
def table():
    rng, n = np.random.default_rng(0), 130
    made = pd.DataFrame(
        {
            "centre": np.repeat(["a", "b", "c"], [60, 40, 30]),
            "x": rng.normal(size=n),
            "kind": rng.integers(1, 4, n),
            "sex": np.where(rng.random(n) < 0.5, "m", "f"),
            "y": rng.integers(0, 2, n),
        }
    )
    made.loc[made.centre == "a", "kind"] = made.kind.clip(upper=2)  # a does not know level 3
    made.loc[made.centre != "c", "sex"] = made.sex.where(made.index != 3, "f")
    return made.sample(frac=1.0, random_state=1)


def moments(own, at):
    return {"n": len(own), "sum": own.x.sum() - at * len(own), "outer": np.outer(own[["x", "y"]].sum(), [1.0, 2.0])}


def test_totals_are_those_of_the_pooled_rows_and_counts_stay_whole(table):
    got = collect(moments, sites_of(table, "centre"), at=0.25, own=lambda sums: sums["n"])
    want = moments(table, 0.25)
    assert got.total["n"] == 130 and isinstance(got.total["n"], int)
    assert got.total["sum"] == pytest.approx(want["sum"], abs=1e-13)
    np.testing.assert_allclose(got.total["outer"], want["outer"], rtol=1e-13)
    assert got.sites == {"a": 60, "b": 40, "c": 30} == got.rows
    assert collect(moments, sites_of(table, "centre"), at=0.0).sites == {}


def test_the_round_is_the_engines_and_its_channel_is_heard(table):
    sites = sites_of(table, "centre")
    noisy = [
        collect(
            moments, sites, at=0.0, channel=fp.channel.Chain([fp.channel.Clip(1e6), fp.channel.Gaussian(1e-6)]), seed=s
        )
        for s in (0, 0, 1)
    ]
    assert noisy[0].total["sum"] == noisy[1].total["sum"] != noisy[2].total["sum"]
    assert noisy[0].run.rounds.max() == 1
    run = fp.run(Collect(), SumsProblem(["a", "b"], np.array([[1.0], [3.0]]), None), rounds=1, exact=True)
    assert run.model["sums"].tolist() == [[2.0]]  # the hub hears weighted sums: a mean


def test_sites_below_the_floor_are_named_or_left_out(table):
    sites = sites_of(table, "centre")
    with pytest.raises(fp.FedpointError, match=r"2 sites with fewer rows than the floor of 50: b \(40\), c \(30\)"):
        collect(moments, sites, at=0.0, floor=Floor(rows=50))
    left = collect(moments, sites, at=0.0, floor=Floor(rows=50), small="leave out")
    assert left.total["n"] == 60 and left.left_out == {"b": 40, "c": 30}
    with pytest.raises(fp.FedpointError, match="unknown small='drop'"):
        collect(moments, sites, at=0.0, small="drop")
    with pytest.raises(fp.FedpointError, match="3 sites with fewer rows"):
        collect(moments, sites, at=0.0, floor=Floor(rows=500), small="leave out")


@pytest.mark.parametrize(
    "formula", ["y ~ x + C(kind)*sex + np.log(kind)", "y ~ 0 + sex + I(x**2)", "y ~ C(kind, contr.treatment(2)):x"]
)
def test_formulas_code_as_on_pooled_rows(table, formula):
    made = designs(formula, sites_of(table, "centre"))
    pooled = Formula(formula).get_model_matrix(table.sort_values("centre", kind="stable"))
    assert list(made.names) == list(pooled.rhs.columns)
    np.testing.assert_allclose(np.concatenate([own.X for own in made.sites.values()]), pooled.rhs, atol=1e-15)
    np.testing.assert_array_equal(np.concatenate([own.y for own in made.sites.values()]), pooled.lhs.to_numpy()[:, 0])
    for term, place in made.terms.items():
        assert all(part in name for part in term.split(":") for name in made.names[place]) or term == "1"


def test_levels_are_agreed_missing_rows_counted_and_an_intercept_left_out(table):
    gaps = table.copy()
    gaps.loc[gaps.index[:5], "x"] = np.nan
    gaps["only"] = np.where(gaps.centre == "b", "here", "elsewhere")
    made = designs("x + C(kind) + only", sites_of(gaps, "centre"), intercept=False, also=["y"])
    assert made.levels == {"kind": [1, 2, 3], "only": ["elsewhere", "here"]}
    assert made.names == ("x", "C(kind)[T.2]", "C(kind)[T.3]", "only[T.here]")
    assert made.terms == {"x": slice(0, 1), "C(kind)": slice(1, 3), "only": slice(3, 4)}
    assert sum(made.dropped.values()) == 5 and sum(map(len, made.sites.values())) == 125
    assert made.notes == ["5 rows with missing values left out", "only site b has only 'here'"]
    assert all(set(own.also) == {"y"} and not own.y.size for own in made.sites.values())


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("y ~ scale(x)", r"scale\(\) depends on the rows of all sites together"),
        ("y ~ x +", "Operator"),
        ("y ~ z", "no column 'z'"),
        ("sex ~ x", "the response must be one column of numbers"),
        ("y ~ foo(x)", "unknown function foo"),
        ("y ~ x.sum()", "unknown function x.sum"),
        ("y ~ I((1).__class__)", "cannot be used"),
        ('y ~ open("f")', "unknown function open"),
        ("y ~ C(x > 1)", r"must be C\(\) of a column"),
        ('y ~ C(kind, open("f"))', "is not a contrast"),
        ("y ~ 0", "has no term"),
        ("y ~ np.log(x)", r"np.log\(x\) is not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in log")
def test_what_cannot_stand_in_a_formula(table, formula, said):
    with pytest.raises(fp.FedpointError, match=said):
        designs(formula, sites_of(table, "centre"))


def test_a_level_of_too_few_rows_does_not_leave(table):
    rare = table.copy()
    rare.loc[rare.index[rare.centre == "b"][:2], "sex"] = "x"
    with pytest.raises(fp.FedpointError, match=r"fewer rows than the floor of 5: sex 'x' at b"):
        designs("y ~ sex", sites_of(rare, "centre"), floor=Floor())
    assert "sex[T.x]" in designs("y ~ sex", sites_of(rare, "centre")).names


def test_tables_that_cannot_be_taken_apart():
    with pytest.raises(fp.FedpointError, match="no column 'centr'"):
        sites_of({"x": [1.0], "centre": ["a"]}, "centr")
    with pytest.raises(fp.FedpointError, match="column 'x' has 2 rows, but column 'g' has 1"):
        sites_of({"x": [1.0, 2.0], "g": ["a"]}, "g")
    with pytest.raises(fp.FedpointError, match="1 row without a site"):
        sites_of({"x": [1.0, 2.0], "g": ["a", None]}, "g")


def test_large_sums_are_no_divergence():
    rows = {"a": np.array([3e9, 4e9]), "b": np.array([5e9])}
    found = collect(lambda own, at: {"squares": (own**2).sum(), "lost": np.float64(-1e100)}, rows).total
    assert found["squares"] == pytest.approx(5e19, rel=1e-12) and found["lost"] == pytest.approx(-2e100, rel=1e-12)
