"""Markov decision processes: what does an agent's world do, and where does a policy lead in it?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import array_of, numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.made import Made
from fedpoint.core.numbers import counted, there_are
from fedpoint.problems.base import check_finite

SUM = 1e-8  # how far from one the sum of probabilities may be


@checked
class MDP(Made):
    """States, actions, transitions and rewards.

    Args:
        P: (S, A, S) probabilities of the next state.
        R: rewards (S,), (S, A) or, by the state that is reached, (S, A, S).
        terminal: which transitions end an episode: (S,) by the state that is reached, or (S, A, S). Then the chain
            starts again from `initial`, and the value after the end is 0.
        initial: (S,) where episodes begin.

    >>> MDP([[[0.0, 1.0]], [[0.5, 0.5]]], [1.0, 0.0])
    <MDP: 2 states, 1 action>
    """

    def __init__(self, P: ArrayLike, R: ArrayLike, terminal: ArrayLike | None = None, initial: ArrayLike | None = None):
        P = numbers("P", P)
        if P.ndim != 3 or P.shape[0] != P.shape[2] or 0 in P.shape:
            raise FedpointError(f"P must be (states, actions, states), got shape {P.shape}")
        S, A, _ = P.shape
        self.P = _distributions("P", P)
        R = numbers("R", R)
        check_finite("R", R)
        if R.shape not in ((S,), (S, A), (S, A, S)):
            raise FedpointError(
                f"R has shape {R.shape}; for {counted(S, 'state')} and {counted(A, 'action')} give {(S, A)} or {(S,)}"
            )
        self.R = R
        ends = np.zeros((S, A, S), bool) if terminal is None else array_of("terminal", terminal)
        if ends.dtype != bool or ends.shape not in ((S,), (S, A, S)):
            raise FedpointError(
                f"terminal must be true or false for each of {counted(S, 'state')}, or of shape {(S, A, S)}"
            )
        self.ends = np.broadcast_to(ends, (S, A, S))
        self.initial = None
        if initial is not None:
            self.initial = _distributions("initial", numbers("initial", initial))
            if self.initial.shape != (S,):
                raise FedpointError(f"initial has shape {self.initial.shape}, but {there_are(S, 'state')}")
        elif (self.ends & (P > 0)).any():
            raise FedpointError("episodes end: give the states where they begin, initial=")

    @property
    def states(self) -> int:
        return self.P.shape[0]

    @property
    def actions(self) -> int:
        return self.P.shape[1]

    def rewards(self) -> np.ndarray:
        """(S, A, S)."""
        R = self.R.reshape(*self.R.shape, *(1,) * (3 - self.R.ndim))
        return np.broadcast_to(R, self.P.shape)

    def __repr__(self) -> str:
        return f"<MDP: {counted(self.states, 'state')}, {counted(self.actions, 'action')}>"


def _distributions(name: str, P: np.ndarray) -> np.ndarray:
    check_finite(name, P)
    total = P.sum(axis=-1)
    for where in np.argwhere((P < 0).any(axis=-1) | (np.abs(total - 1) > SUM)):
        place = "".join(f", {axis} {i}" for axis, i in zip(("state", "action"), where, strict=False))
        raise FedpointError(
            f"{name}{place}: probabilities must be at least 0 and sum to 1; the sum is {total[*where]:g}"
        )
    return P / total[..., None]


def as_policy(policy: ArrayLike | None, states: int, actions: int) -> np.ndarray:
    """(S, A) probabilities: uniform by default, or one action per state."""
    if policy is None:
        return np.full((states, actions), 1.0 / actions)
    given = array_of("policy", policy)
    if given.shape == (states,) and np.issubdtype(given.dtype, np.integer):
        if ((given < 0) | (given >= actions)).any():
            raise FedpointError(f"policy names an action that is not in 0 .. {actions - 1}")
        return np.eye(actions)[given]
    given = numbers("policy", policy)
    if given.shape != (states, actions):
        raise FedpointError(f"policy has shape {given.shape}; give {(states, actions)}, or one action per state")
    return _distributions("policy", given)


class Chain(NamedTuple):
    """What a policy makes of an MDP."""

    moves: np.ndarray  # (S, S): probabilities of going on to a state; rows sum to less than 1 where episodes end
    initial: np.ndarray  # (S,): where it starts again after an end
    reward: np.ndarray  # (S,): expected
    stationary: np.ndarray  # (S,): of the chain with restarts
    outcomes: Outcomes


class Outcomes(NamedTuple):
    """All that one step may bring: (n,) arrays. `after` is S at the end of an episode."""

    state: np.ndarray
    after: np.ndarray
    reward: np.ndarray
    chance: np.ndarray  # given the state


def chain_of(mdp: MDP, policy: np.ndarray, name: str) -> Chain:
    S = mdp.states
    joint = policy[:, :, None] * mdp.P
    moves = np.where(mdp.ends, 0.0, joint).sum(axis=1)
    over = np.where(mdp.ends, joint, 0.0).sum(axis=(1, 2))
    initial = np.zeros(S) if mdp.initial is None else mdp.initial
    whole = moves + np.outer(over, initial)
    return Chain(
        moves,
        initial,
        (joint * mdp.rewards()).sum(axis=(1, 2)),
        stationary(whole, initial, name),
        _outcomes(mdp, joint),
    )


def _outcomes(mdp: MDP, joint: np.ndarray) -> Outcomes:
    """Outcomes that differ; those that only differ in the action are one."""
    s, a, t = np.nonzero(joint)
    after = np.where(mdp.ends[s, a, t], mdp.states, t)
    rows, same = np.unique(np.column_stack([s, after, mdp.rewards()[s, a, t]]), axis=0, return_inverse=True)
    chance = np.bincount(same.ravel(), weights=joint[s, a, t], minlength=len(rows))
    return Outcomes(rows[:, 0].astype(np.int32), rows[:, 1].astype(np.int32), rows[:, 2], chance)


def stationary(whole: np.ndarray, initial: np.ndarray, name: str) -> np.ndarray:
    """(S,): the stationary distribution; refused where the chain may settle in several places."""
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    _, label = connected_components(whole > 0, directed=True, connection="strong")
    leaving = {int(label[s]) for s, t in np.argwhere(whole > 0) if label[s] != label[t]}
    closed = [c for c in range(int(label.max()) + 1) if c not in leaving]
    if len(closed) > 1 and initial.any():
        reached: set[int] = set()
        for s in np.flatnonzero(initial):
            reached |= set(label[breadth_first_order(whole > 0, s, return_predecessors=False)].tolist())
        closed = [c for c in closed if c in reached]
    if len(closed) != 1:
        raise FedpointError(
            f"agent {name}: under this policy the chain may settle in {len(closed)} separate sets of states, so it has "
            "no one stationary distribution: mark states as terminal and say where episodes begin, or change the policy"
        )
    inside = np.flatnonzero(label == closed[0])
    balance = whole[np.ix_(inside, inside)].T - np.eye(len(inside))
    balance[-1] = 1.0
    found = np.zeros(len(whole))
    found[inside] = np.maximum(np.linalg.solve(balance, np.eye(len(inside))[-1]), 0.0)
    return found / found.sum()


def alias_table(chance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's tables: i uniform, then i with probability cut[i] and other[i] else, has the distribution `chance`.

    >>> cut, other = alias_table(np.array([0.5, 0.25, 0.25]))
    >>> (cut + np.bincount(other, weights=1 - cut, minlength=3)) / 3
    array([0.5 , 0.25, 0.25])
    """
    n = len(chance)
    left = chance * (n / chance.sum())
    cut, other = np.ones(n), np.arange(n, dtype=np.int32)
    small, large = [int(i) for i in np.flatnonzero(left < 1)], [int(i) for i in np.flatnonzero(left >= 1)]
    while small and large:
        i, j = small.pop(), large[-1]
        cut[i], other[i] = left[i], j
        left[j] -= 1 - left[i]
        if left[j] < 1:
            small.append(large.pop())
    return cut, other


def garnet_mdp(states: int, actions: int, branching: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """P and R of a random MDP: from each state and action to `branching` states, cut at random; rewards in [0, 1]."""
    after = rng.random((states, actions, states)).argsort(axis=-1)[..., :branching]
    cuts = np.sort(rng.random((states, actions, branching - 1)), axis=-1)
    ends = np.ones((states, actions, 1))
    P = np.zeros((states, actions, states))
    np.put_along_axis(P, after, np.diff(cuts, axis=-1, prepend=0 * ends, append=ends), axis=-1)
    return P, rng.random((states, actions))
