"""Credit scoring over states: 50 lenders, 9,857 loans, one in twenty bad. May they learn together without pooling?

First, on held-out loans over several splits: each state alone, all rows pooled, and what SCAFFOLD and FedAvg end at.
Then one federated training in detail: the run, its forecast beside it, and how the loss is spread over the states.

Run it: python examples/credit.py [picture.png]      (needs the extra data: pip install 'fedpoint[data]')
"""

import sys

import numpy as np
from sklearn.metrics import roc_auc_score

import fedpoint as fp
from fedpoint.show.figures import COLOURS, DASHED, INK, Line, draw, key, new_figure, save, style

ROUNDS, LOCAL_STEPS, RIDGE, SPLITS = 60, 10, 0.01, 3


def hold_out(groups: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A mask: so much of every state's loans."""
    rng, test = np.random.default_rng(seed), np.zeros(len(groups), bool)
    for state in np.unique(groups):
        own = np.flatnonzero(groups == state)
        test[rng.choice(own, round(share * len(own)), replace=False)] = True
    return test


def main(path: str = "credit.png") -> None:
    loans = fp.data.lending_club()
    print(loans, loans.licence, sep="\n", end="\n\n")
    methods = ["local", "pooled", "SCAFFOLD", "FedAvg"]
    found = fp.baselines(
        loans.X, loans.y, groups=loans.groups, seeds=SPLITS, methods=methods, weight="rows", ridge="tuned"
    )
    print(found, end="\n\n")

    test = hold_out(loans.groups, 0.3, seed=0)
    mean, spread = loans.X[~test].mean(0), loans.X[~test].std(0)
    X = (loans.X - mean) / spread
    task = fp.problems.Logistic(X[~test], loans.y[~test], groups=loans.groups[~test], ridge=RIDGE, intercept=True)
    step = float(1 / task.constants().delta_k.max())
    algorithms = {
        "FedAvg": fp.FedAvg(step=step, local_steps=LOCAL_STEPS),
        "SCAFFOLD": fp.Scaffold(step=step, local_steps=LOCAL_STEPS),
    }
    runs = {name: fp.run(algorithm, task, rounds=ROUNDS) for name, algorithm in algorithms.items()}
    forecasts = {name: fp.forecast(algorithm, task) for name, algorithm in algorithms.items()}
    curves = {name: np.asarray(forecast.curve(ROUNDS)) for name, forecast in forecasts.items()}

    print(f"one run of {ROUNDS} rounds of everybody: {LOCAL_STEPS} local steps of length {step:.3g}, ridge {RIDGE:g}\n")
    head = ("model", "distance²", "forecast", "held-out log loss", "AUC", "mean loss", "worst tenth", "Jain's index")
    print("".join(f"{h:>{w}}" for h, w in zip(head, WIDTHS, strict=True)))
    models = {name: run.model[0] for name, run in runs.items()} | {"optimum": task.solution()}
    losses = {}
    for name, w in models.items():
        losses[name] = task.losses(w)
        fair, held_out = fp.metrics.fairness(losses[name]), task.evaluate(w, X[test], loans.y[test])
        scores = np.column_stack([X[test], np.ones(test.sum())]) @ w
        row = [
            name,
            f"{runs[name].error[0, -1]:.3g}" if name in runs else "0",
            f"{curves[name][-1]:.3g}" if name in curves else "",
            f"{held_out['log_loss']:.4f}",
            f"{roc_auc_score(loans.y[test], scores):.3f}",
            f"{fair.mean:.4f}",
            f"{fair.worst:.4f}",
            f"{fair.jain:.4f}",
        ]
        print("".join(f"{cell:>{w}}" for cell, w in zip(row, WIDTHS, strict=True)))
    bias, rate = forecasts["FedAvg"].bias, forecasts["FedAvg"].rate
    print(f"\nforecast of FedAvg: it ends {bias:.3g} from the optimum, by a factor {rate:.3g} a round in the end;")
    print(
        f"of SCAFFOLD: at the optimum (bias {forecasts['SCAFFOLD'].bias:.3g}), {forecasts['SCAFFOLD'].rate:.3g} a round"
    )
    picture(found, runs, curves, path)
    print(f"picture: {path}")


WIDTHS = (10, 11, 11, 19, 7, 11, 13, 14)


def picture(found: fp.Baselines, runs: dict, curves: dict, path: str) -> None:
    figure = new_figure(10.5, 4.3)
    left, right = figure.subplots(1, 2)
    lines = []
    for i, (name, run) in enumerate(runs.items()):
        lines.append(Line(run.rounds, run.error[0], name, COLOURS[i]))
        lines.append(Line(np.arange(len(curves[name])), curves[name], "forecast", INK, DASHED, 0.9, keyed=True))
    draw(left, lines)
    style(left, "communication rounds", "squared distance to the optimum", "Runs, and their forecasts")
    key(figure, [line for line in lines if line.keyed][:1])

    gaps = [found.difference(name, "pooled") for name in ("local", "FedAvg")]
    for i, gap in enumerate(gaps):
        right.errorbar(
            [gap.mean], [-i], xerr=[[gap.mean - gap.low], [gap.high - gap.mean]], fmt="o", color=INK, capsize=3
        )
    right.axvline(0, color="#999999", linewidth=1)
    style(
        right, "held-out log loss above that of the pooled model", "", "Is it worth it? 95 % over states", whole=False
    )
    right.set_yticks([-i for i in range(len(gaps))], [f"{gap.method}\nagainst pooled" for gap in gaps])
    right.set_ylim(0.5 - len(gaps), 0.5)
    right.margins(x=0.1)
    right.grid(False, axis="y")
    save(figure, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
