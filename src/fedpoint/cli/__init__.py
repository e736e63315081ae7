"""The command line: one small file per command, loaded when it is called."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TextIO, TypeVar

import click

from fedpoint import __version__
from fedpoint.cli.status import Status, table
from fedpoint.core.errors import Diverged, FedpointError, Recovered, nearest
from fedpoint.core.garbage import paused_collection
from fedpoint.interrupts import loading

# The first sentence of each command's help, so that `fedpoint --help` loads none of them.
COMMANDS = {
    "new": "Write a commented TOML file to start from.",
    "examples": "List the examples, or copy them.",
    "run": "Run the experiments of a TOML file.",
    "resume": "Continue an interrupted run, or extend a finished one.",
    "forecast": "Predict where the runs of a TOML file converge, how fast and how noisily, without running them.",
    "check": "Compare a run with its forecast.",
    "certify": "Find out which method a Python file implements, and which mistake it makes.",
    "prove": "Compute the worst case of a method over all agents of a class.",
    "plan": "Choose the method and settings that reach a target at the least cost.",
    "glm": "Fit a generalised linear model over sites.",
    "cox": "Fit a Cox model over sites, stratified by site.",
    "federate": "Run a study over real sites that keep their data.",
    "report": "Write an HTML report of one or more runs.",
    "lab": "Run the experiments of five lectures beside their exact predictions.",
    "ui": "Serve a page with live runs and a playground.",
    "algorithms": "List the algorithms, or describe one.",
    "predict": "Apply a trained model to a table.",
    "cite": "Print BibTeX entries for algorithms, files or runs.",
}
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
WITHOUT_JAX = (
    "new",
    "examples",
    "predict",
    "ui",
    "federate",
)  # these begin without it; of the last, most commands need it


def with_jax(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The work of a command, with JAX loaded before it: from then on Ctrl-C is an exception like others."""

    @wraps(work)
    def after(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        with loading(), paused_collection():
            import jax  # noqa: F401
        return work(*arguments, **options)

    return after


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """What was recovered is said in a line, where Python would print a warning with its line of code."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, Recovered):
            click.echo(f"Note: {message}", err=True)
        else:
            usual(message, category, filename, lineno, file, line)

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
            command.callback = with_jax(command.callback)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}: {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # names of files need not be text
        try:
            with _notes():
                return super().invoke(ctx)
        except FedpointError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(Status.DIVERGES if isinstance(error, Diverged) else Status.BAD_INPUT)
        except MemoryError as error:
            advice = "use fewer agents, rows or repeats, or a smaller model"
            click.echo(f"Error: not enough memory ({error}); {advice}", err=True)
            ctx.exit(Status.BAD_INPUT)
        except KeyboardInterrupt as error:
            click.echo(f"\n{error}" if str(error) else "\ninterrupted", err=True)
            ctx.exit(Status.INTERRUPTED)
        except BrokenPipeError:  # `fedpoint cite fedavg | head -1`
            sys.stdout = None
            ctx.exit(Status.FINE)


@click.group(
    cls=Main,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"Exit status: {table()}.",
)
@click.version_option(__version__, prog_name="fedpoint")
def main() -> None:
    """fedpoint: federated optimisation that knows where it will end.

    \b
    fedpoint lab             compare federated averaging with its exact prediction
    fedpoint new mine        write mine.toml, a file to start from
    fedpoint run mine.toml   run the experiment that it describes
    fedpoint algorithms      list the algorithms
    """
