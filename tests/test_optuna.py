"""The example with Optuna: it says what is missing, and finds a better step than the middle of its range."""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLE = str(Path(__file__).parents[1] / "examples" / "optuna_search.py")


def test_without_optuna_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit, match="this example needs Optuna: pip install optuna"):
        runpy.run_path(EXAMPLE)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("optuna") is None, reason="Optuna is not installed: pip install optuna")
def test_it_searches(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [EXAMPLE, "6"])
    runpy.run_path(EXAMPLE, run_name="__main__")
    said = capsys.readouterr().out
    assert "6 trials" in said and "local_steps = " in said
