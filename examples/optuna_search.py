"""Optuna chooses the step, local steps and pull of a network's Ditto by held-out rows, and prunes bad runs early.

    pip install optuna
    python examples/optuna_search.py [trials]

Every trial is a run of `fp.run`; its held-out loss after every tenth round is what Optuna sees. Where only numbers of a
method are to be compared, `fp.sweep` runs them all in one compiled program instead.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import fedpoint as fp

try:
    import optuna
except ModuleNotFoundError:
    sys.exit("this example needs Optuna: pip install optuna")

if TYPE_CHECKING:
    from fedpoint.engine.base import Progress

AGENTS, CLASSES, ROUNDS = 12, 3, 60


def predict(w: dict, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w["body"]) @ w["head"]


def loss(w: dict, rows: tuple) -> jax.Array:
    scores = jax.nn.log_softmax(predict(w, rows[0]))
    return -jnp.take_along_axis(scores, rows[1][:, None], axis=1).mean()


def data() -> tuple[fp.problems.Problem, tuple]:
    """A problem of rows to train on, and held-out rows of its agents, who differ."""
    rng = np.random.default_rng(0)
    who, X = np.arange(600) % AGENTS, rng.normal(size=(600, 6)).astype("float32")
    truth = rng.normal(size=(6, CLASSES)) + 0.8 * rng.normal(size=(AGENTS, 6, CLASSES))
    y = (np.einsum("ni,nij->nj", X, truth[who]) + rng.gumbel(size=(600, CLASSES))).argmax(1)
    start = {"body": rng.normal(size=(6, 8)).astype("float32") / 2, "head": np.zeros((8, CLASSES), "float32")}
    problem = fp.problems.Loss(loss, start, (X[:360], y[:360]), who[:360], batch=10, predict=predict)
    return problem, (X[360:], y[360:], who[360:])


def main(trials: int) -> None:
    problem, held_out = data()
    watched = fp.Evaluation(held_out, every=10, patience=2)

    def objective(trial: optuna.Trial) -> float:
        method = fp.Ditto(
            step=trial.suggest_float("step", 0.01, 1.0, log=True),
            local_steps=trial.suggest_int("local_steps", 1, 10),
            pull=trial.suggest_float("pull", 0.01, 10.0, log=True),
        )

        def report(progress: Progress) -> None:
            if progress.evaluation:
                trial.report(float(progress.evaluation["loss"][0]), progress.round)
            if trial.should_prune():
                raise optuna.TrialPruned

        try:
            run = fp.run(method, problem, rounds=ROUNDS, evaluate=watched, callbacks=[report])
        except fp.Diverged:
            return float("inf")
        return float(run.evaluation["loss"][0].min())  # of the best model, run.best

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
    study.optimize(objective, n_trials=trials)
    pruned = sum(trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials)
    print(f"{trials} trials, {pruned} of them pruned: held-out loss {study.best_value:.3f} with")
    print(*(f"  {name} = {value:.3g}" for name, value in study.best_params.items()), sep="\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
