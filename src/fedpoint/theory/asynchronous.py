"""How fast does an asynchronous iteration settle at worst? Lecture 003, in a form that is safe and tight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count, Whole
from fedpoint.core.numbers import there_are

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Contraction:
    """A method's contraction factor in the block-maximum norm max_i |w_i|, about its fixed point.

    Attributes:
        kappa: the factor, below 1; None where there is none, with the reason.
        nodes: (K,) each node's own factor, of which kappa is the largest.
        formula: from which it was computed.
        reason: why there is none.
    """

    kappa: float | None
    nodes: np.ndarray | None
    formula: str
    reason: str = ""

    def __repr__(self) -> str:
        if self.kappa is None:
            return f"<no contraction in the block-maximum norm: {self.reason}>"
        return f"<contraction {self.kappa:.6g} in the block-maximum norm: {self.formula}>"


@checked_methods
@dataclass(frozen=True)
class Bounds:
    """Bounds of V_k/V_0, V_k = max_i |w_i(k) - w_i*| before tick k's updates.

    Attributes:
        kappa: the contraction factor.
        B: the bound of asynchrony, in ticks.
        ticks: (n,) the ticks of the bounds.
        safe: (n,) kappa^(1 + floor((k - B)/(2B))) for k >= B, 1 before: never violated, and attained.
        printed: (n,) lecture 003's kappa^(k/(2B + 1)), which fails for small k where B >= 2.

    Arguments of methods:
        path: where to save the picture; png, svg or pdf by the ending.
        title: above it.
    """

    kappa: float
    B: int
    ticks: np.ndarray
    safe: np.ndarray
    printed: np.ndarray

    @property
    def fails(self) -> np.ndarray:
        """The ticks at which the printed bound lies below the safe one, and with it below the worst schedule."""
        return self.ticks[self.printed < self.safe * (1 - 1e-12)]

    @property
    def rate(self) -> float:
        """The safe bound's factor a tick in the long run: kappa^(1/(2B))."""
        return float(self.kappa ** (1 / (2 * self.B)))

    def ticks_to(self, factor: float) -> int:
        """The first tick from which V_k <= factor V_0 is certain.

        Args:
            factor: how far the error is to fall.
        """
        if not factor > 0:
            raise FedpointError(f"factor must be above 0, got {factor}")
        if factor >= 1:
            return 0
        if self.kappa == 0:
            return self.B
        powers = int(np.ceil(np.log(factor) / np.log(self.kappa) - 1e-12))
        return self.B + 2 * self.B * (max(powers, 1) - 1)

    def __repr__(self) -> str:
        failing = self.fails
        said = f"below it at {len(failing)} of the ticks, last at {failing[-1]}" if len(failing) else "never below it"
        return (
            f"<asynchronous bound: kappa = {self.kappa:.6g}, B = {self.B}, {self.rate:.6g} a tick; "
            f"lecture 003's exponent is {said}>"
        )

    def plot(self, path: str | Path | None = None, errors: ArrayLike | None = None, title: str | None = None) -> Figure:
        """Both bounds over ticks, and measured V_k/V_0 (one per tick of `ticks`) where given.

        Args:
            errors: measured V_k/V_0, one for each tick of `ticks`.
        """
        from fedpoint.show.figures import COLOURS, DASHED, Line, check_path, draw, one_axes, save, style

        if path is not None:
            check_path(path)
        lines = [
            Line(self.ticks, self.safe, "safe bound", COLOURS[0]),
            Line(self.ticks, self.printed, "lecture 003's\nexponent", COLOURS[1], DASHED),
        ]
        if errors is not None:
            values = numbers("errors", errors)
            if values.shape != self.ticks.shape:
                raise FedpointError(f"errors: {values.shape}, but {there_are(len(self.ticks), 'tick')}")
            lines.append(Line(self.ticks, values, "measured", COLOURS[2]))
        figure, ax = one_axes([line.label for line in lines])
        draw(ax, lines)
        style(ax, "ticks", "largest distance of a node from its solution, at the start 1", title)
        if path is not None:
            save(figure, path)
        return figure


@checked
def asynchronous(kappa: float | Contraction, B: Count, ticks: Whole | Sequence[int]) -> Bounds:
    """What a contraction promises under partial asynchrony with bound B.

    w_i+ = F_i(w_1, ..., w_K) contracts by kappa in the block-maximum norm. At tick k, node i updates or not, with the
    values of the others as they were before tick s_ij(k) <= k, its own never stale. Every B consecutive ticks contain
    an update of each node, and k - s_ij(k) <= B. Then, with V_k = max_i |w_i(k) - w_i*|,

        V_k <= kappa^(1 + floor((k - B)/(2B))) V_0  for k >= B,   V_k <= V_0 before.

    It is attained where all nodes update at ticks B - 1, 2B - 1, ... only, with values of age B.

    Args:
        kappa: a factor in [0, 1), or what `contraction` found.
        B: the bound, in ticks, at least 1.
        ticks: how many (0 to that number), or which.

    >>> b = asynchronous(0.5, B=2, ticks=6)
    >>> b.safe
    array([1.  , 1.  , 0.5 , 0.5 , 0.5 , 0.5 , 0.25])
    >>> b.fails
    array([1])
    """
    if isinstance(kappa, Contraction):
        if kappa.kappa is None:
            raise FedpointError(f"there is no contraction: {kappa.reason}")
        kappa = kappa.kappa
    if not 0 <= kappa < 1:
        raise FedpointError(f"kappa must be at least 0 and below 1, got {kappa}")
    k = np.arange(ticks + 1) if isinstance(ticks, int | np.integer) else np.asarray(ticks)
    if k.ndim != 1 or not np.issubdtype(k.dtype, np.integer) or (k < 0).any() or not len(k):
        raise FedpointError(f"ticks must be a number or a list of whole numbers, at least 0; got {ticks!r}")
    exponent = np.where(k < B, 0, 1 + (k - B) // (2 * B))
    return Bounds(float(kappa), int(B), k, float(kappa) ** exponent, float(kappa) ** (k / (2 * B + 1)))
