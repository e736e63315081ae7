"""One liar among five sites: a robust mean keeps the model, and without it the liar is named."""

import importlib.util
from pathlib import Path

import pytest

from fedpoint.core.errors import FedpointError
from fedpoint.federation.study import parse

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "attacks.py"
spec = importlib.util.spec_from_file_location("attacks_of_liars", SCRIPT)
attacks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(attacks)

QUICK = ("sign flipped, 3 times as long", "1,000 times as long")


@pytest.fixture(scope="module")
def honest():
    return attacks.honest(8, gather=attacks.ROBUST)


def names(quick):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in attacks.LIES]


def test_there_are_twenty():
    assert len(attacks.LIES) == 20


@pytest.mark.parametrize("name", names(QUICK))
def test_a_robust_mean_keeps_the_model(name, honest):
    """Within two standard deviations of honest runs, over draws of the rows."""
    assert honest.off(attacks.robust(attacks.LIES[name], 2)) < 2


@pytest.mark.parametrize("name", names(QUICK[:1]))
def test_without_it_the_liar_is_named(name):
    seen = attacks.plain(attacks.LIES[name])
    assert seen.named == [attacks.LIAR]


def test_weighted_sums_do_not_keep_it(honest):
    """The test above can fail."""
    far = attacks.robust(attacks.LIES[QUICK[0]], 1, gather={"kind": "weighted_sums"})
    assert honest.off(far) > 2


def test_a_robust_mean_is_refused_with_secure_sums():
    with pytest.raises(FedpointError, match="looks at single answers"):
        parse(attacks.study(0, gather=attacks.ROBUST, secure=True, channel={"kind": "clip", "norm": 1.0}))
