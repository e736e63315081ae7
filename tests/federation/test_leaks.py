"""The attacks that benchmarks/disclosure.py measures do what its page says: they read rows where it says so."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "disclosure.py"


@pytest.fixture(scope="module")
def attack():
    spec = importlib.util.spec_from_file_location("disclosure", SCRIPT)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_one_row_and_one_step_are_the_row(attack):
    assert attack.passive(1, turns=3)[0] == 1.0


def test_draws_that_the_server_can_repeat_give_the_rows_away(attack):
    """50 rounds solve for 20 rows; with 200 they do not."""
    assert attack.by_draws(20, 5, 1) == 20
    assert attack.by_draws(200, 5, 1) == 0


def test_thresholds_isolate_rows(attack):
    assert attack.by_slabs(20, 1) == 20


def test_membership_by_the_means_is_as_powerful_as_theory_says(attack):
    """Of many rows Phi(sqrt(d / 2n)); 4,000 pairs have a standard error of about 1 / sqrt(12 * 4000 / 2) = 0.0065."""
    for rows, dim in ((100, 20), (1000, 100)):
        area, theory, _ = attack.membership(rows, dim)
        assert theory == pytest.approx(0.5 + math.erf(math.sqrt(dim / (4 * rows))) / 2)
        assert abs(area - theory) < 4 * 0.0065


def test_rows_read_are_counted_against_the_truth(attack):
    truth = np.arange(12.0).reshape(2, 6)
    assert attack.read(truth + 0.009, truth) == 2
    assert attack.read(truth + 0.011 * (truth == 5.0), truth) == 1
    assert attack.read(truth[:0], truth) == 0


def cells(path, title):
    """The rows of the table below a title, as lists of texts."""
    section = path.read_text().split(f"## {title}", 1)[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line]
    return rows[2:]


def number(text):
    return float(text.replace(",", "").rstrip(" %"))


def test_the_page_has_the_figures_of_the_script():
    page, measured = SCRIPT.parents[1] / "docs" / "disclosure.md", SCRIPT.with_name("DISCLOSURE.md")
    by_means = {(number(n), number(d)): (number(area), number(found))
                for n, d, area, _, found in cells(measured, "Who is in a table, by its means")}  # fmt: skip
    for n, d, area, found in cells(page, "Means and squares"):
        assert by_means[number(n), number(d)] == (number(area), number(found))
    chosen = {tuple(row[:3]): row[3] for row in cells(measured, "A server that chooses the models, 50 rounds")}
    said = 0
    for rows, batches, steps, count in cells(page, "A server that chooses the models"):
        for batch in batches.split(" or "):
            for step in steps.split(" or "):
                assert chosen[rows.replace(",", ""), batch, step] == count
                said += 1
    assert said == len(chosen)
    for batch, _, distance, chance in cells(measured, "One honest message, one local step")[1:]:
        (told,) = [words for b, words, _ in cells(page, "One honest message") if b == batch]
        assert distance in told and number(chance) == number(told.rsplit(" ", 1)[1].strip(")"))
