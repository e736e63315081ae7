"""What happens to a message on its way, and how messages are gathered, is the simulation's over sites too."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from studies import AVERAGE, BOWLS, CONTROL, content, gap

import fedpoint as fp
from fedpoint.federation import wire
from fedpoint.federation.announcement import announce
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.study import Study

TOLERANCE = 1e-10
SPEEDS = {"a": 1.0, "b": 2.3, "c": 0.7}
EDGES = {"edges": [["a", "b"], ["b", "c"]], "weights": [0.3, 0.4]}


PLACES = {
    "half precision": content(CONTROL, BOWLS, participation=2, channel={"kind": "cast", "dtype": "float16"}),
    "few bits, late": content(AVERAGE, rounds=9, asynchronous={}, channel={"kind": "cast", "dtype": "bfloat16"}),
    "half precision on a network": content(network=EDGES, channel={"kind": "cast", "dtype": "float16"}),
    "median": content(AVERAGE, BOWLS, gather="median"),
    "both, with a server's optimiser": content(
        {"name": "fedadam", "step": 0.05}, BOWLS, gather="median", channel={"kind": "cast", "dtype": "float16"}
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_equals_simulation(name, tmp_path):
    made = fp.federate(PLACES[name], folder=tmp_path, seconds=SPEEDS)
    assert gap(made) <= TOLERANCE


def test_half_of_the_bytes_leave(tmp_path):
    """What is announced is what is sent: two bytes a number."""
    announced, sent = [], []
    for more in ({}, {"channel": {"kind": "cast", "dtype": "float16"}}):
        made = fp.federate(content(problem={**BOWLS, "dim": 50}, **more), folder=tmp_path / str(len(sent)))
        announced.append({one["kind"]: one for one in announce(made.study)["leaves"]}["work"])
        lines = (tmp_path / str(len(sent)) / "a" / "audit.jsonl").read_text().splitlines()
        sent.append(max(json.loads(line)["left"]["bytes"] for line in lines))
    assert [one["arrays"][0]["bytes"] for one in announced] == [400, 100]
    assert [one["arrays"][0]["type"] for one in announced] == ["float64", "float16"]
    assert abs(sent[0] - sent[1] - 300) <= 40


def test_a_liar_does_not_move_the_median(tmp_path):
    """Far away, though not so far that the round is abandoned; the mean goes with it."""

    def lie(data):
        packet = wire.decode(data)
        return wire.encode(packet.header, {name: array + 1e3 for name, array in packet.arrays.items()})

    lies = [Fault("b", number, lie) for number in range(2, 99)]
    far = {}
    for gather in ("median", "weighted_sums"):
        study = content(AVERAGE, BOWLS, gather=gather)
        far[gather] = np.abs(fp.federate(study, folder=tmp_path / gather, faults=lies).model).max()
    assert far["median"] < 10 < 300 < far["weighted_sums"]


@pytest.mark.parametrize("channel", [{"kind": "cast", "dtype": "float16"}, {"kind": "cast", "dtype": "bfloat16"}])
def test_the_norm_is_that_of_what_arrives(channel, tmp_path):
    study = content(AVERAGE, BOWLS, rounds=3, quorum=2, norm_cap=10.0, channel=channel)

    def long(data):
        packet = wire.decode(data)
        return wire.encode(packet.header, {n: np.full_like(a, 20.0) for n, a in packet.arrays.items()})

    made = fp.federate(study, folder=tmp_path, faults=[Fault("a", 3, long)])
    assert made.refused == {"a norm": 1}


# A user's own.


class Halved(fp.Channel):
    """Half of the numbers are lost, at random; the others count twice."""

    lossless = False

    def omega(self, message):
        return 1.0

    def encode(self, message, memory, agent):
        return jax.tree.map(lambda a: jnp.where(agent.uniform(a) < 0.5, 2.0 * a, 0.0), message), memory


class Remembering(Halved):
    """What is lost is sent later."""

    def init(self, message):
        return jax.tree.map(jnp.zeros_like, message)

    def omega(self, message):
        return 0.0

    def owed(self, memory, like):
        return memory

    def encode(self, message, memory, agent):
        whole = jax.tree.map(lambda m, r: m + r, message, memory)
        sent = jax.tree.map(lambda a: jnp.where(agent.uniform(a) < 0.5, a, 0.0), whole)
        return sent, jax.tree.map(lambda w, s: w - s, whole, sent)


LOSSY = {
    "SCAFFOLD acknowledges": (Halved(), content(CONTROL, BOWLS)),
    "error feedback": (Remembering(), content(AVERAGE, BOWLS)),
    "FedAvg on a network": (Halved(), content(AVERAGE, BOWLS, network=EDGES)),
    "late": (Halved(), content(AVERAGE, BOWLS, rounds=9, asynchronous={})),
}


@pytest.mark.parametrize("name", LOSSY)
def test_a_lossy_channel_of_one_s_own(name, monkeypatch, tmp_path):
    channel, study = LOSSY[name]
    plain = Study.experiment

    def with_channel(self, *given, **named):
        return plain(self, *given, **named).replace(channel=channel)

    monkeypatch.setattr(Study, "experiment", with_channel)
    lost = [] if "network" in study else [Fault("a", 4, "unheard")]
    made = fp.federate(study, folder=tmp_path, seconds=SPEEDS, faults=lost)
    assert gap(made) <= TOLERANCE
