"""What does a plain function decide? Its numbers are arrays that note how they are compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Tree
from fedpoint.results.certificate import Unexercised
from fedpoint.verbs.certify.exercise.decisions import Decisions, Expression, expression_at
from fedpoint.verbs.certify.exercise.lines import Coverage
from fedpoint.verbs.certify.exercise.source import owner_of
from fedpoint.verbs.certify.world import Participant, Participants, Reading, Rounds, World, play

COMPARISONS = frozenset((np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal))
EXTREMES = frozenset((np.minimum, np.maximum, np.fmin, np.fmax))
_decisions: ContextVar[Decisions] = ContextVar("decisions")


class WatchedArray(np.ndarray):
    """An array whose results are watched too, until they leave NumPy (as by float)."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Tree, out: Sequence = (), **options: Tree) -> Tree:
        given = plain(inputs)
        into = {"out": plain(out)} if out else {}
        result = getattr(ufunc, method)(*given, **into, **plain(options))
        if method == "__call__" and (place := _here()):
            if ufunc in COMPARISONS:
                _note(place, [~result, result])
            elif ufunc in EXTREMES:
                _note(place, [given[0] < given[1], given[0] > given[1]])
            elif ufunc.__name__ == "clip":
                _note_clip(place, *given[:3])
        return (out[0] if len(out) == 1 else out) if out else watch(result)

    def __array_function__(self, function: Callable, types: Tree, given: Tree, options: Tree) -> Tree:
        if function is np.clip:  # which ends in a ufunc
            return super().__array_function__(function, types, given, options)
        result = function(*plain(given), **plain(options))
        place = _here()
        if place is not None and function is np.where and len(given) == 3:
            chosen = np.asarray(plain(given[0]), dtype=bool)
            _note(place, [~chosen, chosen])
        return watch(result)

    def __iter__(self) -> Tree:
        return map(watch, self.view(np.ndarray))

    def __getitem__(self, key: Tree) -> Tree:
        return watch(self.view(np.ndarray)[plain(key)])


_OWN = (WatchedArray.__array_function__.__code__,)  # it lies between NumPy's frames


def watch(result: Tree) -> Tree:
    """What was computed, watched: real numbers and truth values, alone or in tuples and lists."""
    if isinstance(result, tuple | list):
        return type(result)(map(watch, result)) if type(result) in (tuple, list) else result
    if isinstance(result, np.ndarray | np.generic) and result.dtype.kind in "fb":
        return np.asarray(result).view(WatchedArray)
    return result


def plain(given: Tree) -> Tree:
    """As it would be without being watched."""
    if isinstance(given, WatchedArray):
        return given.view(np.ndarray)
    if type(given) in (tuple, list):
        return type(given)(map(plain, given))
    return {name: plain(value) for name, value in given.items()} if type(given) is dict else given


def _here() -> Expression | None:
    """The user's expression that called NumPy, or Python, which compared."""
    frame = sys._getframe(2)
    while frame.f_back is not None and (owner_of(frame.f_code.co_filename) == "plumbing" or frame.f_code in _OWN):
        frame = frame.f_back
    return expression_at(frame.f_code, frame.f_lasti) if owner_of(frame.f_code.co_filename) == "user" else None


def _note(place: Expression, masks: list[np.ndarray]) -> None:
    _decisions.get().note(place, "", [i for i, mask in enumerate(masks) if np.any(mask)])


def _note_clip(place: Expression, x: ArrayLike, low: ArrayLike, high: ArrayLike) -> None:
    below, above = np.less(x, low), np.greater(x, high)
    _note(place, [~(below | above), below, above])


class WatchedParticipant(Participant):
    """Its answers are watched."""

    def sample(self) -> np.ndarray:
        return watch(super().sample())

    def field(self, w: ArrayLike, sample: np.ndarray | None = None) -> np.ndarray:
        return watch(super().field(w, plain(sample)))

    def loss(self, w: ArrayLike) -> float:
        return watch(np.float64(super().loss(w)))

    def prox(self, center: ArrayLike, weight: float) -> np.ndarray:
        return watch(super().prox(center, float(weight)))


def watch_function(
    function: Rounds,
    name: str,
    world: World,
    noise: float,
    plays: Sequence[tuple[Sequence[Sequence[int]], bool]],
    read: Reading | None = None,
) -> list[Unexercised]:
    """What these plays (who takes part in each round, and whether fields are noisy) never put to use."""
    lines, decisions = Coverage(), Decisions()

    def watched_round(w: np.ndarray, agents: Participants) -> np.ndarray:
        with lines.watched():
            return plain(function(watch(w), agents))

    token = _decisions.set(decisions)
    try:
        for ticks, noisy in plays:
            among = noise if noisy else 0.0
            play(watched_round, world, ticks, noise=among, name=name, kind=WatchedParticipant, read=read)
    except FedpointError as error:  # it works with arrays, and not with these
        return [Unexercised("", 0, name, f"which parts of it were put to use is not known: {error}")]
    finally:
        _decisions.reset(token)
    return combined(lines, decisions)


def combined(lines: Coverage, decisions: Decisions) -> list[Unexercised]:
    """Both, in the order of the source; a condition is not told beside the lines under it that it kept from running."""
    never = lines.never_ran()
    told = {(part.file, part.line - 1) for part in never}
    return sorted(
        [*never, *(part for part in decisions.one_sided() if (part.file, part.line) not in told)],
        key=lambda part: (part.file, part.line),
    )
