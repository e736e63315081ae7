"""Rows by agent and class, by hand."""

import numpy as np
import pytest

import fedpoint as fp


def test_counts_and_skew_by_hand(tmp_path):
    """Of all rows 3 in 6 are a, 2 b, 1 c. Agent x has a, a: half of its rows would have to be others."""
    found = fp.data.spread(list("aaabbc"), list("xxyyzz"))
    np.testing.assert_array_equal(found.counts, [[2, 0, 0], [1, 1, 0], [0, 1, 1]])
    np.testing.assert_allclose(found.skew, [1 / 2, 1 / 6, 1 / 2])
    assert found.distance == pytest.approx((2 * 1 / 2 + 2 * 1 / 6 + 2 * 1 / 2) / 6)
    figure = found.plot(tmp_path / "split.png")
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, [[1, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    assert (tmp_path / "split.png").stat().st_size > 0
    assert [bar.get_width() for bar in figure.axes[1].patches] == [2, 2, 2]


def test_partitions_spread_as_they_say():
    y = np.arange(1000) % 10
    even = fp.data.spread(y, fp.data.partition(y, "iid", 5))
    shards = fp.data.spread(y, fp.data.partition(y, "shards", 10, classes=2))
    assert even.distance < 0.1 < shards.distance and ((shards.counts > 0).sum(1) == 2).all()
    assert shards.distance == pytest.approx(0.8)  # two classes of ten: 4/5 of its rows are too many of them


def test_numbers_are_cut_into_fifths():
    found = fp.data.spread(np.arange(100.0), np.arange(100) // 50)
    np.testing.assert_array_equal(found.counts, [[20, 20, 10, 0, 0], [0, 0, 10, 20, 20]])
    assert len(fp.data.spread(np.arange(60.0), np.arange(60)).text(10).splitlines()) == 4 + 10


@pytest.mark.parametrize("y, groups", [([1, 2], [0]), ([], []), ([[1]], [[0]])])
def test_mistakes(y, groups):
    with pytest.raises(fp.FedpointError, match="labels of the same rows"):
        fp.data.spread(y, groups)
