"""Partitions: every row once, nobody empty, and the shares that their definitions say."""

import numpy as np
import pytest
from scipy import stats

import fedpoint as fp
from fedpoint.data import partition

KINDS = [
    ("iid", {}),
    ("dirichlet", {"alpha": 0.05}),
    ("dirichlet", {"alpha": 10.0}),
    ("shards", {"classes": 2}),
    ("quantity", {"alpha": 0.05}),
]
Y = np.repeat(["a", "b", "c"], [50, 30, 20])


@pytest.mark.parametrize("kind, options", KINDS)
@pytest.mark.parametrize("agents", [2, 7, 30])
def test_every_row_once_and_nobody_empty(kind, options, agents):
    for seed in range(5):
        groups = partition(Y, kind, agents, seed=seed, **options)
        assert groups.shape == Y.shape and groups.dtype.kind == "i"
        assert (np.unique(groups) == np.arange(agents)).all()
        assert (groups == partition(Y, kind, agents, seed=seed, **options)).all()
    assert (groups != partition(Y, kind, agents, seed=seed + 1, **options)).any()


def test_as_many_agents_as_rows():
    for kind, options in [("iid", {}), ("dirichlet", {}), ("quantity", {}), ("shards", {"classes": 1})]:
        assert sorted(partition(Y, kind, len(Y), **options)) == list(range(len(Y)))


def test_iid_is_drawing_without_replacement():
    y = np.repeat([0, 1], [40, 20])
    groups = np.stack([partition(y, "iid", 3, seed=s) for s in range(2000)])
    assert (np.stack([(groups == k).sum(1) for k in range(3)]) == 20).all()
    ones = (groups[:, 40:] == 0).sum(1)  # of class 1 at agent 0: hypergeometric
    law = stats.hypergeom(60, 20, 20)
    assert abs(ones.mean() - law.mean()) < 4 * law.std() / np.sqrt(len(ones))
    assert ones.var() == pytest.approx(law.var(), rel=0.15)


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_shares_of_a_class_are_dirichlet(alpha):
    """The share of one of K agents is Beta(alpha, (K-1) alpha), for each class anew."""
    K, y = 4, np.repeat([0, 1], 4000)
    groups = np.stack([partition(y, "dirichlet", K, alpha=alpha, seed=s) for s in range(400)])
    first, second = (groups[:, :4000] == 1).mean(1), (groups[:, 4000:] == 1).mean(1)
    for share in (first, second):
        assert stats.kstest(share, stats.beta(alpha, (K - 1) * alpha).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(400)


def test_quantity_skews_sizes_and_nothing_else():
    K, alpha, y = 4, 0.8, np.repeat([0, 1], [3000, 1000])
    groups = np.stack([partition(y, "quantity", K, alpha=alpha, seed=s) for s in range(400)])
    size = (groups == 2).mean(1)
    assert stats.kstest(size, stats.beta(alpha, (K - 1) * alpha).cdf).pvalue > 1e-3
    ones = (groups[:, 3000:] == 2).sum(1)
    law = stats.hypergeom(4000, 1000, (groups == 2).sum(1))
    away = (ones - law.mean())[law.std() > 0] / law.std()[law.std() > 0]
    assert abs(away.mean()) < 4 / np.sqrt(len(away)) and away.std() == pytest.approx(1, abs=0.15)


def test_shards():
    y = np.repeat(np.arange(10), 60)
    held = np.zeros((200, 10))
    for seed in range(200):
        groups = partition(y, "shards", 20, classes=3, seed=seed)
        table = np.zeros((20, 10), int)
        np.add.at(table, (groups, y), 1)
        assert ((table > 0).sum(1) == 3).all()
        assert set(table[table > 0]) == {10}  # 60 shards: each class in 6, of 10 rows
        held[seed] = table[0] > 0
    # By symmetry agent 0 has a class with chance 3/10.
    assert np.abs(held.mean(0) - 0.3).max() < 4 * np.sqrt(0.3 * 0.7 / 200)


def test_shards_of_unequal_classes():
    """In proportion to rows, at least one: 70, 20 and 10 rows over 10 shards."""
    y = np.repeat([0, 1, 2], [70, 20, 10])
    groups = partition(y, "shards", 10, classes=1)
    assert [len(np.unique(groups[y == c])) for c in range(3)] == [7, 2, 1]
    assert set(np.bincount(groups)) == {10}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("irid", 3), "unknown partition 'irid': did you mean 'iid'?"),
        (("natural", 3), "that is the agent column itself"),
        (("iid", 101), "101 agents for 100 rows"),
        (("iid", 0), "at least 1; got 0"),
        (("iid", 2.5), "must be a whole number"),
        (("iid", 3, {"alpha": 1.0}), "iid has no options but agents and seed"),
        (("dirichlet", 3, {"alfa": 1.0}), "did you mean 'alpha'?"),
        (("dirichlet", 3, {"alpha": 0}), "alpha must be a number above 0, got 0"),
        (("shards", 3, {"classes": 4}), "4 classes for each agent, but there are 3"),
        (("shards", 1, {"classes": 2}), "1 agent with 2 classes each cannot hold all 3 classes"),
        (("shards", 60, {"classes": 2}), "would take 120 shards, but the classes allow 100"),
    ],
)
def test_refused(arguments, message):
    kind, agents, *options = arguments
    with pytest.raises(fp.FedpointError) as caught:
        partition(Y, kind, agents, **(options[0] if options else {}))
    assert message in str(caught.value)


def test_a_number_has_no_classes():
    with pytest.raises(fp.FedpointError, match="spreads classes, but the target has 100 distinct values"):
        partition(np.arange(100.0), "dirichlet", 4)
    assert len(partition(np.arange(100.0), "quantity", 4)) == 100
