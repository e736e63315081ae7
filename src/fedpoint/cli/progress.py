"""How far is it? A bar on a terminal, a line now and then elsewhere, nothing when quiet; always on stderr."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fedpoint.verbs.watch import Watch

if TYPE_CHECKING:
    from rich.console import Console

    from fedpoint.engine.base import Callback, Progress

SECONDS = 3.0  # between two lines


class Lines(Watch):
    """For logs: plain lines, few."""

    @contextlib.contextmanager
    def following(self, label: str, rounds: int) -> Iterator[list[Callback]]:
        last, pace = time.monotonic(), Pace()

        def say(progress: Progress) -> None:
            nonlocal last
            details = pace.details(progress)
            if time.monotonic() - last >= SECONDS and progress.round < rounds:
                click.echo(f"{label}: round {progress.round:,} of {rounds:,}{details}", err=True)
                last = time.monotonic()

        yield [say]


class Bar(Watch):
    """For people."""

    def __init__(self, console: Console):
        self.console = console

    @contextlib.contextmanager
    def following(self, label: str, rounds: int) -> Iterator[list[Callback]]:
        from rich import progress as rich_progress
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[details]}"))
        with rich_progress.Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True) as bar:
            task, pace = bar.add_task(label, total=rounds, details="compiling"), Pace()

            def show(progress: Progress) -> None:
                details = pace.details(progress).removeprefix(", ")
                bar.update(task, completed=progress.round, details=details)

            yield [show]


class Pace:
    """Rounds per second from the first segment's end on: before it the program is compiled."""

    def __init__(self) -> None:
        self.start: tuple[float, int] | None = None

    def details(self, progress: Progress) -> str:
        now, text = time.monotonic(), ""
        if self.start is None:
            self.start = now, progress.round
        elif now > self.start[0]:
            text = f", {(progress.round - self.start[1]) / (now - self.start[0]):,.0f} rounds/s"
        return text if progress.error is None else f"{text}, error {progress.error.mean():.2e}"


def watch(quiet: bool) -> Watch:
    """What suits where stderr goes."""
    if quiet:
        return Watch()
    from rich.console import Console

    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines()
