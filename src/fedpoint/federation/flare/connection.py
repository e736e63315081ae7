"""How does whoever leads reach the server? By a session of the engine, with the administrator's kit."""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from fedpoint.core.numbers import counted
from fedpoint.federation.flare.kits import ADMIN, Kit
from fedpoint.federation.transport import NoAnswerYet

if TYPE_CHECKING:  # it loads the engine
    from fedpoint.federation.flare.post import Heard, Said

CONNECT = 30.0  # seconds to reach the server


def _lost() -> tuple[type[Exception], ...]:
    """What the engine raises where a session is of no use any more; all else is the server's word about a command."""
    from nvflare.apis.fl_exception import FLCommunicationError
    from nvflare.fuel.flare_api.api_spec import AuthenticationError, SessionClosed

    return OSError, SessionClosed, AuthenticationError, FLCommunicationError


class Connection:
    """A session with the server, opened when it is needed."""

    def __init__(self, kit: Kit, wait: float = CONNECT):
        self.kit, self.wait = kit, wait
        self._session: Any = None
        self.trouble = ""  # what the engine said last when it could not

    @property
    def session(self) -> Any:
        if self._session is None:
            self._session = self._connected()
        return self._session

    def _connected(self) -> Any:
        from nvflare.fuel.flare_api.flare_api import new_secure_session
        from nvflare.fuel.utils.config_service import ConfigService

        logging.getLogger("nvflare").setLevel(logging.CRITICAL)
        ConfigService.initialize({}, [str(self.kit.folder / "startup")])  # or it searches all below this folder
        end, said = time.monotonic() + self.wait, "no answer"
        host, _, port = self.kit.server.rpartition(":")
        while time.monotonic() < end:
            try:
                socket.create_connection((host, int(port)), timeout=2.0).close()  # is anybody there yet?
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    return new_secure_session(ADMIN, str(self.kit.folder), timeout=5.0)
            except Exception as error:  # the engine raises many kinds while its server is starting or away
                said = str(error) or type(error).__name__
                time.sleep(0.5)
        raise NoAnswerYet(f"no server answered at {self.kit.server} for {counted(round(self.wait), 'second')} ({said})")

    def close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.close()
            self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, function: str, *arguments: Any) -> Any:
        """What a function of the session says; None where it cannot, and a new session the next time."""
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return getattr(self.session, function)(*arguments)
        except NoAnswerYet:
            raise
        except Exception as error:  # the engine raises many kinds for a server that is away
            self.trouble = f"{type(error).__name__}: {error}"
            logging.getLogger(__name__).info("engine: %s", self.trouble)
            if isinstance(error, _lost()):
                self.close()
            return None

    def board(self, said: Said) -> Heard:
        """What the server's board says; nothing where it does not answer."""
        from fedpoint.federation.flare.post import say

        try:
            return say(self.session.api.get_cell(), said)
        except OSError as error:
            self.trouble = str(error)
            return {}

    def publish(self, documents: Iterable[tuple[str, str]]) -> list[str]:
        """Post signed documents; why the server refused some."""
        found = self.board({"post": [[kind, text] for kind, text in documents]})
        if "refused" not in found:
            raise NoAnswerYet(f"the server at {self.kit.server} accepted nothing ({self.trouble})")
        return found["refused"]
