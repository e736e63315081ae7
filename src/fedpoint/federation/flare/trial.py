"""All parties of a study on this machine: for the demo and for trials. Each makes its own key all the same."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedpoint.federation.flare.kits import Kit, make_kit
from fedpoint.federation.flare.project import Project
from fedpoint.federation.identity.board import Board
from fedpoint.federation.identity.signed import SignedStudy
from fedpoint.federation.site.engagement import Engagement, receive
from fedpoint.federation.study import Study


class Trial(NamedTuple):
    """A project, everybody's kit (server, admin and sites), the signed study, and each site's part in it."""

    project: Project
    kits: dict[str, Kit]
    signed: SignedStudy
    parts: dict[str, Engagement]


def begin(study: Study, folder: str | Path) -> Trial:
    """What `federate init`, `request`, `add`, `join` and `study` do, one after the other, and what a site fetches."""
    project = Project.init(folder, study.name, study.server)
    kits = {party: Kit(project.folder / party) for party in ("server", "admin")}
    authority = project.authority()
    for site in study.sites:
        kits[site] = make_kit(project.folder / site, site, project.invitation)
        kits[site].take(project.certify(project.requested(kits[site].request())[1], site, authority))
    return signed_for(project, kits, study)


def signed_for(project: Project, kits: dict[str, Kit], study: Study) -> Trial:
    """A study of these parties, signed; the server and every site have it."""
    made, _ = project.sign(study)
    board = Board(kits["server"].folder / "board", project.invitation.authority)
    for kind, text in project.documents():
        board.post(kind, text.encode())
    parts = {}
    for site in study.sites:
        receive(kits[site].folder, site, made.data, project.invitation.authority)
        parts[site] = Engagement.read(kits[site].folder / "studies" / made.title)
    return Trial(project, kits, made, parts)
