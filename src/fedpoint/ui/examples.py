"""What does each method do on one small problem? Its curve beside its forecast, for the page and the documentation.

Curves are kept with the package (examples.csv), because all of them together take a minute to compile:
`python -m fedpoint.ui.examples` writes them again, and tests compute them again.
"""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedpoint.core.algorithm import Algorithm

ROUNDS, REPEATS, AGENTS = 60, 20, 8
FILE = "examples.csv"
WHAT = ("run", "forecast", "floor", "bias2")
TASK = f"""import numpy as np
import fedpoint as fp

centers = np.random.default_rng(0).normal(size=({AGENTS}, 2))
task = fp.problems.Quadratic(np.linspace(0.2, 2.0, {AGENTS}), centers, noise=0.01)
"""
NETWORK = f"fp.Network.ring({AGENTS})"
ONE_WAY = f"fp.Network.directed([(i, (i + 1) % {AGENTS}) for i in range({AGENTS})] + [(0, 3), (5, 1)])"
CALLS = {
    "apfl": "fp.APFL(step=0.2, local_steps=10, mix=0.8)",
    "diffusion": "fp.Diffusion(step=0.1)",
    "ditto": "fp.Ditto(step=0.05, local_steps=10, pull=1.0)",
    "exact_diffusion": "fp.ExactDiffusion(step=0.1)",
    "extra": "fp.Extra(step=0.1)",
    "fedavg": "fp.FedAvg(step=0.05, local_steps=10)",
    "feddyn": "fp.FedDyn(step=0.05, local_steps=10, pull=1.0)",
    "fedgd": "fp.FedGD(step=0.1, coupling=0.5)",
    "fedlin": "fp.FedLin(step=0.05, local_steps=10)",
    "fedlsa": "fp.FedLSA(step=0.05, local_steps=10)",
    "fednewton": "fp.FedNewton()",
    "fednova": "fp.FedNova(step=0.05, local_steps=[4, 8, 12, 16] * 2)",
    "fedopt": "fp.FedAvgM(step=0.05, local_steps=10, momentum=0.5)",
    "fedprox": "fp.FedProx(step=0.05, local_steps=10, pull=1.0)",
    "fedrelax": "fp.FedRelax(coupling=0.5)",
    "fedsgd": "fp.FedSGD(step=0.1, coupling=0.5)",
    "fine_tuned": "fp.FineTuned(step=0.05, local_steps=10, own_steps=3)",
    "general_rule": "fp.GeneralRule(step=0.05, local_steps=10, momentum=0.3)",
    "gradient_exchange": "fp.GradientExchange(step=0.5)",
    "gradient_tracking": "fp.GradientTracking(step=0.1)",
    "mime": "fp.Mime(step=0.05, local_steps=10, momentum=0.5)",
    "parameter_exchange": "fp.ParameterExchange(step=0.5)",
    "pfedme": "fp.PFedMe(step=0.2, local_steps=10, pull=1.0)",
    "push_sum": "fp.PushSum(step=0.1)",
    "qfedavg": "fp.QFedAvg(q=1.0, step=0.05, local_steps=10)",
    "scafflsa": "fp.ScaffLSA(step=0.05, local_steps=10)",
    "scaffnew": "fp.Scaffnew(step=0.05, local_steps=10)",
    "scaffold": "fp.Scaffold(step=0.05, local_steps=10)",
}


def code(name: str, network: bool) -> str:
    """What a reader would type: `run` and `f`, the run and its forecast."""
    weights = ".mixing()" if network and method(name).mixes else ""
    edges = ONE_WAY if network and method(name).directed else NETWORK
    where = f", network={edges}{weights}" if network else ""
    return (
        f"{TASK}method = {CALLS[name]}\n"
        f"run = fp.run(method, task, rounds={ROUNDS}, repeats={REPEATS}{where})\n"
        f"f = fp.forecast(method, task{where})\n"
    )


def method(name: str) -> Algorithm:
    """The method as it is called."""
    import fedpoint as fp

    return eval(CALLS[name], {"fp": fp})


def computed(name: str) -> dict[str, np.ndarray]:
    """The mean error of the runs and the forecast, (ROUNDS + 1,); floor and bias^2, (1,)."""
    made: dict[str, Any] = {}
    exec(code(name, method(name).card.network), made)
    run, f = made["run"], made["f"]
    ends = {"floor": np.array([f.floor]), "bias2": np.array([f.bias2])}
    return {"run": run.error.mean(0), "forecast": np.asarray(f.curve(ROUNDS)), **ends}


@cache
def kept() -> dict[str, dict[str, np.ndarray]]:
    """What was computed, by method."""
    text = (resources.files("fedpoint.ui") / FILE).read_text("utf-8")
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, what, *values in csv.reader(io.StringIO(text)):
        found.setdefault(name, {})[what] = np.array(values, float)
    return found


def main() -> None:
    rows = []
    for name in CALLS:
        print(name, flush=True)
        rows += [[name, what, *(f"{v:.4g}" for v in values)] for what, values in computed(name).items()]
    with (Path(__file__).parent / FILE).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
