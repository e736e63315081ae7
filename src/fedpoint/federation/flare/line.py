"""How do orders and answers travel in a job? A site asks for its next order, and brings its last answer along.

A question waits at the hub until there is an order, so an exchange is one message each way and nobody asks in vain many
times a second. Questions are numbered: one that is asked again, because what came back was lost, gets the same reply.
Large messages go in pieces, between which those of other sites pass. Nobody but the site that asked gets a reply.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

from fedpoint.federation.flare.names import CHANNEL

NEXT, BRING, TAKE = "next", "bring", "take"  # topics: a question, a large answer before it, a large order after it
SAID, NUMBER = "fedpoint-said", "fedpoint-number"  # headers
ANSWER, LOST, BROUGHT, NOTHING = "answer", "lost", "brought", "nothing"  # what a question brings
ORDER, LARGE, WAIT, END = "order", "large", "wait", "end"  # what comes back
LONG = 5.0  # seconds that a question waits at most: a site that hears nothing for longer asks again
PATIENCE = 15.0  # seconds for a reply
INLINE = 1 << 20  # bytes; longer messages go in pieces
PIECES = 600.0  # seconds in which a large message moves on

Heard = Callable[[str, bytes | None], None]  # a site's answer; None: it has none to give


def body(message: Message) -> bytes:
    """What a message holds. Whoever sends it may have encoded any object, and `bytes` of a number is as many zeros.

    >>> body(Message({}, b"yes")), body(Message({}, 10**15)), body(Message({}, None))
    (b'yes', b'', b'')
    """
    held = message.payload
    return bytes(held) if isinstance(held, bytes | bytearray | memoryview) else b""


class Question(NamedTuple):
    """A site's question that waits for an order."""

    cell: str
    request: str
    since: float


class Due(NamedTuple):
    """An order that nobody has asked for yet; after `until` it is of no use."""

    order: bytes
    until: float


class Desk:
    """The hub's end. `site_of`: who has sent a message, by the engine's word."""

    def __init__(self, cell: Any, site_of: Callable[[Message], str | None], heard: Heard):
        self.cell, self.site_of, self.heard = cell, site_of, heard
        self.lock = threading.RLock()
        self.orders: dict[str, Due] = {}
        self.waiting: dict[str, Question] = {}
        self.last: dict[str, tuple[int, Message | None]] = {}  # the number of a site's last question, and its reply
        self.brought: dict[str, bytes] = {}
        self.taken: dict[str, bytes] = {}  # large orders, until the next
        self.over = False
        cell.core_cell.register_request_cb(channel=CHANNEL, topic=NEXT, cb=self.asked)
        for topic, answer in ((BRING, self.bring), (TAKE, self.take)):
            cell.register_request_cb(channel=CHANNEL, topic=topic, cb=answer)

    def send(self, site: str, order: bytes, seconds: float) -> None:
        """Hand over an order, or keep it until its site asks. One before it that nobody has asked for yet is forgotten:
        of a site that is slow, only the answer to the last order counts."""
        with self.lock:
            self.orders[site] = Due(order, time.monotonic() + seconds)
            self._serve(site)

    def look(self) -> None:
        """Questions do not wait for ever: a site then knows that the hub is there."""
        now = time.monotonic()
        with self.lock:
            for site in [site for site, asked in self.waiting.items() if now - asked.since > LONG]:
                self._reply(site, WAIT)

    def close(self) -> None:
        """All sites hear that there are no more orders."""
        with self.lock:
            self.over = True
            for site in list(self.waiting):
                self._serve(site)

    def asked(self, message: Message) -> Message | None:
        """A site's question, with what it brings. The reply follows when there is one."""
        site, number = self.site_of(message), message.get_header(NUMBER)
        if site is None or not isinstance(number, int):
            return make_reply(ReturnCode.UNAUTHENTICATED)
        with self.lock:
            before, reply = self.last.get(site, (0, None))
            if number < before:
                return make_reply(ReturnCode.INVALID_REQUEST)
            origin, request = (message.get_header(key) for key in (MessageHeaderKey.ORIGIN, MessageHeaderKey.REQ_ID))
            self.waiting[site] = Question(origin, request, time.monotonic())
            if number == before:
                if reply is not None:
                    self._say(site, reply)
                return None
            self.last[site] = number, None
            said = message.get_header(SAID)
            if said == LOST:
                self.heard(site, None)
            elif said in (ANSWER, BROUGHT):
                self.heard(site, body(message) if said == ANSWER else self.brought.pop(site, b""))
            self._serve(site)
            return None

    def bring(self, message: Message) -> Message:
        """A large answer, which the next question says is there."""
        site = self.site_of(message)
        if site is None:
            return make_reply(ReturnCode.UNAUTHENTICATED)
        with self.lock:
            self.brought[site] = body(message)
        return make_reply(ReturnCode.OK, body=b"")

    def take(self, message: Message) -> Message:
        """A large order, to the site that it is for."""
        site = self.site_of(message)
        if site is None:
            return make_reply(ReturnCode.UNAUTHENTICATED)
        with self.lock:
            return make_reply(ReturnCode.OK, body=self.taken.get(site, b""))

    def _serve(self, site: str) -> None:
        """Answer a site's question, if it waits and there is something to say."""
        if site not in self.waiting:
            return
        if self.over:
            self._reply(site, END)
            return
        due = self.orders.pop(site, None)
        if due is None or due.until < time.monotonic():
            return
        large = len(due.order) > INLINE
        if large:
            self.taken[site] = due.order
        self._reply(site, LARGE if large else ORDER, b"" if large else due.order)

    def _reply(self, site: str, said: str, order: bytes = b"") -> None:
        reply = make_reply(ReturnCode.OK, body=order)
        reply.add_headers({SAID: said, MessageHeaderKey.CHANNEL: CHANNEL, MessageHeaderKey.TOPIC: NEXT})
        self.last[site] = self.last[site][0], reply
        self._say(site, reply)

    def _say(self, site: str, reply: Message) -> None:
        """A copy travels: the engine writes into the headers of what it sends."""
        asked = self.waiting.pop(site)
        copy = Message(dict(reply.headers), reply.payload)
        self.cell.core_cell.send_reply(copy, asked.cell, [asked.request], optional=True)


class Line:
    """A site's end. `hub`: the hub's cell, by the engine's name for it."""

    def __init__(self, cell: Any, hub: str):
        self.cell, self.hub, self.number = cell, hub, 0

    def ask(self, said: str, answer: bytes = b"") -> tuple[str, bytes] | None:
        """Bring an answer and ask for the next order: what came back, and the order; None: nothing did, ask again."""
        if len(answer) > INLINE:
            if self._piecewise(BRING, answer) is None:
                return None
            said, answer = BROUGHT, b""
        request = Message({SAID: said, NUMBER: self.number + 1}, answer)
        reply = self.cell.core_cell.send_request(
            channel=CHANNEL, topic=NEXT, target=self.hub, request=request, timeout=PATIENCE, optional=True
        )
        if reply.get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK:
            return None
        order: bytes | None = body(reply)
        back = reply.get_header(SAID)
        if back == LARGE:
            back, order = ORDER, self._piecewise(TAKE, b"")
        if order is None:
            return None
        self.number += 1
        return str(back), order

    def _piecewise(self, topic: str, data: bytes) -> bytes | None:
        reply = self.cell.send_request(
            channel=CHANNEL, topic=topic, target=self.hub, request=Message({}, data), timeout=PIECES, optional=True
        )
        good = reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
        return body(reply) if good else None
