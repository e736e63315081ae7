"""`fedpoint federate audit`: what was asked of a site and what left it, verified, for whoever answers for its data."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedpoint.cli import options
from fedpoint.cli.status import Status

FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("kit", type=FOLDER, default=".")
@click.option("--study", help="Name of the study, or name and number; needed if the kit has several.")
@click.option(
    "--against", type=FOLDER, help="The leader's result folder, to check that it holds a seal of this record."
)
@options.as_json
@click.pass_context
def audit(context: click.Context, kit: Path, study: str | None, against: Path | None, as_json: bool) -> None:
    """Verify and summarise what was asked of a site, and what left it.

    KIT is the site's kit (default: this folder), or the folder of one study in it. Every line of the study's
    records/audit.jsonl holds the hash of the one before, so that a later change shows. Exit status: 0 if verified,
    1 if broken, 2 if KIT is not a kit or has no record.
    """
    from fedpoint.federation.site.audit_report import lines, report

    found = report(kit, against, study)
    click.echo(json.dumps(found) if as_json else "\n".join(lines(found)))
    context.exit(Status.FINE if found["verified"] else Status.CONTRADICTED)
