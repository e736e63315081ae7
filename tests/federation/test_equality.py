"""A study's trajectory is the simulation's: every method, with a fusion center and on networks, in step and late."""

import numpy as np
import pytest
from studies import AVERAGE, BOWLS, CONTROL, ROWS, SITES, SYSTEM, content, gap

import fedpoint as fp
from fedpoint.core.algorithm import CATALOGUE
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.ledger import Ledger

TOLERANCE = 1e-10
FULL = {**ROWS, "batch": None}
SPEEDS = {"a": 1.0, "b": 2.3, "c": 0.7}

FAST = {
    "FedAvg, two of three": content(participation=2),
    "ScaffLSA": content({"name": "scafflsa", "step": 0.1, "local_steps": 4}, SYSTEM),
    "late, stale answers count less": content(rounds=9, asynchronous={"staleness": {"polynomial": 0.5}}),
    "FedRelax": content({"name": "fedrelax", "coupling": 0.5}, {**ROWS, "batch": None}, network="ring"),
}
SLOW = {
    "FedAvg, unequal": content(
        {"name": "fedavg", "step": {"per_agent": [0.05, 0.1, 0.02]}, "local_steps": {"per_agent": [1, 3, 2]}}
    ),
    "FedAvg, epochs": content(
        {"name": "fedavg", "step": 0.05, "local_steps": {"epochs": 2}}, {**ROWS, "sampling": "shuffle"}
    ),
    "FedAvg, decaying": content({"name": "fedavg", "step": {"inverse_time": {"scale": 1.0, "offset": 9.0}}}),
    "FedAvg, stragglers": content({"name": "fedavg", "step": 0.05, "local_steps": {"stragglers": 0.5, "steps": 4}}),
    "by weight": content(participation={"scheme": "by_weight", "count": 2}),
    "importance": content(
        participation={"scheme": "importance", "count": 2, "probabilities": [0.2, 0.3, 0.5]}
    ),
    "GradientExchange": content({"name": "gradient_exchange", "step": 0.05}),
    "ParameterExchange": content({"name": "parameter_exchange", "step": 0.05}),
    "FedProx": content({"name": "fedprox", "step": 0.05, "local_steps": 3, "pull": 0.4}),
    "FedProx, exact": content({"name": "fedprox", "pull": 0.4, "exact": True}),
    "GeneralRule": content({"name": "general_rule", "step": 0.05, "local_steps": 3, "momentum": 0.5, "pull": 0.3}),
    "FedNova": content({"name": "fednova", "step": 0.05, "local_steps": {"per_agent": [1, 3, 2]}, "momentum": 0.6}),
    "SCAFFOLD": content(CONTROL, participation=2),
    "SCAFFOLD, option 1": content({**CONTROL, "option": 1}, participation=2),
    "Scaffnew": content({"name": "scaffnew", "step": 0.05, "probability": 0.4}),
    "q-FedAvg": content({"name": "qfedavg", "q": 1.5, "step": 0.05, "local_steps": 2}),
    "FedAvgM": content({"name": "fedavgm", "step": 0.05, "local_steps": 2}),
    "FedAdam": content({"name": "fedadam", "step": 0.05, "local_steps": 2}),
    "FedYogi": content({"name": "fedyogi", "step": 0.05, "local_steps": 2}),
    "FedAdagrad": content({"name": "fedadagrad", "step": 0.05, "local_steps": 2}),
    "FedLSA": content({"name": "fedlsa", "step": 0.1, "local_steps": 4}, SYSTEM, participation=2),
    "temporal differences, one trajectory": content(
        {"name": "fedlsa", "step": 0.1, "local_steps": 4},
        {"kind": "garnet", "agents": 3, "states": 6, "dim": 3, "sampling": "trajectory"},
    ),
    "softmax": content(AVERAGE, {"kind": "logistic", "agents": 3, "rows": 8, "dim": 3, "classes": 3, "batch": 2}),
    "late, as models, two together": content(rounds=9, asynchronous={"buffer": 2, "models": True, "mixing": 0.5}),
    "late SCAFFOLD": content(CONTROL, BOWLS, rounds=9, asynchronous={}),
    "FedGD": content(
        {"name": "fedgd", "step": 0.05, "coupling": 0.5}, FULL, network={"edges": [["a", "b"], ["b", "c"]]}
    ),
    "FedSGD": content({"name": "fedsgd", "step": 0.05, "coupling": 0.5}, network="complete"),
    "late FedGD": content(
        {"name": "fedgd", "step": 0.05, "coupling": 0.5}, FULL, rounds=9, network="star", asynchronous={}
    ),
    "late FedRelax": content(
        {"name": "fedrelax", "coupling": 0.5}, {**ROWS, "batch": None}, rounds=9, network="ring", asynchronous={}
    ),
    "FedAvg on a network": content(network={"edges": [["a", "b"], ["b", "c"]], "weights": [0.3, 0.4]}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAST)
def test_equals_simulation(name, tmp_path):
    made = fp.federate(FAST[name], folder=tmp_path, seconds=SPEEDS)
    assert made.round == FAST[name]["rounds"]
    assert gap(made) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_equals_simulation_too(name, tmp_path):
    made = fp.federate(SLOW[name], folder=tmp_path, seconds=SPEEDS)
    assert gap(made) <= TOLERANCE


def test_every_method_of_the_catalogue_is_here():
    from fedpoint.config.methods import find_maker

    cards = {find_maker(study["algorithm"]["name"])[1] for study in (FAST | SLOW).values()}
    named = {getattr(make, "__name__", "") for make in cards}
    missing = [
        card.name
        for card in CATALOGUE.values()
        if card.cls.__module__.startswith("fedpoint.") and card.cls.__name__ not in named and card.name != "fedopt"
    ]
    assert missing == []


@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_goes_on_to_the_same_models_from_any_moment(late, tmp_path, monkeypatch):
    """The hub is gone, anywhere between what it merged and what it wrote down: nothing is lost."""
    more = {"asynchronous": {}} if late else {"participation": 2}
    study = content(CONTROL, BOWLS, rounds=6, **more)
    whole = fp.federate(study, folder=tmp_path / "whole", seconds=SPEEDS)

    class Killed(BaseException):
        pass

    def deadly(*arguments):
        raise Killed

    for moment in ("record", "note", "save", "tell"):  # what the hub does at the end of a round, in this order
        folder = tmp_path / moment

        with monkeypatch.context() as patched, pytest.raises(Killed):

            def kill(event, moment=moment, patched=patched):
                if event.get("round") == 1 and moment != "tell":
                    patched.setattr(Ledger, moment, deadly)
                elif event.get("round") == 2:
                    raise Killed

            fp.federate(study, folder=folder, seconds=SPEEDS, tell=kill)
        made = fp.federate(study, folder=folder, seconds=SPEEDS)
        if late:
            assert gap(made) <= TOLERANCE  # who answers when is another trace
        else:
            assert np.array_equal(made.history, whole.history)
            assert [event["round"] for event in made.events] == list(range(6))


def test_what_a_site_lost_is_as_if_it_had_not_answered(tmp_path):
    """Answers never heard, orders that never arrive, late ones: Answering's weights, and c = sum p_k c_k."""
    faults = [Fault("a", 3, "unheard"), Fault("b", 4, "lost"), Fault("c", 5, "late", 11.0)]
    study = content(CONTROL, BOWLS, rounds=8, quorum=1)
    made = fp.federate(study, folder=tmp_path, faults=faults)
    assert [len(event["answered"]) for event in made.events].count(2) >= 3
    assert gap(made) <= TOLERANCE
    assert invariant(made, tmp_path) <= 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("participation", [2, {"scheme": "by_weight", "count": 3}])
def test_lost_answers_of_sampled_sites(participation, tmp_path):
    lost = [Fault(site, number, "lost") for site, number in (("a", 3), ("b", 4), ("c", 3), ("a", 6))]
    made = fp.federate(
        content(CONTROL, BOWLS, rounds=8, participation=participation, quorum=1), folder=tmp_path, faults=lost
    )
    assert sum(bool(event["refused"]) for event in made.events) >= 3
    assert gap(made) <= TOLERANCE
    assert invariant(made, tmp_path) <= 1e-14


@pytest.mark.slow
def test_an_abandoned_round_is_as_in_the_simulation(tmp_path):
    faults = [Fault("a", 3, "lost"), Fault("b", 3, "lost"), Fault("b", 4, "dead")]
    made = fp.federate(content(CONTROL, BOWLS, rounds=8, quorum=2), folder=tmp_path, faults=faults)
    assert [event["merged"] for event in made.events].count(False) == 1
    assert gap(made) <= TOLERANCE
    assert invariant(made, tmp_path) <= 1e-14


def invariant(made, root):
    """c - sum p_k c_k, from the hub's folder and the sites' own."""
    from fedpoint.report.disk import read_npz

    hub, _ = read_npz(root / "hub" / "hub.npz", "hub")
    total = 0.0
    for site, p in zip(SITES, made.weights, strict=True):
        (file,) = (root / site).glob("memory-*.npz")
        arrays, about = read_npz(file, "memory")
        assert about["pending"] is None
        total = total + p * arrays["kept[0]"]
    return np.abs(hub[".c"] - total).max()
