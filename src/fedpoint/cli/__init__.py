"""The command line: one small file per command, loaded when it is called."""

from __future__ import annotations

import contextlib
import copy
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import click

from fedpoint import __version__
from fedpoint.core.errors import FedpointError, Recovered, nearest
from fedpoint.core.garbage import paused_collection
from fedpoint.interrupts import loading

# What `fedpoint --help` says of each: the files themselves are not loaded for it.
COMMANDS = {
    "run": "Run what a TOML file describes: one run, or a comparison.",
    "resume": "Go on with a run that was interrupted, or make it longer.",
    "forecast": "Where the runs of a TOML file end, how fast and how noisy: no run.",
    "check": "Compare a run with its forecast.",
    "certify": "Which method an algorithm in a Python file is, and which mistake was made in it.",
    "plan": "What to choose for a target, at the least cost: from forecasts.",
    "federate": "A study over real sites that keep their data.",
    "report": "What came of runs, on one HTML page.",
    "lab": "The experiments of lecture 000, beside the exact prediction.",
    "ui": "A page in the browser: runs as they go on, and a playground.",
    "algorithms": "The table of algorithms, or one of them in full.",
    "predict": "Use an exported model on a CSV file.",
    "cite": "BibTeX of the methods, of a file or of a run.",
}
WITHOUT_JAX = ("predict", "ui")  # these begin without it


def _loaded(work: Callable) -> Callable:
    """The work of a command, with JAX loaded before it: from then on Ctrl-C is an exception like others."""

    @wraps(work)
    def after(*arguments: Any, **options: Any) -> Any:
        with loading(), paused_collection():
            import jax  # noqa: F401
        return work(*arguments, **options)

    return after


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """What was recovered is said in a line, where Python would print a warning with its line of code."""

    def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, Recovered):
            click.echo(f"Note: {message}", err=True)
        else:
            usual(message, category, *rest, **more)

    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, show
        warnings.simplefilter("always", Recovered)
        yield


class Main(click.Group):
    """Loads a command when it is called, and turns mistakes of the user's into messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        with loading(), paused_collection():
            command = copy.copy(getattr(importlib.import_module(f"fedpoint.cli.{name}"), name))
        if name not in WITHOUT_JAX:
            command.callback = _loaded(command.callback)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}: {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _notes():
                return super().invoke(ctx)
        except FedpointError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(2)
        except MemoryError as error:
            click.echo(f"Error: not enough memory for this ({error}); make it smaller", err=True)
            ctx.exit(2)
        except KeyboardInterrupt as error:
            click.echo(f"\n{error}" if str(error) else "\ninterrupted", err=True)
            ctx.exit(130)
        except BrokenPipeError:  # `fedpoint cite fedavg | head -1`
            sys.stdout = None
            ctx.exit(0)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="fedpoint")
def main() -> None:
    """fedpoint: federated optimisation that knows where it will end.

    \b
    fedpoint lab                      see federated learning happen
    fedpoint run examples/lab.toml    run what a file describes
    fedpoint algorithms               what there is
    """
