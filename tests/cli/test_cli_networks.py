"""Networks and schedules from the command line: files, folders, resuming, and mistakes."""

import json

import numpy as np
import pytest

import fedpoint as fp

PROBLEM = """
[problem]
kind = "least_squares"
agents = 5
rows = 6
dim = 2
mean = true
half = false
"""
NETWORK = f"""
rounds = 20
network = {{kind = "random", degree = 2}}
schedule = {{kind = "partially_asynchronous", bounded = 3, loss = 0.3}}
{PROBLEM}
[algorithm]
name = "fedrelax"
coupling = 0.5
"""
CLOCK = f"""
rounds = 20
schedule = {{kind = "arrivals", clock = {{work = [1, 1, 2, 4, 8.0]}}, buffer = 2, staleness = {{hinge = [1.0, 2.0]}}}}
{PROBLEM}
[algorithm]
name = "scaffold"
step = 0.02
local_steps = 3
"""


@pytest.mark.parametrize("text", [NETWORK, CLOCK], ids=["network", "clock"])
def test_a_run_from_a_file_is_resumed_to_the_same_bits(text, cli, tmp_path):
    (tmp_path / "net.toml").write_text(text)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = cli("run", tmp_path / "net.toml", "--folder", whole, "--rounds", "33", "--json", "--no-figure", "-q")
    assert json.loads(done.stdout)["runs"][0]["rounds"] == 33
    cli("run", tmp_path / "net.toml", "--folder", parts, "--no-figure", "-q")
    cli("resume", parts, "--rounds", "33", "--no-figure", "-q")
    a, b = fp.load(whole), fp.load(parts)
    np.testing.assert_array_equal(a.history, b.history)
    np.testing.assert_array_equal(a.used, b.used)
    assert a.history.shape == ((1, 34, 5, 2) if text is NETWORK else (1, 34, 2))
    if text is NETWORK:
        assert a.models.shape == (1, 5, 2)
        np.testing.assert_allclose(a.model, a.models.mean(1), rtol=1e-12)  # equal rows, so equal weights
        assert (a.variation[:, -1] > 0).all()
    else:
        assert (np.diff(a.time[0]) > 0).all()


def test_python_objects_state_themselves_and_come_back(tmp_path):
    """A folder without a file behind it: network and schedule are rebuilt from what it states."""
    rng = np.random.default_rng(0)
    task = fp.problems.LeastSquares([rng.normal(size=(4, 2)) for _ in range(4)], [rng.normal(size=4) for _ in range(4)])
    net = fp.Network.from_edges([(0, 1), (1, 2), (2, 3)], [1.0, 2.0, 0.5])
    trace = fp.Replay(((0, "0", None, 0), (1, "1", "0", 1), (1, "2", None, 0), (2, "3", "2", 2)))
    clock = fp.Clock([1.0, 2.0, 3.0, 4.0])
    for i, (method, options) in enumerate(
        [
            (fp.FedGD(step=0.05), {"network": net, "schedule": trace}),
            (fp.FedGD(step=0.05), {"network": net, "schedule": fp.OwnPace(clock, loss=0.2)}),
            (
                fp.FedAvg(step=0.05),
                {"schedule": fp.Arrivals(clock, staleness=fp.staleness.Polynomial(0.5), mixing=0.5)},
            ),
        ]
    ):
        whole = fp.run(method, task, rounds=17, seed=2, **options)
        fp.run(method, task, rounds=9, seed=2, folder=tmp_path / str(i), **options)
        loaded = fp.load(tmp_path / str(i), task)
        assert type(loaded.participation) is type(options["schedule"])
        np.testing.assert_array_equal(loaded.extend(17).history, whole.history)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('kind = "random"', 'kind = "rnig"', "did you mean 'ring'"),
        ("bounded = 3", "bound = 3", "did you mean 'bounded'"),
        ("bounded = 3, ", "", "needs bounded"),
        ("loss = 0.3", "loss = 1.5", "probability"),
        (
            'kind = "partially_asynchronous", bounded = 3, loss = 0.3',
            'kind = "arrivals", clock = {work = 1.0}',
            "schedule",
        ),
        ('name = "fedrelax"', 'name = "scaffold"\nstep = 0.1', "unknown key"),
        ('{kind = "random", degree = 2}', "{edges = [[0, 1], [1, 1]]}", "edge to itself"),
        ('{kind = "random", degree = 2}', "{edges = [[0, 1], [1, 9]]}", "9"),
        ("rounds = 20", "rounds = 20\nparticipation = 3", "a schedule already says who takes part"),
        ('{kind = "partially_asynchronous", bounded = 3, loss = 0.3}', '{kind = "replay", file = "no.csv"}', "no.csv"),
    ],
)
def test_mistakes_in_a_file_are_told_with_their_line(old, new, words, cli, tmp_path):
    assert old in NETWORK
    (tmp_path / "net.toml").write_text(NETWORK.replace(old, new))
    failed = cli("run", tmp_path / "net.toml", status=2)
    assert words in failed.stderr and "line " in failed.stderr and "Traceback" not in failed.stderr


def test_a_network_method_without_a_network(cli, tmp_path):
    text = "\n".join(line for line in NETWORK.splitlines() if not line.startswith(("network", "schedule")))
    (tmp_path / "net.toml").write_text(text)
    assert "runs on a network" in cli("run", tmp_path / "net.toml", status=2).stderr


def test_a_network_in_pieces_is_told_with_its_components(cli, tmp_path):
    text = NETWORK.replace('{kind = "random", degree = 2}', "{edges = [[0, 1], [2, 3]]}")
    (tmp_path / "net.toml").write_text(text)
    done = cli("run", tmp_path / "net.toml", "--no-figure", "-q")
    assert "not connected" in done.stderr and "3 components: 0, 1; 2, 3; 4" in done.stderr


def test_forecast_of_a_network(cli, tmp_path):
    (tmp_path / "net.toml").write_text(NETWORK)
    done = json.loads(cli("forecast", tmp_path / "net.toml", "--json").stdout)["forecasts"][0]
    assert 0 < done["rate"] < 1 and done["bias"] == 0 and 0 < done["contraction"] < 1
    assert "block-maximum norm" in cli("forecast", tmp_path / "net.toml", "--target", "1e-6").stdout
