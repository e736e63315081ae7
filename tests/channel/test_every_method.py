"""Every method of the catalogue runs with every channel, or is refused with a reason."""

import sys
from pathlib import Path

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.channel import AdaptiveClip, Cast, Clip, Erase, FixedPoint, Gaussian, Quantise, RandK, Sign, TopK

sys.path.append(str(Path(__file__).parents[1] / "contract"))
from instances import ALL, ENGINE, INSTANCES, STEP

CHANNELS = {
    "adaptive clip": AdaptiveClip(0.5),
    "cast": Cast("bfloat16"),
    "clip": Clip(0.5),
    "clip each": Clip(0.5, each=True),
    "erase": Erase(0.2),
    "fixed point": [Clip(1.0), FixedPoint(24, range=1.0)],
    "gaussian at the hub": [Clip(0.5), Gaussian(0.1)],
    "gaussian at agents": [Clip(0.5), Gaussian(0.1, at="agents")],
    "quantise": Quantise(6),
    "dither": Quantise(6, dither=True),
    "rand k": RandK(0.67),
    "sign": Sign(),
    "top k": TopK(0.34),
    "chain": [Clip(1.0), TopK(0.67), Quantise(8), Cast("float32")],
}
DIVIDE = ("QFedAvg", "FedNova", "GeneralRule", "FedExP")  # hubs that divide by what they are sent
SCALES = (
    "adaptive clip",
    "clip",
    "clip each",
    "erase",
    "fixed point",
    "gaussian at the hub",
    "gaussian at agents",
    "chain",
)
KNOWN = {name for name in fp.channel.__all__ if name not in ("Chain", "Channel", "Hub")}


def test_every_channel_is_here():
    made = {type(stage).__name__ for one in CHANNELS.values() for stage in (one if isinstance(one, list) else [one])}
    assert made >= KNOWN - {"Correlated"}  # whose own tests are those of privacy


def bowls():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 3, 3))
    H, c = root @ np.swapaxes(root, 1, 2) / 3 + 0.5 * np.eye(3), rng.normal(size=(4, 3))
    return fp.problems.Quadratic(H, c, noise=0.2, weights=[4, 1, 3, 2.0])


def reason(method, channel):
    """Why they must not go together; empty where they may."""
    if method.divides() and channel in SCALES:
        return "divides by the sum"
    return "would drift away" if method.conserves_a_sum() and channel == "gaussian at the hub" else ""


def try_together(name, channel, rounds):
    method = INSTANCES[name].make(STEP, np.asarray(ALL), 1.0)
    why, who = reason(method, channel), None if method.card.restriction else 3

    def experiment():
        return fp.Experiment(method, bowls(), participation=who, channel=CHANNELS[channel])

    if why:
        with pytest.raises(fp.FedpointError, match=why):
            experiment()
        return
    run = fp.run(experiment(), rounds=rounds)
    assert np.isfinite(run.history).all()
    made = fp.Experiment.from_dict(experiment().describe())  # and they can be written down
    assert made.channel == experiment().channel


QUICK = [("SCAFFOLD", channel) for channel in ("clip each", "gaussian at agents", "sign", "top k", "chain")]
QUICK += [("FedNova", channel) for channel in (*SCALES, "rand k")]
QUICK += [("q-FedAvg", "quantise"), ("FedAdam", "gaussian at the hub"), ("SCAFFOLD", "gaussian at the hub")]
REST = [(name, channel) for name in ENGINE for channel in CHANNELS if (name, channel) not in QUICK]


@pytest.mark.parametrize(("name", "channel"), QUICK)
def test_it_runs_or_is_refused(name, channel):
    try_together(name, channel, rounds=3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "channel"), REST)
def test_all_of_them_run_or_are_refused(name, channel):
    try_together(name, channel, rounds=3)


def test_the_lists_are_right():
    made = [INSTANCES[name].make(STEP, np.asarray(ALL), 1.0) for name in ENGINE]
    assert {type(method).__name__ for method in made if method.divides()} == set(DIVIDE)


# On networks differences to what neighbours know are sent, damped by 1/(1 + omega).

RING = fp.Network.ring(4)
ON_NETWORKS = {
    "cast": Cast("float16"),
    "rand k": RandK(0.34),
    "top k": TopK(0.34),
    "sign": Sign(),
    "quantise": Quantise(4),
    "dither": Quantise(4, dither=True),
    "erase": Erase(0.3),
    "clip": Clip(0.05),
    "chain": [TopK(0.67), Quantise(6)],
}


SLOW = ("sign", "quantise", "dither", "erase", "clip", "chain")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in ON_NETWORKS])
def test_nodes_end_where_they_end_without(name):
    """FedGD's own limit, with exact fields: what is lost is sent later, and vanishes with the differences."""
    run = fp.run(
        fp.FedGD(step=0.15, coupling=0.4), bowls(), 3000, network=RING, channel=ON_NETWORKS[name], record_every=3000
    )
    assert run.error[:, -1].sum() < (1e-6 if name == "cast" else 1e-18)  # models are sent as halves


class Undamped(RandK):
    """What is lost grows."""

    def omega(self, message):
        return 0.0


def test_without_damping_nodes_do_not_get_there():
    method, options = fp.FedGD(step=0.15, coupling=0.4), {"network": RING, "record_every": 3000}
    try:
        end = fp.run(method, bowls(), 3000, channel=Undamped(0.34), **options).error[:, -1].sum()
    except fp.Diverged:
        end = np.inf
    assert end > 1e-3
