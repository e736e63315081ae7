"""docs/lectures.md is true: every name in its last column is there, and the bounds it claims are those that exist."""

import re
from pathlib import Path

import pytest

import fedpoint as fp
from fedpoint.lab import runner
from fedpoint.results.forecast import Forecast
from fedpoint.theory.bounds import bounds

TEXT = (Path(__file__).parents[1] / "docs" / "lectures.md").read_text()
BOUNDS = "fp.forecast(...).bounds"
RANGE = re.compile(r"\((\d+)\)(?:-\((\d+)\))?")


def rows(text):
    """(lecture, where, the names in the last column), row by row."""
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        lecture = re.search(r"^Lecture (\d{3}):", section, flags=re.M)
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            if line.startswith("|") and len(cells) == 3 and "`" in cells[2]:
                yield lecture[1] if lecture else "", cells[0], re.findall(r"`([^`]+)`", cells[2])


def places(where):
    """{"(28)", "(29)", "theorem 1"} for "(28)-(29), theorem 1"."""
    found = set()
    for part in where.split(", "):
        ranges = RANGE.findall(part)
        found |= {f"({n})" for first, last in ranges for n in range(int(first), int(last or first) + 1)}
        found |= set() if ranges else {part}
    return found


def claimed(text):
    return {(lecture, place) for lecture, where, names in rows(text) if BOUNDS in names for place in places(where)}


def existing(entries):
    """(lecture, place) of every bound: "000 (30) sigma^2" is at (30), "001 SCAFFLSA, order" at SCAFFLSA."""
    found = set()
    for entry in entries:
        lecture, where = entry.split(" ", 1)
        found |= {(lecture, place) for place in places(where if "(" in where else where.split(",")[0])}
    return found


def wrong_bounds(text, entries):
    """What is claimed and does not exist, and what exists and is not claimed."""
    return sorted(claimed(text) ^ existing(entries))


def leads_somewhere(owner, names):
    for name in names:
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def resolves(name, before):
    """Whether a name of the last column is there; ".bias" goes on from the name before it."""
    if name.startswith("fedpoint "):
        _, command, *arguments = name.split()
        return command == "lab" and all(one in runner.names() for one in arguments)
    if name.startswith("."):
        name = before.rsplit(".", 1)[0] + name
    if name.startswith("fp.forecast(...)."):
        return leads_somewhere(Forecast, name.split(").")[1].split("."))
    return name.startswith("fp.") and leads_somewhere(fp, name.split(".")[1:])


def wrong_names(text):
    pairs = [pair for _, _, names in rows(text) for pair in zip(["", *names], names, strict=False)]
    return [name for before, name in pairs if not resolves(name, before)]


ENTRIES = [b.lecture for b in bounds(fp.FedAvg(0.1), fp.problems.Quadratic(1.0, [[0.0], [1.0]]))]


def test_every_name_is_there():
    assert sum(len(names) for _, _, names in rows(TEXT)) > 60
    assert wrong_names(TEXT) == []


def test_the_bounds_it_claims_are_those_that_exist():
    assert wrong_bounds(TEXT, ENTRIES) == []


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("(40), (42)", "(42)", ("000", "(40)")),  # not claimed
        ("(40), (42)", "(40)-(42)", ("000", "(41)")),  # claimed, and does not exist
        ("| single agent, FedLSA, SCAFFLSA |", "| single agent, FedLSA |", ("001", "SCAFFLSA")),
        (", theorem 1 |", ", theorem 2 |", ("004", "theorem 1")),
    ],
)
def test_a_page_with_a_wrong_claim_is_caught(right, wrong, found):
    assert right in TEXT
    assert found in wrong_bounds(TEXT.replace(right, wrong), ENTRIES)


def test_a_bound_that_is_lost_or_new_is_caught():
    assert wrong_bounds(TEXT, [e for e in ENTRIES if e != "000 (49)"]) == [("000", "(49)")]
    assert wrong_bounds(TEXT, [*ENTRIES, "001 Scaffnew"]) == [("001", "Scaffnew")]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("`fp.theory.lms_floor`", "`fp.theory.lms_flor`"),
        ("`.bias`", "`.bas`"),
        ("`fp.forecast(...).closed`", "`fp.forecast(...).close`"),
        ("`fedpoint lab td`", "`fedpoint lab dt`"),
        ("`fp.gtv.path`", "`gtv.path`"),
    ],
)
def test_a_name_that_is_not_there_is_caught(right, wrong):
    assert right in TEXT
    assert wrong_names(TEXT.replace(right, wrong)) == [wrong.strip("`")]
