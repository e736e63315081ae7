"""What does a party say before it starts? A site consents; a server has its port to itself."""

from __future__ import annotations

import datetime
import json
import socket
from pathlib import Path

from fedpoint.core.errors import FedpointError
from fedpoint.federation.flare.kits import Kit
from fedpoint.federation.site.chain import origin, whole
from fedpoint.federation.site.disclosure import DEFAULT, Floor
from fedpoint.store.disk import write_bytes


def consent(kit: Kit, data: str | Path | None, floor: Floor = DEFAULT) -> None:
    """Note that this site takes part, with which file, and of how few rows it may speak."""
    if kit.study.table is not None:
        if data is None:
            raise FedpointError(f"{kit.party} needs its data: pass --data FILE")
        if not Path(data).is_file():
            raise FedpointError(f"{data} does not exist")
    whole(kit.folder / "records", origin(kit.study.fingerprint, kit.party))
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    where = None if data is None else str(Path(data).absolute())
    said = {"site": kit.party, "study": kit.study.fingerprint, "time": when, "data": where, "floor": floor.plain()}
    write_bytes(kit.folder / "consent.json", json.dumps(said, indent=2).encode())


def check_port(kit: Kit) -> None:
    """Refuse a port that is taken, before the engine waits for it without end."""
    port = int(kit.study.server.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise FedpointError(
                f"port {port} cannot be used ({error.strerror}): is a server running already?"
            ) from None
