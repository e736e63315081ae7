"""What does each party have? A kit: its own key, a certificate of the project's authority, and the engine's files.

A party makes its own key, which never leaves the kit, and a request; the authority's certificate for it comes back.
The files that an invitation and a certificate travel in hold no secret.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.federation.flare.processes import needs_flare
from fedpoint.federation.identity import certificates
from fedpoint.federation.identity.certificates import NotTrusted
from fedpoint.federation.identity.signed import NAME
from fedpoint.federation.protocol import OWN, Mismatch, Release, check
from fedpoint.store.disk import os_errors, read_object, write_bytes, write_secret

ADMIN = "admin@fedpoint.study"
INVITATION = "invitation.json"
ADDRESS = re.compile(r"([A-Za-z0-9.-]+):(\d{1,5})")
ROOT = "rootCA.pem"


def kind_of(party: str) -> str:
    return party if party in ("server", "admin") else "site"


class Invitation(NamedTuple):
    """What a party must know of a project: nothing of it is secret."""

    project: str
    server: str
    authority: x509.Certificate

    @property
    def host(self) -> str:
        return self.server.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.server.rpartition(":")[2])

    def write(self, path: Path) -> None:
        said = {"project": self.project, "server": self.server, **OWN.plain()}
        said["authority"] = certificates.pem(self.authority).decode()
        write_bytes(path, json.dumps(said, indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> Invitation:
        try:
            with os_errors(f"read {path}"):
                said = read_object(read_file(path, certificates.LONGEST))
            project, server, authority = (str(said[name]) for name in ("project", "server", "authority"))
        except (ValueError, KeyError):
            raise FedpointError(f"{path} is not an invitation: the leader has one in the project's folder") from None
        check("this machine", OWN, "the leader", Release.named_in(said))
        return cls(*checked_names(project, server), certificates.from_pem(authority.encode(), str(path)))


def checked_names(project: str, server: str) -> tuple[str, str]:
    """The name of a project and the address of its server, or the reason why they are none."""
    if not NAME.fullmatch(project):
        raise FedpointError(
            f"the project {project!r}: write lower-case letters, digits and dashes, starting with a letter"
        )
    found = ADDRESS.fullmatch(server)
    if not found or not 0 < int(found[2]) < 65535:
        raise FedpointError(f"the server {server!r}: write a host and a port, such as fl.example.org:8102")
    return project, server


def make_kit(folder: Path, party: str, invitation: Invitation) -> Kit:
    """A kit with a new key and no certificate yet, in a folder that is not there yet."""
    needs_flare()
    if party not in ("server", "admin") and not NAME.fullmatch(party):
        raise FedpointError(f"the name {party!r}: write lower-case letters, digits and dashes, starting with a letter")
    if folder.exists() and any(folder.iterdir()):
        raise FedpointError(f"{folder} is not empty, and a kit's key must not change: choose another folder")
    startup = folder / "startup"
    with os_errors(f"write {folder}"):
        startup.mkdir(parents=True)
        (folder / "local").mkdir()
    about = {"party": party, "project": invitation.project, "server": invitation.server, **OWN.plain()}
    write_bytes(startup / ROOT, certificates.pem(invitation.authority))
    write_bytes(startup / f"fed_{ENGINE[kind_of(party)]}.json", json.dumps(_startup(party, invitation)).encode())
    write_secret(startup / f"{_files(party)}.key", certificates.key_bytes(certificates.new_key()))
    if party != "admin":
        write_bytes(folder / "local" / "log_config.json", _logging().encode())
    else:
        write_bytes(folder / "local" / "resources.json", json.dumps({"format_version": 1, "admin": {}}).encode())
    write_bytes(folder / "kit.json", json.dumps(about, indent=2).encode())
    return Kit(folder)


@functools.cache
def _logging() -> str:
    """The engine's own way of logging."""
    import nvflare.lighter
    from nvflare.lighter.utils import load_yaml

    return load_yaml(Path(nvflare.lighter.__file__).parent / "templates" / "master_template.yml")["log_config"]


ENGINE = {"server": "server", "site": "client", "admin": "admin"}  # what the engine calls them


def _files(party: str) -> str:
    return "server" if party == "server" else "client"


def _startup(party: str, invitation: Invitation) -> dict[str, object]:
    """What the engine reads first."""
    project, server, host, port = invitation.project, invitation.server, invitation.host, invitation.port
    service = {"target": server, "scheme": "tcp"}
    own = {"ssl_private_key": f"{_files(party)}.key", "ssl_cert": f"{_files(party)}.crt", "ssl_root_cert": ROOT}
    own["connection_security"] = "mtls"
    if party == "server":
        one = {"name": project, "service": service, "admin_server": host, "admin_port": port, **own}
        return {"format_version": 2, "servers": [one]}
    if party != "admin":
        one = {"name": project, "service": service, "identity": host}
        return {"format_version": 2, "servers": [one], "client": {**own, "fqsn": party, "is_leaf": True}}
    where = {"scheme": "tcp", "host": host, "port": port, "server_identity": host, "connection_security": "mtls"}
    files = {"client_key": "client.key", "client_cert": "client.crt", "ca_cert": ROOT}
    transfer = {"with_file_transfer": True, "upload_dir": "transfer", "download_dir": "transfer"}
    admin = {"project_name": project, "username": ADMIN, "uid_source": "user_input", **where, **files, **transfer}
    return {"format_version": 1, "admin": admin}


class Kit:
    """A party's folder."""

    def __init__(self, folder: str | Path, party: str | None = None):
        self.folder = Path(folder).absolute()
        try:
            self.about = read_object(read_file(self.folder / "kit.json"))
            self.party, self.project, self.server = (str(self.about[key]) for key in ("party", "project", "server"))
        except (OSError, ValueError, KeyError):
            said = f"{folder} is not a kit: a party makes its own with `fedpoint federate request`"
            raise FedpointError(said) from None
        if party is not None and kind_of(self.party) != party:
            raise FedpointError(f"{folder} is the kit of {self.party}, but this command needs that of a {party}")
        try:
            check(self.party, OWN, "the leader", Release.named_in(self.about))
        except Mismatch as error:
            again = ", and begin a new project" if error.where == "the leader" else ""
            raise FedpointError(f"{self.folder} cannot be used here: {error}{again}") from None

    @property
    def port(self) -> int:
        return int(self.server.rpartition(":")[2])

    @property
    def authority(self) -> x509.Certificate:
        return certificates.read_certificate(self.folder / "startup" / ROOT)

    @property
    def key(self) -> rsa.RSAPrivateKey:
        return certificates.read_key(self.folder / "startup" / f"{_files(self.party)}.key")

    @property
    def certificate_file(self) -> Path:
        return self.folder / "startup" / f"{_files(self.party)}.crt"

    @property
    def certificate(self) -> x509.Certificate:
        if not self.certificate_file.exists():
            raise FedpointError(
                f"{self.party} has no certificate yet: send its request to the leader, and give what comes back to "
                "`fedpoint federate join`"
            )
        return certificates.read_certificate(self.certificate_file)

    def request(self) -> bytes:
        return certificates.request(self.key, self.party)

    def take(self, certificate: x509.Certificate) -> None:
        """The certificate that the leader has made for this kit, first or renewed."""
        certificates.check(certificate, self.authority)
        name, wanted = certificates.name_of(certificate), self.name
        if name != wanted:
            raise NotTrusted(f"the certificate is of {name}, and this is the kit of {self.party}")
        if certificate.public_key() != self.key.public_key():
            raise NotTrusted(f"the certificate is of another key than that of this kit: {self.party} requests its own")
        write_bytes(self.certificate_file, certificates.pem(certificate))

    @property
    def name(self) -> str:
        """As it stands in the certificate: the server is named by its host."""
        return {"server": self.server.rpartition(":")[0], "admin": ADMIN}.get(self.party, self.party)

    def check_certificate(self) -> str:
        """Refuse to go on with a certificate that is none; a warning in the last days of one."""
        try:
            certificates.check(self.certificate, self.authority)
        except NotTrusted as error:
            raise FedpointError(
                f"{error}. The leader runs `fedpoint federate renew {self.party}` and sends "
                f"certificates/{self.party}.crt, which `fedpoint federate join` takes"
            ) from None
        return certificates.ending(self.certificate)
