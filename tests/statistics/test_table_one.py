"""The first table is that of pandas on pooled rows, and no count below the floor can be worked out of it."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fedpoint as fp
from fedpoint.statistics import Floor, table_one
from fedpoint.statistics import table_one as module_of


@pytest.fixture(scope="module")
def table():
    rng, n = np.random.default_rng(2), 200
    made = pd.DataFrame(
        {
            "age": 1e6 + rng.normal(50, 12, n),  # sums of squares around zero would lose eight digits
            "stage": np.array(["I", "II", "III", "IV"])[rng.choice(4, n, p=[0.5, 0.3, 0.18, 0.02])],
            "arm": np.where(rng.random(n) < 0.4, "new", "old"),
            "site": rng.integers(0, 4, n),
        }
    )
    made.loc[made.index[:7], "age"] = np.nan
    made.loc[made.index[20:29], "stage"] = None
    return made


def test_numbers_are_those_of_pandas(table):
    found = table_one(table, groups="site", by="arm", floor=None)
    assert found.groups == ["new", "old"] and found.rows.tolist() == table.arm.value_counts().sort_index().tolist()
    ages = table.groupby("arm").age
    np.testing.assert_allclose(found.columns["age"].mean, ages.mean(), rtol=1e-14)
    np.testing.assert_allclose(found.columns["age"].std, ages.std(), rtol=1e-9)
    np.testing.assert_array_equal(found.columns["age"].missing, table.age.isna().groupby(table.arm).sum())
    crossed = pd.crosstab(table.stage, table.arm)
    np.testing.assert_array_equal(found.columns["stage"].counts, crossed)
    assert found.columns["stage"].pvalue == pytest.approx(stats.chi2_contingency(crossed, correction=False).pvalue)
    parts = [own.dropna() for _, own in ages]
    assert found.columns["age"].pvalue == pytest.approx(stats.f_oneway(*parts).pvalue, rel=1e-8)


def test_without_groups_there_is_one_column_and_no_test(table):
    found = table_one(table, groups="site", columns=["age", "stage"], floor=None)
    assert found.groups == ["all"] and found.columns["age"].pvalue is None
    assert found.columns["age"].std[0] == pytest.approx(table.age.std(), rel=1e-9)
    assert "p" not in found.summary().splitlines()[2].split()


def test_sites_may_be_the_columns(table):
    found = table_one(table, groups="site", by="site", columns=["age"], floor=None)
    np.testing.assert_allclose(found.columns["age"].mean, table.groupby("site").age.mean(), rtol=1e-14)


def hides_enough(shown, counts, least):
    """What is hidden is at least two cells of together at least `least`, so that the total does not give one away."""
    for own, true in zip(shown.T, counts.T, strict=True):
        hidden = np.isnan(own)
        small = (true > 0) & (true < least)
        if (small & ~hidden).any() or (hidden.any() and (hidden.sum() < 2 or true[hidden].sum() < least)):
            return False
    return True


def test_small_counts_are_hidden_with_the_next_smallest(table):
    found = table_one(table, groups="site", by="arm")
    counts = pd.crosstab(table.stage, table.arm).to_numpy()
    assert ((counts > 0) & (counts < 5)).any(), "there is something to hide"
    shown = found.columns["stage"].counts
    assert hides_enough(shown, counts, 5) and np.isnan(shown).sum() <= 4
    assert np.array_equal(shown[~np.isnan(shown)], counts[~np.isnan(shown)])
    assert "below the floor of 5" in found.summary() and found.to_dict()["columns"]["stage"]["counts"][3][0] is None
    alone = np.where(counts < 5, np.nan, counts)  # the rule without the next smallest
    assert not hides_enough(alone, counts, 5)


def test_mistakes_are_told(table):
    for options, said in (
        ({"groups": "sit"}, "no column 'sit'"),
        ({"columns": ["ag"]}, "columns: no column 'ag'"),
        ({"columns": []}, "name at least one column"),
        ({"by": "arms"}, "by: no column 'arms'"),
        ({"floor": Floor(rows=60)}, "fewer rows than the floor of 60"),
    ):
        with pytest.raises(fp.FedpointError, match=said):
            table_one(table, **({"groups": "site"} | options))
    left = table_one(table, groups="site", floor=Floor(rows=int(table.site.value_counts().median())), small="leave out")
    assert left.sites < 4 and "below the floor left out" in left.summary()
    assert module_of is table_one
