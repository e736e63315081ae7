"""Who is who? One authority per project vouches for the key of every party, for a year at a time.

Keys are RSA, and signatures RSA-PSS with SHA-256, because that is what the engine's own handshake uses. Importing this
loads no JAX.
"""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.core.numbers import counted
from fedpoint.store.disk import os_errors, write_bytes, write_secret

Role = Literal["server", "lead", "site"]
LEAD = "lead"  # in the certificate of whoever may sign studies and run them
ORGANISATION = "fedpoint"
YEAR, AUTHORITY_YEARS = 365, 20  # days of a party's certificate; years of the authority's
WARN = 30  # days before a certificate ends
LONGEST = 1 << 16  # bytes of a certificate, a key or a request
KEY, CERTIFICATE = "authority.key", "authority.crt"


class NotTrusted(FedpointError):
    """A certificate or a signature that proves nothing."""


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def new_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def key_bytes(key: rsa.RSAPrivateKey, passphrase: str = "") -> bytes:
    """A private key as PEM, encrypted where a passphrase is given."""
    hidden: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        hidden = serialization.BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


def read_key(path: Path, passphrase: str = "") -> rsa.RSAPrivateKey:
    try:
        with os_errors(f"read {path}"):
            key = serialization.load_pem_private_key(read_file(path, LONGEST), passphrase.encode() or None)
    except TypeError:
        said = "is encrypted: give its passphrase" if not passphrase else "is not encrypted: leave out the passphrase"
        raise FedpointError(f"{path} {said}") from None
    except ValueError:
        why = ", or the passphrase is wrong" if passphrase else ""
        raise FedpointError(f"{path} is not a private key{why}") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise FedpointError(f"{path} is not an RSA key, which the engine needs")
    return key


def is_encrypted(path: Path) -> bool:
    with os_errors(f"read {path}"):
        return b"ENCRYPTED" in read_file(path, LONGEST)


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def from_pem(data: bytes, what: str = "this") -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError:
        raise NotTrusted(f"{what} is not a certificate") from None


def read_certificate(path: Path) -> x509.Certificate:
    with os_errors(f"read {path}"):
        return from_pem(read_file(path, LONGEST), str(path))


def name_of(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def roles_of(certificate: x509.Certificate) -> list[str]:
    return [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)]


def fingerprint(certificate: x509.Certificate) -> str:
    """What two people compare over the telephone: 128 bits of the SHA-256, in groups of four digits."""
    digits = certificate.fingerprint(hashes.SHA256()).hex()[:32]
    return "-".join(digits[at : at + 4] for at in range(0, 32, 4))


def key_fingerprint(public: rsa.RSAPublicKey) -> str:
    """The same of a key that has no certificate yet."""
    raw = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digits = hashlib.sha256(raw).hexdigest()[:32]
    return "-".join(digits[at : at + 4] for at in range(0, 32, 4))


def _subject(name: str, role: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANISATION)]
    return x509.Name([*parts, *([x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role)] if role else [])])


def request(key: rsa.RSAPrivateKey, name: str) -> bytes:
    """A certificate request, as PEM: it holds no secret, and proves that its maker has the key."""
    made = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def read_request(data: bytes) -> tuple[str, rsa.RSAPublicKey]:
    """The name and the key of a request. Whatever else it asks for is not looked at."""
    try:
        asked = x509.load_pem_x509_csr(data)
    except ValueError:
        raise NotTrusted("not a certificate request: a site makes one with `fedpoint federate request`") from None
    if not asked.is_signature_valid:
        raise NotTrusted("the certificate request was not made by whoever has its key")
    public = asked.public_key()
    if not isinstance(public, rsa.RSAPublicKey) or public.key_size < 2048:
        raise NotTrusted("the certificate request needs an RSA key of at least 2048 bits")
    return name_of(asked), public


@dataclass(frozen=True)
class Authority:
    """Whose word counts in a project. Its key stays with the leader."""

    key: rsa.RSAPrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, project: str, when: datetime.datetime | None = None) -> Authority:
        key, begun = new_key(3072), when or now()
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = _builder(key, _subject(project), _subject(project), key.public_key(), begun)
        builder = builder.not_valid_after(begun + datetime.timedelta(days=YEAR * AUTHORITY_YEARS))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True).add_extension(identifier, critical=False)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def read(cls, folder: Path, passphrase: str = "") -> Authority:
        return cls(read_key(folder / KEY, passphrase), read_certificate(folder / CERTIFICATE))

    def write(self, folder: Path, passphrase: str = "") -> None:
        write_secret(folder / KEY, key_bytes(self.key, passphrase))
        write_bytes(folder / CERTIFICATE, pem(self.certificate))

    def certify(
        self,
        public: rsa.RSAPublicKey,
        name: str,
        role: Role,
        host: str = "",
        days: float = YEAR,
        when: datetime.datetime | None = None,
    ) -> x509.Certificate:
        """A certificate for a party: name and role are what the authority says, not what was asked for."""
        begun = when or now()
        until = min(begun + datetime.timedelta(days=days), self.certificate.not_valid_after_utc)
        subject = _subject(name, LEAD if role == "lead" else "")
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if role == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = _builder(self.key, self.certificate.subject, subject, public, begun).not_valid_after(until)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(host or name)]), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def _alternative(host: str) -> x509.GeneralName:
    import ipaddress

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    signer: rsa.RSAPrivateKey, issuer: x509.Name, subject: x509.Name, key: rsa.RSAPublicKey, begun: datetime.datetime
) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    made = made.not_valid_before(begun - datetime.timedelta(minutes=5))  # clocks differ
    return made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)


def check(certificate: x509.Certificate, authority: x509.Certificate, when: datetime.datetime | None = None) -> None:
    """Refuse a certificate that is not the authority's, or not valid now."""
    try:  # before anything in it is read
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise NotTrusted(f"the certificate is not of this project's authority ({fingerprint(authority)})") from None
    who, at = name_of(certificate), when or now()
    for one, whose in ((authority, "the authority"), (certificate, who)):
        if at > one.not_valid_after_utc:
            raise NotTrusted(
                f"the certificate of {whose} ended on {one.not_valid_after_utc:%Y-%m-%d}: it must be renewed"
            )
        if at < one.not_valid_before_utc:
            raise NotTrusted(
                f"the certificate of {whose} begins on {one.not_valid_before_utc:%Y-%m-%d %H:%M}: is this clock right?"
            )


def ending(certificate: x509.Certificate, when: datetime.datetime | None = None) -> str:
    """A warning within 30 days of the end of a certificate; empty before."""
    left = certificate.not_valid_after_utc - (when or now())
    if left > datetime.timedelta(days=WARN):
        return ""
    who, end = name_of(certificate), f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    if left <= datetime.timedelta(0):
        return f"the certificate of {who} ended on {end}: the leader renews it with `fedpoint federate renew`"
    days = counted(left.days, "day")
    return f"the certificate of {who} ends on {end}, in {days}: the leader renews it with `fedpoint federate renew`"


PSS = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)


def signature(key: rsa.RSAPrivateKey, data: bytes) -> bytes:
    return key.sign(data, PSS, hashes.SHA256())


def check_signature(certificate: x509.Certificate, data: bytes, signed: bytes) -> None:
    public = certificate.public_key()
    try:
        if not isinstance(public, rsa.RSAPublicKey):
            raise InvalidSignature
        public.verify(signed, data, PSS, hashes.SHA256())
    except InvalidSignature:
        raise NotTrusted(f"the signature is not {name_of(certificate)}'s, or what it signs was changed") from None
