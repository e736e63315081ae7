"""Which site has approved which study? A receipt that the site signs with its own key."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from fedpoint.federation.identity import certificates, sealed
from fedpoint.federation.identity.certificates import NotTrusted
from fedpoint.federation.identity.signed import name_and_number

By = Literal["person", "policy"]
PURPOSE = sealed.Purpose(
    "signed approval",
    "a site makes one with `fedpoint federate approve`",
    b"fedpoint approval\n",
    frozenset({"site", "study", "fingerprint", "by", "time"}),
)


@dataclass(frozen=True)
class Approval:
    """What a site has said: `study` is a title (name and number), `by` a person or the site's policy."""

    site: str
    study: str
    fingerprint: str
    by: str
    time: str
    signer: x509.Certificate
    data: bytes


def approve(
    site: str,
    study: str,
    fingerprint: str,
    by: By,
    key: rsa.RSAPrivateKey,
    certificate: x509.Certificate,
    when: datetime.datetime | None = None,
) -> Approval:
    time = (when or certificates.now()).isoformat(timespec="seconds")
    said = {"site": site, "study": study, "fingerprint": fingerprint, "by": by, "time": time}
    data = sealed.seal(PURPOSE, said, key, certificate)
    return Approval(site, study, fingerprint, by, time, certificate, data)


def read(data: bytes, authority: x509.Certificate, when: datetime.datetime | None = None) -> Approval:
    """The approval of these bytes, if the site that it is of signed exactly them."""
    opened = sealed.unseal(PURPOSE, data, authority, when)
    site, study, fingerprint, by, time = (
        str(opened.said[name]) for name in ("site", "study", "fingerprint", "by", "time")
    )
    signer = certificates.name_of(opened.signer)
    if site != signer:
        raise NotTrusted(f"{signer!r} signed an approval of {site!r}")
    if not name_and_number(study)[1] or by not in ("person", "policy"):
        raise NotTrusted("not a signed approval: its fields are of other types")
    return Approval(site, study, fingerprint, by, time, opened.signer, data)
