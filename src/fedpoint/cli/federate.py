"""`fedpoint federate`: a study over real sites: kits, server, sites, run, status, stop, and a demo of it all."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpoint.cli import options, with_jax
from fedpoint.cli.federate_audit import audit

if TYPE_CHECKING:  # it loads FLARE
    from fedpoint.federation.flare.kits import Kit

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
STUDY = click.argument("study", type=click.Path(path_type=Path))
WITHOUT_JAX = ("audit",)


def leader(study: Path) -> Kit:
    """The administrator's kit: of a study file, beside which `provision` has put it, or given itself."""
    from fedpoint.core.errors import FedpointError
    from fedpoint.federation.flare.kits import Kit
    from fedpoint.federation.study import read

    if study.is_dir():
        return Kit(study, "admin")
    wanted = read(study)
    kit = Kit(study.parent / f"kits-{wanted.name}" / "admin", "admin")
    if kit.study.fingerprint != wanted.fingerprint:
        raise FedpointError(
            f"{study} was changed after its kits were made, which sites have consented to: make new kits"
        )
    return kit


class Federate(click.Group):
    """Loads JAX for a command that needs it."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        command = copy.copy(super().get_command(ctx, name))
        if command is not None and command.callback is not None and name not in WITHOUT_JAX:
            command.callback = with_jax(command.callback)
        return command


@click.group(cls=Federate)
def federate() -> None:
    """Run a study over real sites that keep their data (extra `federation`).

    \b
    fedpoint federate demo                          try it: a server and three sites on this machine
    fedpoint federate provision study.toml          the leader makes a kit for every party
    fedpoint federate server KIT                    on the server's machine
    fedpoint federate site KIT --data local.csv     on each site's machine
    fedpoint federate run study.toml                the leader; then status, stop
    fedpoint federate audit KIT                     what was asked of a site, and what left it
    """


@federate.command()
@click.argument("study", type=FILE)
@click.option("--folder", type=FOLDER, help="Folder for the kits; default kits-NAME beside the study.")
@options.as_json
def provision(study: Path, folder: Path | None, as_json: bool) -> None:
    """Make every party's kit for STUDY.toml: certificates, the study, and rules that lock it down.

    Hand each kit over securely: whoever has a kit is that party. The authority that signed them is not kept.
    """
    from fedpoint.federation.flare.kits import provision as make
    from fedpoint.federation.study import read

    wanted = read(study)
    kits = make(wanted, folder or study.parent / f"kits-{wanted.name}")
    if as_json:
        click.echo(json.dumps({"study": wanted.name, "kits": {name: str(path) for name, path in kits.items()}}))
        return
    for name, path in kits.items():
        click.echo(f"{name:>12}  {path}")


@federate.command()
@click.argument("kit", type=FOLDER, default=".")
def server(kit: Path) -> None:
    """Start the server of KIT (default: this folder). Ctrl-C stops it; after a crash, start it again."""
    from fedpoint.federation.flare.kits import Kit
    from fedpoint.federation.flare.parties import check_port
    from fedpoint.federation.flare.waiting import hand_over

    own = Kit(kit, "server")
    check_port(own)
    click.echo(f"server of {own.study.name}: {own.study.server}, mutual TLS; Ctrl-C ends it", err=True)
    hand_over(own)


@federate.command()
@click.argument("kit", type=FOLDER, default=".")
@click.option("--data", type=FILE, help="This site's own CSV or Parquet file; it never leaves this machine.")
@click.option("--floor-rows", default=20, show_default=True, help="Fewest rows behind anything that leaves.")
@click.option("--floor-per-category", default=5, show_default=True, help="Fewest rows of each category here.")
@click.option("--floor-per-class", default=5, show_default=True, help="Fewest rows of each class here.")
@click.option("--lift-stop", is_flag=True, help="Take part again after this site stopped itself.")
@click.option("--dry-run", is_flag=True, help="Print what would run and what would leave, then exit.")
@click.option("--yes", is_flag=True, help="Consent without a prompt.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print JSON.")
def site(
    kit: Path,
    data: Path | None,
    floor_rows: int,
    floor_per_category: int,
    floor_per_class: int,
    lift_stop: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Take part in a study with KIT (default: this folder).

    Prints what will run on the data and what will leave, asks for consent, and stays connected. Every message that
    leaves is logged in KIT/records/audit.jsonl. Ctrl-C stops it; start it again to rejoin.

    Orders that the study does not allow are refused and listed in KIT/records/refusals.jsonl. Three in a row stop the
    site: it takes part again when it is started with --lift-stop.
    """
    from fedpoint.core.errors import FedpointError
    from fedpoint.federation.announcement import announce, lines
    from fedpoint.federation.flare.kits import Kit
    from fedpoint.federation.flare.parties import consent
    from fedpoint.federation.flare.waiting import hand_over
    from fedpoint.federation.site import stop
    from fedpoint.federation.site.disclosure import Floor

    own, floor = Kit(kit, "site"), Floor(floor_rows, floor_per_category, floor_per_class)
    if own.study.table is not None and data is None:
        raise FedpointError(f"{own.party} needs its data: pass --data FILE")
    found = announce(own.study, data, floor, own.party)
    click.echo(json.dumps(found) if as_json and dry_run else "\n".join(lines(found)))
    if found["refused"]:
        raise FedpointError("these data cannot take part: nothing was started and nothing has left this machine")
    if dry_run:
        return
    why = stop.why_stopped(own.folder / "records")
    if why is not None and not lift_stop:
        raise FedpointError(
            f"{own.party} has stopped itself ({why}): read {own.folder}/records/refusals.jsonl, talk to whoever leads "
            f"the study, and pass {stop.LIFT} to take part again"
        )
    if not yes and not click.confirm("Take part with these data?", default=False):
        raise FedpointError("no consent: nothing was started and nothing has left this machine")
    if lift_stop:
        stop.lift_stop(own.folder / "records")
    consent(own, data, floor)
    click.echo(f"{own.party} takes part; audit: {own.folder}/records/audit.jsonl; Ctrl-C ends it", err=True)
    hand_over(own)


@federate.command()
@STUDY
@click.option("--folder", type=FOLDER, help="Folder for the result; default runs/NAME-federated.")
@click.option("--export", type=FILE, help="Also write the model, for `fedpoint predict`.")
@click.option("--wait", default=300.0, show_default=True, help="Seconds to wait for sites.")
@click.option("--fresh", is_flag=True, help="Start over instead of continuing.")
@click.option("--watch", is_flag=True, help="Raise an alarm about a site that does not answer as its rows must.")
@options.as_json
@options.quiet
def run(
    study: Path,
    folder: Path | None,
    export: Path | None,
    wait: float,
    fresh: bool,
    watch: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run STUDY.toml (or the study of the administrator's kit), continuing where it stopped.

    --watch needs to know which rows to expect: those of a generated problem, or files that you put into the folder
    `expected` of the server's kit (expected/SITE.csv).

    Ctrl-C leaves it running: `status` shows it, `stop` ends it, `run` follows it again.
    """
    from fedpoint.cli.federate_show import Show, show_result
    from fedpoint.federation.flare.lead import Lead

    own = leader(study)
    folder = folder or Path("runs") / f"{own.study.name}-federated"
    with Lead(own) as lead, Show(own.study, quiet) as show:
        made = lead.run(folder, show, fresh, wait, watch)
    if export is not None:
        made.export(export)
    show_result(made, as_json)


@federate.command()
@STUDY
@options.as_json
def status(study: Path, as_json: bool) -> None:
    """Show how far STUDY.toml (or the study of the administrator's kit) is, and which sites are connected.

    Every site is asked whether it is there: one whose process was killed is known at once.
    """
    from fedpoint.cli.federate_show import status_lines
    from fedpoint.federation.flare.lead import Lead

    own = leader(study)
    with Lead(own) as lead:
        found = lead.status()
    missing = [name for name in own.study.sites if name not in found["sites"]]
    if as_json:
        click.echo(json.dumps({**found, "missing": missing}))
        return
    click.echo("\n".join(status_lines(own.study, found)))


@federate.command()
@STUDY
def stop(study: Path) -> None:
    """Stop STUDY.toml (or the study of the administrator's kit) after the current round. `run` continues from there."""
    from fedpoint.federation.flare.lead import Lead

    with Lead(leader(study)) as lead:
        stopped = lead.stop()
    click.echo("stopping" if stopped else "nothing runs")


@federate.command()
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(min=1), help="Number of rounds.")
@click.option("--port", default=0, type=click.IntRange(0, 65534), help="Port of the server; 0 picks a free one.")
@click.option("--keep", type=FOLDER, help="Keep kits, logs and the result in this folder.")
@options.as_json
@options.quiet
def demo(rounds: int, port: int, keep: Path | None, as_json: bool, quiet: bool) -> None:
    """Train a credit score over three banks: a server and three sites on this machine, with mutual TLS.

    Prints the result beside a simulation on the pooled rows, and removes everything it created.
    """
    from fedpoint.cli.federate_show import Show
    from fedpoint.federation.flare.demo import play
    from fedpoint.federation.flare.processes import heed_friendly_kills

    heed_friendly_kills()
    found, lines = play(rounds, port, keep, lambda study: Show(study, quiet))
    click.echo(json.dumps(found) if as_json else "\n".join(lines))


federate.add_command(audit)
