"""Ctrl-C while modules are loaded. An exception raised there passes through others' C code, which turns it into another
one, loses it or crashes; and nothing has begun that could be lost. So the command says a word and ends at once.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Ctrl-C inside ends the process with status 130. Where somebody else looks after Ctrl-C, they still do."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os.write(2, b"\ninterrupted\n")
    os._exit(130)
