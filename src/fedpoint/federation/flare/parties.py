"""What does a party say before it starts? A site consents; a server has its port to itself."""

from __future__ import annotations

import datetime
import json
import socket
from pathlib import Path

from fedpoint.core.errors import FedpointError
from fedpoint.data.floor import DEFAULT, Floor
from fedpoint.federation.flare.kits import Kit
from fedpoint.federation.identity.approvals import By, approve
from fedpoint.federation.site.chain import origin, whole
from fedpoint.federation.site.engagement import APPROVAL, CONSENT, Engagement
from fedpoint.store.disk import write_bytes


def consent(kit: Kit, part: Engagement, data: str | Path | None, floor: Floor = DEFAULT, by: By = "person") -> None:
    """Note that this site takes part, with which file, and of how few rows it may speak; and sign that it does."""
    if part.study.of_files:
        if data is None:
            raise FedpointError(f"{part.party} needs its data: pass --data FILE")
        if not Path(data).is_file():
            raise FedpointError(f"{data} does not exist")
    whole(part.records, origin(part.fingerprint, part.party))
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    where = None if data is None else str(Path(data).absolute())
    said = {"site": part.party, "study": part.fingerprint, "time": when, "data": where, "floor": floor.plain()}
    receipt = approve(part.party, part.title, part.fingerprint, by, kit.key, kit.certificate)
    write_bytes(part.folder / CONSENT, json.dumps({**said, "by": by}, indent=2).encode())
    write_bytes(part.folder / APPROVAL, receipt.data)


def check_port(kit: Kit) -> None:
    """Refuse a port that is taken, before the engine waits for it without end."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", kit.port))
        except OSError as error:
            raise FedpointError(
                f"port {kit.port} cannot be used ({error.strerror}): is a server running already?"
            ) from None
