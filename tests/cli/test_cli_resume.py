"""`fedpoint resume`: interrupted at any moment, a run goes on to the same bits."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

import fedpoint as fp
from fedpoint.cli.progress import Watch
from fedpoint.config import read
from fedpoint.config.runner import perform
from fedpoint.engine import base
from fedpoint.store import writer as store
from fedpoint.store.folder import RunFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "chaos"))

from chaos_driver import ROUNDS, TEXT, count_events, same_bits, start, wait_for


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("resume")
    (folder / "file.toml").write_text(TEXT)
    perform(read(folder / "file.toml"), folder / "whole", Watch())
    return folder / "whole"


def test_ctrl_c(cli, toml, whole):
    process = start("run", toml(TEXT), "--folder", "stopped", "--no-figure")
    wait_for(lambda: count_events("stopped") > 2, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == ""
    reached = RunFolder.open("stopped").latest().round
    assert f"interrupted at round {reached}; resume with: fedpoint resume stopped" in err
    assert "Traceback" not in err and 0 < reached <= ROUNDS
    assert "Folder:  stopped" in cli("resume", "stopped", "--no-figure").stdout
    same_bits("stopped", whole)


def test_resume_of_a_finished_run(cli, toml):
    cli("run", toml(TEXT), "--folder", "r", "--no-figure", "--rounds", 50)
    result = cli("resume", "r", "--no-figure")
    assert "already finished: continue to more rounds with --rounds" in result.stderr and "50" in result.stdout
    cli("resume", "r", "--no-figure", "--rounds", 120)
    cli("run", toml(TEXT), "--folder", "longer", "--no-figure", "--rounds", 120)
    same_bits("r", "longer")


def test_resume_in_python_needs_no_data(cli, toml):
    cli("run", toml(TEXT), "--folder", "r", "--no-figure", "--rounds", 50)
    cli("run", toml(TEXT), "--folder", "longer", "--no-figure", "--rounds", 90)
    longer = fp.load("r").extend(90)
    assert longer.history.tobytes() == fp.load("longer").history.tobytes()
    same_bits("r", "longer")


def press_ctrl_c_at(monkeypatch, round, label):
    """Ctrl-C in this process, once, in the run with that label."""
    from fedpoint.cli import progress

    class Pressing(progress.Watch):
        def following(self, name, rounds):
            def press(state):
                if name == label and state.round >= round and not done:
                    done.append(state.round)
                    os.kill(os.getpid(), signal.SIGINT)

            return _given([press])

    done = []
    monkeypatch.setattr(base, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "watch", lambda quiet: Pressing())


class _given:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def __enter__(self):
        return self.callbacks

    def __exit__(self, *_):
        return None


def test_a_comparison_goes_on_with_what_is_left(cli, toml, monkeypatch):
    text = TEXT.replace("step = 0.02", "step = [0.02, 0.01, 0.005]").replace(str(ROUNDS), "400")
    cli("run", toml(text), "--folder", "whole", "--no-figure")
    members = sorted(path.name for path in Path("whole").iterdir() if path.is_dir())
    assert members == ["1-scaffold-step-0.02", "2-scaffold-step-0.01", "3-scaffold-step-0.005"]
    with monkeypatch.context() as patch:
        press_ctrl_c_at(patch, 70, "SCAFFOLD, step=0.01")
        result = cli("run", toml(text), "--folder", "part", "--no-figure", status=130)
    assert "of SCAFFOLD, step=0.01; resume with: fedpoint resume part" in result.stderr
    assert not Path("part", members[2]).exists()
    cli("resume", "part", "--no-figure")
    for name in members:
        same_bits(f"part/{name}", f"whole/{name}")
    shutil.rmtree(f"part/{members[0]}")  # and one that is gone is run again
    cli("resume", "part", "--no-figure")
    same_bits(f"part/{members[0]}", f"whole/{members[0]}")
    shown = cli("resume", "part", "--rounds", 500, "--no-figure").stdout
    assert shown.count(" 500 ") == 3


def test_interrupted_twice_with_more_rounds(cli, toml, monkeypatch):
    """The rounds that were asked for last are remembered."""
    cli("run", toml(TEXT), "--folder", "r", "--no-figure", "--rounds", 50)
    with monkeypatch.context() as patch:
        press_ctrl_c_at(patch, 100, "SCAFFOLD")
        cli("resume", "r", "--rounds", 400, "--no-figure", status=130)
    cli("resume", "r", "--no-figure")
    assert fp.load("r").rounds[-1] == 400


def test_a_tolerance_is_kept_and_can_be_overruled(cli, toml):
    cli("run", toml("stop = 0.05\n" + TEXT), "--folder", "r", "--no-figure", "--rounds", 5000)
    end = int(fp.load("r").rounds[-1])
    assert 0 < end < 5000
    assert "already finished" in cli("resume", "r", "--no-figure").stderr
    cli("resume", "r", "--no-figure", "--rounds", end + 100)
    assert fp.load("r").rounds[-1] == end + 100


def test_folders_that_cannot_be_resumed(cli, toml, tmp_path):
    assert "there is no run folder" in cli("resume", "nothing", status=2).stderr
    assert "is not a run folder" in cli("resume", tmp_path, status=2).stderr
    problem = fp.problems.Quadratic(1.0, [[0.0], [1.0]])
    fp.run(fp.FedAvg(step=0.1), problem, rounds=2, folder="python")
    assert "begun from Python" in cli("resume", "python", status=2).stderr


def test_a_changed_trace_is_refused(cli, toml, monkeypatch):
    Path("trace.csv").write_text("1,0,1,1\n0,1,1,1\n")
    path = toml(TEXT.replace("participation = 2", 'participation = {trace = "trace.csv"}'))
    monkeypatch.setattr(store, "PERIOD", 0.0)
    cli("run", path, "--folder", "r", "--no-figure", "--rounds", 20)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")  # the trace is found from anywhere
    cli("resume", "../r", "--no-figure", "--rounds", 30)
    Path("../trace.csv").write_text("1,1,1,1\n0,1,1,1\n")
    assert "participation.trace" in cli("resume", "../r", "--rounds", 40, status=2).stderr
