"""Who may ask, and for what? Everything that is refused is refused here, before any work is done for it."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LONGEST = 2048  # characters of an address
LARGEST = 8192  # bytes of a request's headers
COOKIE = "fedpoint"
LOOPBACK = ("127.0.0.1", "localhost", "::1")

HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


def is_loopback(host: str) -> bool:
    """
    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "192.168.1.7")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The name in a Host header, without its port.

    >>> [host_of(h) for h in ("localhost:80", "[::1]:8642", "127.0.0.1", "Evil.Example:1")]
    ['localhost', '::1', '127.0.0.1', 'evil.example']
    """
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() and ":" in header else header


class Guard:
    """An ASGI layer around the page. token: asked of everyone; None: the page is bound to loopback. changes: addresses
    that change something: they are asked with POST, by the page itself."""

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1", token: str | None = None, changes: Sequence[str] = ()):
        self.app, self.host, self.token, self.changes = app, host.lower(), token, changes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        answer = _sender(send)
        refused = self._refuse(scope, headers)
        if refused is not None:
            await _send_text(answer, *refused)
            return
        if self.token is not None and not self._known(headers):
            await self._ask(scope, answer)
            return
        await self.app(scope, receive, answer)

    def _refuse(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST:
            return 414, f"The address is longer than {LONGEST} characters."
        if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST:
            return 431, f"The request's headers are longer than {LARGEST} bytes."
        if scope["path"] in self.changes:
            if scope["method"] != "POST":
                return 405, "Only POST: this changes something."
            if "origin" not in headers:  # which browsers send with every POST
                return 403, "Only the page itself may ask for this."
        elif scope["method"] not in ("GET", "HEAD"):
            return 405, "Only GET: this changes nothing."
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "A request here has no body."
        # A name that leads here but is not ours: another site that has its name point to this machine.
        if not self._host_allowed(host_of(headers.get("host", ""))):
            return 421, "This page is not served under that name. Open the address that `fedpoint ui` printed."
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if "origin" in headers:  # what browsers say that do not say the above
            elsewhere = elsewhere or headers["origin"].partition("://")[2] != headers["host"]
        if elsewhere and scope["path"].startswith("/api/"):
            return 403, "Requests from other sites are refused."
        return None

    def _host_allowed(self, name: str) -> bool:
        if name in LOOPBACK or name == self.host:
            return True
        if self.token is None:
            return False
        try:  # bound elsewhere: by number, or by this machine's name; the token is what protects it
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name in (socket.gethostname().lower(), socket.getfqdn().lower())

    def _known(self, headers: dict[str, str]) -> bool:
        cookies = dict(part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";"))
        return self._same(cookies.get(COOKIE, ""))

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self.token or "").encode())

    async def _ask(self, scope: Scope, answer: Send) -> None:
        """The token in the address becomes a cookie, so that it does not stay in the address."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self._same(given):
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            await _send_text(answer, 303, "", [(b"location", b"/"), (b"set-cookie", cookie.encode())])
        else:
            await _send_text(answer, 401, "A token is needed: open the address that `fedpoint ui` printed.")


def _sender(send: Send) -> Send:
    """Every answer with the page's headers, where it does not have its own."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower(): value for name, value in message.get("headers", [])}
            rest = [(name, value) for name, value in HEADERS if name not in own]
            message = {**message, "headers": [*message.get("headers", []), *rest]}
        await send(message)

    return answer


async def _send_text(answer: Send, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    body = f"{text}\n".encode()
    kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await answer({"type": "http.response.start", "status": status, "headers": [*kind, *headers]})
    await answer({"type": "http.response.body", "body": body})
