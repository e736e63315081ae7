"""A study's trajectory is the simulation's: every method, with a fusion center and on networks, in step and late."""

import numpy as np
import pytest
from studies import (
    AVERAGE,
    BOWLS,
    CONTROL,
    FULL,
    IN_STEP,
    METHODS,
    ROWS,
    SITES,
    SYSTEM,
    TWICE,
    content,
    every_method,
    gap,
    invariant,
    simulated,
)

import fedpoint as fp
from fedpoint.algorithms.catalogue import makers
from fedpoint.federation.hub.ledger import Ledger
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.study import parse

TOLERANCE = 1e-10
SPEEDS = {"a": 1.0, "b": 2.3, "c": 0.7}
TRAJECTORY = (
    {"name": "fedlsa", "step": 0.1, "local_steps": 4},
    {"kind": "garnet", "agents": 3, "states": 6, "dim": 3, "sampling": "trajectory"},
)

FAST = {
    "FedAvg, two of three": content(participation=2),
    "scafflsa": every_method()["scafflsa"],
    "late, stale answers count less": content(rounds=9, asynchronous={"staleness": {"polynomial": 0.5}}),
    "Ditto, two of three": content({"name": "ditto", "step": 0.05, "local_steps": 2}, participation=2),
    "FedRelax on a ring": content({"name": "fedrelax", "coupling": 0.5}, FULL, network="ring"),
}
SLOW = every_method() | {
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
    "FedProx, exact": content({"name": "fedprox", "pull": 0.4, "exact": True}),
    "SCAFFOLD, two of three": content(CONTROL, participation=2),
    "SCAFFOLD, option 1": content({**CONTROL, "option": 1}, participation=2),
    "FedLSA, two of three": content({"name": "fedlsa", "step": 0.1, "local_steps": 4}, SYSTEM, participation=2),
    "temporal differences, one trajectory": content(*TRAJECTORY),
    "softmax": content(AVERAGE, {"kind": "logistic", "agents": 3, "rows": 8, "dim": 3, "classes": 3, "batch": 2}),
    "late, as models, two together": content(rounds=9, asynchronous={"buffer": 2, "models": True, "mixing": 0.5}),
    "late SCAFFOLD": content(CONTROL, BOWLS, rounds=9, asynchronous={}),
    "late FedGD, with a hub in the middle": content(
        {"name": "fedgd", "step": 0.05, "coupling": 0.5}, FULL, rounds=9, network="star", asynchronous={}
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
    """In step, and late too unless it needs everybody: such a study is refused, with the reason."""
    assert set(METHODS) == set(makers())
    for name in TWICE:
        with pytest.raises(fp.FedpointError, match="asks more than once in a round, and sites answer once"):
            parse(content({"name": name, **METHODS[name][0]}))
    without = [name for name in METHODS if f"{name}, late" not in every_method() and name not in TWICE]
    assert sorted(without) == sorted([*IN_STEP, "fednewton", "scafflsa", "scaffnew"])
    own = dict.fromkeys(IN_STEP, "its corrections cancel over the nodes") | {"fednewton": "leads to their own minimum"}
    own["push_sum"] = "its sums are conserved only if"
    for name in without:
        reason = own.get(name, "its corrections stay balanced")
        with pytest.raises(fp.FedpointError, match=f"needs everybody: .*{reason}"):
            parse({**every_method()[name], "asynchronous": {}})


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


def test_a_trajectory_goes_on_where_its_last_merged_answer_ended(tmp_path):
    """Temporal differences along one trajectory: the steps of an answer that got lost are not taken."""
    lost = [Fault("a", 3, "unheard"), Fault("b", 4, "lost"), Fault("c", 5, "late", 11.0), Fault("a", 6, "unheard")]
    study = content(*TRAJECTORY, rounds=10, quorum=1)
    made = fp.federate(study, folder=tmp_path / "worked", faults=lost, seconds=SPEEDS)
    assert [len(event["answered"]) for event in made.events].count(2) >= 4
    never = [fault._replace(what="lost") for fault in lost]  # the same sites, but they have not even worked
    assert np.array_equal(fp.federate(study, folder=tmp_path / "never", faults=never).history, made.history)
    with pytest.raises(fp.FedpointError, match="cannot be replayed"):
        made.replay(made.study.generated())
    study = content(*TRAJECTORY, rounds=10, asynchronous={})
    made = fp.federate(study, folder=tmp_path / "late", faults=lost, seconds=SPEEDS)
    assert {"a deadline", "c late"} <= set(made.refused)
    assert gap(made) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("quorum", [1, 2])
@pytest.mark.parametrize("participation", [2, {"scheme": "by_weight", "count": 3}])
def test_lost_answers_of_sampled_sites(participation, quorum, tmp_path):
    """A site that is drawn twice answers once: a round of few sites needs fewer answers than the quorum."""
    lost = [Fault(site, number, "lost") for site, number in (("a", 3), ("b", 4), ("c", 3), ("a", 6))]
    study = content(CONTROL, BOWLS, rounds=8, participation=participation, quorum=quorum)
    made = fp.federate(study, folder=tmp_path, faults=lost)
    assert sum(bool(event["refused"]) for event in made.events) >= 2
    assert not all(event["merged"] for event in made.events)
    few = [event["merged"] and len(event["answered"]) < quorum for event in made.events]
    assert any(few) == (quorum == 2 and participation != 2)
    assert gap(made) <= TOLERANCE
    assert invariant(made, tmp_path) <= 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [CONTROL, {"name": "scaffnew", "step": 0.05, "probability": 0.4}])
def test_an_abandoned_round_is_as_in_the_simulation(algorithm, tmp_path):
    """For a method that needs everybody too: a round is everybody's or nobody's."""
    faults = [Fault("a", 3, "lost"), Fault("b", 3, "lost"), Fault("b", 4, "dead")]
    needs_all = algorithm is not CONTROL
    study = content(algorithm, BOWLS, rounds=8, **({} if needs_all else {"quorum": 2}))
    made = fp.federate(study, folder=tmp_path, faults=faults)
    assert [event["merged"] for event in made.events].count(False) == (2 if needs_all else 1)
    assert gap(made) <= TOLERANCE
    if not needs_all:
        assert invariant(made, tmp_path) <= 1e-14


def test_a_node_that_is_not_heard_hears_its_neighbours_when_it_works_again(tmp_path):
    """As in the simulation; a record shows what nodes would work from, which there is known when they do."""
    network = {"edges": [["a", "b"], ["b", "c"]], "weights": [0.3, 0.4]}
    study = content(AVERAGE, BOWLS, rounds=8, network=network, quorum=1)
    made = fp.federate(study, folder=tmp_path, faults=[Fault("a", 4, "unheard")])
    assert [e["round"] for e in made.events if e["answered"] != SITES] == [2]
    far = np.abs(made.history - simulated(made)).max(axis=(1, 2))
    assert np.flatnonzero(far > TOLERANCE).tolist() == [2]
