"""kill -9 at any moment, saves included: all on disk is readable, and a resumed run ends in the same bits."""

import contextlib

import pytest
from chaos_driver import ROUNDS, TEXT, finish, look_at, same_bits, torment
from disk_steps import Photographer, every_step

from fedpoint.cli.progress import Watch
from fedpoint.config import read
from fedpoint.config.runner import perform, reopen
from fedpoint.core.errors import FedpointError
from fedpoint.engine import base
from fedpoint.store import disk
from fedpoint.store import folder as folders
from fedpoint.store import writer as store

KILLS = 100
SHORT = 17  # rounds: segments of 1, 8, 4, 2, 1, 1 without patience, and a commit after each


@pytest.fixture
def hurry(monkeypatch):
    monkeypatch.setattr(store, "PERIOD", 0.0)
    monkeypatch.setattr(store, "SHARE", float("inf"), raising=False)
    monkeypatch.setattr(base, "PATIENCE", 0.0)
    monkeypatch.setattr(folders, "MAX_RECORD_FILES", 3)


@pytest.fixture
def whole(tmp_path, hurry):
    """The folder of a run that was never interrupted."""
    (tmp_path / "file.toml").write_text(TEXT.replace("record_every = 20", "record_every = 2"))
    perform(read(tmp_path / "file.toml", rounds=SHORT), tmp_path / "whole", Watch())
    return tmp_path / "whole"


@pytest.mark.parametrize("power", [False, True], ids=["kill -9", "power cut"])
@pytest.mark.parametrize("resumed", [4, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_death_at_any_step_of_any_save(tmp_path, whole, power, resumed):
    """The folder is photographed before every step on disk and in the middle of every write: each is readable, and
    resumes to the same bits."""
    run, album = tmp_path / "run", tmp_path / "album"
    album.mkdir()
    photographer = Photographer(run, album, power)
    with every_step(photographer.look, photographer.synced):
        perform(read(tmp_path / "file.toml", rounds=SHORT), run, Watch())
    photographs = photographer.photographs()
    assert photographer.steps > 300 and len(photographs) > 30
    reached = -1
    for photograph in photographs:
        if reached >= 0 or list((photograph / "checkpoints").iterdir()):
            reached = look_at(photograph, reached)
    assert reached == SHORT
    for photograph in photographs[:: 1 if resumed is None else len(photographs) // resumed]:
        perform(reopen(photograph), photograph, Watch())
        assert not list(photograph.rglob("*.tmp"))
        same_bits(photograph, whole)


def test_a_death_while_a_finished_run_goes_on(tmp_path, whole):
    """A run that was finished, and is made longer: from its old summary to its new one."""
    run, album = tmp_path / "run", tmp_path / "album"
    perform(read(tmp_path / "file.toml", rounds=9), run, Watch())
    album.mkdir()
    photographer = Photographer(run, album)
    with every_step(photographer.look, photographer.synced):
        perform(reopen(run), run, Watch(), SHORT)
    photographs = photographer.photographs()
    reached, summaries = 9, set()
    for photograph in photographs:
        reached = look_at(photograph, reached)
        summaries.add((photograph / "summary.json").exists() and reached)
    assert summaries == {9, False, SHORT}  # finished, then not, then again
    for photograph in photographs[:: len(photographs) // 4]:
        perform(reopen(photograph), photograph, Watch(), SHORT)
        same_bits(photograph, whole)


def test_a_summary_before_its_checkpoint_is_convicted(tmp_path, hurry, monkeypatch):
    """Written in the wrong order, a death in between would leave a run that seems finished before it is."""
    real = folders.RunFolder.commit

    def hasty(self, *arguments):
        if self._head is not None:
            self.finish({"rounds": SHORT})
            self.reopen()
        real(self, *arguments)

    (tmp_path / "file.toml").write_text(TEXT)
    (tmp_path / "album").mkdir()
    photographer = Photographer(tmp_path / "run", tmp_path / "album")
    monkeypatch.setattr(folders.RunFolder, "commit", hasty)
    with every_step(photographer.look, photographer.synced):
        perform(read(tmp_path / "file.toml", rounds=SHORT), tmp_path / "run", Watch())
    with pytest.raises(AssertionError):
        for photograph in photographer.photographs():
            if list((photograph / "checkpoints").iterdir()):
                look_at(photograph, -1)


def test_a_save_in_place_is_convicted(tmp_path, hurry, monkeypatch):
    """What the photographs are for: a save over the old file leaves half of it."""

    @contextlib.contextmanager
    def in_place(path, links=True):
        with disk.open(path, "wb") as file:
            yield file

    (tmp_path / "file.toml").write_text(TEXT)
    (tmp_path / "album").mkdir()
    photographer = Photographer(tmp_path / "run", tmp_path / "album")
    monkeypatch.setattr(disk, "atomic", in_place)
    with every_step(photographer.look, photographer.synced):
        perform(read(tmp_path / "file.toml", rounds=1), tmp_path / "run", Watch())
    with pytest.raises((AssertionError, FedpointError)):
        for photograph in photographer.photographs():
            look_at(photograph, -1)


# One process, or several that share the agents: what is killed is all of them.
@pytest.mark.parametrize(
    "kills, options",
    [
        (1, ()),
        pytest.param(KILLS, (), marks=pytest.mark.slow),
        pytest.param(KILLS, ("--processes", "2"), marks=pytest.mark.slow),
    ],
)
def test_kill_9(tmp_path, kills, options):
    rounds = 2_000 if options else ROUNDS  # processes talk in every round
    (tmp_path / "file.toml").write_text(TEXT.replace(str(ROUNDS), str(rounds)))
    finish("run", tmp_path / "file.toml", "--folder", tmp_path / "whole", *options)
    deaths, folder = 0, 0
    while deaths < kills:  # a run that comes to its end makes room for the next
        folder += 1
        found = torment(tmp_path / "file.toml", tmp_path / str(folder), kills - deaths, seed=folder, options=options)
        same_bits(tmp_path / str(folder), tmp_path / "whole")
        deaths += sum(found.values())
        assert folder <= 3 + kills // 2, f"{deaths} deaths in {folder} runs"


def test_litter_of_a_killed_creation_is_removed(tmp_path):
    """What the living make aside is left alone."""
    dead, alive = tmp_path / ".run.0123.tmp", tmp_path / ".run.4567.tmp"
    for path in (dead, alive):
        path.mkdir()
    with disk.take_lock(alive):
        folders.RunFolder.create(tmp_path / "run", {}, meta={}).close()
        assert sorted(path.name for path in tmp_path.iterdir()) == [alive.name, "run"]
