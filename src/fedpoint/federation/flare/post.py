"""How do signed documents travel? Over the engine's own connections, in its resident processes; these hold no JAX.

The server keeps a board (`identity/board.py`) and lets nobody in whose certificate was revoked. A site asks for news
every few seconds: it keeps studies and its renewed certificate, and posts what it has approved. The leader posts too.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ProcessType
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys
from nvflare.private.fed.utils.identity_utils import IdentityVerifier

from fedpoint.core.errors import FedpointError
from fedpoint.federation.flare.kits import ROOT, Kit
from fedpoint.federation.flare.line import body
from fedpoint.federation.flare.names import BOARD, CHANNEL, KIT
from fedpoint.federation.identity import certificates
from fedpoint.federation.identity.board import Board
from fedpoint.federation.site import engagement
from fedpoint.store.disk import read_object, write_bytes

LOOK = 2.0  # seconds between a site's questions
REPLY = 10.0  # seconds for the server to answer
NOTES = "notes.jsonl"  # in a site's kit: what has come, for whoever watches


class Said(TypedDict, total=False):
    """What a party says to the board: who it is, which studies it has, what it posts, what it wants to know of."""

    site: str
    have: list[str]
    post: list[list[str]]
    approvals: str


class Heard(TypedDict, total=False):
    """What the board answers."""

    studies: list[str]
    certificate: str
    revoked: str
    refused: list[str]  # of what was posted: why
    approvals: dict[str, str]


class Refused(OSError):
    """The server does not know this party any more."""


def say(cell: Any, said: Said) -> Heard:
    """Ask the board. Raises OSError where it does not answer."""
    message = Message(payload=json.dumps(said).encode())
    reply = cell.send_request(
        channel=CHANNEL, topic=BOARD, target=FQCN.ROOT_SERVER, request=message, timeout=REPLY, optional=True
    )
    code = reply.get_header(MessageHeaderKey.RETURN_CODE)
    if code == ReturnCode.UNAUTHENTICATED:
        raise Refused
    if code != ReturnCode.OK:
        raise OSError(f"the server's board did not answer ({code})")
    return Heard(**read_object(body(reply)))  # type: ignore[typeddict-item]


def answer(board: Board, text: bytes) -> Heard:
    """The board's half. What is wrong is refused, and the rest is done."""
    said = read_object(text)
    found, refused = Heard(), list[str]()
    posted = said.get("post")
    for one in posted if isinstance(posted, list) else []:
        try:
            kind, document = map(str, one)
            board.post(kind, document.encode())
        except (FedpointError, ValueError, TypeError) as error:
            refused.append(str(error))
    have = said.get("have")
    if isinstance(have, list):
        found |= board.news(str(said.get("site")), set(map(str, have)))
    title = said.get("approvals")
    if isinstance(title, str):
        found["approvals"] = board.approvals(title)
    return {**found, "refused": refused}


class Verifier(IdentityVerifier):
    """The engine's, which also holds a certificate against the list of revoked ones."""

    def __init__(self, root_cert_file: str, board: Board):
        super().__init__(root_cert_file)
        self.board = board

    def verify_common_name(self, asserted_cn: str, nonce: str, asserter_cert: Any, *args: Any, **more: Any) -> bool:
        self.board.revoked.check(asserter_cert)
        return super().verify_common_name(asserted_cn, nonce, asserter_cert, *args, **more)


class BoardKeeper(FLComponent):
    """Of the server's resident process."""

    def __init__(self) -> None:
        super().__init__()
        self.server: Any = None
        self.board: Board | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        parent = fl_ctx.get_prop(FLContextKey.PROCESS_TYPE) == ProcessType.SERVER_PARENT
        if event_type != EventType.SYSTEM_BOOTSTRAP or not parent:
            return
        kit = Path(os.environ[KIT])
        root = kit / "startup" / ROOT
        self.server = fl_ctx.get_prop(FLContextKey.SITE_OBJ)
        self.board = board = Board(kit / "board", certificates.read_certificate(root))
        self.server.client_manager.cred_keeper.id_verifier = Verifier(str(root), board)
        cell = self.server.cell
        cell.register_request_cb(channel=CHANNEL, topic=BOARD, cb=self._asked)
        cell.core_cell.add_incoming_filter(channel="*", topic="*", cb=self._let_in)

    def _asked(self, request: Message) -> Message:
        assert self.board is not None
        before = self.board.revoked
        try:
            found = answer(self.board, body(request))
        except ValueError:
            return make_reply(ReturnCode.INVALID_REQUEST)
        self._put_out(self.board.revoked.since(before))
        return make_reply(ReturnCode.OK, body=json.dumps(found).encode())

    def _put_out(self, names: set[str]) -> None:
        """Whose certificate was revoked now is not connected any more. Others once had one revoked, and have another:
        they stay."""
        clients = self.server.client_manager.clients
        for token in [token for token, client in list(clients.items()) if client.name in names]:
            self.server.logout_client(token)

    def _let_in(self, message: Message) -> Message | None:
        """Nothing from a party that once had a certificate revoked, but with a token that it got since then: the engine
        would take an old one again with a heartbeat."""
        name = message.get_header(CellMessageHeaderKeys.CLIENT_NAME)
        if self.board is None or name not in self.board.revoked.names.values():
            return None
        if message.get_header(CellMessageHeaderKeys.TOKEN) in self.server.client_manager.clients:
            return None
        channel, topic = message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC)
        if channel == CellChannel.SERVER_MAIN and topic in (CellChannelTopic.Register, CellChannelTopic.Challenge):
            return None  # where certificates are looked at
        return make_reply(ReturnCode.UNAUTHENTICATED, error=f"a certificate of {name} was revoked")


class Courier(FLComponent):
    """Of a site's resident process."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.AFTER_CLIENT_REGISTER:
            cell = fl_ctx.get_prop(FLContextKey.SITE_OBJ).cell
            kit = Kit(os.environ[KIT])
            threading.Thread(target=_fetch_for_ever, args=(kit, lambda said: say(cell, said)), daemon=True).start()


def _fetch_for_ever(kit: Kit, ask: Callable[[Said], Heard]) -> None:
    posted: set[Path] = set()
    while True:
        with contextlib.suppress(OSError):  # the server is away
            try:
                fetch(kit, ask, posted)
            except Refused:
                os._exit(1)  # the engine would go on for ever; whoever waits for this process starts it again
        time.sleep(LOOK)


def fetch(kit: Kit, ask: Callable[[Said], Heard], posted: set[Path]) -> None:
    """One exchange: approvals go, studies and a certificate come. What is not signed as it must be is only noted."""
    known = engagement.engagements(kit.folder)
    fresh = [path for one in known if (path := one.folder / engagement.APPROVAL).exists() and path not in posted]
    post = [["approval", path.read_text()] for path in fresh]
    found = ask(Said(site=kit.party, have=[one.title for one in known], post=post))
    posted.update(fresh)
    for text in found.get("studies", []):
        try:
            engagement.receive(kit.folder, kit.party, text.encode(), kit.authority)
        except FedpointError as error:
            note(kit.folder, f"the server sent a study that is refused: {error}")
    take_revoked(kit, found.get("revoked", ""))
    take_certificate(kit, found.get("certificate", ""))


def take_revoked(kit: Kit, text: str) -> None:
    """The list of revoked certificates, which other sites' keys are held against."""
    if text:
        with contextlib.suppress(FedpointError):
            Board(kit.folder, kit.authority).post("revocations", text.encode())


def take_certificate(kit: Kit, text: str) -> None:
    """A renewed certificate of this kit's key."""
    if not text:
        return
    with contextlib.suppress(FedpointError):  # it has ended, or is of another key: the one at hand may be good still
        made = certificates.from_pem(text.encode())
        if made.not_valid_after_utc > kit.certificate.not_valid_after_utc:
            kit.take(made)
            note(kit.folder, f"the certificate was renewed: it is valid until {made.not_valid_after_utc:%Y-%m-%d}")


def note(kit: Path, text: str) -> None:
    """For whoever watches this site; what was said last is not said again."""
    path = kit / NOTES
    lines = path.read_text().splitlines() if path.exists() else []
    if not lines or read_object(lines[-1]).get("text") != text:
        when = time.strftime("%Y-%m-%dT%H:%M:%S")
        write_bytes(path, "\n".join([*lines[-99:], json.dumps({"time": when, "text": text}), ""]).encode())
