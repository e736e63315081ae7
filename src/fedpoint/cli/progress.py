"""How far is it? A bar on a terminal, a line now and then elsewhere, nothing when quiet; always on stderr."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import click

from fedpoint.verbs.watch import Watch

if TYPE_CHECKING:
    from rich.console import Console

    from fedpoint.engine.base import Callback, Progress

SECONDS = 3.0  # between two lines
Tell: TypeAlias = Callable[[float, str], None]  # how much is done, and how to say it
Say: TypeAlias = Callable[[str], None]


class Display(Watch):
    """What every command shows while it works. This one shows nothing."""

    @contextlib.contextmanager
    def counting(self, what: str, total: float) -> Iterator[Tell]:
        """For work of known size: the function that is given is told how much of it is done."""
        yield lambda done, words: None

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[Say]:
        """For work of unknown size: the function that is given is told what is being done."""
        yield lambda words: None

    @contextlib.contextmanager
    def following(self, label: str, rounds: int) -> Iterator[list[Callback]]:
        details = Details()
        with self.counting(label, rounds) as tell:
            yield [
                lambda progress: tell(progress.round, f"round {progress.round:,} of {rounds:,}{details.of(progress)}")
            ]


class Lines(Display):
    """For logs: plain lines, few."""

    @contextlib.contextmanager
    def counting(self, what: str, total: float) -> Iterator[Tell]:
        last = time.monotonic()

        def tell(done: float, words: str) -> None:
            nonlocal last
            if time.monotonic() - last >= SECONDS and done < total:
                click.echo(f"{what}: {words}", err=True)
                last = time.monotonic()

        yield tell

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[Say]:
        if what:
            click.echo(what, err=True)
        yield lambda words: click.echo(words, err=True)


class Bar(Display):
    """For people."""

    def __init__(self, console: Console):
        self.console = console

    @contextlib.contextmanager
    def counting(self, what: str, total: float) -> Iterator[Tell]:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
        with Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True) as bar:
            task = bar.add_task(what, total=total, words="starting")
            yield lambda done, words: bar.update(task, completed=done, words=words)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[Say]:
        with self.console.status(what) as status:
            yield status.update


class Details:
    """Rounds a second from the second segment on: in the first one the program is compiled."""

    def __init__(self) -> None:
        self.compiled = False

    def of(self, progress: Progress) -> str:
        text = f", {progress.rate:,.0f} rounds/s" if self.compiled else ""
        self.compiled = True
        text = text if progress.error is None else f"{text}, error {progress.error.mean():.2e}"
        return text + "".join(f", {name} {values.mean():.3g}" for name, values in progress.evaluation.items())


def watch(quiet: bool) -> Display:
    """What suits where stderr goes."""
    if quiet:
        return Display()
    from rich.console import Console

    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines()
