"""How many threads multiply matrices? One, for many small ones: threads that wait for the next take processor time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _OneThread:
    """NumPy's BLAS on one thread. The setting may be that of the whole process: every thread that leaves goes back to
    what was set before the first of them came."""

    def __init__(self) -> None:
        self._controller, self._lock, self._own = ThreadpoolController(), threading.Lock(), threading.local()
        self._inside = 0  # threads

    def __enter__(self) -> None:
        self._own.depth = getattr(self._own, "depth", 0) + 1
        if self._own.depth == 1:
            with self._lock:
                limited = self._controller.limit(limits=1, user_api="blas")
                if self._inside == 0:
                    self._before = limited
                self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._own.depth -= 1
        if self._own.depth == 0:
            with self._lock:
                self._inside -= 1
                self._before.restore_original_limits()


_limit = cache(_OneThread)


def one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, with one thread for NumPy's products of matrices while it runs."""

    @wraps(function)
    def scoped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with _limit():
            return function(*args, **kwargs)

    return scoped
