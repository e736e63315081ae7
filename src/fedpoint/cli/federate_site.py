"""`fedpoint federate request`, `join`, `site`, `approve`: what a site does, on its own machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpoint.core.errors import FedpointError

if TYPE_CHECKING:  # they load JAX
    from fedpoint.data.floor import Floor
    from fedpoint.federation.flare.kits import Kit
    from fedpoint.federation.identity.approvals import By
    from fedpoint.federation.site.engagement import Engagement

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("invitation", type=FILE)
@click.argument("name")
@click.option("--folder", type=FOLDER, help="Folder for the kit; default: NAME.")
def request(invitation: Path, name: str, folder: Path | None) -> None:
    """Make a site's kit, and a certificate request.

    INVITATION is the leader's invitation.json, NAME the party's name. The key never leaves the kit: only the request is
    sent, which holds no secret. The server may make its own kit too: NAME is then `server`.
    """
    from fedpoint.federation.flare.kits import Invitation, make_kit
    from fedpoint.federation.identity.certificates import fingerprint, key_fingerprint
    from fedpoint.store.disk import write_bytes

    asked = Invitation.read(invitation)
    if name == "admin":
        raise FedpointError("the leader has the administrator's kit: choose the name of a site")
    kit = make_kit(folder or Path(name), name, asked)
    path = kit.folder / f"{name}.csr"
    write_bytes(path, kit.request())
    click.echo(f"project {asked.project}, server {asked.server}")
    click.echo(f"authority  {fingerprint(asked.authority)}: does the leader read out the same?")
    click.echo(f"your key   {key_fingerprint(kit.key.public_key())}: read it out to the leader")
    click.echo(f"send       {path}")


@click.command()
@click.argument("kit", type=FOLDER)
@click.argument("certificate", type=FILE)
def join(kit: Path, certificate: Path) -> None:
    """Put the signed certificate into a kit.

    CERTIFICATE is what the leader has signed: the first one, or a renewed one.
    """
    from fedpoint.federation.flare.kits import Kit
    from fedpoint.federation.identity.certificates import read_certificate

    own, made = Kit(kit), read_certificate(certificate)
    own.take(made)
    command = "server" if own.party == "server" else "site"
    click.echo(f"{own.party} is a party of {own.project} until {made.not_valid_after_utc:%Y-%m-%d}")
    click.echo(f"connect: fedpoint federate {command} {kit}")


@click.command()
@click.argument("kit", type=FOLDER, default=".")
@click.option("--lift-stop", is_flag=True, help="Take part again after this site has stopped itself.")
def site(kit: Path, lift_stop: bool) -> None:
    """Connect a site to its project, and stay connected.

    KIT is the site's kit (default: this folder). Studies that the leader signs are fetched and announced; decide about
    them with `fedpoint federate approve`, or let KIT/policy.toml decide. Nothing runs on the data before that. Ctrl-C
    stops it; start it again to rejoin.

    Orders that an approved study does not allow are refused and listed. Three in a row stop the site: it takes part
    again when it is started with --lift-stop.
    """
    from fedpoint.federation.flare.kits import Kit
    from fedpoint.federation.flare.waiting import hand_over
    from fedpoint.federation.site import stop
    from fedpoint.federation.site.engagement import at_work, engagements
    from fedpoint.federation.site.policy import read_policy

    own = Kit(kit, "site")
    warning = own.check_certificate()
    if warning:
        click.echo(f"Warning: {warning}", err=True)
    for part in engagements(own.folder):
        why = stop.why_stopped(part.records) if at_work(own.folder, part.title) else None
        if why is not None and not lift_stop:
            raise FedpointError(
                f"{own.party} has stopped itself in {part.title} ({why}): read {part.records}/refusals.jsonl, talk to "
                f"whoever leads the study, and pass {stop.LIFT} to take part again"
            )
        if why is not None:
            stop.lift_stop(part.records)
    policy = read_policy(own.folder)
    how = "a person decides about studies" if policy is None else "policy.toml decides about studies that it covers"
    click.echo(f"{own.party} of {own.project}, server {own.server}: {how}; Ctrl-C stops it", err=True)
    hand_over(own)


@click.command()
@click.argument("kit", type=FOLDER, default=".")
@click.argument("study", default="")
@click.option("--data", type=FILE, help="This site's own CSV or Parquet file; it never leaves this machine.")
@click.option("--floor-rows", default=20, show_default=True, help="Refuse to send anything computed from fewer rows.")
@click.option("--floor-per-category", default=5, show_default=True, help="Refuse if a category has fewer rows here.")
@click.option("--floor-per-class", default=5, show_default=True, help="Refuse if a class has fewer rows here.")
@click.option("--dry-run", is_flag=True, help="Print what would run and what would leave, then exit.")
@click.option("--yes", is_flag=True, help="Approve without a prompt.")
@click.option("--by-policy", is_flag=True, help="Approve only if KIT/policy.toml allows it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (with --dry-run).")
def approve(
    kit: Path,
    study: str,
    data: Path | None,
    floor_rows: int,
    floor_per_category: int,
    floor_per_class: int,
    dry_run: bool,
    yes: bool,
    by_policy: bool,
    as_json: bool,
) -> None:
    """Approve a study at a site, or decline it.

    KIT is the site's kit (default: this folder), STUDY a name (default: the study that waits). Prints what will run on
    the data and what will leave, what changed since the version that was approved last, and asks. The file and the
    floors are those of that version unless they are given.
    """
    from fedpoint.data.floor import Floor
    from fedpoint.federation.flare.kits import Kit
    from fedpoint.federation.site.engagement import previous, waiting

    own = Kit(kit, "site")
    part = waiting(own.folder, study)
    before = previous(own.folder, part)
    if by_policy:
        return _decide(own, part)
    given = click.get_current_context().get_parameter_source
    floors = {"rows": floor_rows, "per_category": floor_per_category, "per_class": floor_per_class}
    if before is not None:
        last = before.consent()
        data = data or (Path(last.data) if last.data else None)
        floors = {
            name: rows if given(f"floor_{name}") is click.core.ParameterSource.COMMANDLINE else last.floor[name]
            for name, rows in floors.items()
        }
    _show(own, part, before, data, Floor(**floors), as_json and dry_run)
    if dry_run:
        return None
    if not yes and not click.confirm("Take part with these data?", default=False):
        raise FedpointError("not approved: nothing runs here and nothing has left this machine")
    return _approve(own, part, data, Floor(**floors), "person")


def _show(
    kit: Kit, part: Engagement, before: Engagement | None, data: Path | None, floor: Floor, as_json: bool
) -> None:
    """Print what would run and leave, and what changed. Refused where the data cannot take part."""
    from fedpoint.federation.announcement import announce, lines
    from fedpoint.federation.held_out import luck_in
    from fedpoint.federation.identity.difference import differences
    from fedpoint.federation.site.overlap import few_between
    from fedpoint.federation.site.policy import OF, epsilon_of, used_before

    part.verify(kit.authority)
    if part.study.of_files and data is None:
        raise FedpointError(f"{kit.party} needs its data: pass --data FILE")
    found = announce(part.study, data, floor, kit.party, luck_in(part.records))
    found["refused"] += few_between(kit.folder, part, data, floor)
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(lines(found)))
        changed = [] if before is None else differences(before.study.content, part.study.content)
        if before is not None and before.title != part.title:
            click.echo(f"Changed since {before.title}, which was approved:")
            click.echo("\n".join(f"  {line}" for line in changed) or "  nothing")
        elif before is None:
            click.echo("Nothing of this study was approved here before.")
        if (epsilon := epsilon_of(part.study.content)) is not None:
            used = used_before(kit.folder, part).epsilon
            click.echo(f"Privacy at this site: epsilon {used:g} {OF}, {used + epsilon:g} with this one")
    if found["refused"]:
        raise FedpointError("these data cannot be used: nothing was approved and nothing has left this machine")


def _decide(kit: Kit, part: Engagement) -> None:
    """By the policy alone: what it does not cover waits for a person."""
    from fedpoint.federation.announcement import announce
    from fedpoint.federation.held_out import luck_in
    from fedpoint.federation.site.overlap import few_between
    from fedpoint.federation.site.policy import read_policy, used_before

    policy = read_policy(kit.folder)
    if policy is None:
        raise FedpointError(f"{kit.folder} has no policy.toml: a person decides")
    part.verify(kit.authority)
    said = policy.objections(part.study, used_before(kit.folder, part))
    data = kit.folder / policy.data if policy.data and part.study.of_files else None
    if not said:
        said = announce(part.study, data, policy.floor.floor(), kit.party, luck_in(part.records))["refused"]
        said += few_between(kit.folder, part, data, policy.floor.floor())
    if said:
        raise FedpointError(f"{part.title} waits for a person's decision: {'; '.join(said)}")
    _approve(kit, part, data, policy.floor.floor(), "policy")


def _approve(kit: Kit, part: Engagement, data: Path | None, floor: Floor, by: By) -> None:
    from fedpoint.federation.flare.parties import consent

    consent(kit, part, data, floor, by)
    who = "policy.toml" if by == "policy" else "you"
    click.echo(f"{part.title} is approved by {who}; what leaves is noted in {part.records}")
