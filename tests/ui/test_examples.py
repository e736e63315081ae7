"""The curves that page and documentation show of every method: they are there, and they are what is computed."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.ui import examples
from fedpoint.ui.lessons import lessons


def test_every_method_has_its_curves_beside_its_forecast():
    kept = examples.kept()
    own = {name for name, card in fp.CATALOGUE.items() if card.cls.__module__.startswith("fedpoint.algorithms")}
    without = {"fedexp"}  # it has no forecast
    assert set(kept) == set(examples.CALLS) == own - without | {"fedlsa", "scafflsa"}
    for name, curves in kept.items():
        assert len(curves["run"]) == len(curves["forecast"]) == examples.ROUNDS + 1, name
        apart = np.log(curves["run"] / curves["forecast"])
        assert np.abs(apart).max() < np.log(3) and np.abs(apart.mean()) < np.log(1.3), name  # means of 20 runs
        assert curves["forecast"][-1] == pytest.approx(curves["floor"][0], rel=0.05, abs=1e-4), name
    assert {lesson["name"] for lesson in lessons() if lesson["example"]} == set(kept)


def test_the_picture_teaches_what_the_cards_say():
    """FedAvg's bias, the same under another name; SCAFFOLD without; q-FedAvg elsewhere on purpose."""
    kept = examples.kept()
    for name in ("fedavg", "fednova", "fedopt", "fedprox", "general_rule", "qfedavg"):
        assert kept[name]["bias2"][0] > 0.5 * kept[name]["floor"][0], name
    for name in ("scaffold", "scaffnew", "gradient_exchange", "parameter_exchange", "fedgd", "fedsgd", "fedrelax"):
        assert kept[name]["bias2"][0] == 0, name
    assert np.array_equal(kept["fedavg"]["run"], kept["fedlsa"]["run"])
    assert kept["scaffold"]["run"][-1] < kept["fedavg"]["run"][-1] / 50


def again(name):
    for what, values in examples.computed(name).items():
        np.testing.assert_allclose(examples.kept()[name][what], values, rtol=1e-3, atol=1e-25, err_msg=f"{name} {what}")


def test_what_is_kept_is_what_is_computed():
    again("parameter_exchange")


@pytest.mark.slow
@pytest.mark.parametrize("name", examples.CALLS)
def test_all_that_is_kept_is_what_is_computed(name):
    again(name)
