"""A method may be named as the catalogue names it, with its hyper-parameters beside the verb's own arguments."""

import dataclasses

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.algorithms.catalogue import Hyperparameters

QUAD = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)


def test_a_run_by_name_is_the_run_of_the_object():
    named = fp.run("fedavg", QUAD, rounds=6, step=0.1, local_steps=3, seed=2, participation=1)
    made = fp.run(fp.FedAvg(0.1, 3), QUAD, rounds=6, seed=2, participation=1)
    np.testing.assert_array_equal(named.model, made.model)
    assert named.algorithm == made.algorithm


def test_names_are_forgiving_and_a_class_is_no_name():
    assert isinstance(fp.run("SCAFFOLD", QUAD, rounds=1, step=0.1).algorithm, fp.Scaffold)
    with pytest.raises(fp.FedpointError, match="did you mean 'scaffold'"):
        fp.run("scafold", QUAD, rounds=1, step=0.1)


def test_forecast_sweep_and_compare_take_names_too():
    assert fp.forecast("fedavg", QUAD, step=0.1, local_steps=3).bias == fp.forecast(fp.FedAvg(0.1, 3), QUAD).bias
    swept = fp.sweep("fedavg", QUAD, rounds=3, over={"step": [0.1, 0.2]})
    single = fp.run(fp.FedAvg(0.2), QUAD, rounds=3)
    np.testing.assert_allclose(swept.model[1], single.model, atol=1e-15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp.run("fedavg", QUAD, rounds=3), "FedAvg needs step"),
        (lambda: fp.run("fedavg", QUAD, rounds=3, step=0.1, pull=1.0), "FedAvg has no argument 'pull'"),
        (lambda: fp.run(fp.FedAvg(0.1), QUAD, rounds=3, step=0.1), "step"),
    ],
)
def test_hyper_parameters_that_do_not_fit(call, message):
    with pytest.raises(fp.FedpointError, match=message):
        call()


def test_the_typed_names_are_those_of_the_catalogue():
    """All but `exact`, which is the experiment's own argument: a method with such a field is given as an object."""
    fields = {f.name for card in fp.CATALOGUE.values() for f in dataclasses.fields(card.cls)}
    assert fields - {"exact"} == set(Hyperparameters.__annotations__)
