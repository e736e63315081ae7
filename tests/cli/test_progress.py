"""One display of progress: what a bar, lines and a quiet command say of counted work and of waiting."""

import io

import pytest
from rich.console import Console

from fedpoint.cli import progress


def work(display):
    with display.counting("planning", 3) as tell:
        for done in (1, 2, 3):
            tell(done, f"{done} of 3 settings")
    with display.waiting("forecasting a") as say:
        say("forecasting b")


@pytest.mark.parametrize(
    "seconds, told", [(0.0, ["planning: 1 of 3 settings", "planning: 2 of 3 settings"]), (60.0, [])]
)
def test_lines_are_few_and_leave_out_the_end(capsys, monkeypatch, seconds, told):
    monkeypatch.setattr(progress, "SECONDS", seconds)
    work(progress.Lines())
    said = capsys.readouterr()
    assert said.err.splitlines() == [*told, "forecasting a", "forecasting b"] and said.out == ""


def test_a_bar_says_what_is_done():
    screen = io.StringIO()
    work(progress.Bar(Console(file=screen, force_terminal=True, width=100)))
    assert "planning" in screen.getvalue() and "3 of 3 settings" in screen.getvalue()
    assert "forecasting b" in screen.getvalue() or "forecasting a" in screen.getvalue()


def test_quiet_says_nothing(capsys):
    work(progress.watch(quiet=True))
    assert capsys.readouterr() == ("", "")
