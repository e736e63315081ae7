"""Which studies does a site know, and which has it approved? A folder for each version, in the site's kit.

studies/NAME.N/signed.json     what the leader signed, as it came
               part.json       whose folder it is, and of which study
               study.toml      the study, to read
               consent.json    once it is approved: with which file, and of how few rows may be spoken
               approval.json   the same, signed by this site for the leader
               records/        what was asked and what left

Importing this loads no JAX; `Engagement.study` does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.federation.identity import signed
from fedpoint.federation.identity.board import check_newer
from fedpoint.federation.identity.signed import SignedStudy, name_and_number
from fedpoint.federation.protocol import OWN
from fedpoint.store.disk import read_object, to_toml, write_bytes

if TYPE_CHECKING:
    from fedpoint.federation.study import Study

STUDIES, PART, SIGNED = "studies", "part.json", "signed.json"
CONSENT, APPROVAL = "consent.json", "approval.json"


class Consented(NamedTuple):
    """The file, the floor, and who approved: a person or the policy."""

    data: str | None
    floor: dict[str, int]
    by: str


@dataclass(frozen=True)
class Engagement:
    """A site's folder of one version of a study."""

    folder: Path
    party: str
    name: str
    number: int
    fingerprint: str

    @classmethod
    def read(cls, folder: Path) -> Engagement:
        try:
            about = read_object(read_file(folder / PART))
            party, name, fingerprint = (about[key] for key in ("party", "study", "fingerprint"))
            number = about.get("number", 1)
        except (OSError, ValueError, KeyError):
            raise FedpointError(f"{folder} is not the folder of a study in a site's kit") from None
        words = all(isinstance(one, str) and one.isprintable() for one in (party, name, fingerprint))
        if not words or type(number) is not int:
            raise FedpointError(f"{folder / PART} is not what was written")
        return cls(folder.absolute(), str(party), str(name), number, str(fingerprint))

    @property
    def title(self) -> str:
        return f"{self.name}.{self.number}"

    @property
    def records(self) -> Path:
        return self.folder / "records"

    @property
    def approved(self) -> bool:
        return (self.folder / CONSENT).exists()

    def consent(self) -> Consented:
        """With what the study was approved."""
        said = read_object(read_file(self.folder / CONSENT))
        data, floor = said.get("data"), said.get("floor")
        rows = {name: int(str(count)) for name, count in floor.items()} if isinstance(floor, dict) else {}
        return Consented(data if isinstance(data, str) else None, rows, str(said.get("by", "person")))

    def verify(self, authority: x509.Certificate) -> SignedStudy:
        """What the leader signed, held once more against the authority and against what is read here."""
        made = signed.verify(read_file(self.folder / SIGNED), authority)
        if made.fingerprint != self.study.fingerprint:
            raise FedpointError(f"{self.folder}: the study was changed since it was signed")
        return made

    @cached_property
    def study(self) -> Study:
        from fedpoint.federation.study import read

        found = read(self.folder / "study.toml")
        if found.fingerprint != self.fingerprint:
            raise FedpointError(f"{self.folder}: the study was changed since it was signed")
        return found


def open_folder(folder: Path, party: str, made: SignedStudy) -> Engagement:
    """The folder of a signed study at a site."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"party": party, "study": made.name, "number": made.number, "fingerprint": made.fingerprint, **OWN.plain()}
    write_bytes(folder / "study.toml", to_toml(made.content))
    write_bytes(folder / PART, json.dumps(about, indent=2).encode())
    write_bytes(folder / SIGNED, made.data)  # last: a folder without it is begun again
    return Engagement.read(folder)


def receive(kit: Path, party: str, data: bytes, authority: x509.Certificate) -> Engagement | None:
    """Keep a study that came from the server, if the leader signed it and it is no older than what is known; None where
    it is known already, or not for this site."""
    made = signed.verify(data, authority)
    if party not in made.sites:
        return None
    folder = kit / STUDIES / made.title
    known = folder / SIGNED
    newest = max((one.number for one in engagements(kit) if one.name == made.name), default=0)
    check_newer(made, newest, read_file(known) if known.exists() else None)
    return None if known.exists() else open_folder(folder, party, made)


def engagements(kit: Path) -> list[Engagement]:
    """All versions of all studies, the oldest of each first."""
    folders = [path.parent for path in (kit / STUDIES).glob(f"*/{SIGNED}") if name_and_number(path.parent.name)[1]]
    return [Engagement.read(folder) for folder in sorted(folders, key=lambda folder: name_and_number(folder.name))]


def versions(kit: Path, name: str) -> list[Engagement]:
    return [one for one in engagements(kit) if one.name == name]


def newest_ones(kit: Path) -> list[Engagement]:
    """The newest version of each study."""
    return [*{one.name: one for one in engagements(kit)}.values()]


def at_work(kit: Path, title: str) -> Engagement | None:
    """The study that orders may be of: it was approved, and no later version of it was."""
    approved = [one for one in versions(kit, name_and_number(title)[0]) if one.approved]
    return approved[-1] if approved and approved[-1].title == title else None


def previous(kit: Path, part: Engagement) -> Engagement | None:
    """The version that was approved last, if any was; this one, if it was approved already."""
    approved = [one for one in versions(kit, part.name) if one.approved and one.number <= part.number]
    return approved[-1] if approved else None


def waiting(kit: Path, study: str) -> Engagement:
    """The newest version of the study that a person names; without a name the one that waits for a decision."""
    newest = newest_ones(kit)
    if study:
        name = name_and_number(study)[0] or study
        found = [one for one in newest if one.name == name]
        if found and study not in (found[0].name, found[0].title):
            raise FedpointError(f"version {found[0].number} of {name} is the newest here: decide about that")
    else:
        found = [one for one in newest if not one.approved]
        if len(found) > 1:
            raise FedpointError(f"several studies wait: name one of {', '.join(one.name for one in found)}")
    if not found:
        what = f"there is no study {study!r} here" if study else "no study waits"
        raise FedpointError(f"{what}: the site fetches studies while it is connected (fedpoint federate site {kit})")
    return found[0]


def find(place: Path, study: str | None = None, fingerprint: str = "") -> Engagement:
    """The study that a person means: its own folder, or a kit and the study's name or title; of a kit alone the only
    one, in the version that was approved last. fingerprint: of a result, which is of one version."""
    if (place / PART).exists():
        return Engagement.read(place)
    known = engagements(place)
    same = [one for one in known if one.fingerprint == fingerprint]
    if same:
        known = same
    elif study is not None:
        known = [one for one in known if study in (one.name, one.title)]
    elif len({one.name for one in known}) > 1:
        names = ", ".join(sorted({one.name for one in known}))
        raise FedpointError(f"{place} has several studies: pass --study with one of {names}")
    if not known:
        which = "a study" if study is None else study
        raise FedpointError(f"{place} does not know {which}: give a site's kit that has fetched it, or its folder")
    approved = [one for one in known if one.approved]
    return (approved or known)[-1]
