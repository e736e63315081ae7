"""Studies for the tests of federations, one for every method and way of merging, and the simulation beside them."""

import numpy as np

import fedpoint as fp
from fedpoint.algorithms.catalogue import card_of, makers
from fedpoint.store.disk import read_npz

SITES = ["a", "b", "c"]
ROWS = {"kind": "least_squares", "agents": 3, "rows": [4, 9], "dim": 3, "mean": True, "batch": 2}
FULL = {**ROWS, "batch": None}
BOWLS = {"kind": "quadratic", "agents": 3, "dim": 2, "noise": 0.1}
SYSTEM = {"kind": "linear_system", "agents": 3, "dim": 2, "noise": 0.1, "noise_A": 0.1}
AVERAGE = {"name": "fedavg", "step": 0.05, "local_steps": 3}
CONTROL = {"name": "scaffold", "step": 0.05, "local_steps": 3}


def content(algorithm=AVERAGE, problem=ROWS, rounds=5, **more):
    base = {"name": "trial", "sites": SITES, "server": "localhost:8102", "rounds": rounds, "deadline": 10.0}
    return {**base, "algorithm": algorithm, "problem": problem, **more}


MIXING = {"edges": [["a", "b"], ["b", "c"]], "weights": [0.3, 0.4]}  # by which nodes can average
IN_STEP = ("exact_diffusion", "extra", "gradient_tracking", "push_sum")  # their nodes may not be late
TWICE = ("fedlin", "mime")  # they ask twice in a round, and sites answer once: refused
UNEQUAL = {"per_agent": [1, 3, 2]}
METHODS = {  # numbers for every name that a file may give an algorithm, and what else its study needs
    "apfl": ({"step": 0.05, "local_steps": 2, "mix": 0.6}, {}),
    "diffusion": ({"step": 0.05, "local_steps": 2}, {"network": MIXING}),
    "ditto": ({"step": 0.05, "local_steps": 2, "pull": 0.4}, {}),
    "exact_diffusion": ({"step": 0.05}, {"network": MIXING}),
    "extra": ({"step": 0.05}, {"network": MIXING}),
    "gradient_tracking": ({"step": 0.05}, {"network": MIXING}),
    "fedadagrad": ({"step": 0.05, "local_steps": 2}, {}),
    "fedadam": ({"step": 0.05, "local_steps": 2}, {}),
    "fedavg": ({"step": 0.05, "local_steps": 3}, {}),
    "fedavgm": ({"step": 0.05, "local_steps": 2}, {}),
    "feddyn": ({"step": 0.05, "local_steps": 2}, {}),
    "fedexp": ({"step": 0.05, "local_steps": 2}, {}),
    "fedlin": ({"step": 0.05, "local_steps": 2}, {}),
    "fednewton": ({}, {"problem": FULL}),
    "mime": ({"step": 0.05, "local_steps": 2}, {}),
    "fedgd": ({"step": 0.05, "coupling": 0.5}, {"problem": FULL, "network": "ring"}),
    "fedlsa": ({"step": 0.1, "local_steps": 4}, {"problem": SYSTEM}),
    "fednova": ({"step": 0.05, "local_steps": UNEQUAL, "momentum": 0.6}, {}),
    "fedopt": ({"step": 0.05, "local_steps": 2}, {}),
    "fedprox": ({"step": 0.05, "local_steps": 3, "pull": 0.4}, {}),
    "fedrelax": ({"coupling": 0.5}, {"problem": FULL, "network": {"edges": [["a", "b"], ["b", "c"]]}}),
    "fedsgd": ({"step": 0.05, "coupling": 0.5}, {"network": "complete"}),
    "fedyogi": ({"step": 0.05, "local_steps": 2}, {}),
    "fine_tuned": ({"step": 0.05, "local_steps": 2, "own_steps": 3}, {}),
    "general_rule": ({"step": 0.05, "local_steps": 3, "momentum": 0.5, "pull": 0.3}, {}),
    "gradient_exchange": ({"step": 0.05}, {}),
    "parameter_exchange": ({"step": 0.05}, {}),
    "pfedme": ({"step": 0.05, "local_steps": 2, "pull": 0.8}, {"problem": FULL}),
    "push_sum": ({"step": 0.05}, {"network": MIXING}),
    "qfedavg": ({"q": 1.5, "step": 0.05, "local_steps": 2}, {}),
    "scafflsa": ({"step": 0.1, "local_steps": 4}, {"problem": SYSTEM}),
    "scaffnew": ({"step": 0.05, "probability": 0.4}, {}),
    "scaffold": ({"step": 0.05, "local_steps": 3}, {}),
}


def every_method():
    """Studies by name: each method of the catalogue in step, and merged as answers come where its card permits that."""
    made = {}
    for name in sorted(makers()):  # a method without numbers above is a KeyError here, not one that is left out
        numbers, more = METHODS[name]
        if name in TWICE:
            continue
        algorithm = {"name": name, **numbers}
        made[name] = content(algorithm, **more)
        if not card_of(name).restriction and name not in IN_STEP:
            exact = {"exact": True} if "network" in more else {}  # on a network late answers need exact fields
            late = {"asynchronous": {} if exact else {"staleness": {"polynomial": 0.5}}}
            made[f"{name}, late"] = content(algorithm, rounds=9, **{**more, **exact, **late})
    return made


def simulated(made, problem=None):
    """The run that a study is, by `fp.run`: its recorded models; the hub's, where agents keep models of their own."""
    problem = made.study.generated() if problem is None else problem
    experiment = made.replay(problem)
    if experiment.algorithm.personal:
        run = fp.run(experiment.replace(metrics={"hub": lambda state: state.hub}), rounds=made.round)
        return np.asarray(run.metrics["hub"])[0]
    run = fp.run(experiment, rounds=made.round)
    return np.asarray(run.history)[0]


def gap(made, problem=None):
    """The largest distance between a study's models and the simulation's."""
    seen = simulated(made, problem)
    assert made.history.shape == seen.shape
    return np.abs(made.history - seen).max()


def invariant(made, root):
    """c - sum p_k c_k, from the hub's folder and the sites' own."""
    hub, _ = read_npz(root / "hub" / "hub.npz", "hub")
    total = 0.0
    for site, p in zip(SITES, made.weights, strict=True):
        (file,) = (root / site).glob("memory-*.npz")
        arrays, about = read_npz(file, "memory")
        assert about["pending"] is None
        total = total + p * arrays["kept[0]"]
    return np.abs(hub[".c"] - total).max()
