"""What channels cost, side by side."""

import numpy as np
import pytest

import fedpoint as fp

QUAD = fp.problems.Quadratic(1.0, np.random.default_rng(1).normal(size=(20, 4)), noise=0.1)
WAYS = [None, fp.channel.RandK(0.5), [fp.channel.Clip(50.0), fp.channel.Gaussian(0.1)]]


@pytest.fixture(scope="module")
def made() -> fp.Price:
    return fp.price(fp.FedAvg(step=0.1), QUAD, channels=WAYS, rounds=40, runs=400, participation=10)


def test_bytes_epsilon_and_errors_side_by_side(made: fp.Price):
    for offer in made.offers:
        run = fp.run(fp.FedAvg(step=0.1), QUAD, rounds=40, participation=10, channel=offer.channel)
        assert offer.bytes == run.cost.bytes_up
        assert offer.forecast is not None and offer.error is not None
        assert abs(offer.error - offer.forecast) <= 4 * offer.standard_error + 0.02 * offer.forecast
    plain, few, private = made.offers
    assert few.bytes == (2 + 1) / 4 * plain.bytes  # two of four numbers, and the seed of the mask
    assert few.forecast > 1.2 * plain.forecast
    asked = fp.Experiment(fp.FedAvg(step=0.1), QUAD, participation=10, channel=private.channel)
    assert plain.epsilon is None and private.epsilon == fp.privacy.spent(asked, 40, 1e-5).epsilon


def test_it_is_drawn_and_printed(made: fp.Price, tmp_path):
    for against in ("epsilon", "bytes"):
        made.plot(tmp_path / f"{against}.png", against=against)
        assert (tmp_path / f"{against}.png").stat().st_size > 5000
    assert "epsilon" in str(made) and "<table" in made._repr_html_() and made.to_dict()["rounds"] == 40
    with pytest.raises(fp.FedpointError, match="unknown axis"):
        made.plot(against="rounds")


def test_bad_calls():
    for channels, said in ((fp.channel.RandK(0.5), "must be a list"), ([], "is empty")):
        with pytest.raises(fp.FedpointError, match=said):
            fp.price(fp.FedAvg(step=0.1), QUAD, channels=channels, rounds=3)
    with pytest.raises(fp.FedpointError, match="or at least 2: one run has no standard error"):
        fp.price(fp.FedAvg(step=0.1), QUAD, channels=[None], rounds=3, runs=1)
