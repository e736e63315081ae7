"""Is it worth it? `fp.baselines` fits local, pooled, federated and coupled models to one table, and compares them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.numbers import counted
from fedpoint.graphs.network import Network
from fedpoint.results.baselines import Baselines
from fedpoint.verbs.baselines.fit import DENSE
from fedpoint.verbs.baselines.rows import GroupedTable, Inner, Mask, Splits
from fedpoint.verbs.baselines.search import Search

if TYPE_CHECKING:
    from fedpoint.data.encoding import Cells

METHODS = ("local", "pooled", "SCAFFOLD", "FedAvg", "coupled")
# For columns of variance 1 and mean losses: next to none for numbers; classes that can be separated need one.
RIDGE = {"regression": 1e-6, "classification": 0.01}
RIDGES = np.logspace(-6, 1, 8)  # "tuned" chooses from these


class BaselineOptions(TypedDict, total=False):
    """The arguments of `fp.baselines` beside the table and the network."""

    seeds: int | Iterable[int]
    held_out: float
    split: Mask | None
    validation: Mask | None
    time: ArrayLike | None
    folds: int
    methods: Sequence[str] | None
    task: str | None
    weight: str
    ridge: float | str | ArrayLike | None
    couplings: ArrayLike | None
    neighbours: int
    local_steps: int
    step: float | None


@dataclass(frozen=True)
class Settings(Splits):
    """The options with their defaults, checked."""

    methods: Sequence[str] | None = None
    task: str | None = None
    weight: str = "agents"
    ridge: float | str | ArrayLike | None = None
    couplings: ArrayLike | None = None
    neighbours: int = 5
    local_steps: int = 10
    step: float | None = None

    @classmethod
    def of_options(cls, options: BaselineOptions) -> Settings:
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise FedpointError(f"baselines has no {name!r}: {nearest(name, known)}")
        return cls(**options)

    def __post_init__(self) -> None:
        if self.weight not in ("agents", "rows"):
            raise FedpointError(f"unknown weight {self.weight!r}: {nearest(str(self.weight), ('agents', 'rows'))}")
        check_count("local_steps", self.local_steps, 1)
        check_count("neighbours", self.neighbours, 1)
        if self.step is not None and not self.step > 0:
            raise FedpointError(f"step must be above 0, got {self.step}")

    def search(self, network: Network | None, table: GroupedTable) -> Search:
        counts = table.counts.astype(float)
        return Search(
            network,
            self.neighbours,
            self._ridges("classification" if table.classes else "regression"),
            None if self.couplings is None else _grid("couplings", self.couplings),
            counts if self.weight == "rows" else np.ones(len(counts)),
            self.local_steps,
            self.step,
        )

    def _ridges(self, kind: str) -> np.ndarray:
        if isinstance(self.ridge, str):
            if self.ridge != "tuned":
                raise FedpointError(f'ridge: a number, numbers to choose from, or "tuned"; got {self.ridge!r}')
            return RIDGES
        return _grid("ridge", RIDGE[kind] if self.ridge is None else self.ridge, above=True)

    def wanted(self, table: GroupedTable) -> list[str]:
        """The methods to compare."""
        if self.methods is None:
            return [m for m in METHODS if m != "FedAvg" or table.size <= DENSE]
        asked = [str(m) for m in ([self.methods] if isinstance(self.methods, str) else self.methods)]
        known = {m.lower(): m for m in METHODS}
        for method in asked:
            if method.lower() not in known:
                raise FedpointError(f"unknown method {method!r}: {nearest(method, METHODS)}")
        wanted = [m for m in METHODS if m.lower() in {name.lower() for name in asked}]
        if not wanted:
            raise FedpointError(f"methods: give some of {', '.join(METHODS)}")
        if "FedAvg" in wanted and table.size > DENSE:
            raise FedpointError(
                f"the fixed point of FedAvg is found for models of at most {DENSE} numbers, these have {table.size}: "
                "use fp.run"
            )
        return wanted


@checked
def baselines(
    X: Cells, y: ArrayLike, groups: ArrayLike, network: Network | None = None, **options: Unpack[BaselineOptions]
) -> Baselines:
    """Compare local models, one pooled model, federated ones and models coupled over a graph by each agent's
    held-out error.

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
        X, y: rows (n, columns) of numbers, or a data frame, whose columns of words are encoded as the estimators do (a
            column of zeros and ones for each category); and targets (n,): numbers or classes.
        groups: (n,) whose row it is.
        network: of the agents. None: each is joined to its `neighbours` nearest by gradients at the pooled model, from
            training rows alone.
        options: the arguments below, by name.
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
        neighbours: how many agents each one is joined to, where no network is given.
        folds: of the validation, where no rows are named for it.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, bank = rng.normal(size=(200, 3)), np.repeat(["a", "b", "c", "d"], 50)
    >>> y = X @ [1.0, 2.0, 3.0] + np.where(bank > "b", 2.0, -2.0) * X[:, 0] + 0.1 * rng.normal(size=200)
    >>> found = baselines(X, y, groups=bank, seeds=2, neighbours=1)
    >>> found.difference("local", "pooled").clear, found.error("local")[0] < 0.02
    (True, True)
    """
    settings = Settings.of_options(options)
    table = GroupedTable(X, y, groups, settings.task)
    wanted = settings.wanted(table)
    if network is not None:
        if not isinstance(network, Network):
            raise FedpointError(f"network must be an fp.Network, got {type(network).__name__}")
        network = network.aligned(table.names)
    splits = settings.of(table)
    search = settings.search(network, table)
    # Many small products: threads would wait for each other longer than they work.
    with threadpool_limits(1, user_api="blas"):
        found = [_one_split(table, search, wanted, *split) for split in splits]
    by_method = {m: [split[m] for split in found] for m in wanted}
    return Baselines(
        errors={m: np.array([f.errors for f in each]) for m, each in by_method.items()},
        accuracies={m: np.array([f.right for f in each]) for m, each in by_method.items()} if table.classes else {},
        chosen={m: [f.chosen for f in each] for m, each in by_method.items()},
        weights=search.weights,
        names=table.names,
        kind="classification" if table.classes else "regression",
        weighed=counted(len(table.names), "agent") + (" by their rows" if settings.weight == "rows" else ""),
        how=settings.describe(len(splits)),
    )


@dataclass(frozen=True)
class Tested:
    """One method on one split."""

    errors: np.ndarray  # (K,)
    right: np.ndarray  # (K,) accuracies
    chosen: dict[str, float]


def _one_split(
    table: GroupedTable, search: Search, methods: list[str], test: np.ndarray, inner: Inner
) -> dict[str, Tested]:
    """Choose, fit and test every method on one split."""
    whole = table.case(~test, test)
    cases = [table.case(fit, check) for fit, check in inner]
    found: dict[str, Tested] = {}
    for method in {"pooled" if m == "SCAFFOLD" else m: None for m in methods}:
        best = search.choose(method, cases)
        models = search.fit(method, whole, best)
        found[method] = Tested(whole.errors(models), whole.accuracies(models), best)
    return found | ({"SCAFFOLD": found["pooled"]} if "SCAFFOLD" in methods else {})


def _grid(name: str, values: ArrayLike, above: bool = False) -> np.ndarray:
    grid = np.sort(np.atleast_1d(numbers(name, values)))
    if grid.ndim > 1 or not grid.size or not np.isfinite(grid).all() or grid[0] < 0 or (above and grid[0] == 0):
        raise FedpointError(f"{name}: numbers {'above' if above else 'at least'} 0, got {values!r}")
    return grid
