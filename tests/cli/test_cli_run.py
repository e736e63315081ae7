"""`fedpoint run`: what it prints, where things are, and how it ends."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.cli import progress
from fedpoint.core.numbers import with_error
from fedpoint.engine import base, session

ONE = """
    rounds = 40
    repeats = 3
    seed = 2
    participation = 2
    [problem]
    kind = "quadratic"
    agents = 4
    dim = 2
    noise = 0.01
    [algorithm]
    name = "fedavg"
    step = 0.05
"""
BOTH = ONE.replace("step = 0.05", "step = [0.05, 0.02]")


def problem():
    from fedpoint.config import parse

    content = {"problem": {"kind": "quadratic", "agents": 4, "dim": 2, "noise": 0.01}}
    return parse({**content, "algorithm": {"name": "fedavg", "step": 1}}, "x")[0].experiment.problem


def test_a_run_is_that_of_the_library(cli, toml):
    result = cli("run", toml(ONE), "--no-figure")
    loaded = fp.load("runs/file-1")
    expected = fp.run(fp.FedAvg(step=0.05), problem(), rounds=40, participation=2, repeats=3, seed=2)
    assert loaded.history.tobytes() == expected.history.tobytes()
    row = next(line for line in result.stdout.splitlines() if "FedAvg" in line)
    final = expected.error[:, -1]
    assert with_error(final.mean(), final.std(ddof=1) / np.sqrt(3)) in row
    assert "40" in row and f"{expected.cost.evaluations:,.0f}" in row
    assert "Folder:  runs/file-1" in result.stdout and "Picture" not in result.stdout
    assert loaded.config["experiment"]["problem"]["curvature"] == [1.0, 10.0]  # defaults too: the whole content


def test_folders_are_numbered_and_not_overwritten(cli, toml):
    for expected in ("runs/file-1", "runs/file-2"):
        assert expected in cli("run", toml(ONE), "--no-figure", "--rounds", 2).stdout
    cli("run", toml(ONE), "--no-figure", "--rounds", 2, "--folder", "mine")
    result = cli("run", toml(ONE), "--folder", "mine", status=2)
    assert "already holds a run: fedpoint resume mine" in result.stderr
    Path("full").mkdir()
    Path("full/x").touch()
    assert "not an empty folder" in cli("run", toml(ONE), "--folder", "full", status=2).stderr


def test_options_replace_what_the_file_says(cli, toml):
    cli("run", toml(ONE), "--no-figure", "--rounds", 6, "--seed", 9)
    loaded = fp.load("runs/file-1")
    assert loaded.rounds[-1] == 6 and loaded.seed == 9
    assert "--rounds" in cli("run", toml(ONE), "--rounds", -1, status=2).stderr


def test_json_is_one_document(cli, toml):
    result = cli("run", toml(BOTH), "--json", "--no-figure")
    document = json.loads(result.stdout)
    assert document["folder"] == "runs/file-1" and document["figure"] is None
    assert [run["method"] for run in document["runs"]] == ["FedAvg, step=0.05", "FedAvg, step=0.02"]
    for run in document["runs"]:
        loaded = fp.load(run["folder"])
        assert run["error"]["mean"] == pytest.approx(loaded.error[:, -1].mean(), rel=1e-14)
        assert run["error"]["standard_error"] > 0 and run["cost"]["rounds"] == run["rounds"] == 40


def test_figures(cli, toml):
    result = cli("run", toml(BOTH), "--figure", "curve.svg", "--rounds", 5)
    assert "Picture: curve.svg" in result.stdout
    assert Path("curve.svg").read_text().startswith("<?xml")
    assert "Picture: runs/file-2/error.png" in cli("run", toml(BOTH), "--rounds", 5).stdout
    assert Path("runs/file-2/error.png").read_bytes().startswith(b"\x89PNG")
    before = sorted(Path("runs").iterdir())
    assert "png, svg or pdf" in cli("run", toml(BOTH), "--figure", "curve.jpg", status=2).stderr
    assert sorted(Path("runs").iterdir()) == before  # refused before any work


def test_a_diverging_run(cli, toml):
    result = cli("run", toml(ONE.replace("0.05", "5")), status=4)
    assert "FedAvg diverged" in result.stderr and "by round " in result.stderr
    assert "with step 5" in result.stderr and "the largest stable step here is 0.2" in result.stderr
    assert "Traceback" not in result.stderr and "Folder:  runs/file-1" in result.stdout


def test_one_that_diverges_does_not_stop_the_others(cli, toml):
    result = cli("run", toml(ONE.replace("0.05", "[5, 0.02]")), "--no-figure", status=4)
    assert "diverged by" in result.stdout and "FedAvg, step=0.02" in result.stdout
    assert result.stderr.strip().splitlines()[-1].startswith("Error: FedAvg, step=5: FedAvg diverged")
    shown = json.loads(cli("run", toml(ONE.replace("0.05", "[5, 0.02]")), "--json", status=4).stdout)
    assert shown["runs"][0]["diverged"]["round"] > 0 and shown["runs"][1]["rounds"] == 40


def test_unexpected_errors_keep_their_traceback(cli, toml, monkeypatch):
    monkeypatch.setattr(session.Session, "advance", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli("run", toml(ONE))


def test_progress_lines(cli, toml, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    monkeypatch.setattr(base, "PATIENCE", 0.0)  # short segments
    result = cli("run", toml(ONE), "--rounds", 200, "--no-figure")
    lines = [line for line in result.stderr.splitlines() if line.startswith("FedAvg: round ")]
    assert "of 200" in lines[0] and "rounds/s" in lines[-1] and "error" in lines[-1]
    assert cli("run", toml(ONE), "--rounds", 200, "--no-figure", "--quiet").stderr == ""


def test_a_bar_on_a_terminal(cli, toml, monkeypatch):
    import io

    from rich.console import Console

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "watch", lambda quiet: progress.Bar(console))
    cli("run", toml(ONE), "--rounds", 100, "--no-figure")
    assert "FedAvg" in screen.getvalue() and "error" in screen.getvalue()


def test_held_out_accuracy(cli, toml):
    path = toml("""
        rounds = 40
        record_every = 20
        participation = 3
        [problem]
        kind = "digits"
        agents = 10
        [algorithm]
        name = "fedavg"
        step = 0.5
        """)
    result = cli("run", path, "--no-figure", "--json")
    accuracy = json.loads(result.stdout)["runs"][0]["accuracy"]["mean"]
    assert 0.5 < accuracy <= 1
    assert fp.load("runs/file-1").evaluation["accuracy"][0, -1] == pytest.approx(accuracy)


@pytest.mark.parametrize("name", ["lab", "digits"])
def test_the_examples(name):
    """They are right; running them is for people, who have the time."""
    from fedpoint.config import read

    assert read(Path(__file__).resolve().parents[2] / "examples" / f"{name}.toml").comparison
