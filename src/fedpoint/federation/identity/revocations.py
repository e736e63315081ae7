"""Which certificates count no more? A numbered list, signed by the leader; a later list replaces an earlier one."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from fedpoint.federation.identity import certificates, sealed
from fedpoint.federation.identity.certificates import NotTrusted

PURPOSE = sealed.Purpose(
    "list of revoked certificates",
    "the leader makes one with `fedpoint federate revoke`",
    b"fedpoint revocations\n",
    frozenset({"revoked", "number", "time"}),
)


def serial(certificate: x509.Certificate) -> str:
    return f"{certificate.serial_number:x}"


@dataclass(frozen=True)
class Revocations:
    """The certificates that were revoked so far: by serial number, whose they were."""

    number: int = 0
    names: Mapping[str, str] = field(default_factory=dict)
    data: bytes = b""

    def holds(self, certificate: x509.Certificate) -> bool:
        return serial(certificate) in self.names

    def since(self, before: Revocations) -> set[str]:
        """Of whom certificates were revoked since an earlier list.

        >>> sorted(Revocations(2, {"1": "south", "2": "north"}).since(Revocations(1, {"1": "south"})))
        ['north']
        """
        return {name for one, name in self.names.items() if one not in before.names}

    def check(self, certificate: x509.Certificate) -> None:
        if self.holds(certificate):
            raise NotTrusted(f"the certificate of {certificates.name_of(certificate)} was revoked")

    def and_also(
        self,
        more: Mapping[str, str],
        key: rsa.RSAPrivateKey,
        certificate: x509.Certificate,
        when: datetime.datetime | None = None,
    ) -> Revocations:
        """The next list."""
        names = {**self.names, **more}
        time = (when or certificates.now()).isoformat(timespec="seconds")
        said = {"revoked": names, "number": self.number + 1, "time": time}
        return Revocations(self.number + 1, names, sealed.seal(PURPOSE, said, key, certificate))


def read(data: bytes, authority: x509.Certificate, when: datetime.datetime | None = None) -> Revocations:
    """The list of these bytes, if a leader of the project signed exactly them."""
    opened = sealed.unseal(PURPOSE, data, authority, when)
    sealed.check_leader(opened, PURPOSE)
    names, number = opened.said["revoked"], opened.said["number"]
    if not isinstance(names, dict) or type(number) is not int or number < 1:
        raise NotTrusted("not a list of revoked certificates: its fields are of other types")
    return Revocations(number, {str(one): str(name) for one, name in names.items()}, data)
