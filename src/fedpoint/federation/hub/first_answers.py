"""What have sites said before the first round? On disk until a setup is made of it: a hub that is started again asks
nobody twice, and makes the same of what was said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fedpoint.core.files import read_file
from fedpoint.federation import wire
from fedpoint.federation.study import Study
from fedpoint.store.disk import write_bytes


class FirstAnswers:
    """Of the sites of one study, by question."""

    def __init__(self, folder: Path, study: Study):
        self.folder, self.sites = folder / "first-answers" / study.fingerprint[:16], study.sites

    def of(self, kind: str) -> dict[str, wire.Packet]:
        there = [site for site in self.sites if (self.folder / kind / site).exists()]
        return {site: wire.decode(read_file(self.folder / kind / site)) for site in there}

    def keep(self, kind: str, site: str, packet: wire.Packet) -> None:
        (self.folder / kind).mkdir(parents=True, exist_ok=True)
        write_bytes(self.folder / kind / site, wire.encode(packet.header, packet.arrays))

    def settled(self, kind: str) -> list[str] | None:
        """Of which sites' answers a setup is made; None while they are waited for."""
        path = self.folder / f"{kind}.json"
        return json.loads(read_file(path)) if path.exists() else None

    def settle(self, kind: str, sites: list[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self.folder / f"{kind}.json", json.dumps(sites).encode())

    def forget(self) -> None:
        shutil.rmtree(self.folder.parent, ignore_errors=True)
