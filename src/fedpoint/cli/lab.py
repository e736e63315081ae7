"""`fedpoint lab`: the lectures' experiments, simulated, predicted and drawn."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpoint.cli import options
from fedpoint.cli.progress import watch
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted, with_error

if TYPE_CHECKING:
    from rich.console import Console

    from fedpoint.core.types import Plain
    from fedpoint.lab import Findings, Lab, LabOutcome, LabSetting, LabStudy


READING = """\
measured  squared distance to the solution in the steady state: mean over the runs ± its standard error
exact     the same from the mean-square recursion, no fit; steady: from where it stays within 1 % of its limit
apart     how many standard errors measured is above (+) or below (-) exact: by chance, within ±2 in 19 of 20 rows
"""


@click.command()
@click.argument("name", required=False)
@click.option(
    "--out", default="runs/lab", show_default=True, metavar="DIR", help="Folder for the picture; created if missing."
)
@options.as_json
@click.option("--quick", is_flag=True, help="Use fewer repeats: faster and rougher.")
@click.option("--rounds", type=int, metavar="N", help="Number of rounds.")
@click.option("--repeats", type=int, metavar="N", help="Number of independent runs to average.")
@click.option(
    "--format",
    "ending",
    default="png",
    show_default=True,
    type=click.Choice(["png", "svg", "pdf"]),
    help="Format of the picture.",
)
def lab(
    name: str | None, out: str, as_json: bool, quick: bool, rounds: int | None, repeats: int | None, ending: str
) -> None:
    """Run the experiments of five lectures beside their exact predictions.

    NAME is a lab, or one panel of it:

    \b
    lecture000   heterogeneity, participation and local steps (the default);
                 observation-1 to observation-4 and linear-gain are its panels
    scafflsa     FedLSA's bias, and SCAFFLSA without it, on random MDPs
    td           the same on frozen lakes (extra `rl`)
    gtvmin       models over a network of clusters, by coupling
    states       the same for the output of US states (extra `data`)
    diffusion    one model over a network of 20 agents, by step and network
    async        waiting for slow agents or not, and the worst of asynchrony
    """
    from fedpoint.lab import find, perform, studies
    from fedpoint.lab.picture import picture

    begun = time.perf_counter()
    if name in studies(quick):
        _study(studies(quick)[name].change(rounds=rounds, repeats=repeats), _folder(out), ending, as_json)
        return
    chosen = find(name, quick).change(rounds=rounds, repeats=repeats)
    path = _folder(out) / f"{chosen.name}.{ending}"
    with _progress(chosen) as progress:
        outcomes = {outcome.setting: outcome for outcome in perform(chosen, progress)}
    picture(chosen, outcomes, path)
    seconds = time.perf_counter() - begun
    if as_json:
        click.echo(json.dumps(_summary(chosen, outcomes, path, seconds), indent=2))
    else:
        _show(chosen, outcomes, path, seconds)


def _study(study: LabStudy, folder: Path, ending: str, as_json: bool) -> None:
    """A lab that reports in its own way."""
    from fedpoint.show.figures import save

    begun, path = time.perf_counter(), folder / f"{study.name}.{ending}"
    with watch(False).waiting("") as say:
        findings = study.perform(say)
    save(findings.picture(), path)
    seconds = time.perf_counter() - begun
    if as_json:
        head = {"lab": study.name, "picture": str(path), "seconds": round(seconds, 2)}
        click.echo(json.dumps({**head, **findings.numbers, "says": dict(findings.says)}, indent=2))
    else:
        _show_findings(study, findings)
        click.echo(f"Picture: {path}   ({seconds:.1f} s)")


def _show_findings(study: LabStudy, findings: Findings) -> None:
    from rich import box
    from rich.table import Table

    console = _console()
    console.print(f"\n[bold]{study.title}[/bold]\n{study.about}\n")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(findings.headings):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    for row in findings.rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"{findings.note}\n")
    grid = Table.grid(padding=(0, 2, 0, 0))
    for what, sentence in findings.says:
        grid.add_row(f"[bold]{what}[/bold]", sentence)
    console.print(grid)
    console.print()


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    # A file or a pipe has no width: nothing to wrap for.
    return console if console.is_terminal else Console(highlight=False, width=140)


def _folder(out: str) -> Path:
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedpointError(f"--out {out}: cannot make this folder: {error.strerror}") from None
    if not os.access(folder, os.W_OK):  # said now, not after the work
        raise FedpointError(f"--out {out}: no permission to write into this folder")
    return folder


@contextlib.contextmanager
def _progress(lab: Lab) -> Iterator[Callable[[LabSetting, int], None]]:
    """The rounds of all settings together, and which settings are done."""
    settings = lab.settings
    reached = dict.fromkeys(settings, 0)
    with watch(False).counting(lab.name, sum(s.rounds for s in settings)) as tell:

        def show(setting: LabSetting, round: int) -> None:
            reached[setting] = round
            done = sum(r == s.rounds for s, r in reached.items())
            tell(sum(reached.values()), f"{done} of {counted(len(settings), 'setting')} done, now {setting}")

        yield show


def _summary(lab: Lab, outcomes: dict[LabSetting, LabOutcome], path: Path, seconds: float) -> dict[str, Plain]:
    from fedpoint.lab.runner import sentence

    panels: list[Plain] = [
        {
            "name": panel.name,
            "says": sentence(panel, outcomes),
            "curves": [{"label": label, **outcomes[s].to_json()} for label, s in panel.curves],
        }
        for panel in lab.panels
    ]
    return {"lab": lab.name, "picture": str(path), "seconds": round(seconds, 2), "panels": panels}


def _show(lab: Lab, outcomes: dict[LabSetting, LabOutcome], path: Path, seconds: float) -> None:
    console = _console()
    console.print(f"\n[bold]{lab.title}[/bold]\n{lab.about}\n")
    _table(console, lab, outcomes)
    _sentences(console, lab, outcomes)
    late = [o.setting for o in outcomes.values() if not o.settled]
    if late:
        rounds = late[0].rounds
        console.print(
            f"[yellow]The steady state is not reached after {counted(rounds, 'round')}: raise --rounds.[/yellow]\n"
        )
    # Not through rich, which would break a long path.
    click.echo(f"Picture: {path}   ({seconds:.1f} s)")


def _table(console: Console, lab: Lab, outcomes: dict[LabSetting, LabOutcome]) -> None:
    from rich import box
    from rich.table import Table

    from fedpoint.lab.runner import shown

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", *lab.table.columns, "runs", "measured", "exact", "ratio", "apart"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for panel in lab.panels:
        for i, (_, setting) in enumerate(panel.curves):
            outcome = outcomes[setting]
            table.add_row(
                panel.name if i == 0 else "",
                *map(shown, setting.cells.values()),
                f"{setting.experiment.repeats:,}",
                with_error(outcome.steady, outcome.uncertainty, digits=3),
                f"{outcome.predicted:.2e}",
                f"{outcome.ratio:.2f}",
                "-" if outcome.apart is None else f"{outcome.apart:+.1f}",
                end_section=i == len(panel.curves) - 1,
            )
    console.print(table)


def _sentences(console: Console, lab: Lab, outcomes: dict[LabSetting, LabOutcome]) -> None:
    from rich.table import Table

    from fedpoint.lab.runner import sentence

    console.print(READING)
    grid = Table.grid(padding=(0, 2, 0, 0))
    for panel in lab.panels:
        grid.add_row(f"[bold]{panel.name}[/bold]", sentence(panel, outcomes))
    console.print(grid)
    console.print()
