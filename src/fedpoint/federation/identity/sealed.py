"""Who said this? A document with the certificate of whoever signed it, as canonical bytes that any party can verify.

    {..., "signer": a certificate of the project's authority, "protocol": 4, "fedpoint": ..., "signature": of the rest}

Studies, approvals and lists of revoked certificates are such documents, each signed for its own purpose.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Mapping
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from fedpoint.federation.identity import certificates
from fedpoint.federation.identity.certificates import NotTrusted
from fedpoint.federation.protocol import OWN
from fedpoint.store.disk import canonical, read_object

ALSO = {"signer", "protocol", "fedpoint", "signature"}  # in every document


class Purpose(NamedTuple):
    """What a document is for: a signature for one purpose is none for another."""

    what: str  # "signed study"
    how: str  # how a person makes one
    mark: bytes  # in front of what is signed
    fields: frozenset[str]


class Opened(NamedTuple):
    """A document whose signature was verified."""

    said: Mapping[str, object]
    signer: x509.Certificate


def seal(purpose: Purpose, said: Mapping[str, object], key: rsa.RSAPrivateKey, certificate: x509.Certificate) -> bytes:
    body = {**said, "signer": certificates.pem(certificate).decode(), **OWN.plain()}
    proof = certificates.signature(key, purpose.mark + canonical(body))
    return canonical({**body, "signature": base64.b64encode(proof).decode()})


def unseal(purpose: Purpose, data: bytes, authority: x509.Certificate, when: datetime.datetime | None = None) -> Opened:
    """What these bytes say, if a party of the project signed exactly them."""
    try:
        said = read_object(data)
    except ValueError:
        raise NotTrusted(f"not a {purpose.what}: {purpose.how}") from None
    if set(said) != purpose.fields | ALSO or canonical(said) != data:
        raise NotTrusted(f"not a {purpose.what}, or changed after it was signed")
    signer = said["signer"]
    if not isinstance(signer, str):
        raise NotTrusted(f"not a {purpose.what}: its fields are of other types")
    certificate = certificates.from_pem(signer.encode(), "the signer's certificate")
    certificates.check(certificate, authority, when)
    body = {name: value for name, value in said.items() if name != "signature"}
    certificates.check_signature(certificate, purpose.mark + canonical(body), _decoded(said["signature"]))
    return Opened(said, certificate)


def once_valid(data: bytes) -> datetime.datetime:
    """A moment at which the signer's certificate was valid: to read again what was verified when it came."""
    signer = read_object(data).get("signer")
    return certificates.from_pem(str(signer).encode(), "the signer's certificate").not_valid_before_utc


def check_leader(opened: Opened, purpose: Purpose) -> None:
    if certificates.LEAD not in certificates.roles_of(opened.signer):
        who = certificates.name_of(opened.signer)
        raise NotTrusted(f"{who!r} signed this {purpose.what.removeprefix('signed ')}, and does not lead the project")


def _decoded(text: object) -> bytes:
    """The bytes of a signature, which are written in one way only."""
    try:
        found = base64.b64decode(str(text), validate=True)
    except binascii.Error:
        found = b""
    if base64.b64encode(found).decode() != text:
        raise NotTrusted("the signature is not one")
    return found
