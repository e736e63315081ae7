r"""Which local steps and participants stop paying, and would SCAFFOLD help? From what was measured along the path.

With everybody and without noise, E local steps s lower the loss by what they do on the agents' own paths. Samples add

$$ \frac{s^2}{2L} \sum_{e<E} (1 - s\theta)^{2e} \sum_k p_k E z_k' H z_k, $$

theta the curvature that g sees on average, and participants who differ (K - L)/(K - 1) sum_k p_k m_k' H m_k / (2 L).
Control variates take the differences away, and what agents drift apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpoint.core.arguments import checked_methods
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain
from fedpoint.theory.probing import LOCAL, Point

PAYS = 0.1  # of what a round gains: what less adds does not pay


@checked_methods
@dataclass(frozen=True)
class Probe:
    """What was measured along the path of a run, and what follows.

    Attributes:
        rounds: at which it was measured.
        points: what was measured there.
        step: the local step that predictions are for.
        agents: K.
        participants: L of the experiment, which the advice on local steps is for.
    """

    rounds: tuple[int, ...]
    points: tuple[Point, ...]
    step: float
    agents: int
    participants: int

    def gain(self, local_steps: int, participants: int | None = None, scaffold: bool = False, at: int = -1) -> float:
        """By how much the loss is expected to fall in a round.

        Args:
            local_steps: E.
            participants: L; default: those of the experiment.
            scaffold: with control variates that have settled.
            at: which of the points.
        """
        if local_steps not in LOCAL:
            raise FedpointError(f"local_steps must be among those that were looked at, {LOCAL}; got {local_steps}")
        p, s, E, i = self.points[at], self.step, local_steps, LOCAL.index(local_steps)
        L = self.participants if participants is None else participants
        left = np.clip(1 - s * float(p.parts @ np.maximum(p.curvatures, 0.0)), -1.0, 1.0) ** 2
        noise = s**2 * p.noise_curvature / (2 * L) * float((left ** np.arange(E)).sum())
        if scaffold:
            return float(p.falls_with_controls[i]) - noise
        few = (self.agents - L) / max(self.agents - 1, 1) / (2 * L)
        return float(p.falls[i]) - noise - few * float(p.apart[i])

    @property
    def local_steps(self) -> int:
        """E: more of those that are compared add less than a tenth to what a round gains."""
        gains = [self.gain(E) for E in LOCAL]
        most = max(gains)
        if most <= 0:
            return LOCAL[0]
        return LOCAL[next(i for i, gain in enumerate(gains) if gain >= (1 - PAYS) * most)]

    @property
    def enough(self) -> int:
        """L: more participants add less than a tenth to what a round of `local_steps` gains."""
        counts = sorted({*(min(2**i, self.agents) for i in range(1 + math.ceil(math.log2(self.agents))))})
        gains = [self.gain(self.local_steps, L) for L in counts]
        return next((L for L, gain in zip(counts, gains, strict=True) if gain >= (1 - PAYS) * gains[-1]), counts[-1])

    @property
    def scaffold(self) -> bool:
        """Whether control variates add more than a tenth to what the best round gains."""
        plain, with_it = (max(self.gain(E, scaffold=yes) for E in LOCAL) for yes in (False, True))
        return with_it > (1 + PAYS) * max(plain, 0.0)

    def to_dict(self) -> dict[str, Plain]:
        """What was measured and advised, in plain types."""
        points = [
            {"round": r, **{name: np.asarray(value).tolist() for name, value in p._asdict().items()}}
            for r, p in zip(self.rounds, self.points, strict=True)
        ]
        return {
            "step": self.step,
            "points": points,
            "local_steps": self.local_steps,
            "participants": self.enough,
            "scaffold": self.scaffold,
        }

    def __str__(self) -> str:
        rows = [["round", "|g|^2", "noise", "heterogeneity", "curvature", *(f"E = {E}" for E in LOCAL)]]
        for i, (r, p) in enumerate(zip(self.rounds, self.points, strict=True)):
            numbers = [p.square, p.noise, p.heterogeneity, p.largest, *(self.gain(E, at=i) for E in LOCAL)]
            rows.append([str(r), *(f"{x:.2g}" for x in numbers)])
        helps = "would help" if self.scaffold else "would not help much"
        said = [
            f"By how much the loss falls in a round of {counted(self.participants, 'participant')} with step "
            f"{self.step:g}, by local steps:",
            "",
            *aligned(rows),
            "",
            f"At the last of these rounds, more than {counted(self.local_steps, 'local step')} and more than "
            f"{counted(self.enough, 'participant')} do not pay; SCAFFOLD {helps}.",
        ]
        if max(self.gain(E) for E in LOCAL) <= 0:
            said.append("Noise and differences undo what a round gains: take a shorter step, or more participants.")
        return "\n".join(said)
