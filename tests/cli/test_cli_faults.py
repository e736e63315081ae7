"""What goes wrong around a run: one clear message, a status that is not 0, nothing lost, and the same bits after."""

import datetime
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedpoint as fp
from fedpoint.core.errors import Recovered
from fedpoint.engine import base
from fedpoint.store import disk
from fedpoint.store import writer as store
from fedpoint.store.folder import RunFolder, export_model
from fedpoint.ui.runs import Runs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "chaos"))

from chaos_driver import TEXT, look_at, same_bits
from disk_steps import every_step

ROUNDS = 17  # in segments of 1, 8, 4, 2, 1, 1 without patience, and a commit after each


@pytest.fixture(autouse=True, scope="module")
def hurry():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "PERIOD", 0.0)
        patch.setattr(store, "SHARE", float("inf"))
        patch.setattr(base, "PATIENCE", 0.0)
        yield


@pytest.fixture
def file(toml):
    return toml(TEXT.replace("record_every = 20", "record_every = 2"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, hurry):
    """The folder of a run that nothing happened to."""
    from fedpoint.cli.progress import Watch
    from fedpoint.config import read
    from fedpoint.config.runner import perform

    folder = tmp_path_factory.mktemp("faults")
    (folder / "file.toml").write_text(TEXT.replace("record_every = 20", "record_every = 2"))
    perform(read(folder / "file.toml", rounds=ROUNDS), folder / "whole", Watch())
    return folder / "whole"


def run(cli, file, folder="r", status=0):
    return cli("run", file, "--folder", folder, "--rounds", ROUNDS, "--no-figure", "--quiet", status=status)


def resume(cli, folder="r", status=0):
    return cli("resume", folder, "--no-figure", "--quiet", status=status)


@pytest.fixture
def half(cli, file):
    """A run that Ctrl-C ended in its sixth commit."""
    from fedpoint.store.folder import RunFolder

    commits, real = itertools.count(1), RunFolder.commit

    def commit(self, *args):
        real(self, *args)
        if next(commits) == 6:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "commit", commit)
        run(cli, file, status=130)
    return Path("r")


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file() and path.name != "lock"}


def newest(folder):
    return max((folder / "checkpoints").iterdir())


# The disk.


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("step", [5, 150, 290])
def test_a_disk_that_refuses(cli, file, whole, code, step):
    """From a step on nothing can be written any more, not even what went wrong."""
    steps = itertools.count()

    def look():
        if next(steps) >= step:
            raise OSError(code, os.strerror(code))

    with every_step(look):
        said = run(cli, file, status=2).stderr
    assert os.strerror(code) in said and said.count("Error:") == 1 and "Traceback" not in said
    if not Path("r").exists():
        assert "cannot create the run folder" in said
        run(cli, file)
    else:
        reached = look_at("r", 0)
        assert f"interrupted at round {reached}; resume with: fedpoint resume r" in said
        resume(cli)
    same_bits("r", whole)


@pytest.fixture
def small_disk(tmp_path):
    """A real disk of 40 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a disk is for root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_real_disk_that_is_full_and_then_read_only(cli, file, whole, small_disk):
    folder = small_disk / "r"
    said = run(cli, file, folder, status=2).stderr
    reached = look_at(folder, 0)
    assert "No space left on device; free some space" in said
    assert f"interrupted at round {reached}; resume with: fedpoint resume {folder}" in said
    before = contents(folder)
    subprocess.run(["mount", "-o", "remount,ro,size=1m", str(small_disk)], check=True)
    assert "the disk is read-only" in resume(cli, folder, status=2).stderr
    assert contents(folder) == before
    subprocess.run(["mount", "-o", "remount,rw,size=1m", str(small_disk)], check=True)
    resume(cli, folder)
    same_bits(folder, whole)


# What is on it.


def flip(path):
    data = bytearray(path.read_bytes())
    data[data.index(b'"round":') + len(b'"round":')] ^= 1  # not any bit: some of an archive say nothing
    path.write_bytes(data)


def foreign(path):
    """The checkpoint of a run with another configuration."""
    arrays, body = disk.read_npz(path, "checkpoint")
    del body["sha256"]
    disk.write_npz(path, "checkpoint", arrays, {**body, "run_sha256": "0" * 64})


@pytest.mark.parametrize(
    "damage",
    [flip, foreign, lambda path: path.write_bytes(path.read_bytes()[:-30]), lambda path: path.write_bytes(b"")],
    ids=["a bit", "another configuration", "cut short", "empty"],
)
def test_the_checkpoint_before_a_damaged_one_serves_and_that_is_said(cli, half, whole, damage):
    bad, good = newest(half), min((half / "checkpoints").iterdir())
    damage(bad)
    said = resume(cli).stderr
    assert f"Note: {bad.resolve()} " in said and f"not finished (round {int(good.stem)} of 17)" in said
    events = [event for event in RunFolder.open(half).events() if event["event"] == "recovered"]
    assert len(events) == 1 and bad.name in events[0]["message"]
    same_bits(half, whole)
    assert "Note:" not in resume(cli).stderr


# The end of a finished run.


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-30])


def flip_middle(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(path):
    """Other numbers, well formed."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "error": 0.0, "final": {"error": [0.0, 0.0], "loss": [0.0, 0.0]}}))


HURT = {
    "a cut record": lambda run: cut_short(max((run / "records").iterdir())),
    "a flipped record": lambda run: flip_middle(max((run / "records").iterdir())),
    "a lost record": lambda run: max((run / "records").iterdir()).unlink(),
    "an empty record": lambda run: max((run / "records").iterdir()).write_bytes(b""),
    "another record": lambda run: shutil.copy(min((run / "records").iterdir()), max((run / "records").iterdir())),
    "a lost checkpoint": lambda run: newest(run).unlink(),
    "a cut checkpoint": lambda run: cut_short(newest(run)),
    "an edited summary": lambda run: edit(run / "summary.json"),
    "a cut summary": lambda run: cut_short(run / "summary.json"),
    "a summary that is none": lambda run: (run / "summary.json").write_text("[]"),
}


@pytest.fixture
def hurt(whole, request):
    """A finished run, of which something was then damaged."""
    shutil.copytree(whole, "r")
    HURT[request.param](Path("r"))
    return Path("r")


@pytest.mark.parametrize("hurt", HURT, indirect=True)
def test_a_finished_run_whose_end_is_damaged_is_not_finished(cli, hurt, whole, request):
    """load says so, check does not pass it, and resume ends in the same bits."""
    before = contents(hurt)
    with pytest.warns(Recovered, match=r"the run is not finished \(round \d+ of 17\); continue it with fedpoint"):
        loaded = fp.load(hurt)
    reached = int(loaded.rounds[-1])
    assert not loaded.finished and loaded.evaluation == {} and loaded.final_loss is None
    assert reached == ROUNDS if "summary" in request.node.callspec.id else 0 < reached < ROUNDS
    checked = cli("check", hurt, status=3)
    assert checked.stdout.startswith("Undecided") and f"is not finished (round {reached} of 17)" in checked.stdout
    assert json.loads(cli("check", hurt, "--json", status=3).stdout)["passed"] is False
    assert contents(hurt) == before
    assert Runs(hurt.parent).curves("r")["state"] == "damaged"
    assert "Note: " in resume(cli).stderr
    same_bits(hurt, whole)
    assert Runs(hurt.parent).curves("r")["state"] == "finished"
    assert cli("check", hurt).stdout == cli("check", whole).stdout


def test_a_finished_run_that_is_back_at_its_start_is_not_checked(cli, file, monkeypatch):
    monkeypatch.setattr(store, "PERIOD", 1e9)  # nothing but the start and the end are on disk
    run(cli, file)
    HURT["a lost record"](Path("r"))
    said = cli("check", "r", status=2).stderr
    assert "(round 0 of 17)" in said and "the run has no rounds yet" in said


def test_the_report_of_a_damaged_run_says_so_and_shows_no_edited_number(cli, whole):
    shutil.copytree(whole, "r")
    content = json.loads((Path("r") / "summary.json").read_text())
    content |= {"evaluated_rounds": [0, 17], "evaluation": {"accuracy": [[0.5, 0.87654], [0.5, 0.87654]]}}
    (Path("r") / "summary.json").write_text(json.dumps(content))
    cli("report", "r")
    page = (Path("r") / "report.html").read_text()
    assert "Not finished: 17 of 17 rounds on disk." in page and "summary.json is damaged or was changed" in page
    assert "0.87654" not in page and "accuracy" not in page


@pytest.mark.parametrize(
    "how", [flip_middle, cut_short, lambda path: path.write_text("{}")], ids=["bit", "cut", "else"]
)
@pytest.mark.parametrize("name", ["run.json", "config.toml"])
def test_what_a_run_states_of_itself_is_under_a_hash(cli, whole, name, how):
    shutil.copytree(whole, "r")
    how(Path("r") / name)
    before = contents("r")
    for command in (["check", "r"], ["resume", "r", "--rounds", "40"], ["report", "r"], ["cite", "r"]):
        said = cli(*command, status=2).stderr
        assert (
            name in said
            and ("is damaged" in said or "was changed" in said)
            and "new run" in said.replace("start the run again in another folder", "new run")
        )
    assert contents("r") == before
    assert Runs(Path()).list()[0]["state"] == "unreadable"


def test_the_model_of_another_run_is_not_used(cli, whole):
    from fedpoint.store.folder import load_model

    shutil.copytree(whole, "r")
    arrays, manifest = load_model("r")
    export_model(Path("r") / "model.npz", {"model": 0 * arrays["model"]}, manifest)
    said = cli("predict", "r", "rows.csv", status=2).stderr
    assert "is not the model of this run" in said and "fedpoint resume" in said
    (Path("r") / "summary.json").unlink()
    assert "holds no model: the run is not finished" in cli("predict", "r", "rows.csv", status=2).stderr
    resume(cli)
    assert load_model("r")[0]["model"].tobytes() == arrays["model"].tobytes()


def test_without_any_good_checkpoint_nothing_is_touched(cli, half):
    for path in (half / "checkpoints").iterdir():
        flip(path)
    before = contents(half)
    said = resume(cli, status=2).stderr
    assert said.startswith("Error: no checkpoint in") and said.count("is damaged") == 2
    assert contents(half) == before


def test_a_checkpoint_of_another_format_is_left_to_who_wrote_it(cli, half, whole, monkeypatch):
    """To go on from the one before it would remove what another fedpoint has done."""
    arrays, body = disk.read_npz(newest(half), "checkpoint")
    good = newest(half).read_bytes()
    for name in ("sha256", "format", "version"):
        del body[name]
    with monkeypatch.context() as patch:
        patch.setattr(disk, "VERSION", 99)
        disk.write_npz(newest(half), "checkpoint", arrays, body)
    before = contents(half)
    for command in ("resume", "check"):
        said = cli(command, "r", status=2).stderr
        assert "has format version 99 and this fedpoint reads version 1; use the fedpoint that wrote it" in said
    assert contents(half) == before
    newest(half).write_bytes(good)
    resume(cli)
    same_bits(half, whole)


def test_a_torn_last_line(cli, half, whole):
    with open(half / "events.jsonl", "ab") as file:
        file.write(b'{"time": "2026-')
    cli("check", half, status=3)
    resume(cli)
    same_bits(half, whole)
    assert RunFolder.open(half).events()[-1]["event"] == "finished"


# Others, and the clock.


def test_two_processes_on_one_folder(cli, half, file, whole):
    with RunFolder.open(half, write=True):
        before = contents(half)
        assert f"process {os.getpid()} is writing" in resume(cli, status=2).stderr
        assert "already holds a run" in run(cli, file, status=2).stderr
        assert contents(half) == before
    resume(cli)
    same_bits(half, whole)


def test_two_processes_that_begin_in_one_folder(cli, file, whole, monkeypatch):
    real = os.rename

    def rename(aside, path):
        monkeypatch.setattr(os, "rename", real)
        run(cli, file)  # the other one was faster
        real(aside, path)

    monkeypatch.setattr(os, "rename", rename)
    assert "another process has begun a run in" in run(cli, file, status=2).stderr
    same_bits("r", whole)
    assert [path.name for path in Path().iterdir() if path.name.endswith(".tmp")] == []


def test_a_clock_that_goes_backwards(cli, half, whole, monkeypatch):
    class Backwards(datetime.datetime):
        hours = itertools.count()

        @classmethod
        def now(cls, tz=None):
            return cls(2000, 1, 1, tzinfo=tz) - datetime.timedelta(hours=next(cls.hours))

    monkeypatch.setattr(store.datetime, "datetime", Backwards)
    resume(cli)
    events = RunFolder.open(half).events()
    assert events[-1]["event"] == "finished" and events[-1]["time"] < events[-2]["time"] < events[0]["time"]
    same_bits(half, whole)
    assert "already finished" in resume(cli).stderr


# Ctrl-C.


def test_ctrl_c_while_modules_are_loaded(tmp_path, file):
    """An exception would pass through C code: jaxlib makes another one of it, as this one does."""
    (tmp_path / "jax.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    raise ImportError('while initializing the extension') from None\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(store.__file__).parents[2])])
    # A shell starts what it puts into the background without Ctrl-C.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from fedpoint.__main__ import main; main()"
    command = [sys.executable, "-c", code, "run", str(file)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")


@pytest.mark.parametrize("step", [60, 130, 131, 150, 200, 255])
def test_ctrl_c_twice(cli, file, whole, step):
    """The second takes effect at once, also in the middle of a save or of a line of events."""
    steps = itertools.count()

    def look():
        if next(steps) in (step, step + 1):
            os.kill(os.getpid(), signal.SIGINT)

    with every_step(look):
        said = run(cli, file, status=130).stderr
    reached = look_at("r", 0) if step > 60 else 0  # the first save is not yet on disk
    assert f"interrupted at round {reached}; resume with: fedpoint resume r" in said and "Traceback" not in said
    resume(cli)
    assert not list(Path("r").rglob("*.tmp"))
    same_bits("r", whole)
