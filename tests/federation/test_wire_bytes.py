"""What a site really sends is what `run.cost` counts, up to the header; and what arrives is the simulation's."""

import numpy as np
import pytest
from studies import AVERAGE, BOWLS, CONTROL, content, gap

import fedpoint as fp
from fedpoint.federation import wire
from fedpoint.federation.inprocess import Fault

WIDE = {**BOWLS, "dim": 40}
CHANNELS = {
    "top k by bits": {"kind": "top_k", "fraction": 0.25},
    "top k by places": {"kind": "top_k", "fraction": 0.025},
    "rand k": {"kind": "rand_k", "fraction": 0.6},
    "sign": "sign",
    "quantise": {"kind": "quantise", "width": 5},
    "dither": {"kind": "quantise", "width": 5, "dither": True},
    "fixed point": [{"kind": "clip", "norm": 1.0}, {"kind": "fixed_point", "width": 16, "range": 1.0}],
    "chain": [
        {"kind": "top_k", "fraction": 0.25},
        {"kind": "quantise", "width": 4},
        {"kind": "cast", "dtype": "float32"},
    ],
}
BYTES = {  # by hand, for two arrays of 40 doubles
    "top k by bits": 2 * (10 * 8 + 5),
    "top k by places": 2 * (1 * 8 + 4),
    "rand k": 2 * 24 * 8 + 8,
    "sign": 2 * (5 + 8),
    "quantise": 2 * (25 + 8),
    "dither": 2 * (25 + 8) + 8,
    "fixed point": 2 * 40 * 2,
    "chain": 2 * (4 + 5 + 5),  # a scale of four bytes, ten levels of four bits, 40 bits for places
}


QUICK = ("top k by bits", "quantise", "rand k")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CHANNELS])
def test_bytes_on_the_wire_are_those_of_the_cost(name, tmp_path):
    left = []

    def weigh(data):
        packet = wire.decode(data)
        if packet.header["kind"] == "work":
            left.append(sum(array.nbytes for array in packet.arrays.values()))
        return data

    study = content(CONTROL, WIDE, channel=CHANNELS[name])
    faults = [Fault(site, number, weigh) for site in study["sites"] for number in range(40)]
    made = fp.federate(study, folder=tmp_path, faults=faults)
    assert gap(made) <= 1e-10
    assert set(left) == {BYTES[name]} and len(left) == 3 * study["rounds"]
    run = fp.run(made.replay(made.study.generated()), rounds=study["rounds"])
    assert run.cost.bytes_up == sum(left)


def test_noise_from_a_seed_that_all_know_is_refused():
    private = [{"kind": "clip", "norm": 1.0}, {"kind": "gaussian", "multiplier": 1.0}]
    with pytest.raises(fp.FedpointError, match="noise drawn from it would hide nobody"):
        fp.federate(content(AVERAGE, BOWLS, channel=private))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["top k by bits", "rand k", "chain"])
def test_over_sites_on_a_network(name, tmp_path):
    edges = {"edges": [["a", "b"], ["b", "c"]], "weights": [0.3, 0.4]}
    made = fp.federate(content(AVERAGE, BOWLS, network=edges, channel=CHANNELS[name]), folder=tmp_path)
    assert gap(made) <= 1e-10 and np.isfinite(made.model).all()
