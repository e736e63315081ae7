"""The guard of behaviour: it finds what it kept, and convicts a file in which a number was changed."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
guard = importlib.import_module("guard")
sys.path.remove(str(BENCHMARKS))

NAMES = ["GradientExchange", "late answers", "FedAvg, gossip"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    file = tmp_path_factory.mktemp("guard") / "kept.npz"
    guard.keep(file, NAMES)
    return file


def test_what_was_kept_is_found_again_to_the_bit(kept, capsys):
    assert guard.compare(kept, NAMES) == 0
    assert capsys.readouterr().out.count("same bits") == len(NAMES)


@pytest.mark.parametrize(
    "part, factor, status, words",
    [
        ("model", 1 + 1e-14, 0, "relative difference 1.0e-14 in model"),
        ("model", 1 + 1e-10, 1, "DIFFERENT: relative difference 1.0e-10 in model"),
        ("model", np.nan, 1, "DIFFERENT: relative difference inf in model"),
        ("used", 2, 1, "DIFFERENT: relative difference 5.0e-01 in used"),
    ],
)
def test_a_number_that_was_changed_is_told(kept, tmp_path, capsys, part, factor, status, words):
    with np.load(kept) as stored:
        found = dict(stored)
    found[f"late answers/{part}"] = found[f"late answers/{part}"] * factor
    np.savez(tmp_path / "changed.npz", **found)
    assert guard.compare(tmp_path / "changed.npz", ["late answers"]) == status
    assert words in capsys.readouterr().out


def test_an_experiment_that_fails_differs(kept, capsys, monkeypatch):
    def broken():
        raise ValueError("no such field")

    monkeypatch.setitem(guard.EXPERIMENTS, "late answers", broken)
    assert guard.compare(kept, ["late answers"]) == 1
    assert "DIFFERENT: ValueError: no such field" in capsys.readouterr().out
