"""What is the state of a method, without what a run never reaches and nobody ever sees? And may it rest at w*?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.proofs.rounds import LinearRound, Traced
from fedpoint.proofs.scenes import SAME, Scene, null_space


@dataclass(frozen=True)
class Motion:
    """One round of all rounds, on coordinates u (r vectors) of the states that a run can reach: z = lift u.

    Sums that are conserved, such as that of SCAFFOLD's controls, are so kept at their start; copies and what is
    overwritten before it is read do not count.
    """

    round: LinearRound
    lift: np.ndarray  # (s, r)
    drop: np.ndarray  # (r, s)
    models: np.ndarray  # (n, r)
    start: np.ndarray  # (r,): of each coordinate, how much of the start it holds
    agents: int

    @classmethod
    def of(cls, traced: Traced) -> Motion:
        """Refuses a method whose rounds differ."""
        first, numbers = traced.round(0, traced.numbers)
        second, _ = traced.round(1, numbers)
        models = traced.models(traced.numbers)
        if not (first.same(second) and np.allclose(models, traced.models(numbers))):
            raise FedpointError(
                f"the rounds of {traced.owner} differ, by a schedule of steps or a count of rounds: only its distance "
                "after so many rounds can be asked for"
            )
        lift = reachable(first, traced.start)
        seen = observed(first, models) @ lift
        kept = null_space(null_space(seen).T) if np.abs(seen).max(initial=0.0) > SAME else np.zeros((lift.shape[1], 0))
        drop = kept.T @ np.linalg.pinv(lift)
        return cls(first, lift @ kept, drop, models @ lift @ kept, drop @ traced.start, traced.agents)

    @property
    def size(self) -> int:
        return self.lift.shape[1]

    def play(self, scene: Scene, u: np.ndarray) -> np.ndarray:
        """(r, ROOM): the coordinates after a round."""
        return self.drop @ scene.play(self.round, self.lift @ u)

    def rests(self) -> bool:
        """Whether a state exists, for any gradients of the agents at w*, in which the model stays at w* and everybody
        asks there only."""
        s, K = self.round.size, self.agents
        share = np.concatenate([np.eye(K - 1), -np.ones((1, K - 1))])  # gradients at w*: they sum to zero
        told = share[[a.agent for a in self.round.asked]]
        points = np.array([a.point for a in self.round.asked]).reshape(-1, self.round.after.shape[1])
        before, after = points[:, :s] @ self.lift, self.drop @ self.round.after
        left = np.concatenate([np.eye(self.size) - after[:, :s] @ self.lift, before, self.models])
        right = np.concatenate([after[:, s:] @ told, -points[:, s:] @ told, np.zeros((len(self.models), K - 1))])
        found = np.linalg.lstsq(left, right, rcond=None)[0]
        return bool(np.abs(left @ found - right).max(initial=0.0) <= 1e-8)


def reachable(round: LinearRound, start: np.ndarray) -> np.ndarray:
    """(s, r): an orthonormal basis of the states that a run can be in, of all agents."""
    A, B = round.after[:, : round.size], round.after[:, round.size :]
    return _grown(np.concatenate([start[:, None], B], axis=1), A)


def observed(round: LinearRound, models: np.ndarray) -> np.ndarray:
    """(n, s): rows of all that a state decides: models and points, now and later."""
    points = [a.point[: round.size] for a in round.asked]
    seen = np.concatenate([models, np.array(points).reshape(-1, round.size)])
    return _grown(seen.T, round.after[:, : round.size].T).T


def _grown(columns: np.ndarray, A: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the columns, A times them, A^2 times them, ..."""
    basis = np.zeros((len(A), 0))
    new = columns
    while new.size:
        left, sizes, _ = np.linalg.svd(new - basis @ (basis.T @ new), full_matrices=False)
        more = left[:, sizes > 1e-8]
        basis = np.concatenate([basis, more], axis=1)
        new = A @ more
    return basis
