"""What does the server pass on? Documents that prove themselves: studies, certificates, revocations, approvals.

studies/NAME.N.json              the studies that were signed
approvals/NAME.N/SITE.json       what sites have approved
certificates/PARTY.crt           the newest certificate of each party
revoked.json                     the certificates that count no more

Anybody who is connected may post. What is not signed as it must be, or is older than what is there, is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from cryptography import x509

from fedpoint.core.files import read_file
from fedpoint.federation.identity import approvals, certificates, revocations, sealed, signed
from fedpoint.federation.identity.approvals import Approval
from fedpoint.federation.identity.certificates import NotTrusted
from fedpoint.federation.identity.revocations import Revocations
from fedpoint.federation.identity.signed import SignedStudy, name_and_number
from fedpoint.store.disk import write_bytes

LONGEST = 1 << 22  # bytes of a document
REVOKED = "revoked.json"


class News(TypedDict):
    """What a site does not know yet."""

    studies: list[str]
    certificate: str  # its own, renewed; "" where there is none
    revoked: str


class Board:
    """The documents in a folder. `authority` is the certificate of the project's."""

    def __init__(self, folder: Path, authority: x509.Certificate):
        self.folder, self.authority = folder, authority
        self._revoked: tuple[int, Revocations] = 0, Revocations()

    @property
    def revoked(self) -> Revocations:
        """The list, read again when it has changed."""
        path = self.folder / REVOKED
        mark = path.stat().st_mtime_ns if path.exists() else 0
        if mark and mark != self._revoked[0]:
            data = read_file(path, LONGEST)
            self._revoked = mark, revocations.read(data, self.authority, sealed.once_valid(data))
        return self._revoked[1]

    def post(self, kind: str, data: bytes) -> None:
        """Keep a document, or refuse it with the reason."""
        if len(data) > LONGEST:
            raise NotTrusted(f"a document of {len(data)} bytes: at most {LONGEST} are taken")
        match kind:
            case "study":
                self._post_study(signed.verify(data, self.authority))
            case "certificate":
                self._post_certificate(certificates.from_pem(data))
            case "revocations":
                self._post_revocations(revocations.read(data, self.authority))
            case "approval":
                self._post_approval(approvals.read(data, self.authority))
            case _:
                raise NotTrusted(f"no kind of document: {kind!r}")

    def _post_study(self, made: SignedStudy) -> None:
        self.revoked.check(made.signer)
        before = self.newest(made.name)
        path = self.folder / "studies" / f"{made.title}.json"
        check_newer(made, before, path.read_bytes() if path.exists() else None)
        write_bytes(_ready(path), made.data)

    def _post_certificate(self, made: x509.Certificate) -> None:
        certificates.check(made, self.authority)
        self.revoked.check(made)
        name = certificates.name_of(made)
        if not signed.NAME.fullmatch(name):
            raise NotTrusted(f"{name!r} is not a site")
        before = self.certificate(name)
        if before is not None and before.not_valid_after_utc >= made.not_valid_after_utc:
            if before == made:
                return
            if not self.revoked.holds(before):
                raise NotTrusted(f"{name} has a certificate that ends later")
        write_bytes(_ready(self.folder / "certificates" / f"{name}.crt"), certificates.pem(made))

    def _post_revocations(self, made: Revocations) -> None:
        if made.number < self.revoked.number:
            raise NotTrusted("a later list of revoked certificates is here already")
        if made.number == self.revoked.number and made.data != self.revoked.data:
            raise NotTrusted(f"another list {made.number} of revoked certificates is here already")
        write_bytes(_ready(self.folder / REVOKED), made.data)

    def _post_approval(self, made: Approval) -> None:
        self.revoked.check(made.signer)
        study = self.study(made.study)
        if study is None or study.fingerprint != made.fingerprint:
            raise NotTrusted(f"an approval of {made.study}, which is not here")
        if made.site not in study.sites:
            raise NotTrusted(f"{made.site} is not a site of {made.study}")
        write_bytes(_ready(self.folder / "approvals" / made.study / f"{made.site}.json"), made.data)

    # What is there.

    def titles(self) -> list[str]:
        found = [path.stem for path in (self.folder / "studies").glob("*.json")]
        return sorted((title for title in found if name_and_number(title)[1]), key=name_and_number)

    def newest(self, name: str) -> int:
        """The number of the newest version of a study; 0: there is none."""
        return max((number for one, number in map(name_and_number, self.titles()) if one == name), default=0)

    def study(self, title: str) -> SignedStudy | None:
        path = self.folder / "studies" / f"{title}.json"
        if not name_and_number(title)[1] or not path.exists():
            return None
        data = read_file(path, LONGEST)
        return signed.verify(data, self.authority, sealed.once_valid(data))

    def certificate(self, name: str) -> x509.Certificate | None:
        path = self.folder / "certificates" / f"{name}.crt"
        return certificates.read_certificate(path) if path.exists() else None

    def is_out(self, site: str) -> bool:
        """Whether a site's certificate was revoked, and it has no other."""
        names = self.revoked.names
        if site not in names.values():
            return False
        found = self.certificate(site)
        return found is None or self.revoked.holds(found)

    def approvals(self, title: str) -> dict[str, str]:
        """The receipts of a study, by site."""
        found = (self.folder / "approvals" / title).glob("*.json") if name_and_number(title)[1] else ()
        return {path.stem: read_file(path, LONGEST).decode() for path in sorted(found)}

    def news(self, site: str, have: set[str]) -> News:
        """The newest version of each study that names a site, if that is not among what it has; and the rest."""
        own = self.certificate(site) if signed.NAME.fullmatch(site) else None
        return News(
            studies=[one.data.decode() for one in self._newest_ones() if site in one.sites and one.title not in have],
            certificate="" if own is None else certificates.pem(own).decode(),
            revoked=self.revoked.data.decode(),
        )

    def _newest_ones(self) -> Iterator[SignedStudy]:
        newest = dict(map(name_and_number, self.titles()))
        for name, number in newest.items():
            with contextlib.suppress(NotTrusted):  # its signer's certificate has ended meanwhile, or was revoked
                found = signed.verify(read_file(self.folder / "studies" / f"{name}.{number}.json"), self.authority)
                self.revoked.check(found.signer)
                yield found


def check_newer(made: SignedStudy, newest: int, same: bytes | None) -> None:
    """Refuse an old version, and another one under the number of one that is known. same: what is known by the number
    of this one."""
    if same is not None and same != made.data:
        raise NotTrusted(f"another version {made.number} of {made.name} is here already: a number is used once")
    if same is None and made.number < newest:
        raise NotTrusted(f"version {made.number} of {made.name} is older than version {newest}, which is here already")


def _ready(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
