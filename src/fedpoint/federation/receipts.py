"""Who signed and who approved a study? What the leader's result folder holds of it, held against the authority."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedpoint.core.files import read_file
from fedpoint.federation.identity import approvals, certificates, sealed, signed
from fedpoint.federation.identity.certificates import NotTrusted


class Receipts(NamedTuple):
    """In words: of the study, and of each site that approved it."""

    study: str
    authority: str  # its fingerprint
    sites: dict[str, str]


def receipts(folder: Path, fingerprint: str) -> Receipts | None:
    """None where the study was a rehearsal: nobody signed anything."""
    if not (folder / "signed.json").exists():
        return None
    authority = certificates.read_certificate(folder / "authority.crt")
    data = read_file(folder / "signed.json")
    made = signed.verify(data, authority, sealed.once_valid(data))
    if made.fingerprint != fingerprint:
        raise NotTrusted(f"{folder / 'signed.json'} is of another study than study.toml")
    sites = {}
    for path in sorted((folder / "approvals").glob("*.json")):
        data = read_file(path)
        one = approvals.read(data, authority, sealed.once_valid(data))
        if (one.study, one.fingerprint, one.site) != (made.title, fingerprint, path.stem):
            raise NotTrusted(f"{path} is not an approval of {made.title} by {path.stem}")
        sites[one.site] = f"{one.time[:16].replace('T', ' ')} by {'its policy' if one.by == 'policy' else 'a person'}"
    who = certificates.name_of(made.signer)
    return Receipts(
        f"version {made.number}, signed {made.time[:16].replace('T', ' ')} by {who}",
        certificates.fingerprint(authority),
        sites,
    )
