"""`fedpoint federate page`: a study while it runs, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fedpoint.ui.study_views import Source

FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("kit", type=FOLDER, default=".")
@click.option("--study", help="Name of the study, or name and number; needed if there are several.")
@click.option("--folder", type=FOLDER, help="The leader's result folder; default: runs/NAME.N.")
@click.option(
    "--port", default=8643, show_default=True, type=click.IntRange(0, 65535), help="Port to bind; 0 takes any free one."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to bind; anything but loopback requires an access token.",
)
def page(kit: Path, study: str | None, folder: Path | None, port: int, host: str) -> None:
    """Serve a live page about a study.

    KIT is the project's folder or a site's kit (default: this folder). With the project's folder: who has approved and
    is connected, the last rounds, refusals, alarms and measurements. With a site's kit: how far the study is, what left
    this site and what it refused, from its own record, and the model where it got one. The page changes nothing. It is
    for this machine alone unless --host says otherwise; its address then carries a random token. Ctrl-C stops it. Needs
    the extra `ui`.
    """
    from fedpoint.core.errors import FedpointError

    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise FedpointError("fedpoint federate page needs starlette and uvicorn: pip install 'fedpoint[ui]'") from None
    from fedpoint.ui.study_page import serve

    serve(source_of(kit, study, folder), host, port, tell=lambda text: click.echo(text, err=True))


def source_of(kit: Path, study: str | None, folder: Path | None) -> Source:
    """What the page of a project or of a site's kit shows."""
    from fedpoint.federation.flare.kits import INVITATION
    from fedpoint.federation.site.engagement import find
    from fedpoint.ui.study_views import LeaderSource, SiteSource

    if not (kit / INVITATION).exists():
        return SiteSource(find(kit, study))
    from fedpoint.federation.flare.lead import Lead
    from fedpoint.federation.flare.project import Project

    project = Project(kit)
    made = project.study(study or project.only_study())
    return LeaderSource(Lead(project.admin, made, wait=2.0), folder or Path("runs") / made.title)
