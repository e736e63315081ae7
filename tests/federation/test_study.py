"""Study files: all mistakes at once; what a site is told before it consents; columns prepared over the wire."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from studies import AVERAGE, CONTROL, ROWS, SITES, content, gap

import fedpoint as fp
from fedpoint.cli import main
from fedpoint.data.floor import Floor
from fedpoint.data.tables import read_table
from fedpoint.federation.announcement import announce, lines
from fedpoint.federation.study import parse, read

TABLE = {"kind": "table", "model": "logistic", "target": "died", "features": ["age"]}

FEW = Floor(rows=2, per_category=1, per_class=1)  # these tables have a handful of rows

EDGES = {"edges": [["a", "b"], ["b", "c"]], "weights": [0.3, 0.4]}
EVERYBODY = {"name": "scaffnew", "step": 0.1, "probability": 0.5}
WRONG = """
name = "Trial"
sites = ["a", "b", "b"]
server = "localhost"
rounds = 0
quorum = 5
colour = "red"

[problem]
kind = "table"
target = "y"
features = []

[algorithm]
name = "fedavg"
step = -1.0
"""


def test_all_mistakes_at_once(tmp_path):
    (tmp_path / "study.toml").write_text(WRONG)
    with pytest.raises(fp.FedpointError) as error:
        read(tmp_path / "study.toml")
    said = str(error.value)
    for part in (
        "8 mistakes", "line 3: sites", "line 2: name", "line 4: server", "line 5: rounds", "line 7: colour",
        "line 12: problem.features", "problem.model: is missing", "algorithm.step",
    ):  # fmt: skip
        assert part in said, said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"quorum": 4}, "quorum = 4: only 3 sites asked"),
        ({"sites": ["a", "a", "b"]}, "none twice"),
        ({"sites": ["a", "b"]}, "has 3 agents, but there are 2 sites"),
        ({"participation": {"count": 2, "probability": 0.5}}, "give deadline and quorum instead"),
        ({"participation": {"scheme": "importance", "count": 2}}, "take everybody's data"),
        ({"participation": 7}, "7 participants of 3 agents"),
        ({"algorithm": {"name": "fedgd", "step": 0.1}}, "runs on a network"),
        ({"algorithm": {"name": "scaffnew", "step": 0.1, "probability": 0.5}, "quorum": 2}, "Scaffnew needs everybody"),
        ({"algorithm": {"name": "scaffnew", "step": 0.1, "probability": 0.5}, "asynchronous": {}}, "Scaffnew needs"),
        ({"algorithm": {**AVERAGE, "step": [0.1, 0.2]}}, "one study runs one algorithm"),
        ({"algorithm": {**AVERAGE, "step": {"per_agent": [0.1, 0.2]}}}, "has 2 values, but there are 3 agents"),
        ({"asynchronous": {"buffer": 4}}, "never fills with 3 sites"),
        ({"asynchronous": {"staleness": "old"}}, "staleness must be"),
        ({"asynchronous": {}, "participation": 2}, "merged as they come"),
        ({"asynchronous": {}, "network": "ring", "algorithm": {"name": "fedsgd", "step": 0.1}}, "exact = true"),
        ({"asynchronous": {}, "network": {"edges": [["a", "b"]], "weights": [0.5]}}, "keeps step on a network"),
        ({"network": "moon"}, "unknown kind"),
    ],
)
def test_what_does_not_go_together(more, said):
    with pytest.raises(fp.FedpointError) as error:
        parse(content(**{k: v for k, v in more.items() if k == "algorithm"}) | more)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"repeats": 3}, "repeats = 3: a study is run once"),
        ({"purpose": "care\x1b[2J"}, "a line break or another character that a screen does not show"),
        ({"purpose": "care\nReads: nothing"}, "a line break"),
        ({"purpose": "care \u202etnirp"}, "a line break or another character that a screen does not show"),
        ({"problem": {**TABLE, "features": ["age\rnone"]}}, "a line break"),
        ({"problem": {**TABLE, "separator": "\t", "target": "a\tb"}}, "a line break"),
        ({"algorithm": {"name": "averaged", "inner": EVERYBODY}, "quorum": 2}, "needs everybody: Scaffnew cannot run"),
        ({"schedule": {"kind": "arrivals", "clock": {"work": 1.0}}}, "give deadline and quorum, or asynchronous"),
        ({"schedule": "random_activation", "network": EDGES}, "give deadline and quorum, or asynchronous"),
        ({"stop": 0.1}, "ends after its rounds"),
        ({"participation": [1, 2]}, "one study runs one participation"),
        ({"network": {"kind": "knn", "k": 1, "of": "gradients"}}, "takes everybody's data"),
        ({"channel": "whisper"}, 'channel = "whisper": unknown kind'),
        ({"gather": "median", "algorithm": CONTROL}, "conserves a sum over all agents"),
        ({"algorithm": {"name": "os.path.Method", "step": 0.1}}, "sites run what is installed there"),
        ({"channel": {"class": "subprocess.Popen"}}, 'channel.class = "subprocess.Popen": is not fedpoint\'s'),
        ({"metrics": {"drift": {"python": "os.system"}}}, "metrics.drift.python"),
    ],
)
def test_what_experiments_have_and_studies_do_not(more, said):
    with pytest.raises(fp.FedpointError) as error:
        parse(content(**{k: v for k, v in more.items() if k == "algorithm"}) | more)
    assert said in str(error.value)


def test_a_study_is_the_same_everywhere():
    one = parse(content())
    other = parse({**content(), "sites": ["c", "a", "b"]})
    assert one.fingerprint == other.fingerprint == parse(one.content).fingerprint
    assert one.fingerprint != parse(content(rounds=6)).fingerprint


# Columns.


def write(path, rng, rows, words, target="label", gaps=()):
    lines = ["age,dose,kind,flat,label,number"]
    for i in range(rows):
        age = "" if i in gaps else f"{rng.normal(50, 9):.3f}"
        kind = "" if i in gaps[1:] else words[rng.integers(len(words))]
        lines.append(f"{age},{rng.normal(1e4, 1):.6f},{kind},7,{'ny'[rng.integers(2)]},{rng.normal():.4f}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def files(tmp_path, rng):
    found = {site: tmp_path / f"{site}.csv" for site in SITES}
    for (_, path), rows, words in zip(found.items(), (9, 14, 6), (["x", "z"], ["y"], ["x", "w"]), strict=True):
        write(path, rng, rows, words, gaps=(2, 4))
    return found


def table(**more):
    return {
        "kind": "table",
        "model": "logistic",
        "target": "label",
        "features": ["age", "dose", "kind", "flat"],
        **more,
    }


@pytest.mark.parametrize("missing", ["mean", pytest.param("drop", marks=pytest.mark.slow)])
def test_scaling_and_encoding_over_the_wire(files, missing, tmp_path):
    """To the bit what `read_table` makes of all files together, and so is what is trained on it."""
    study = content(AVERAGE, table(missing=missing, batch=2), rounds=3)
    made = fp.federate(study, files, folder=tmp_path / "run", floor=FEW)
    pooled = read_table([str(f) for f in files.values()], "label", model="logistic", missing=missing,
                        features=["age", "dose", "kind", "flat"])  # fmt: skip
    assert [fp.federation.preparation.Feature(**f) for f in made.setup["recipe"]] == pooled.recipe
    assert made.setup["notes"] == ["constant, and left out: flat"]
    if missing == "drop":
        assert gap(made, pooled.problem("logistic", None, 2)) <= 1e-10
        return
    made.export(tmp_path / "model.npz")
    out = CliRunner().invoke(main, ["predict", str(tmp_path / "model.npz"), str(files["b"])])
    assert out.exit_code == 0, out.output


def dated(tmp_path, columns):
    """A file a site with a column of dates."""
    found = {site: tmp_path / f"{site}.csv" for site in SITES}
    for path, dates in zip(found.values(), columns, strict=True):
        lines = ["opened,number", *(f"{date},{i}" for i, date in enumerate(dates))]
        path.write_text("\n".join(lines) + "\n")
    return found


DATED = {"kind": "table", "model": "linear", "target": "number", "features": ["opened"]}


def test_dates_are_the_same_number_at_every_site(tmp_path):
    """Two sites alone could not tell the day from the month; no date leaves a site."""
    columns = [["01/02/2020", "", "03/04/2020"], ["05/06/2020", "25/06/2020"], ["07/08/2021", "09/09/2021"]]
    files = dated(tmp_path, columns)
    made = fp.federate(
        content(AVERAGE, {**DATED, "missing": "mean"}, rounds=2), files, folder=tmp_path / "run", floor=FEW
    )
    pooled = read_table([str(f) for f in files.values()], "number", model="linear", missing="mean")
    assert [fp.federation.preparation.Feature(**f) for f in made.setup["recipe"]] == pooled.recipe
    assert pooled.recipe[0].dates == "day first"
    assert made.setup["notes"] == ["column 'opened': dates, taken as days since 1970-01-01"]
    said = announce(made.study, files["a"], FEW)
    shown = json.dumps({**said, "fingerprint": ""})  # whose digits may be anything
    assert "opened holds dates (day first or month first)" in "\n".join(lines(said)) and "2020" not in shown


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([["01/02/2020", "02/02/2020"]] * 3, "may have its day or its month first"),
        ([["25/02/2020"] * 2, ["02/25/2020"] * 2, ["01/01/2020"] * 2], "dates that sites write differently"),
        ([["2020-01-01"] * 2, ["2020-01-02"] * 2, ["soon"] * 2], "holds dates at some sites and words at others"),
    ],
)
def test_dates_that_sites_do_not_agree_about(tmp_path, columns, said):
    with pytest.raises(fp.FedpointError, match=said):
        fp.federate(content(AVERAGE, DATED, rounds=2), dated(tmp_path, columns), folder=tmp_path / "run", floor=FEW)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{"model": "linear", "target": "number"}, {"model": "linear", "target": "number", "ridge": 0.1}]
)
def test_other_models_over_the_wire(files, more, tmp_path):
    study = content(AVERAGE, table(missing="drop", **more), rounds=3)
    made = fp.federate(study, files, folder=tmp_path / "run", floor=FEW)
    pooled = read_table([str(f) for f in files.values()], "number", model="linear", missing="drop",
                        features=["age", "dose", "kind", "flat"])  # fmt: skip
    assert gap(made, pooled.problem("linear", more.get("ridge"))) <= 1e-10


def test_data_that_do_not_fit_stay_where_they_are(files, tmp_path):
    """The hub hears a reason, the site's log the cell."""
    study = content(AVERAGE, table(missing="refuse"), rounds=3)
    with pytest.raises(fp.FedpointError, match=r"cannot take part \(data\)") as error:
        fp.federate(study, files, folder=tmp_path / "run", floor=FEW)
    assert "row" not in str(error.value)


def test_what_leaves_is_said_before(files):
    study = parse(content({"name": "scaffold", "step": 0.1}, table(missing="mean")))
    found = announce(study, files["a"], FEW)
    assert json.loads(json.dumps(found)) == found
    kinds = {one["kind"]: one for one in found["leaves"]}
    assert list(kinds) == ["columns", "moments", "ready", "work", "measure", "end"]
    assert kinds["columns"]["says"]["columns"]["kind"]["words"] == ["x", "z"]
    assert {a["name"]: a["shape"] for a in kinds["work"]["arrays"]} == {
        ".w": [5],
        ".c": [5],
    }  # age, dose, kind_z, flat, 1
    text = "\n".join(lines(found))
    assert "SCAFFOLD" in text
    assert "categories of kind: x, z" in text


def test_announced_bytes_are_those_that_leave(tmp_path):
    study = content(rounds=3)
    made = fp.federate(study, folder=tmp_path)
    announced = {one["kind"]: one["bytes"] for one in announce(made.study)["leaves"]}["work"]
    lines = (tmp_path / "a" / "audit.jsonl").read_text().splitlines()
    sent = [json.loads(line)["left"]["bytes"] for line in lines]
    assert max(sent) <= announced + 40  # digits of numbers
    assert made.study.problem["kind"] == ROWS["kind"]
    assert np.isfinite(made.loss)


TERMS = {"name": "described", "sites": SITES, "server": "localhost:8102", "rounds": 4}
OPTIONS = {
    "few, another seed": (fp.Scaffold(step=0.1, local_steps=2), {"participation": 2, "seed": 3}),
    "half precision": (fp.Scaffold(step=0.1), {"channel": fp.channel.Cast("float16"), "exact": True}),
    "median": (fp.FedAvg(step=0.1, local_steps=[1, 3, 2]), {"gather": fp.gather.Median()}),
    "averaged": (fp.Averaged(fp.Scaffold(step=0.1), burn_in=1), {}),
    "a ring": (fp.FedAvg(step=[0.1, 0.05, 0.2]), {"network": fp.Network.ring(3, weight=0.3)}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_study_is_an_experiment_and_its_terms(name, tmp_path):
    """What an experiment says of itself, and the terms: it runs over sites as it does here."""
    method, more = OPTIONS[name]
    problem = fp.problems.Quadratic(1.0, [[0.0, 1.0], [2.0, 0.5], [1.0, -1.0]], noise=0.1)
    e = fp.Experiment(method, problem, **more)
    made = fp.federate({**e.describe(), **TERMS}, folder=tmp_path)
    assert gap(made) <= 1e-10
    assert np.abs(made.history - fp.run(e, rounds=4).history[0]).max() <= 1e-10
