"""`fedpoint federate`: studies over real sites: the server, run, status, stop, and a demo of it all."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import click

from fedpoint.cli import options, with_jax
from fedpoint.cli.federate_audit import audit
from fedpoint.cli.federate_dossier import dossier
from fedpoint.cli.federate_page import page
from fedpoint.cli.federate_project import PROJECT, add, chosen, init, renew, revoke, warn
from fedpoint.cli.federate_project import study as study_command
from fedpoint.cli.federate_service import service
from fedpoint.cli.federate_site import approve, join, request, site
from fedpoint.core.system import need_posix

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
STUDY = click.argument("study")
WITHOUT_JAX = ("audit", "join", "request")


class Federate(click.Group):
    """Loads JAX for a command that needs it."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        command = copy.copy(super().get_command(ctx, name))
        if command is not None and command.callback is not None and name not in WITHOUT_JAX:
            command.callback = with_jax(command.callback)
        return command


@click.group(cls=Federate)
def federate() -> None:
    """Run a study over real sites that keep their data.

    \b
    On one machine, to try it:
      fedpoint federate demo                           a server and three sites
    Once for a project:
      fedpoint federate init NAME --server HOST:PORT   leader: an authority, and the server's kit
      fedpoint federate server KIT                     on the server's machine: start it
      fedpoint federate request invitation.json SITE   site: a key of its own, and a request
      fedpoint federate add SITE.csr                   leader: sign the request
      fedpoint federate join SITE SITE.crt             site: put the certificate into its kit
      fedpoint federate site SITE                      site: connect
    For each study:
      fedpoint federate study study.toml               leader: sign it; sites fetch it
      fedpoint federate approve SITE --data local.csv  site: decide
      fedpoint federate run study.toml                 leader: run it; also status, stop
      fedpoint federate audit SITE                     site: what was asked, and what left

    Needs the extra `federation`.
    """
    need_posix("a study over real sites", "fp.federate rehearses one in this process, on any system")


@federate.command()
@click.argument("kit", type=FOLDER, default=".")
def server(kit: Path) -> None:
    """Start a project's server.

    KIT is the server's kit (default: this folder). Ctrl-C stops it; after a crash, start it again.
    """
    from fedpoint.federation.flare.kits import Kit
    from fedpoint.federation.flare.parties import check_port
    from fedpoint.federation.flare.waiting import hand_over

    own = Kit(kit, "server")
    warning = own.check_certificate()
    if warning:
        click.echo(f"Warning: {warning}", err=True)
    check_port(own)
    click.echo(f"server of {own.project}: {own.server}, mutual TLS; Ctrl-C stops it", err=True)
    hand_over(own)


@federate.command()
@STUDY
@PROJECT
@click.option("--folder", type=FOLDER, help="Folder for the result; default: runs/NAME.N for version N.")
@click.option("--export", type=FILE, help="Also write the model, for `fedpoint predict`.")
@click.option("--wait", default=300.0, show_default=True, help="Seconds to wait for enough sites.")
@click.option("--fresh", is_flag=True, help="Start over instead of continuing.")
@click.option("--watch", is_flag=True, help="Raise an alarm about a site whose answers do not fit its expected rows.")
@options.as_json
@options.quiet
def run(
    study: str,
    project: Path | None,
    folder: Path | None,
    export: Path | None,
    wait: float,
    fresh: bool,
    watch: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a study, continuing where it stopped.

    STUDY is a signed study's name or file. The run waits until enough sites have approved it and are connected.

    --watch needs to know which rows to expect: those of a generated problem, or files that you put into the folder
    `expected` of the server's kit (expected/SITE.csv).

    Ctrl-C leaves the study running: `status` shows it, `stop` ends it, `run` follows it again.
    """
    from fedpoint.cli.federate_show import Show, show_result
    from fedpoint.federation.flare.lead import Lead

    own, signed = chosen(project, study)
    warn(own)
    folder = folder or Path("runs") / signed.title
    with Lead(own.admin, signed) as lead, Show(lead.study, quiet) as show:
        lead.publish(own.documents())
        made = lead.run(folder, show, fresh, wait, watch)
    if export is not None:
        made.export(export)
    show_result(made, as_json)


@federate.command()
@STUDY
@PROJECT
@options.as_json
def status(study: str, project: Path | None, as_json: bool) -> None:
    """Show how far a study is, and which sites are connected.

    STUDY is a signed study's name or file. Every site is asked whether it is there, so that one whose process was
    killed is known at once. Also shown: who has approved the study.
    """
    from fedpoint.cli.federate_show import status_lines
    from fedpoint.federation.flare.lead import Lead

    own, signed = chosen(project, study)
    with Lead(own.admin, signed) as lead:
        lead.publish(own.documents())
        found = lead.status()
    missing = [name for name in lead.study.sites if name not in found["sites"]]
    if as_json:
        click.echo(json.dumps({**found, "version": signed.number, "missing": missing, "warnings": own.warnings()}))
        return
    warn(own)
    click.echo("\n".join(status_lines(lead.study, found)))


@federate.command()
@STUDY
@PROJECT
def stop(study: str, project: Path | None) -> None:
    """Stop a study after the current round.

    STUDY is a signed study's name or file. `fedpoint federate run` continues from there.
    """
    from fedpoint.federation.flare.lead import Lead

    own, signed = chosen(project, study)
    with Lead(own.admin, signed) as lead:
        stopped = lead.stop()
    click.echo("stopping" if stopped else "nothing runs")


@federate.command()
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(min=1), help="Number of rounds.")
@click.option("--port", default=0, type=click.IntRange(0, 65534), help="Port of the server; 0 picks a free one.")
@click.option("--keep", type=FOLDER, help="Keep kits, logs and the result in this folder.")
@options.as_json
@options.quiet
def demo(rounds: int, port: int, keep: Path | None, as_json: bool, quiet: bool) -> None:
    """Run a server and three banks on this machine, to try it out.

    Trains a credit score with mutual TLS, prints the result beside a simulation on the pooled rows, and removes
    everything that it created.
    """
    from fedpoint.cli.federate_show import Show
    from fedpoint.federation.flare.demo import play
    from fedpoint.federation.flare.processes import heed_friendly_kills

    heed_friendly_kills()
    found, lines = play(rounds, port, keep, lambda study: Show(study, quiet))
    click.echo(json.dumps(found) if as_json else "\n".join(lines))


for command in (init, request, add, join, site, study_command, approve, renew, revoke, audit, dossier, page, service):
    federate.add_command(command)
