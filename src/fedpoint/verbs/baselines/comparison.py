"""Is it worth it? `fp.baselines` fits local, pooled, federated and coupled models to one table, and compares them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.graphs.network import Network
from fedpoint.results.baselines import Baselines
from fedpoint.verbs.baselines.fit import DENSE
from fedpoint.verbs.baselines.rows import Table, check_whole, splits
from fedpoint.verbs.baselines.search import Search

METHODS = ("local", "pooled", "SCAFFOLD", "FedAvg", "coupled")
# For columns of variance 1 and mean losses: next to none for numbers; classes that can be separated need one.
RIDGE = {"regression": 1e-6, "classification": 0.01}
RIDGES = np.logspace(-6, 1, 8)  # "tuned" chooses from these


def baselines(
    X: Any,
    y: Any,
    groups: Any,
    network: Network | None = None,
    seeds: int | Iterable[int] = 5,
    held_out: float = 0.3,
    split: Any = None,
    validation: Any = None,
    time: Any = None,
    folds: int = 3,
    methods: Sequence[str] | None = None,
    task: str | None = None,
    weight: str = "agents",
    ridge: float | str | Sequence[float] | np.ndarray | None = None,
    couplings: Sequence[float] | np.ndarray | None = None,
    neighbours: int = 5,
    local_steps: int = 10,
    step: float | None = None,
) -> Baselines:
    """Local models, one pooled model, federated ones and models coupled over a graph: held-out error of each agent.

    All are linear in the columns and a constant, with squared errors for numbers and logistic or softmax losses for
    classes. Columns are scaled to variance 1, and predictions start from the target's mean (or the classes'
    frequencies), by sums over all training rows; what is fitted on top has a ridge, the constant's included:

    - local: each agent alone. A tuned ridge is one for all agents, chosen by all their validation errors: kinder to
      them than each choosing by its few rows.
    - pooled: one model for all rows.
    - SCAFFOLD ends at the pooled model whatever the agents hold, so it is not run: its row is that of the pooled model.
    - FedAvg with full gradients, everybody taking part: the point where its rounds stop moving.
    - coupled: GTVMin over the network, min sum_k L_k(w_k) + ridge/2 |w_k|^2 + coupling sum A_ij |w_i - w_j|^2.

    Everything is solved to rounding. The coupling is chosen for each split by validation within the training rows. The
    ridge is small and the same for all: methods as they are. `ridge="tuned"` lets each method choose its own as well,
    which local models with few rows gain most by; then the coupled one chooses on a grid of both, every second of each
    first, then around the best.

    Args:
        X, y: rows (n, columns) of numbers, and targets (n,): numbers or classes.
        groups: (n,) whose row it is.
        network: of the agents. None: each is joined to its `neighbours` nearest by gradients at the pooled model, from
            training rows alone.
        seeds: splits, by number or as a list; each holds out rows of every agent anew.
        held_out: the share of each agent's rows to test on; an agent with one row keeps it for training.
        time: (n,) when each row was. Then each agent's last rows are tested on, the share `held_out` of them, and of
            the others the last choose: one split, in which nobody knows the future. Random rows of a series have
            neighbours in time among the training rows.
        split: rows to test on instead: a mask (n,), then there is one split; or a function of the seed that returns
            one, for instance whole patients.
        validation: rows that choose ridge and coupling, likewise, among the others; they are fitted afterwards.
            Default: `folds` random folds of each agent's training rows.
        methods: some of "local", "pooled", "SCAFFOLD", "FedAvg" and "coupled".
        task: "regression" or "classification". Default: words, two values and whole numbers of at most 20 are classes.
        weight: "agents" count alike in means, or by their "rows".
        ridge: one number for all methods (default: 1e-6 for numbers, 0.01 for classes), "tuned", or numbers to choose
            from.
        couplings: to choose from.
        local_steps, step: of FedAvg; the local step's default is 1/L, L the largest smoothness of an agent.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, bank = rng.normal(size=(200, 3)), np.repeat(["a", "b", "c", "d"], 50)
    >>> y = X @ [1.0, 2.0, 3.0] + np.where(bank > "b", 2.0, -2.0) * X[:, 0] + 0.1 * rng.normal(size=200)
    >>> found = baselines(X, y, groups=bank, seeds=2, neighbours=1)
    >>> found.difference("local", "pooled").clear, found.error("local")[0] < 0.02
    (True, True)
    """
    table = Table(X, y, groups, task)
    wanted = _methods(methods, table)
    net = None if network is None else _network(network).aligned(table.names)
    if weight not in ("agents", "rows"):
        raise FedpointError(f"unknown weight {weight!r}: {nearest(str(weight), ('agents', 'rows'))}")
    check_whole("folds", folds, 2)
    check_whole("local_steps", local_steps, 1)
    check_whole("neighbours", neighbours, 1)
    if step is not None and not step > 0:
        raise FedpointError(f"step must be above 0, got {step}")
    plan = splits(table, seeds, held_out, split, validation, time, folds)
    kind = "regression" if table.family.kind == "regression" else "classification"
    counts = table.counts.astype(float)
    search = Search(
        net,
        neighbours,
        _ridges(ridge, kind),
        None if couplings is None else _grid("couplings", couplings),
        counts if weight == "rows" else np.ones(len(counts)),
        local_steps,
        step,
    )
    errors: dict[str, list[np.ndarray]] = {m: [] for m in wanted}
    right: dict[str, list[np.ndarray]] = {m: [] for m in wanted}
    chosen: dict[str, list[dict[str, float]]] = {m: [] for m in wanted}
    # Many small products: threads would wait for each other longer than they work.
    with threadpool_limits(1, user_api="blas"):
        for test, inner in plan:
            _one_split(table, search, test, inner, errors, right, chosen)
    how = "given rows" if split is not None else f"{held_out:g} of each agent's rows"
    how = f"the last {how}" if time is not None else how
    how += f", {len(plan)} splits" if len(plan) > 1 else ""
    return Baselines(
        {m: np.array(e) for m, e in errors.items()},
        {} if table.family.kind == "regression" else {m: np.array(a) for m, a in right.items()},
        chosen,
        search.weights,
        table.names,
        kind,
        f"{len(table.names)} agents" + (" by their rows" if weight == "rows" else ""),
        how,
    )


def _one_split(
    table: Table,
    search: Search,
    test: np.ndarray,
    inner: list[tuple[np.ndarray, np.ndarray]],
    errors: dict[str, list[np.ndarray]],
    right: dict[str, list[np.ndarray]],
    chosen: dict[str, list[dict[str, float]]],
) -> None:
    """Choose, fit and test every method on one split."""
    whole = table.case(~test, test)
    cases = [table.case(fit, check) for fit, check in inner]
    found: dict[str, tuple[np.ndarray, dict[str, float]]] = {}
    for method in errors:
        same = "pooled" if method == "SCAFFOLD" else method
        if same not in found:
            best = search.choose(same, cases)
            found[same] = search.fit(same, whole, best), best
        models, best = found[same]
        errors[method].append(whole.errors(models))
        right[method].append(whole.accuracies(models))
        chosen[method].append(best)


def _methods(methods: Sequence[str] | None, table: Table) -> list[str]:
    size = (table.X.shape[1] + 1) * table.family.outputs
    if methods is None:
        return [m for m in METHODS if m != "FedAvg" or size <= DENSE]
    if isinstance(methods, str):
        methods = [methods]
    known = {m.lower(): m for m in METHODS}
    for method in methods:
        if str(method).lower() not in known:
            raise FedpointError(f"unknown method {method!r}: {nearest(str(method), METHODS)}")
    wanted = [m for m in METHODS if m.lower() in {str(n).lower() for n in methods}]
    if not wanted:
        raise FedpointError(f"methods: give some of {', '.join(METHODS)}")
    if "FedAvg" in wanted and size > DENSE:
        raise FedpointError(
            f"the fixed point of FedAvg is found for models of at most {DENSE} numbers, these have {size}: use fp.run"
        )
    return wanted


def _network(network: Any) -> Network:
    if not isinstance(network, Network):
        raise FedpointError(f"network must be an fp.Network, got {type(network).__name__}")
    return network


def _ridges(given: Any, kind: str) -> np.ndarray:
    if isinstance(given, str) and given != "tuned":
        raise FedpointError(f'ridge: a number, numbers to choose from, or "tuned"; got {given!r}')
    return _grid("ridge", RIDGE[kind] if given is None else RIDGES if isinstance(given, str) else given, above=True)


def _grid(name: str, values: Any, above: bool = False) -> np.ndarray:
    try:
        grid = np.sort(np.atleast_1d(np.asarray(values, dtype=float)))
    except (TypeError, ValueError):
        raise FedpointError(f"{name}: give numbers") from None
    if not grid.size or not np.isfinite(grid).all() or grid[0] < 0 or (above and grid[0] == 0):
        raise FedpointError(f"{name}: numbers {'above' if above else 'at least'} 0, got {values!r}")
    return grid
