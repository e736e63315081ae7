"""`fedpoint federate init`, `add`, `renew`, `revoke`, `study`: what whoever leads a project does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpoint.core.errors import FedpointError

if TYPE_CHECKING:  # they load JAX
    from fedpoint.federation.flare.project import Project
    from fedpoint.federation.identity.certificates import Authority
    from fedpoint.federation.identity.signed import SignedStudy
    from fedpoint.federation.study import Study

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
PASSPHRASE = "FEDPOINT_PASSPHRASE"
PROJECT = click.option("--project", type=FOLDER, help="The project's folder; default: this folder, or the study's.")
DAYS = click.option(
    "--days",
    default=365.0,
    show_default=True,
    type=click.FloatRange(0, 366, min_open=True),
    help="Number of days for which it is valid.",
)
OFFLINE = click.option("--offline", is_flag=True, help="Do not notify the server now; the next command will.")


def project_at(folder: Path | None, study: Path | None = None) -> Project:
    """The project that is meant: a folder, or that of a study file, or this one."""
    from fedpoint.federation.flare.kits import INVITATION
    from fedpoint.federation.flare.project import Project

    beside = study is not None and (study.parent / INVITATION).exists()
    return Project(folder or (study.parent if study is not None and beside else Path()))


def chosen(folder: Path | None, study: str) -> tuple[Project, SignedStudy]:
    """A signed study by its name, or by its file, which must be as it was signed."""
    path = Path(study)
    if not path.is_file():
        project = project_at(folder)
        return project, project.study(study)
    project = project_at(folder, path)
    wanted = study_of(project, path)
    found = project.study(wanted.name)
    if found.fingerprint != wanted.fingerprint:
        raise FedpointError(
            f"{path} was changed after it was signed: sign it with `fedpoint federate study {path}`, and sites decide "
            "about it anew"
        )
    return project, found


def study_of(project: Project, path: Path) -> Study:
    """The study of a file, at the project's server."""
    from fedpoint.config.experiment import read_toml
    from fedpoint.federation.study import parse

    content, text = read_toml(path)
    return parse(project.complete(content), str(path), text, path.parent)


def _authority(project: Project) -> Authority:
    if not project.encrypted:
        return project.authority()
    given = os.environ.get(PASSPHRASE)
    return project.authority(
        given if given is not None else click.prompt("Passphrase of the authority", hide_input=True)
    )


def tell_server(project: Project, offline: bool = False) -> None:
    """Post what the server should have; if it is away, say so, and leave it to the next command."""
    from fedpoint.federation.flare.connection import Connection
    from fedpoint.federation.transport import NoAnswerYet

    if offline:
        return
    try:
        with Connection(project.admin, wait=3.0) as server:
            for why in server.publish(project.documents()):
                click.echo(f"the server refused a document: {why}", err=True)
            click.echo("the server has received it")
    except NoAnswerYet as error:
        click.echo(f"{error}; `fedpoint federate status` or `run` will send it later", err=True)


def warn(project: Project) -> None:
    """What ends within 30 days."""
    for text in project.warnings():
        click.echo(f"Warning: {text}", err=True)


@click.command()
@click.argument("name")
@click.option("--server", required=True, metavar="HOST:PORT", help="Address at which sites will reach the server.")
@click.option("--folder", type=FOLDER, help="The project's folder; default: NAME.")
@click.option(
    "--passphrase",
    is_flag=True,
    help=f"Encrypt the authority's key with a passphrase, prompted for or from ${PASSPHRASE}.",
)
def init(name: str, server: str, folder: Path | None, passphrase: bool) -> None:
    """Create a project: an authority and two kits.

    The kits are the leader's and the server's; one project serves all its studies. Keep the folder safe: whoever has
    authority.key decides who takes part. Give invitation.json, which is not secret, to every site, and read the
    authority's fingerprint to them over the telephone.
    """
    from fedpoint.federation.flare.project import Project
    from fedpoint.federation.identity.certificates import fingerprint

    secret = ""
    if passphrase:
        given = os.environ.get(PASSPHRASE)
        secret = given if given is not None else click.prompt("Passphrase", hide_input=True, confirmation_prompt=True)
        if not secret:
            raise FedpointError("the passphrase is empty: enter one, or leave out --passphrase")
    made = Project.init(folder or Path(name), name, server, secret)
    click.echo(f"project {name} in {made.folder}")
    click.echo(f"authority  {fingerprint(made.invitation.authority)}")
    click.echo(f"for sites  {made.folder / 'invitation.json'}")
    click.echo(f"server     {made.folder / 'server'}: move it to {made.invitation.host}")


@click.command()
@click.argument("request", type=FILE)
@PROJECT
@DAYS
@OFFLINE
@click.option("--yes", is_flag=True, help="Sign without a prompt.")
def add(request: Path, project: Path | None, days: float, offline: bool, yes: bool) -> None:
    """Sign the certificate request of a site or the server.

    REQUEST is the file that the site has sent. Let the site read the fingerprint of its key to you, which proves that
    the request is theirs. A name that has a certificate for another key is refused until that is revoked.
    """
    from fedpoint.core.files import read_file
    from fedpoint.federation.identity.certificates import LONGEST, key_fingerprint
    from fedpoint.store.disk import os_errors

    own = project_at(project)
    with os_errors(f"read {request}"):
        party, public = own.requested(read_file(request, LONGEST))
    click.echo(f"{party} asks for a certificate; fingerprint of its key: {key_fingerprint(public)}")
    if not yes and not click.confirm("Does the site read out the same?", default=False):
        raise FedpointError("nothing was signed")
    made = own.certify(public, party, _authority(own), days)
    path = own.folder / "certificates" / f"{party}.crt"
    click.echo(f"{path} is valid until {made.not_valid_after_utc:%Y-%m-%d}: send it to {party} (it is not secret)")
    tell_server(own, offline)


@click.command()
@click.argument("parties", nargs=-1)
@PROJECT
@DAYS
@OFFLINE
def renew(parties: tuple[str, ...], project: Path | None, days: float, offline: bool) -> None:
    """Renew certificates.

    PARTIES are names of sites or `server`; default: all whose certificates end within 30 days. Keys stay as they are. A
    connected site fetches its certificate by itself; one whose certificate has already ended gets
    certificates/SITE.crt as a file, for `fedpoint federate join`.
    """
    from fedpoint.federation.identity.certificates import ending

    own = project_at(project)
    good = {
        name: found for name in own.parties() if (found := own.certificate(name)) and not own.board.revoked.holds(found)
    }
    chosen = parties or tuple(name for name, found in good.items() if ending(found))
    if not chosen:
        click.echo("no certificate ends within 30 days")
        return
    authority = _authority(own)
    for party in chosen:
        made = own.renewed(party, authority, days)
        click.echo(f"{party}: valid until {made.not_valid_after_utc:%Y-%m-%d}")
    tell_server(own, offline)


@click.command()
@click.argument("party")
@PROJECT
@OFFLINE
def revoke(party: str, project: Path | None, offline: bool) -> None:
    """Revoke a party's certificate, for good.

    The server refuses PARTY from now on; a running study drops it within a round. A site that has lost its key makes a
    new request afterwards, under the same name.
    """
    own = project_at(project)
    own.revoke(party)
    click.echo(f"the certificate of {party} is revoked")
    tell_server(own, offline)


@click.command()
@click.argument("file", type=FILE)
@PROJECT
@OFFLINE
def study(file: Path, project: Path | None, offline: bool) -> None:
    """Sign an experiment with its terms, as a study.

    FILE becomes the next version of that study. Sites fetch it from the server, see what changed, and decide. No new
    keys are needed.
    """
    from fedpoint.federation.identity.difference import differences

    own = project_at(project, file)
    made, new = own.sign(study_of(own, file))
    click.echo(
        f"{made.title} {'is signed' if new else 'was signed before, and is unchanged'} ({made.fingerprint[:12]})"
    )
    before = own.board.study(f"{made.name}.{made.number - 1}") if new else None
    for line in differences(before.content, made.content) if before is not None else []:
        click.echo(f"  {line}")
    warn(own)
    tell_server(own, offline)
