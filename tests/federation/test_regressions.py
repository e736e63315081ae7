"""Regressions over sites: the sums that leave them give what `fp.glm`, `fp.cox` and `table_one` find of all rows."""

import numpy as np
import pandas as pd
import pytest

import fedpoint as fp
from fedpoint.data.floor import DEFAULT
from fedpoint.data.recipe import Feature
from fedpoint.federation.site.disclosure import below, few_of_a_design
from fedpoint.federation.study import parse
from fedpoint.statistics import scoring, table_one

SITES = ["east", "north", "west"]
COMMON = {"name": "trial", "sites": SITES, "server": "localhost:8102", "rounds": 9, "measurements": 0}


@pytest.fixture(scope="module")
def rows():
    rng, n = np.random.default_rng(2), 270
    x, kind = rng.normal(size=n), np.array(["elective", "urgent", "emergency"])[rng.integers(0, 3, n)]
    eta = 0.4 * x - 0.6 + 0.5 * (kind == "urgent")
    return pd.DataFrame(
        {
            "x": x,
            "kind": kind,
            "code": rng.integers(1, 3, n),
            "died": (rng.random(n) < 1 / (1 + np.exp(-eta))) * 1,
            "los": rng.poisson(np.exp(1 + 0.3 * x)),
            "cost": np.exp(1 + 0.3 * x) * rng.gamma(3.0, 1 / 3, n),
            "days": np.ceil(9 * rng.exponential(size=n) * np.exp(-0.5 * x)),
            "site": np.array(SITES)[rng.integers(0, 3, n)],
        }
    )


@pytest.fixture(scope="module")
def files(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    for site, own in rows.groupby("site"):
        own.drop(columns="site").to_csv(folder / f"{site}.csv", index=False)
    return {site: folder / f"{site}.csv" for site in SITES}


def study(problem, **terms):
    return {**COMMON, "problem": problem, **terms}


GLMS = [
    {"formula": "died ~ x + kind", "family": "binomial"},
    {"formula": "cost ~ x + C(code)", "family": "gamma", "link": "identity", "ridge": 0.01},
]


@pytest.mark.parametrize("problem", GLMS, ids=lambda p: p["family"])
def test_a_generalised_linear_model(rows, files, problem):
    made = fp.federate(study({"kind": "glm", **problem}), files)
    table = rows.assign(code=rows.code.astype(str))
    want = fp.glm(problem["formula"], table, groups="site", **{k: v for k, v in problem.items() if k != "formula"})
    fit = made.fit
    assert fit.names == want.names
    np.testing.assert_allclose(fit.params, want.params, atol=1e-8)
    np.testing.assert_allclose(fit.bse, want.bse, atol=1e-8)
    np.testing.assert_allclose(fit.cov_params("sandwich"), want.cov_params("sandwich"), atol=1e-8)
    assert fit.deviance == pytest.approx(want.deviance) and fit.aic == pytest.approx(want.aic)
    assert fit.optimisation_error < 1e-6 and fit.sites["west"].rows == want.sites["west"].rows
    text = fit.summary()
    assert "own fit" not in text and "west" in text and "9 rounds" in text
    with pytest.raises(fp.FedpointError, match="takes its rows, which are not here"):
        fit.meta_analysis("x")


def test_proportional_hazards_where_a_site_has_no_event(rows, files, tmp_path):
    quiet = rows.assign(died=np.where(rows.site == "west", 0, rows.died))
    own = quiet[quiet.site == "west"].drop(columns="site")
    own.to_csv(tmp_path / "west.csv", index=False)
    problem = {"kind": "cox", "formula": "x + kind", "time": "days", "event": "died"}
    made = fp.federate(study(problem), {**files, "west": tmp_path / "west.csv"})
    want = fp.cox("x + kind", quiet, time="days", event="died", groups="site")
    fit = made.fit
    np.testing.assert_allclose(fit.params, want.params, atol=1e-8)
    np.testing.assert_allclose(fit.bse, want.bse, atol=1e-8)
    assert fit.events == want.events and fit.log_likelihood == pytest.approx(want.log_likelihood)
    assert fit.score_test().statistic == pytest.approx(want.score_test().statistic)
    assert "log-likelihood" not in fit.summary().splitlines()[-4] and "west" in fit.summary()
    with pytest.raises(fp.FedpointError, match="seen at the sites only"):
        fit.baseline("east")


def test_the_first_table(rows, files):
    problem = {"kind": "table_one", "columns": ["x", "los", "kind"], "by": "died"}
    made = fp.federate(study(problem, rounds=2), files)
    want = table_one(rows, groups="site", columns=["x", "los", "kind"], by="died", floor=None)
    assert made.fit.summary() == want.summary()


def test_masked_sums_give_the_fit_and_no_site(rows, files):
    problem = {"kind": "glm", **GLMS[0]}
    made = fp.federate(study(problem, secure=True, channel={"kind": "clip", "norm": 50.0}), files)
    want = fp.glm(GLMS[0]["formula"], rows, groups="site", family="binomial")
    assert np.abs((made.fit.params - want.params) / want.bse).max() < 1e-4  # whole numbers of 32 bits
    np.testing.assert_allclose(made.fit.bse, want.bse, rtol=1e-4)
    short = fp.federate(study(problem, secure=True, channel={"kind": "clip", "norm": 2.0}), files)
    with pytest.raises(fp.FedpointError, match="shortened by the study's clip"):
        _ = short.fit


def test_few_of_an_outcome_stay_below_the_floor(rows, files, tmp_path):
    own = rows[rows.site == "west"].drop(columns="site")
    own = own.assign(died=(np.arange(len(own)) < 2) * 1)
    own.to_csv(tmp_path / "west.csv", index=False)
    with pytest.raises(fp.FedpointError, match="west"):
        fp.federate(study({"kind": "glm", **GLMS[0]}, quorum=3), {**files, "west": tmp_path / "west.csv"})


@pytest.mark.parametrize(
    ("term", "name"),
    [
        ("I(x**60)", "I(x ** 60)"),  # the row with the largest x, and it alone
        ("kind:C(code)", "kind[T.urgent]:C(code)[3]"),  # two rows have both; of each many do
        ("x", None),
        ("kind:x", None),
    ],
)
def test_a_formula_cannot_pick_a_few_rows(term, name, rows, tmp_path):
    """Columns are above the floor, and what a leader's formula makes of them is not: the site says nothing."""
    own = rows[rows.site == "west"].drop(columns="site").reset_index(drop=True)
    urgent = np.flatnonzero(own.kind == "urgent")
    elective = np.flatnonzero(own.kind == "elective")
    own.loc[[*urgent[:2], *elective[:9]], "code"] = 3
    own.to_csv(tmp_path / "west.csv", index=False)
    made = parse({**study({"kind": "glm", "formula": f"died ~ x + {term}", "family": "binomial"}), "quorum": 3})
    columns = made.table.read(tmp_path / "west.csv")
    assert below(made, "west", columns, DEFAULT) == []
    kinds = {"kind": ["elective", "emergency", "urgent"], "code": ["1", "2", "3"]}
    recipe = [Feature(one, categories=kinds.get(one)) for one in made.table.features]
    found = few_of_a_design(made.table, columns, recipe, DEFAULT)
    assert len(found) == (name is not None)
    assert all(f"by {name} of the formula: the floor is 5" in text for text in found)


def test_a_formula_that_picks_rows_is_refused_by_the_site(rows, files):
    with pytest.raises(fp.FedpointError, match="floor"):
        fp.federate(study({"kind": "glm", "formula": "died ~ x + I(x**60)", "family": "binomial"}, quorum=3), files)


def test_counts_of_a_first_table_have_a_floor(rows, files, tmp_path):
    """Three of a level in one part of the table: the count would leave, though level and part have rows enough."""
    own = rows[rows.site == "west"].drop(columns="site").reset_index(drop=True)
    own.loc[own.died == 1, "kind"] = "elective"
    own.loc[np.flatnonzero(own.died == 1)[:3], "kind"] = "urgent"
    own.to_csv(tmp_path / "west.csv", index=False)
    made = parse(study({"kind": "table_one", "columns": ["x", "kind"], "by": "died"}, rounds=2))
    said = below(made, "west", made.table.read(tmp_path / "west.csv"), DEFAULT)
    assert [text.partition(";")[0] for text in said] == ["counts of few rows would leave: kind 'urgent' of died 1 (3)"]
    assert below(made, "east", made.table.read(files["east"]), DEFAULT) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"formula": "x + kind"}, "must begin with a column and ~"),
        ({"family": "poison"}, "unknown family 'poison'"),
        ({"scale": True}, "scale"),
        ({"formula": "died ~ center(x)"}, "depends on the rows of all sites"),
    ],
)
def test_mistakes_of_a_study(files, change, said):
    with pytest.raises(fp.FedpointError, match=said):
        fp.federate(study({"kind": "glm", **GLMS[0], **change}), files)


def test_a_study_names_no_method(files):
    with pytest.raises(fp.FedpointError, match="takes no algorithm: leave it out"):
        fp.federate(study({"kind": "glm", **GLMS[0]}, algorithm={"name": "fedavg", "step": 0.1}), files)


def test_broken_sums_are_noticed(rows, files, monkeypatch):
    """Scores without the intercept's part have no zero that is found; twice the information makes errors too small."""
    right = scoring.GLMSums.sums

    def without_intercept(self, own, w):
        found = right(self, own, w)
        return {**found, "score": found["score"].at[0].set(0.0)}

    def twice(self, own, w):
        found = right(self, own, w)
        return {**found, "last": found["last"]._replace(information=2 * found["last"].information)}

    problem = {"kind": "glm", "formula": "los ~ x", "family": "poisson"}
    monkeypatch.setattr(scoring.GLMSums, "sums", without_intercept)
    with pytest.raises(fp.FedpointError, match="no maximum of the likelihood"):
        _ = fp.federate(study(problem), files).fit
    problem["formula"] = "los ~ x + kind"  # another program: that of the last one is kept
    want = fp.glm(problem["formula"], rows, groups="site", family="poisson")
    monkeypatch.setattr(scoring.GLMSums, "sums", twice)
    made = fp.federate(study(problem), files)
    np.testing.assert_allclose(made.fit.params, want.params, atol=1e-8)
    assert np.abs(made.fit.bse / want.bse - 1).min() > 0.2


def test_rows_with_weights(rows, files, tmp_path):
    rng = np.random.default_rng(3)
    table = rows.assign(w=rng.integers(1, 4, len(rows)), shift=0.1)
    for site, own in table.groupby("site"):
        own.drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
    made = fp.federate(
        study({"kind": "glm", "formula": "los ~ x + code", "family": "poisson", "weights": "w", "offset": "shift"}),
        {site: tmp_path / f"{site}.csv" for site in SITES},
    )
    want = fp.glm("los ~ x + code", table, groups="site", family="poisson", weights="w", offset="shift")
    np.testing.assert_allclose(made.fit.params, want.params, atol=1e-8)
    np.testing.assert_allclose(made.fit.cov_params("sandwich"), want.cov_params("sandwich"), atol=1e-8)
    assert made.fit.deviance == pytest.approx(want.deviance)


def test_weights_that_single_out_a_row_stay_below_the_floor(rows, tmp_path, caplog):
    own = rows[rows.site == "west"].drop(columns="site")
    own.assign(w=np.where(np.arange(len(own)) == 5, 1.0, 1e-6)).to_csv(tmp_path / "west.csv", index=False)
    for site in ("east", "north"):
        rows[rows.site == site].assign(w=1.0).drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
    with pytest.raises(fp.FedpointError, match="west"):
        fp.federate(
            study({"kind": "glm", "formula": "los ~ x + code", "family": "poisson", "weights": "w"}, quorum=3),
            {site: tmp_path / f"{site}.csv" for site in SITES},
        )
    assert "rows weigh as if they were 1 would leave: the floor is 20" in caplog.text


def test_the_first_table_of_all_rows(rows, files):
    made = fp.federate(study({"kind": "table_one", "columns": ["kind", "x", "los"]}, rounds=2), files)
    want = table_one(rows, groups="site", columns=["kind", "x", "los"], floor=None)
    assert made.fit.summary() == want.summary() and made.fit.groups == ["all"]
