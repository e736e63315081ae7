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
        last, details = time.monotonic(), Details()

        def say(progress: Progress) -> None:
            nonlocal last
            text = details.of(progress)
            if time.monotonic() - last >= SECONDS and progress.round < rounds:
                click.echo(f"{label}: round {progress.round:,} of {rounds:,}{text}", err=True)
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
            task, details = bar.add_task(label, total=rounds, details="compiling"), Details()

            def show(progress: Progress) -> None:
                bar.update(task, completed=progress.round, details=details.of(progress).removeprefix(", "))

            yield [show]


class Details:
    """Rounds a second from the second segment on: in the first one the program is compiled."""

    def __init__(self) -> None:
        self.compiled = False

    def of(self, progress: Progress) -> str:
        text = f", {progress.rate:,.0f} rounds/s" if self.compiled else ""
        self.compiled = True
        text = text if progress.error is None else f"{text}, error {progress.error.mean():.2e}"
        return text + "".join(f", {name} {values.mean():.3g}" for name, values in progress.evaluation.items())


def watch(quiet: bool) -> Watch:
    """What suits where stderr goes."""
    if quiet:
        return Watch()
    from rich.console import Console

    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines()
