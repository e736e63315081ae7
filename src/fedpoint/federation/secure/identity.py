"""Whose keys are these? A site signs them with the key of its certificate, and others hold that against the authority.

Without it a hub could stand between any two sites with keys of its own, and take all masks off.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedpoint.core.errors import FedpointError
from fedpoint.federation.secure.primitives import needs_cryptography

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
    from cryptography.x509 import Certificate

    from fedpoint.federation.identity.board import Board

DAY = datetime.timedelta(days=1)


class Impostor(ValueError):
    """A signature or a certificate that is not the one of the site it is said to be of."""


@dataclass(frozen=True)
class Trust:
    """Whose word counts: the certificate of the authority that all sites have theirs from. board: which of them were
    revoked, by what this party has heard."""

    authority: Certificate
    board: Board | None = None
    _known: dict[tuple[str, bytes], Certificate] = field(default_factory=dict)  # certificates that it has signed

    def verify(self, name: str, certificate: bytes, text: bytes, signature: bytes) -> None:
        """Refuse what the authority's site of this name has not signed."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

        try:
            shown = self._certificate(name, certificate)
            if self.board is not None and self.board.revoked.holds(shown):
                raise Impostor(f"the certificate of {name} was revoked")
            now = datetime.datetime.now(datetime.UTC)
            if not shown.not_valid_before_utc <= now <= shown.not_valid_after_utc:
                raise Impostor(f"the certificate of {name} does not hold today")
            match key := shown.public_key():
                case ed25519.Ed25519PublicKey():
                    key.verify(signature, text)
                case rsa.RSAPublicKey():
                    key.verify(signature, text, *_rsa())
                case _:
                    raise Impostor(f"the certificate of {name} has a key of an unknown kind")
        except Impostor:
            raise
        except (InvalidSignature, ValueError, TypeError):
            raise Impostor(f"not signed by {name}") from None

    def _certificate(self, name: str, certificate: bytes) -> Certificate:
        """A certificate that the authority gave to this site; looked at once."""
        from cryptography.x509 import load_der_x509_certificate
        from cryptography.x509.oid import NameOID

        known = self._known.get((name, certificate))
        if known is not None:
            return known
        shown = load_der_x509_certificate(certificate)
        shown.verify_directly_issued_by(self.authority)
        if [one.value for one in shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] != [name]:
            raise Impostor(f"the certificate is not one of {name}")
        self._known[name, certificate] = shown
        return shown


@dataclass(frozen=True)
class Identity:
    """A site's own key and certificate, and whose word counts for others."""

    name: str
    key: CertificateIssuerPrivateKeyTypes
    own: Certificate
    trust: Trust

    @cached_property
    def certificate(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding

        return self.own.public_bytes(Encoding.DER)

    def sign(self, text: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

        match self.key:
            case ed25519.Ed25519PrivateKey():
                return self.key.sign(text)
            case rsa.RSAPrivateKey():
                return self.key.sign(text, *_rsa())
        raise FedpointError(f"the certificate of {self.name} has a key of a kind that signs nothing here")


def _rsa() -> tuple:
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
    from cryptography.hazmat.primitives.hashes import SHA256

    return PSS(MGF1(SHA256()), PSS.MAX_LENGTH), SHA256()


def kit_identity(kit: Path, name: str) -> Identity:
    """By which a site's kit has it known to the server, too."""
    needs_cryptography()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    folder = kit / "startup"
    with _readable(name):
        own = load_pem_private_key((folder / "client.key").read_bytes(), None)
        return Identity(name, own, _read(folder / "client.crt"), _trust(kit, kit))  # type: ignore[arg-type]


def server_trust(kit: Path) -> Trust:
    """Whom the server's kit trusts."""
    needs_cryptography()
    with _readable("the server"):
        return _trust(kit, kit / "board")


def _trust(kit: Path, board: Path) -> Trust:
    from fedpoint.federation.identity.board import Board

    authority = _read(kit / "startup" / "rootCA.pem")
    return Trust(authority, Board(board, authority))


def _read(path: Path) -> Certificate:
    from cryptography.x509 import load_pem_x509_certificate

    return load_pem_x509_certificate(path.read_bytes())


@contextlib.contextmanager
def _readable(whose: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise FedpointError(f"the certificates of {whose} cannot be read: {error}") from None


def rehearsed(names: Iterable[str]) -> dict[str, Identity]:
    """Identities of an authority that is forgotten at once, for sites in one process."""
    needs_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    root_key = Ed25519PrivateKey.generate()
    root = _issued("authority", root_key, "authority", root_key)
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    trust = Trust(root)
    return {name: Identity(name, key, _issued(name, key, "authority", root_key), trust) for name, key in keys.items()}


def _issued(
    name: str, key: CertificateIssuerPrivateKeyTypes, issuer: str, signer: CertificateIssuerPrivateKeyTypes
) -> Certificate:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def called(who: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)])

    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(called(issuer), called(name), key.public_key(), x509.random_serial_number())
    return made.not_valid_before(now - DAY).not_valid_after(now + 365 * DAY).sign(signer, None)


__all__ = ["Identity", "Impostor", "Trust", "kit_identity", "rehearsed", "server_trust"]
