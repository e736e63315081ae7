"""`fedpoint federate service`: a party that runs without a terminal."""

from __future__ import annotations

from pathlib import Path

import click

FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("kit", type=FOLDER, default=".")
@click.option("--folder", type=FOLDER, default=".", show_default=True, help="Folder to write the files to.")
@click.option("--user", default="fedpoint", show_default=True, help="Account that the systemd unit runs as.")
def service(kit: Path, folder: Path, user: str) -> None:
    """Write a systemd unit and a container file.

    They start the server or the site of KIT (default: this folder). Nothing is installed or started now. A site's unit
    connects it; what runs there is still what a person or KIT/policy.toml has approved. It is not restarted after the
    site has stopped itself.
    """
    from fedpoint.core.errors import FedpointError
    from fedpoint.federation.flare.kits import Kit
    from fedpoint.federation.flare.service import files
    from fedpoint.store.disk import write_bytes

    if not user.replace("-", "").replace("_", "").isalnum():
        raise FedpointError(f"--user {user!r} is not the name of an account")
    made = files(Kit(kit), user)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        write_bytes(folder / name, text.encode())
        click.echo(folder / name)
