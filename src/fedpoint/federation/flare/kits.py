"""What does each party get? A kit: certificates of this study's own authority, the study, and rules that lock it down.

Kits are made once, by whoever leads the study, and handed over by a safe way: who has a kit is that party.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import tempfile
from pathlib import Path

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.federation.flare.processes import needs_flare
from fedpoint.federation.flare.rules import ROLE
from fedpoint.federation.protocol import OWN, Mismatch, Release, check
from fedpoint.federation.study import Study, read
from fedpoint.store.disk import read_object, to_toml, write_bytes

ADMIN = "admin@fedpoint.study"


def provision(study: Study, folder: str | Path) -> dict[str, Path]:
    """Every party's kit, in a folder that is not there yet: server, admin, and one for each site."""
    needs_flare()
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise FedpointError(
            f"{folder} is not empty, and kits that were handed out must not change: choose another folder"
        )
    with tempfile.TemporaryDirectory(prefix="fedpoint-") as work:
        made = _made_by_flare(study, work)
        folder.mkdir(parents=True, exist_ok=True)
        kits = {}
        host = study.server.rpartition(":")[0]
        for name in ("server", "admin", *study.sites):
            theirs = {"server": host, "admin": ADMIN}.get(name, name)
            kits[name] = folder / name
            shutil.move(made / theirs, kits[name])
            furnish_kit(kits[name], name, study)
    return kits


def _made_by_flare(study: Study, work: str) -> Path:
    from nvflare.lighter.entity import Participant, Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    host, _, port = study.server.rpartition(":")
    parties = [Participant("server", host, "fedpoint", props={"fed_learn_port": int(port)})]
    parties += [Participant("client", site, "fedpoint") for site in study.sites]
    parties += [Participant("admin", ADMIN, "fedpoint", props={"role": ROLE})]
    project = Project(study.name, f"fedpoint {OWN.fedpoint}", participants=parties)
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder(config_folder="config", scheme="tcp"),
        CertBuilder(),
        SignatureBuilder(),
    ]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        Provisioner(work, builders).provision(project, logger=logging.getLogger("nvflare"))
    found = Path(work) / study.name / "prod_00"
    if not found.exists():
        raise FedpointError(f"the kits could not be made: {said.getvalue().strip()[-400:]}")
    return found


def furnish_kit(kit: Path, name: str, study: Study) -> None:
    """A party's folder of the engine made a kit of a study: ours in place of what is not needed."""
    for path in [*kit.rglob("*.sh"), *kit.rglob("*.sample"), *kit.rglob("*.ipynb"), *kit.rglob("readme.txt")]:
        path.unlink()
    write_bytes(kit / "study.toml", to_toml(study.content))
    about = {"party": name, "study": study.name, "fingerprint": study.fingerprint, **OWN.plain()}
    write_bytes(kit / "kit.json", json.dumps(about, indent=2).encode())
    for path in kit.rglob("*.key"):
        path.chmod(0o600)


class Kit:
    """A party's folder."""

    def __init__(self, folder: str | Path, party: str | None = None):
        self.folder = Path(folder).absolute()
        try:
            self.about = read_object(read_file(self.folder / "kit.json"))
            self.party, fingerprint = str(self.about["party"]), str(self.about["fingerprint"])
        except (OSError, ValueError, KeyError):
            raise FedpointError(f"{folder} is not a kit: create kits with `fedpoint federate provision`") from None
        kind = self.party if self.party in ("server", "admin") else "site"
        if party is not None and kind != party:
            raise FedpointError(f"{folder} is the kit of {self.party}, but this command needs that of a {party}")
        self.study = read(self.folder / "study.toml")
        if self.study.fingerprint != fingerprint:
            raise FedpointError(f"{folder}: the study was changed since the kit was made: make new kits")
        self._check_release()

    def _check_release(self) -> None:
        """Kits keep the protocol that they were made for."""
        try:
            check(self.party, OWN, "the leader", Release.named_in(self.about))
        except Mismatch as error:
            again = ", and make new kits" if error.where == "the leader" else ""
            raise FedpointError(f"{self.folder} cannot be used here: {error}{again}") from None
