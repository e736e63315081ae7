"""What did the leader sign? A study and its number, which any party can verify by itself.

Numbers count the versions of a study, from 1. A site that has seen number 2 of a study takes no other number 2, and
never number 1 again. Importing this loads no JAX; `study` does.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from fedpoint.core.errors import FedpointError
from fedpoint.federation.identity import certificates, sealed
from fedpoint.federation.identity.certificates import NotTrusted
from fedpoint.federation.protocol import OWN, Release
from fedpoint.store.disk import canonical

if TYPE_CHECKING:  # they load JAX
    from fedpoint.core.types import Plain
    from fedpoint.federation.study import Study

PURPOSE = sealed.Purpose(
    "signed study",
    "the leader makes one with `fedpoint federate study`",
    b"fedpoint study\n",
    frozenset({"study", "number", "time"}),
)
NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
TITLE = re.compile(r"([a-z][a-z0-9-]{0,62})\.([1-9][0-9]{0,8})")
MOST = 10**9 - 1  # numbers of a study


@dataclass(frozen=True)
class SignedStudy:
    """A study whose signature was verified, or that was signed here."""

    content: dict[str, Plain]
    number: int
    time: str
    signer: x509.Certificate
    release: Release
    data: bytes  # what travels

    @property
    def name(self) -> str:
        return str(self.content["name"])

    @property
    def title(self) -> str:
        """The name and number, as in the names of files."""
        return f"{self.name}.{self.number}"

    @property
    def sites(self) -> list[str]:
        sites = self.content.get("sites")
        return [str(site) for site in sites] if isinstance(sites, list) else []

    @property
    def fingerprint(self) -> str:
        """The study's: of all that a site consents to."""
        return hashlib.sha256(canonical(self.content)).hexdigest()

    def study(self) -> Study:
        """The study, read as any file of one; what its signer wrote is what it is, to the byte."""
        from fedpoint.federation.study import parse

        made = parse(self.content, f"signed study {self.title}")
        if made.fingerprint != self.fingerprint:
            raise FedpointError(f"the signed study {self.title} is not complete: sign it with this release of fedpoint")
        return made


def name_and_number(title: str) -> tuple[str, int]:
    """Of the title of a study; a number of 0 where it is none.

    >>> name_and_number("dialysis.2"), name_and_number("../x")
    (('dialysis', 2), ('', 0))
    """
    found = TITLE.fullmatch(title)
    return (found[1], int(found[2])) if found else ("", 0)


def sign(
    study: Study,
    number: int,
    key: rsa.RSAPrivateKey,
    certificate: x509.Certificate,
    when: datetime.datetime | None = None,
) -> SignedStudy:
    """A study, signed by whoever leads it."""
    time = (when or certificates.now()).isoformat(timespec="seconds")
    data = sealed.seal(PURPOSE, {"study": study.content, "number": number, "time": time}, key, certificate)
    return SignedStudy(study.content, number, time, certificate, OWN, data)


def verify(data: bytes, authority: x509.Certificate, when: datetime.datetime | None = None) -> SignedStudy:
    """The study of these bytes, if a leader of the project signed exactly them."""
    opened = sealed.unseal(PURPOSE, data, authority, when)
    content, number, time = (opened.said[name] for name in ("study", "number", "time"))
    if not isinstance(content, dict) or type(number) is not int or not isinstance(time, str):
        raise NotTrusted("not a signed study: its fields are of other types")
    if not 0 < number <= MOST:
        raise NotTrusted(f"not a signed study: its number is {number}")
    if not NAME.fullmatch(str(content.get("name"))):
        raise NotTrusted("not a signed study: it has no name")
    sealed.check_leader(opened, PURPOSE)
    return SignedStudy(content, number, time, opened.signer, Release.named_in(opened.said), data)
