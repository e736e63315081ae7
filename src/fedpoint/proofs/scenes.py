"""What happens to agents of a class, as far as a programme needs to know? Vectors on a basis, and who answered what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedpoint.core.semidefinite import Block, vector
from fedpoint.proofs.rounds import LinearRound

ROOM = 512  # vectors of a basis
SAME = 1e-9


@dataclass(frozen=True)
class Class:
    """Losses whose gradients grow by at most `smooth` times the distance and at least `strong` times; `quadratic`:
    quadratics with eigenvalues between them."""

    smooth: float
    strong: float
    quadratic: bool = False

    def words(self) -> str:
        kind = "quadratic" if self.quadratic else "smooth"
        curved = f"{self.strong:g}-strongly convex" if self.strong else "convex"
        return f"{self.smooth:g}-{kind if kind == 'smooth' else 'smooth'}, {curved}{' quadratic' * self.quadratic}"


class Answer(NamedTuple):
    """The gradient of an agent's loss at a point, both on the basis."""

    agent: int
    point: np.ndarray
    gradient: np.ndarray


class Scene:
    """Vectors are rows (ROOM,) on a basis that grows as agents answer."""

    def __init__(self, agents: int) -> None:
        self.agents, self.size = agents, 0
        self.answers: list[Answer] = []
        self.vanishing: list[np.ndarray] = []  # rows of vectors that are known to be zero

    def new(self, count: int) -> np.ndarray:
        """(count, ROOM) vectors of which nothing is known."""
        first, self.size = self.size, self.size + count
        return np.eye(ROOM)[first : first + count]

    def solution(self) -> np.ndarray:
        """(K, ROOM): the agents' gradients at w*, the origin; they sum to zero."""
        own = self.new(self.agents - 1)
        gradients = np.concatenate([own, -own.sum(axis=0, keepdims=True)])
        for agent, gradient in enumerate(gradients):
            self.answers.append(Answer(agent, np.zeros(ROOM), gradient))
        return gradients

    def play(self, round: LinearRound, state: np.ndarray) -> np.ndarray:
        """(s, ROOM): the state after a round from here."""
        known = [*state]
        for place, (agent, point) in enumerate(round.asked):
            implicit = point[round.size + place]  # of a proximal step: its own gradient
            at = np.tensordot(point[: len(known)], np.array(known), 1)
            known.append(self._gradient(agent, at, implicit))
        return round.after @ np.array(known)

    def _gradient(self, agent: int, at: np.ndarray, implicit: float) -> np.ndarray:
        if not implicit:
            for known in self.answers:
                if known.agent == agent and np.abs(known.point - at).max() <= SAME:
                    return known.gradient
        gradient = self.new(1)[0]
        self.answers.append(Answer(agent, at + implicit * gradient, gradient))
        return gradient

    def settled(self) -> tuple[np.ndarray, list[Answer]]:
        """(size, n): a basis of what is left where all vanishing vectors are zero, and the answers on it. An agent
        answers the same at the same point, which may make more of them vanish."""
        zero = [row[: self.size] for row in self.vanishing]
        while True:
            basis = null_space(np.array(zero).reshape(-1, self.size))
            answers = [
                Answer(a.agent, a.point[: self.size] @ basis, a.gradient[: self.size] @ basis) for a in self.answers
            ]
            left: list[tuple[Answer, Answer]] = []
            more: list[np.ndarray] = []
            for new, raw in zip(answers, self.answers, strict=True):
                twin = next(
                    (
                        (old, at)
                        for old, at in left
                        if old.agent == new.agent and np.abs(old.point - new.point).max(initial=0.0) <= SAME
                    ),
                    None,
                )
                if twin is None:
                    left.append((new, raw))
                elif np.abs(twin[0].gradient - new.gradient).max(initial=0.0) > SAME:
                    more.append((twin[1].gradient - raw.gradient)[: self.size])
            if not more:
                return basis, [new for new, _ in left]
            zero += more


def null_space(rows: np.ndarray) -> np.ndarray:
    """(n, n - rank): an orthonormal basis of what the rows (m, n) send to zero."""
    if not len(rows):
        return np.eye(rows.shape[1])
    _, sizes, right = np.linalg.svd(rows)
    rank = int((sizes > SAME * max(1.0, sizes[0])).sum())
    return right[rank:].T


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The symmetric matrix of the inner product of two vectors."""
    both = np.outer(a, b)
    return (both + both.T) / 2


class Unknowns(NamedTuple):
    """Of a programme: the Gram matrix of a basis of `size`, as a vector, and one value of each answer's loss."""

    size: int
    values: int

    @property
    def gram(self) -> int:
        return self.size * (self.size + 1) // 2

    def row(self, form: np.ndarray, **values: float) -> np.ndarray:
        """A linear function: of the Gram matrix, and factors of losses by their number."""
        found = np.zeros(self.gram + self.values)
        found[: self.gram] = vector(form)
        for name, factor in values.items():
            found[self.gram + int(name[1:])] += factor
        return found


def conditions(cls: Class, agents: int, answers: list[Answer], size: int) -> tuple[Unknowns, list[Block]]:
    """What it takes that losses of the class answer so: necessary and sufficient (Taylor, Hendrickx and Glineur, 2017;
    of quadratics Bousselmi, Hendrickx and Glineur, 2024)."""
    unknowns = Unknowns(size, 0 if cls.quadratic else len(answers))
    blocks = [Block("semidefinite", _pad(-np.eye(unknowns.gram), unknowns.values), np.zeros(unknowns.gram))]
    for agent in range(agents):
        own = [(i, a) for i, a in enumerate(answers) if a.agent == agent]
        blocks += _of_quadratic(cls, unknowns, own) if cls.quadratic else _of_smooth(cls, unknowns, own)
    return unknowns, blocks


def _pad(matrix: np.ndarray, columns: int) -> np.ndarray:
    return np.concatenate([matrix, np.zeros((len(matrix), columns))], axis=1)


def _of_smooth(cls: Class, unknowns: Unknowns, own: list[tuple[int, Answer]]) -> list[Block]:
    """f_i >= f_j + g_j'(x_i - x_j) + (|g_i - g_j|^2 / L + mu |x_i - x_j|^2 - 2 mu/L (g_i - g_j)'(x_i - x_j))
    / (2 (1 - mu/L)) for each two; the first value is zero."""
    L, mu = cls.smooth, cls.strong
    rows = []
    for i, a in own:
        for j, b in own:
            if i == j:
                continue
            x, g = a.point - b.point, a.gradient - b.gradient
            curved = product(g, g) / L + mu * product(x, x) - 2 * mu / L * product(g, x)
            form = product(b.gradient, x) + curved / (2 * (1 - mu / L))
            rows.append(unknowns.row(form, **{f"f{j}": 1.0, f"g{i}": -1.0}))
    first = unknowns.row(np.zeros((unknowns.size, unknowns.size)), **{f"f{own[0][0]}": 1.0})
    found = [Block("zero", first[None], np.zeros(1))]
    return [*found, Block("nonnegative", np.array(rows), np.zeros(len(rows)))] if rows else found


def _of_quadratic(cls: Class, unknowns: Unknowns, own: list[tuple[int, Answer]]) -> list[Block]:
    """G = H X for differences X of points and G of gradients: X'G is symmetric, (G - mu X)'(L X - G) semidefinite."""
    first, rest = own[0][1], [a for _, a in own[1:]]
    if not rest:
        return []
    X, G = (np.array([getattr(a, part) - getattr(first, part) for a in rest]) for part in ("point", "gradient"))
    n = len(rest)
    uneven = [unknowns.row(product(X[i], G[j]) - product(X[j], G[i])) for i in range(n) for j in range(i)]
    low, high = G - cls.strong * X, cls.smooth * X - G
    columns, lines = np.tril_indices(n)
    scale = np.where(columns == lines, 1.0, np.sqrt(2))
    cone = [
        -s * unknowns.row((product(low[i], high[j]) + product(low[j], high[i])) / 2)
        for i, j, s in zip(lines, columns, scale, strict=True)
    ]
    found = [Block("semidefinite", np.array(cone), np.zeros(len(cone)))]
    if uneven:
        rows = independent(np.array(uneven))
        found.append(Block("zero", rows, np.zeros(len(rows))))
    return found


def independent(rows: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what the rows span: a solver trips over equations that say the same."""
    _, sizes, right = np.linalg.svd(rows, full_matrices=False)
    return right[sizes > SAME * max(1.0, sizes[0])]
