"""What a user did wrong, in one clear message: what, where, and what to do."""

import difflib
import math
import numbers
import sys
import warnings
from collections.abc import Iterable, Mapping

MOST_ROUNDS = 2**31 - 1  # the program counts them in 32 bits


class FedpointError(ValueError):
    """A mistake of the user's. The command line prints it without a traceback and exits with status 2."""

    def add_note(self, note: str) -> None:
        if "JAX has removed" not in note:  # what JAX says of its own frames is not about the mistake
            super().add_note(note)


class Diverged(FedpointError):
    """The model of a run became infinite or NaN. The command line exits with status 4.

    Args:
        message: what happened, in words.
        round: the first recorded round whose model is not finite.

    """

    def __init__(self, message: str, round: int):
        super().__init__(message)
        self.round = round


class Misused(FedpointError):
    """Something of fedpoint's that a user's code called wrongly: whoever called that code knows where, and adds it."""


class UnknownName(Misused, AttributeError):
    """An attribute that does not exist; the message names those that do."""

    def __init__(self, owner: str, name: str, known: Iterable[str], meant: Mapping[str, str] | None = None):
        other = (meant or {}).get(name)
        hint = f"did you mean {other!r}? Known: {', '.join(sorted(known))}." if other else nearest(name, known)
        super().__init__(f"{owner} has no {name!r}: {hint}")


class Recovered(UserWarning):
    """Something on disk was damaged, and an older good version serves. The command line prints it as a note."""


class LostSum(UserWarning):
    """A method conserves a sum over all agents that its gather does not."""


def notify(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn whoever called fedpoint: of the line outside of it, however many calls lie between."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "fedpoint":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def check_number(name: str, value: object, least: float = 0.0, strict: bool = False) -> float:
    """The value as a finite number within its bounds."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    if not math.isfinite(number) or not (number > least if strict else number >= least):
        raise FedpointError(f"{name} must be {'above' if strict else 'at least'} {least:g}, got {value!r}")
    return number


def check_count(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise FedpointError(f"{name} must be a whole number, at least {least}; got {value!r}")
    if int(value) > MOST_ROUNDS:
        raise FedpointError(f"{name} must be at most {MOST_ROUNDS}; got {value}")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped one probably means."""
    known = sorted(known)
    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    return next(k for k in known if k.lower() == close[0]) if close else None


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: ``did you mean 'fedavg'? Known: ...``."""
    known = sorted(known)
    meant = closest(name, known)
    guess = f"did you mean {meant!r}? " if meant else ""
    return f"{guess}Known: {', '.join(known)}."
