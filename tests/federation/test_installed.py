"""Models that every party has installed by itself: a neural network over sites, and no code that travels."""

import importlib
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from studies import content

import fedpoint as fp
from fedpoint.data.floor import Floor
from fedpoint.federation import installed
from fedpoint.federation.announcement import announce, lines
from fedpoint.federation.dossier import Dossier, compose
from fedpoint.federation.site.site import MODEL, Site
from fedpoint.federation.study import parse
from fedpoint.store.disk import read_npz

SITES = ["a", "b", "c"]
METHOD = {"name": "scaffold", "step": 0.1, "local_steps": 3}


def loss(params, rows):
    """A network with one hidden layer, and squared errors."""
    hidden = jnp.tanh(rows["x"] @ params["in"])
    return jnp.mean((hidden @ params["out"] - rows["y"]) ** 2)


class Network:
    """What a package would offer."""

    def start(self, width=3):
        rng = np.random.default_rng(5)
        return {"in": rng.normal(0, 0.5, (2, width)), "out": rng.normal(0, 0.5, width)}

    def problem(self, files, *, batch, width=3):
        parts = [np.loadtxt(path, delimiter=",", skiprows=1) for path in files]
        rows = np.concatenate(parts)
        groups = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        data = {"x": rows[:, :2], "y": rows[:, 2]}
        return fp.problems.Loss(loss, self.start(width), data, groups, batch=batch)


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    monkeypatch.setattr(installed, "_allowed", {})
    installed.allow("network", Network())


@pytest.fixture
def files(tmp_path, rng):
    made = {}
    for k, site in enumerate(SITES):
        x = rng.normal(0, 1, (30 + 10 * k, 2))
        rows = np.column_stack([x, np.sin(x[:, 0]) + 0.1 * k])
        made[site] = tmp_path / f"{site}.csv"
        np.savetxt(made[site], rows, delimiter=",", header="u,v,y", comments="")
    return made


def study(rounds=6, method=METHOD, problem=None, **more):
    given = {"kind": "installed", "name": "network", "batch": 8, **(problem or {})}
    return parse(content(method, given, rounds=rounds, **more))


def test_a_network_learns_over_sites_as_in_simulation(files, tmp_path):
    made = fp.federate(study(share_model=True), files, folder=tmp_path / "run")
    assert made.weights == pytest.approx(np.array([30, 40, 50]) / 120)
    assert made.setup["rows"] == [30, 40, 50]
    again = fp.run(made.replay(made.problem(files)), rounds=6)
    for name in ("in", "out"):
        assert np.abs(np.asarray(again.history[name])[0] - made.history[name]).max() < 1e-10
    assert not np.allclose(made.model["in"], Network().start()["in"])
    kept = read_npz(tmp_path / "run" / "a" / MODEL, "model-of-round")[0]
    assert all(np.array_equal(kept[f"['{name}']"], made.model[name]) for name in ("in", "out"))


def test_measurements_are_the_loss_on_the_sites_rows(files, tmp_path):
    made = fp.federate(study(), files, folder=tmp_path / "run")
    for site in SITES:
        rows = np.loadtxt(files[site], delimiter=",", skiprows=1)
        expected = ((np.tanh(rows[:, :2] @ made.model["in"]) @ made.model["out"] - rows[:, 2]) ** 2).mean()
        assert made.measures[site] == {"loss": pytest.approx(expected, rel=5e-3)}


def test_only_statistics_leave(files, tmp_path):
    """The number of rows, changes of parameters, a loss."""
    fp.federate(study(rounds=2), files, folder=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "a" / "audit.jsonl").read_text().splitlines()]
    said = [(line["asked"]["kind"], sorted(line["left"]["says"])) for line in lines]
    work = ("work", ["seconds", "weight"])
    assert said == [("columns", ["rows"]), ("ready", []), work, work, ("measure", ["measures"]), ("end", [])]


def test_the_floor_holds(files, tmp_path):
    wanted = study(problem={"batch": 8}, method={"name": "fedavg", "step": 0.1, "local_steps": 2})
    with pytest.raises(fp.FedpointError, match=r"a cannot take part \(floor\)"):
        fp.federate(wanted, files, folder=tmp_path / "run")
    assert "a message of 16 rows would leave" in announce(wanted, files["a"], site="a")["refused"][0]
    assert "the mean of 30 rows would leave" in announce(study(), files["a"], Floor(rows=31), "a")["refused"][0]
    with pytest.raises(fp.FedpointError, match=r"c cannot take part \(rows\)"):
        fp.federate(study(rows={"c": [10, 20]}), files, folder=tmp_path / "b")


def test_the_screen_names_the_code_that_runs(files):
    found = announce(study(), files["a"], site="a")
    text = "\n".join(lines(found))
    assert (
        "Reads: what the installed model network reads; it is test_installed.Network, allowed in this process" in text
    )
    assert "Rows: 30; they stay here" in text
    assert [one["kind"] for one in found["leaves"]] == ["columns", "ready", "work", "measure", "end"]
    assert "nothing of fewer than 20 rows" in text


def test_the_dossier_tells_of_it(files, tmp_path):
    page = compose(Dossier(fp.federate(study(rounds=2), files, folder=tmp_path / "run")))
    assert "read by the model network that is installed there" in page and "the data are generated" not in page


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ({"name": "networc"}, "no model 'networc' is installed here"),
        ({"name": "os.system"}, "name"),
        ({"options": {"depth": 3}}, "start of the model 'network'.*depth"),
        ({"weights": [1.0]}, "1 weight for 3 sites"),
        ({"batch": 0}, "batch"),
    ],
)
def test_studies_that_cannot_be(problem, said):
    with pytest.raises(fp.FedpointError, match=said):
        study(problem=problem)


class OtherShapes(Network):
    """Says one thing and does another."""

    def problem(self, files, *, batch, width=3):
        return super().problem(files, batch=batch, width=width + 1)


class Pooled(Network):
    """Forgets who has which rows."""

    def problem(self, files, *, batch, width=3):
        return super().problem([*files, *files], batch=batch, width=width)


class OtherBatch(Network):
    """Takes fewer rows behind a message than the study says."""

    def problem(self, files, *, batch, width=3):
        return super().problem(files, batch=1, width=width)


class NoProblem(Network):
    """Returns rows."""

    def problem(self, files, *, batch, width=3):
        return [1.0]


@pytest.mark.parametrize(
    ("model", "said"),
    [(OtherShapes, "other shapes"), (Pooled, "one agent a file"), (OtherBatch, "batch = 1"), (NoProblem, "a list")],
)
def test_models_that_break_their_word_are_refused(model, said, files):
    installed.allow("network", model())
    with pytest.raises(fp.FedpointError, match=said):
        study().installed.problem([files["a"]])


def test_a_site_without_the_model_says_so(files, tmp_path):
    wanted = study()
    site = Site(wanted, "a", tmp_path / "records", files["a"])
    installed._allowed.clear()
    with pytest.raises(fp.FedpointError, match="no model 'network' is installed here"):
        _ = site.own_problem


def test_entry_points_offer_models(monkeypatch, tmp_path):
    """By the name of the group, from an installed package; two packages of one name are refused."""
    (tmp_path / "hospital_models.py").write_text("class Tumour:\n    def start(self):\n        return [1.0]\n")
    for name in ("one", "two"):
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    point = "[fedpoint.models]\ntumour = hospital_models:Tumour\nlost = hospital_models:Nothing\n"
    (tmp_path / "one-1.2.dist-info" / "entry_points.txt").write_text(point)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    try:
        assert installed.start_of("tumour", {}) == [1.0]
        assert installed.origin("tumour") == "hospital_models:Tumour, of one 1.2"
        with pytest.raises(fp.FedpointError, match="cannot be loaded"):
            installed.installed("lost")
        (tmp_path / "two-1.2.dist-info" / "entry_points.txt").write_text(point)
        importlib.invalidate_caches()
        with pytest.raises(fp.FedpointError, match="several packages offer a model 'tumour'"):
            installed.installed("tumour")
    finally:
        sys.modules.pop("hospital_models", None)
