"""What does whoever leads a project keep? An authority, who has which certificate, and the studies that were signed.

authority.key, authority.crt    the authority's; its key stays here
invitation.json                 for every party, not secret
admin/, server/                 the leader's own kit, and the server's
certificates/PARTY.crt          the newest certificate of each party
revoked.json                    the certificates that count no more
studies/NAME.N.json             the studies that were signed
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.core.types import Plain
from fedpoint.federation.flare.kits import ADMIN, INVITATION, Invitation, Kit, checked_names, kind_of, make_kit
from fedpoint.federation.flare.processes import needs_flare
from fedpoint.federation.identity import certificates, revocations, signed
from fedpoint.federation.identity.board import LONGEST, REVOKED, Board
from fedpoint.federation.identity.certificates import YEAR, Authority, NotTrusted, Role
from fedpoint.federation.identity.revocations import Revocations
from fedpoint.federation.identity.signed import NAME, SignedStudy
from fedpoint.federation.study import Study
from fedpoint.store.disk import os_errors, write_bytes

ROLES: Mapping[str, Role] = {"server": "server", "admin": "lead", "site": "site"}


class Project:
    """The leader's folder."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).absolute()
        if not (self.folder / INVITATION).exists():
            raise FedpointError(f"{folder} is not a project: begin one with `fedpoint federate init`")
        self.invitation = Invitation.read(self.folder / INVITATION)
        self.board = Board(self.folder, self.invitation.authority)  # the server has the same documents

    @classmethod
    def init(cls, folder: str | Path, name: str, server: str, passphrase: str = "") -> Project:
        """A new project: its authority, the leader's kit and the server's."""
        needs_flare()
        folder = Path(folder).absolute()
        checked_names(name, server)
        if folder.exists() and any(folder.iterdir()):
            raise FedpointError(f"{folder} is not empty: choose another folder for the project")
        with os_errors(f"write {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        authority = Authority.new(name)
        authority.write(folder, passphrase)
        Invitation(name, server, authority.certificate).write(folder / INVITATION)
        made = cls(folder)
        for party in ("server", "admin"):
            kit = make_kit(folder / party, party, made.invitation)
            kit.take(made.certify(kit.key.public_key(), party, authority))
        return made

    @property
    def encrypted(self) -> bool:
        return certificates.is_encrypted(self.folder / certificates.KEY)

    def authority(self, passphrase: str = "") -> Authority:
        return Authority.read(self.folder, passphrase)

    @property
    def admin(self) -> Kit:
        return Kit(self.folder / "admin", "admin")

    # Parties.

    def parties(self) -> list[str]:
        return sorted(path.stem for path in (self.folder / "certificates").glob("*.crt"))

    def certificate(self, party: str) -> x509.Certificate | None:
        return self.board.certificate(party)

    def certify(
        self, public: rsa.RSAPublicKey, party: str, authority: Authority, days: float = YEAR
    ) -> x509.Certificate:
        """A certificate for the key of a party; it is noted here."""
        name = {"server": self.invitation.host, "admin": ADMIN}.get(party, party)
        made = authority.certify(public, name, ROLES[kind_of(party)], days=days)
        (self.folder / "certificates").mkdir(exist_ok=True)
        write_bytes(self.folder / "certificates" / f"{party}.crt", certificates.pem(made))
        return made

    def requested(self, request: bytes) -> tuple[str, rsa.RSAPublicKey]:
        """Who asks for a certificate, if it may have one."""
        party, public = certificates.read_request(request)
        if party == "admin" or not (NAME.fullmatch(party) or party == "server"):
            raise NotTrusted(f"a request in the name of {party!r}, which is not the name of a site")
        before = self.certificate(party)
        if before is not None and before.public_key() != public and not self.board.revoked.holds(before):
            raise NotTrusted(
                f"{party} has a certificate for another key. If this request is really {party}'s (it lost its key, "
                f"say), revoke that certificate first: fedpoint federate revoke {party}"
            )
        return party, public

    def renewed(self, party: str, authority: Authority, days: float = YEAR) -> x509.Certificate:
        """A new certificate for the same key."""
        before = self.certificate(party)
        if before is None:
            raise FedpointError(f"there is no party {party!r}: {', '.join(self.parties())}")
        self.board.revoked.check(before)
        public = before.public_key()
        assert isinstance(public, rsa.RSAPublicKey)  # it was made here
        made = self.certify(public, party, authority, days)
        own = self.folder / party / "kit.json"
        if own.exists() and party in ("server", "admin"):
            kit = Kit(self.folder / party)
            if kit.key.public_key() == public:  # the server may have made its own, on its machine
                kit.take(made)
        return made

    def revoke(self, party: str) -> Revocations:
        """The list with a party's certificate on it."""
        before = self.certificate(party)
        if before is None or party == "admin":
            parties = ", ".join(one for one in self.parties() if one != "admin")
            raise FedpointError(f"there is no party {party!r} to revoke: {parties}")
        if self.board.revoked.holds(before):
            raise FedpointError(f"the certificate of {party} was revoked before")
        own = self.admin
        made = self.board.revoked.and_also({revocations.serial(before): party}, own.key, own.certificate)
        write_bytes(self.folder / REVOKED, made.data)
        return made

    def warnings(self, when: datetime.datetime | None = None) -> list[str]:
        """The certificates that end soon, or have."""
        found = {party: self.certificate(party) for party in self.parties()}
        said = [
            certificates.ending(one, when).replace(certificates.name_of(one), party, 1)
            for party, one in found.items()
            if one is not None and not self.board.revoked.holds(one)
        ]
        return [text for text in said if text]

    # Studies.

    def complete(self, content: Mapping[str, Plain]) -> dict[str, Plain]:
        """The content of a study file: the server need not be said, and cannot be another."""
        server = content.get("server", self.invitation.server)
        if server != self.invitation.server:
            raise FedpointError(
                f"the study's server is {server!r}, and this project's is {self.invitation.server!r}: leave server out"
            )
        return {**content, "server": server}

    def sign(self, study: Study) -> tuple[SignedStudy, bool]:
        """The signed study, and whether it is new: what was signed last is not signed again."""
        unknown = [site for site in study.sites if self.certificate(site) is None]
        if unknown:
            raise FedpointError(
                f"{', '.join(unknown)}: no certificate yet; each site makes a request with `fedpoint federate "
                "request`, and `fedpoint federate add` signs it"
            )
        for site in study.sites:
            found = self.certificate(site)
            assert found is not None
            self.board.revoked.check(found)
        number, own = self.board.newest(study.name), self.admin
        last = self.board.study(f"{study.name}.{number}")
        if last is not None and last.fingerprint == study.fingerprint and self._still_good(last):
            return last, False
        made = signed.sign(study, number + 1, own.key, own.certificate)
        self.board.post("study", made.data)
        return made, True

    def _still_good(self, made: SignedStudy) -> bool:
        """Whether sites will still take it: a study that was signed with a certificate that has ended they will not."""
        try:
            signed.verify(made.data, self.invitation.authority)
        except NotTrusted:
            return False
        return True

    def study(self, name: str) -> SignedStudy:
        """The newest version of a study, or the version that a title names."""
        found = self.board.study(name) or self.board.study(f"{name}.{self.board.newest(name)}")
        if found is None:
            names = sorted({one for one, _ in map(signed.name_and_number, self.board.titles())})
            known = f"signed so far: {', '.join(names)}" if names else "nothing was signed yet"
            raise FedpointError(f"there is no signed study {name!r} ({known}): sign one with `fedpoint federate study`")
        return found

    def only_study(self) -> str:
        """The name of the project's study, if it has one alone."""
        names = sorted(dict(map(signed.name_and_number, self.board.titles())))
        if len(names) > 1:
            raise FedpointError(f"{self.folder} has several studies: name one of {', '.join(names)}")
        return names[0] if names else ""

    def documents(self) -> Iterator[tuple[str, str]]:
        """All that the server should have: kind and text. The list of revoked certificates is first."""
        if self.board.revoked.number:
            yield "revocations", self.board.revoked.data.decode()
        for party in self.parties():
            found = self.certificate(party)
            if kind_of(party) == "site" and found is not None and not self.board.revoked.holds(found):
                yield "certificate", certificates.pem(found).decode()
        newest = dict(map(signed.name_and_number, self.board.titles()))
        for title in (f"{name}.{number}" for name, number in newest.items()):
            yield "study", read_file(self.folder / "studies" / f"{title}.json", LONGEST).decode()
