"""How bad can it get? Semidefinite programmes over all agents of a class, and the agents with which it gets so bad."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.semidefinite import Block, Solved, matrix, minimise, vector
from fedpoint.proofs.motion import Motion
from fedpoint.proofs.rounds import Traced
from fedpoint.proofs.scenes import Answer, Class, Scene, Unknowns, conditions, null_space, product

MOST_ANSWERS = 54  # gradients in a programme: a quarter of a minute
MOST_SEARCHED = 30  # where it is solved a dozen times
FINE = 1e-3  # of a factor that is searched for
SHARP = 1e-4  # of a bisection: relative
LONGEST, SHORTEST = 1e3, 1e-6  # times its step that are tried
RANK = 1e-7  # eigenvalues of a Gram matrix below so much of the largest are rounding


class Found(NamedTuple):
    """A worst case, and where known the agents of it: who answered what, in coordinates (w* is the origin), and the
    models that runs start from."""

    value: float
    agents: list[tuple[np.ndarray, np.ndarray, np.ndarray]] | None = None  # points (m, d), gradients (m, d), losses
    starts: np.ndarray | None = None  # (runs, d)


def distance(traced: Traced, cls: Class, heterogeneity: float, rounds: int) -> Found:
    """max |w_n - w*| where |w_0 - w*| <= 1 and mean |g_k(w*)|^2 <= heterogeneity^2, from the method's own start."""
    scene = Scene(traced.agents)
    gradients = scene.solution()
    start = scene.new(1)
    state, numbers = np.outer(traced.start, start[0]), traced.numbers
    for number in range(rounds):
        round, numbers = traced.round(number, numbers)
        state = scene.play(round, state)
        _check_size(scene, MOST_ANSWERS, f"{rounds} rounds" if rounds > 1 else "a round")
    models = traced.models(numbers) @ state
    return _largest(scene, cls, models, [(start, 1.0), (gradients, heterogeneity**2)], start)


def bias(motion: Motion, cls: Class, heterogeneity: float) -> Found:
    """max |w - w*| over the states in which a round changes nothing."""
    scene = Scene(motion.agents)
    rests = motion.rests()
    gradients = scene.solution()
    if rests:  # less the gradients at w*, losses are of the class again: how many of them there are does not matter
        scene.vanishing += [*gradients]
    u = scene.new(motion.size)
    models = motion.models @ u
    scene.vanishing += [*(motion.play(scene, u) - u)]
    _check_size(scene, MOST_ANSWERS, "a round")
    if not rests:
        return _largest(scene, cls, models, [(gradients, heterogeneity**2)], None)
    far = _largest(scene, cls, models, [(models, 1.0)], None).value  # of a cone: nothing but w*, or as far as we like
    return Found(0.0 if far < 0.5 or not heterogeneity else math.inf)


def contraction(motion: Motion, cls: Class) -> Found:
    """The factor by which runs approach each other in a round, at least, in a norm of models and memories."""
    gap = Gap.of(motion)
    if gap.size == 1:  # one vector: its length is the norm
        return gap.largest(cls)
    if not gap.shrinks(cls, 1.0):
        return Found(math.inf)
    low, high = 0.0, 1.0
    while high - low > FINE:
        middle = (low + high) / 2
        low, high = (low, middle) if gap.shrinks(cls, middle) else (middle, high)
    return Found(high)


def safe(motion: Motion, cls: Class) -> bool:
    """Whether runs never move apart, in a norm of models and memories."""
    gap = Gap.of(motion)
    if gap.size == 1:
        return gap.largest(cls).value <= 1 + 1e-6
    return gap.shrinks(cls, 1.0)


def largest_step(traced: Traced, cls: Class) -> float:
    """Up to how many times its step the method is safe; 0: not even for a millionth of it; inf: for a thousandfold."""

    def holds(factor: float) -> bool:
        longer = traced.longer(factor)
        if longer is None:
            raise FedpointError(f"{traced.owner} has no step")
        return safe(Motion.of(longer), cls)

    low, high = 1.0, 1.0
    if holds(1.0):
        while holds(2 * high):
            low = high = 2 * high
            if high > LONGEST:
                return math.inf
        high *= 2
    else:
        while not holds(low / 2):
            low = high = low / 2
            if low < SHORTEST:
                return 0.0
        low /= 2
    while high > low * (1 + SHARP):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


class Gap(NamedTuple):
    """Two runs among the same agents: their difference before and after a round. Where the method rests at w*, one of
    them does."""

    scene: Scene
    before: np.ndarray  # (r, ROOM)
    after: np.ndarray
    models: np.ndarray  # (n, r)
    starts: np.ndarray  # (runs, ROOM): models that runs start from, where a state is one

    @classmethod
    def of(cls, motion: Motion) -> Gap:
        scene = Scene(motion.agents)
        rests = motion.rests()
        before = scene.new(motion.size)
        if rests:
            scene.vanishing += [*scene.solution()]
            other, after = np.zeros_like(before), motion.play(scene, before)
        else:
            place = motion.start / np.linalg.norm(motion.start)  # the second run may start at the origin
            free = null_space(place[None])
            other = free @ scene.new(free.shape[1])
            after = motion.play(scene, other + before) - motion.play(scene, other)
        runs = [other + before] if rests else [other + before, other]
        _check_size(scene, MOST_ANSWERS if motion.size == 1 else MOST_SEARCHED, "a round")
        return cls(scene, before, after, motion.models, np.array([motion.models[0] @ run for run in runs]))

    @property
    def size(self) -> int:
        return len(self.before)

    def largest(self, cls: Class) -> Found:
        return _largest(self.scene, cls, self.after, [(self.before, 1.0)], self.starts)

    def shrinks(self, cls: Class, factor: float) -> bool:
        """Whether V = sum P_ij x_i'x_j >= |models|^2 exists that shrinks by factor^2 among all agents of the class."""
        basis, answers = self.scene.settled()
        unknowns, (_, *told) = conditions(cls, self.scene.agents, answers, basis.shape[1])
        x, y = (rows[:, : self.scene.size] @ basis for rows in (self.before, self.after))
        r = self.size
        each = [matrix(q) for q in np.eye(r * (r + 1) // 2)]
        shapes = np.array([vector(factor**2 * x.T @ P @ x - y.T @ P @ y) for P in each]).T
        left = np.concatenate([block.left for block in told])
        p, m = len(each), len(left)
        blocks = [
            Block(
                "semidefinite", -np.concatenate([shapes, left[:, : unknowns.gram].T], axis=1), np.zeros(unknowns.gram)
            ),
            Block("zero", _right(left[:, unknowns.gram :].T, p), np.zeros(unknowns.values)),
            Block("semidefinite", _left(-np.eye(p), m), -vector(self.models.T @ self.models / len(self.models))),
        ]
        at = 0
        for block in told:
            if block.kind != "zero":
                blocks.append(Block(block.kind, _right(-np.eye(m)[at : at + len(block.right)], p), 0 * block.right))
            at += len(block.right)
        cost = np.concatenate([vector(np.eye(r)), np.zeros(m)])
        return minimise(cost, blocks).outcome == "solved"


def _right(matrix: np.ndarray, columns: int) -> np.ndarray:
    return np.concatenate([np.zeros((len(matrix), columns)), matrix], axis=1)


def _left(matrix: np.ndarray, columns: int) -> np.ndarray:
    return np.concatenate([matrix, np.zeros((len(matrix), columns))], axis=1)


def _check_size(scene: Scene, most: int, what: str) -> None:
    if len(scene.answers) > most:
        raise FedpointError(
            f"{what} of it asks for {len(scene.answers)} gradients, and a programme has room for {most} within a "
            "minute: take fewer local steps, rounds or agents"
        )


def _largest(
    scene: Scene, cls: Class, models: np.ndarray, limits: list[tuple[np.ndarray, float]], starts: np.ndarray | None
) -> Found:
    """The largest root mean square of these vectors; limits: vectors whose mean square is at most a number."""
    basis, answers = scene.settled()
    n = basis.shape[1]
    if not n:
        return Found(0.0)

    def on(rows: np.ndarray) -> np.ndarray:
        return rows[:, : scene.size] @ basis

    def square(rows: np.ndarray) -> np.ndarray:
        return sum((product(row, row) for row in on(rows)), np.zeros((n, n))) / len(rows)

    unknowns, blocks = conditions(cls, scene.agents, answers, n)
    rows = np.array([unknowns.row(square(vectors)) for vectors, _ in limits])
    blocks.append(Block("nonnegative", rows, np.array([most for _, most in limits])))
    solved = minimise(-unknowns.row(square(models)), blocks)
    if solved.outcome == "unbounded":
        return Found(math.inf)
    if solved.outcome not in ("solved", "nearly"):
        raise FedpointError(f"the solver found no worst case ({solved.outcome}): try another step or class")
    value = math.sqrt(max(0.0, -solved.value))
    return Found(value, *_instance(scene.agents, unknowns, answers, solved, None if starts is None else on(starts)))


def _instance(
    agents: int, unknowns: Unknowns, answers: list[Answer], solved: Solved, starts: np.ndarray | None
) -> tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray]], np.ndarray | None]:
    """The Gram matrix as inner products of vectors in as few dimensions as it has."""
    values, axes = np.linalg.eigh(matrix(solved.x[: unknowns.gram]))
    large = values > RANK * max(values[-1], 0.0)
    place = axes[:, large] * np.sqrt(values[large])  # (n, d): the basis
    losses = solved.x[unknowns.gram :]
    found = []
    for agent in range(agents):
        own = [i for i, a in enumerate(answers) if a.agent == agent]
        at = np.array([answers[i].point for i in own]) @ place
        gradient = np.array([answers[i].gradient for i in own]) @ place
        found.append((at, gradient, losses[own] if unknowns.values else np.zeros(len(own))))
    return found, None if starts is None else starts @ place
