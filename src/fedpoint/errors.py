"""What a user did wrong, in one clear message: what, where, and what to do."""

import difflib
import math
import numbers
from collections.abc import Iterable


class FedpointError(ValueError):
    """A mistake of the user's. The command line prints it without a traceback and exits with status 2."""


class Diverged(FedpointError):
    """A run left the finite numbers; `round` says when."""

    def __init__(self, message: str, round: int):
        super().__init__(message)
        self.round = round


class Recovered(UserWarning):
    """Something on disk was damaged, and an older good version serves. The command line prints it as a note."""


def check_number(name: str, value: object, least: float = 0.0, strict: bool = False) -> float:
    """The value as a finite number within its bounds."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    if not math.isfinite(number) or not (number > least if strict else number >= least):
        raise FedpointError(f"{name} must be {'above' if strict else 'at least'} {least:g}, got {value!r}")
    return number


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: ``did you mean 'fedavg'? Known: ...``."""
    known = sorted(known)
    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    guess = f"did you mean {next(k for k in known if k.lower() == close[0])!r}? " if close else ""
    return f"{guess}Known: {', '.join(known)}."
