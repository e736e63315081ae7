"""Memories on disk: the same bits as in memory, few rows touched, and after kill -9."""

import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.row_file import RowFile
from fedpoint.engine import on_disk

QUAD = fp.problems.Quadratic(1.0, np.random.default_rng(0).normal(size=(40, 3)), noise=0.1)


def experiment(**options) -> fp.Experiment:
    method = fp.Scaffold(step=0.1, local_steps=2)
    return fp.Experiment(method, QUAD, **{"participation": 3, "memories": "disk"} | options)


@pytest.fixture(autouse=True)
def few_at_hand(monkeypatch):
    """Room for eight agents' rows of SCAFFOLD, so that they come and go."""
    monkeypatch.setattr(on_disk, "AT_HAND", 8 * 24)


OPTIONS = {
    "plain": {},
    "error feedback, empty places": {"channel": fp.channel.TopK(0.4), "participation": fp.participation.Poisson(0.1)},
    "repeated": {"participation": fp.ByWeight(4)},
    "regions": {"regions": fp.Regions(4, rounds=2)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_same_bits_as_in_memory(options):
    asked = experiment(**options)
    plain, disk = fp.run(asked.replace(memories="memory"), rounds=50), fp.run(asked, rounds=50)
    assert disk.session.layout.rows < 40
    np.testing.assert_array_equal(plain.history, disk.history)
    np.testing.assert_array_equal(plain.used, disk.used)
    jax.tree.map(np.testing.assert_array_equal, plain.memories, disk.memories)


def test_who_was_never_asked_takes_no_room():
    rows = fp.run(experiment(), rounds=4).session.on_disk.rows
    assert (rows.index.place >= 0).sum() == rows.places <= 12


def test_a_run_that_stops_between_records_goes_back():
    def stop(round, model, error):
        return round == 13

    plain, disk = (fp.run(experiment(memories=m), rounds=60, stop=stop) for m in ("memory", "disk"))
    assert disk.rounds[-1] == 13
    jax.tree.map(np.testing.assert_array_equal, plain.memories, disk.memories)


KILLED = """
import os, signal, sys
import fedpoint.store.writer as writer
sys.path.insert(0, {here!r})
import test_memories_on_disk as t
import fedpoint as fp
from fedpoint.engine import on_disk
on_disk.AT_HAND, writer.PERIOD, writer.SHARE = 8 * 24, 0.0, 1e9

def kill(progress):
    if progress.round >= 25:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    fp.run(t.experiment(), rounds=60, folder={folder!r}, callbacks=kill)
"""


def test_after_kill_9_the_bits_are_those_of_a_run_that_never_stopped(tmp_path):
    folder = tmp_path / "run"
    code = KILLED.format(here=os.path.dirname(__file__), folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    loaded = fp.load(folder, QUAD)
    assert 0 < loaded.rounds[-1] < 60
    again, whole = loaded.extend(60), fp.run(experiment(), rounds=60)
    np.testing.assert_array_equal(again.model, whole.model)
    jax.tree.map(np.testing.assert_array_equal, again.memories, whole.memories)


def test_a_damaged_row_is_told(tmp_path):
    fp.run(experiment(), rounds=20, folder=tmp_path / "run")
    path = tmp_path / "run" / on_disk.MEMORIES
    content = bytearray(path.read_bytes())
    content[::4096] = bytes(255 - byte for byte in content[::4096])
    path.write_bytes(content)
    with pytest.raises(fp.FedpointError, match=r"what agent \d+ remembers is damaged"):
        fp.load(tmp_path / "run", QUAD).extend(30)


# The file, against arrays in memory: what was kept or marked comes back, whatever was written since.


class WrittenOver(RowFile):
    """A mutant: a row has one place."""

    def _place_for(self, k):
        self.places = max(self.places, k + 1)
        return k


class NeverFree(RowFile):
    """A mutant: no place is used again."""

    def _count(self):
        self._fresh[:] = False


def goes_wrong(kind, path):
    draw = np.random.default_rng(1)
    rows, now, kept = kind([np.zeros(2), np.ones((), np.int32)], 9), np.zeros((9, 3)), []
    rows.place_at(path)
    now[:, 2] = 1
    for _ in range(300):
        step = draw.integers(4)
        if step < 2:
            who, new = draw.permutation(9)[:3], draw.normal(size=(3, 3)).round()
            rows.write(who, [new[:, :2], new[:, 2].astype(np.int32)])
            now[who] = new
        elif step == 2:
            kept = [*kept, (rows.keep(), now.copy())][-2:]
        elif kept:
            index, then = kept[draw.integers(len(kept))]
            if draw.integers(2):  # another process
                rows.close()
                rows = kind(rows.first, 9)
                rows.place_at(path)
                kept = [(index, then)]
                rows.restore(index)
            else:
                rows.back(index)
            now = then.copy()
        try:
            found = rows.read(np.arange(9))
        except fp.FedpointError:
            return True
        if not np.array_equal(np.column_stack([found[0], found[1]]), now):
            return True
    return rows.places > 9 * 6  # of now, of a mark, of three that were kept, and of the rows between


@pytest.mark.parametrize(("kind", "wrong"), [(RowFile, False), (WrittenOver, True), (NeverFree, True)])
def test_rows_come_back_as_they_were_kept(kind, wrong, tmp_path):
    assert goes_wrong(kind, tmp_path / "rows") is wrong


REFUSED = {
    "everybody": ({"participation": None}, "give participation="),
    "network": ({"participation": None, "network": fp.Network.ring(40)}, "on a network"),
    "own models": ({"share": "0"}, "models of their own|share"),
    "metrics": ({"metrics": {"drift": lambda model, hub, memory, round: 0.0}}, "metrics="),
    "repeats": ({"repeats": 2}, "run them one after the other"),
    "word": ({"memories": "tape"}, 'memories must be "memory" or "disk"'),
}


@pytest.mark.parametrize(("options", "match"), REFUSED.values(), ids=REFUSED)
def test_refused_with_one_message(options, match):
    with pytest.raises(fp.FedpointError, match=match):
        experiment(**options)


def test_sweeps_and_processes_are_refused():
    with pytest.raises(fp.FedpointError, match="one run at a time"):
        fp.sweep(experiment().algorithm, QUAD, over={"step": [0.1, 0.2]}, rounds=2, participation=3, memories="disk")
    with pytest.raises(fp.FedpointError, match="for one process"):
        fp.run(experiment(), rounds=2, processes=2)


def test_described_and_built_again(tmp_path):
    fp.write(tmp_path / "e.toml", experiment())
    assert fp.read(tmp_path / "e.toml")[0].experiment.memories == "disk"
    assert "memories" not in experiment(memories="memory").describe()
