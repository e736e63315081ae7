"""What can a server learn of single rows, within what sites consent to? Three attacks, each measured against the truth.

Writes benchmarks/DISCLOSURE.md. `python benchmarks/disclosure.py` (about two minutes).

Passive: the hub reads one honest message of a logistic model and looks for rows that explain it. Active: the hub sends
models of its own choice, each of the right shape and finite, in the rounds agreed. Moments: who is in a table, by its
means alone. Site's work is done by the very code that a site runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment, minimize

from fedpoint.core.precision import double
from fedpoint.data.column import Column
from fedpoint.data.recipe import Feature
from fedpoint.federation import preparation
from fedpoint.federation.holding import Holding
from fedpoint.federation.study import Study, parse
from fedpoint.federation.wire import OwnSetup

DIM = 6  # features
STEP = 0.5
READ = 0.01  # a row is read when each number is within a hundredth of its standard deviation
ROUNDS = 50


def table(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Standardised features, and classes that depend on them."""
    rng = np.random.default_rng([rows, seed])
    X = rng.normal(size=(rows, DIM))
    return X, (rng.random(rows) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(float)


def study_of(width: int, batch: int | None, steps: int) -> Study:
    names = [f"x{i}" for i in range(width)]
    problem = {"kind": "table", "model": "logistic", "target": "y", "features": names, "scale": False, "ridge": 0.0}
    problem |= {} if batch is None else {"batch": batch}
    return parse({
        "name": "attack", "sites": ["a", "b"], "server": "localhost:8102", "rounds": 10_000,
        "problem": problem, "algorithm": {"name": "fedavg", "step": STEP, "local_steps": steps},
    })  # fmt: skip


class Victim:
    """A site with these rows: what it says to a model in a round."""

    def __init__(self, X: np.ndarray, y: np.ndarray, batch: int | None, steps: int):
        study = study_of(X.shape[1], batch, steps)
        named = {f"x{i}": X[:, i] for i in range(X.shape[1])} | {"y": y}
        columns = {name: Column(values) for name, values in named.items()}
        recipe = preparation.written([Feature(f"x{i}") for i in range(X.shape[1])])
        setup = OwnSetup(index=0, share=0.5, heaviest=0.5, recipe=recipe, classes=[0, 1])
        self.holding = Holding(study, setup, columns)

    def says(self, model: np.ndarray, round: int) -> np.ndarray:
        """The change of the model that it sends."""
        said = self.holding.silence()
        (name,) = said
        (message,) = self.holding.work({name: model}, self.holding.start, round)[0].values()
        return np.asarray(message)


def read(found: np.ndarray, truth: np.ndarray) -> int:
    """How many true rows are among those found."""
    if not len(found):
        return 0
    apart = np.abs(found[:, None, :] - truth[None, :, :]).max(2)
    return int((apart.min(0) < READ).sum())


# Passive: one message.


@double
def explained(model: np.ndarray, change: np.ndarray, batch: int, steps: int, seed: int) -> np.ndarray:
    """The most likely rows of one message, by a normal prior: many starts, every number of ones among the labels.
    Of one row and one step the message is a multiple of (x, 1)."""
    if batch == steps == 1:
        return change[None, :-1] / change[-1]
    rng, best, rows = np.random.default_rng(seed), math.inf, np.zeros((batch, DIM))

    def local(X: jax.Array, y: jax.Array) -> jax.Array:
        w = jnp.asarray(model)
        for _ in range(steps):  # the same rows in every step: the attacker's best case
            Z = jnp.concatenate([X, jnp.ones((batch, 1))], 1)
            w = w - STEP / batch * Z.T @ (jax.nn.sigmoid(Z @ w) - y)
        return w - jnp.asarray(model)

    @jax.jit
    def cost(flat: jax.Array, y: jax.Array) -> jax.Array:
        X = flat.reshape(batch, DIM)
        return 1e6 * ((local(X, y) - change) ** 2).sum() + 0.5 * (X**2).sum()

    both = jax.jit(jax.value_and_grad(cost))
    for ones in range(batch + 1):
        y = jnp.asarray((np.arange(batch) < ones).astype(float))
        for _ in range(3):
            done = minimize(
                lambda x, y=y: [np.asarray(v, float) for v in both(jnp.asarray(x), y)],
                rng.normal(size=batch * DIM), jac=True, method="L-BFGS-B", options={"maxiter": 2000, "maxfun": 4000},
            )  # fmt: skip
            if done.fun < best:
                best, rows = done.fun, done.x.reshape(batch, DIM)
    return rows


def passive(batch: int, turns: int = 10) -> tuple[float, float, float]:
    """The share of a batch's rows that is read, the median distance of the others, and that of a guess at random."""
    X, y = table(200, 1)
    which = rows_drawn(len(y), batch, turns)
    victim, count, errors, guesses = Victim(X, y, batch, 1), 0, [], []
    rng = np.random.default_rng(batch)
    for round in range(turns):
        model = rng.normal(size=DIM + 1) * 0.3
        truth = X[which[round]]
        found = explained(model, victim.says(model, round), batch, 1, round)
        for rows, into in ((found, errors), (rng.normal(size=truth.shape), guesses)):
            apart = np.sqrt(((rows[:, None, :] - truth[None]) ** 2).mean(2))
            into += list(apart[linear_sum_assignment(apart)])
        count += read(found, truth)
    return count / (batch * turns), float(np.median(errors)), float(np.median(guesses))


def rows_drawn(rows: int, batch: int, rounds: int) -> np.ndarray:
    """(rounds, batch): which rows a site draws. Draws are functions of (seed, round, agent), so whoever has the study
    can repeat them on rows of their own: unit vectors, of which the message shows how often each was drawn."""
    spy = Victim(np.eye(rows), np.arange(rows) % 2 * 1.0, batch, 1)
    heard = np.array([spy.says(np.zeros(rows + 1), round)[:rows] for round in range(rounds)])
    times = np.rint(np.abs(heard) / (0.5 * STEP / batch)).astype(int)
    return np.array([np.repeat(np.arange(rows), one) for one in times])


# Active: models of the server's choice.


HUGE = 1e6  # a model so long that a row's part of the gradient is 0 or 1 times (x, 1), and stays so in all local steps


def threshold_model(threshold: float) -> np.ndarray:
    """Says 1 of rows whose first feature is above the threshold, and 0 of the others."""
    return np.r_[HUGE, np.zeros(DIM - 1), -HUGE * threshold]


def by_slabs(rows: int, steps: int) -> int:
    """Full batches. The difference of what is heard at two thresholds is the sum of the rows between them, and its last
    number says how many there are: a slab is halved until it holds one."""
    X, y = table(rows, 2)
    victim, found = Victim(X, y, None, steps), []
    asked: dict[float, np.ndarray] = {}

    def above(threshold: float) -> np.ndarray:
        if threshold not in asked:
            asked[threshold] = -victim.says(threshold_model(threshold), len(asked)) * rows / (STEP * steps)
        return asked[threshold]

    slabs = [(-6.0, 6.0)]
    while slabs and len(asked) < ROUNDS - 1:
        low, high = slabs.pop(0)
        difference = above(low) - above(high)
        many = round(difference[-1])
        if many == 1:
            found.append(difference[:-1])
        elif many > 1:
            middle = (low + high) / 2
            slabs += [(low, middle), (middle, high)]
    return read(np.array(found), X)


def by_draws(rows: int, batch: int, steps: int) -> int:
    """Small batches. One model again and again: messages are then sums of the same unknown vectors, and who is in which
    is known. As many rounds as rows solve for all of them. With several steps the model must be huge, and then shows
    the rows of one class only: each class gets half of the rounds."""
    X, y = table(rows, 3)
    victim, spy = Victim(X, y, batch, steps), Victim(np.eye(rows), np.zeros(rows), batch, steps)
    models = [np.zeros(DIM + 1)] if steps == 1 else [threshold_model(-6.0), threshold_model(6.0)]
    fake = [np.zeros(rows + 1)] if steps == 1 else [np.r_[np.zeros(rows), HUGE]] * 2  # says 1 of every unit vector
    found = []
    for k, model in enumerate(models):
        turns = range(k, ROUNDS, len(models))
        heard = np.array([victim.says(model, round) for round in turns])
        times = np.array([spy.says(fake[k], round)[:rows] for round in turns])
        parts, *_ = np.linalg.lstsq(times, heard, rcond=None)  # (rows, DIM + 1): multiples of (x, 1)
        shown = np.abs(parts[:, -1]) > 0.1
        found.append(parts[shown, :-1] / parts[shown, -1:])
    return read(np.concatenate(found), X)


# Moments.


def membership(rows: int, dim: int, turns: int = 4000) -> tuple[float, float, float]:
    """Area under the curve of the most powerful test on the mean, what theory says for many rows, Phi(sqrt(d/2n)), and
    the share of members found at one false find in a hundred."""
    rng = np.random.default_rng([rows, dim])

    def score(x: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """The likelihood ratio of N(x/n, (n-1)/n^2) against N(0, 1/n)."""
        return rows / 2 * (mean**2).sum(1) - rows**2 / (2 * (rows - 1)) * ((mean - x / rows) ** 2).sum(1)

    mean = rng.normal(size=(turns, dim)) / math.sqrt(rows)
    out = score(rng.normal(size=(turns, dim)), mean)
    x = rng.normal(size=(turns, dim))
    inside = x / rows + rng.normal(size=(turns, dim)) * math.sqrt(rows - 1) / rows
    found = score(x, inside)
    area = float((found[:, None] > out[None, :]).mean())
    theory = 0.5 * (1 + math.erf(math.sqrt(dim / (2 * rows)) / math.sqrt(2)))
    return area, theory, float((found > np.quantile(out, 0.99)).mean())


def lines() -> Iterator[str]:
    yield "# What a server can learn of single rows"
    yield ""
    yield "Logistic model with an intercept, FedAvg; a row is read when each of its numbers is found to a hundredth of"
    yield "its standard deviation. `python benchmarks/disclosure.py`."
    yield ""
    yield "## One honest message, one local step"
    yield ""
    yield f"A site with 200 rows of {DIM} features; ten rounds each. Distances are root mean squares, in standard"
    yield "deviations."
    yield ""
    yield "| batch | rows read | median distance | of a random guess |"
    yield "|---|---|---|---|"
    for batch in (1, 2, 4, 8):
        share, error, guess = passive(batch)
        yield f"| {batch} | {share:.0%} | {error:.2g} | {guess:.2g} |"
    yield ""
    yield f"## A server that chooses the models, {ROUNDS} rounds"
    yield ""
    yield "| rows | batch | local steps | rows read |"
    yield "|---|---|---|---|"
    for rows, steps in ((20, 1), (40, 1), (200, 1), (2000, 1), (40, 10), (200, 10)):
        yield f"| {rows} | all | {steps} | {by_slabs(rows, steps)} |"
    for rows, batch, steps in (
        (20, 5, 1),
        (40, 5, 1),
        (200, 5, 1),
        (40, 32, 1),
        (20, 5, 10),
        (40, 5, 10),
        (200, 32, 10),
    ):
        yield f"| {rows} | {batch} | {steps} | {by_draws(rows, batch, steps)} |"
    yield ""
    yield "## Who is in a table, by its means"
    yield ""
    yield "Normal features; the most powerful test of one row against the means. Half is chance."
    yield ""
    yield "| rows | features | area under the curve | theory, many rows | members found at 1 % false |"
    yield "|---|---|---|---|---|"
    for rows in (6, 20, 100, 1000):
        for dim in (5, 20, 100):
            area, theory, found = membership(rows, dim)
            yield f"| {rows} | {dim} | {area:.2f} | {theory:.2f} | {found:.0%} |"


def main(write: Callable[[str], object] = print) -> None:
    begun, text = time.perf_counter(), []
    for line in lines():
        write(line)
        text.append(line)
    text += ["", f"Took {time.perf_counter() - begun:.0f} s."]
    Path(__file__).with_name("DISCLOSURE.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
