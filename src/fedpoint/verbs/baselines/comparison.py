"""Is it worth it? `fp.baselines` fits local, pooled, federated and coupled models to one table, and compares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Unpack

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.graphs.network import Network
from fedpoint.results.baselines import Baselines
from fedpoint.verbs.baselines.fit import DENSE
from fedpoint.verbs.baselines.rows import GroupedTable, Inner, Mask, Splits
from fedpoint.verbs.baselines.search import Search
from fedpoint.verbs.baselines.trained import Change, Trained, TrainedOptions

if TYPE_CHECKING:
    from fedpoint.data.encoding import Cells

METHODS = ("local", "pooled", "SCAFFOLD", "FedAvg", "coupled")
# For columns of variance 1 and mean losses: next to none for numbers; classes that can be separated need one.
RIDGE = {"regression": 1e-6, "classification": 0.01}
RIDGES = np.logspace(-6, 1, 8)  # "tuned" chooses from these


class BaselineOptions(TrainedOptions, total=False):
    """The arguments of `fp.baselines` beside the table and the network."""

    seeds: int | Iterable[int]
    held_out: float
    split: Mask | None
    validation: Mask | None
    time: ArrayLike | None
    folds: int
    methods: Sequence[str] | Mapping[str, Change] | None
    task: str | None
    weight: str
    ridge: float | str | ArrayLike | None
    couplings: ArrayLike | None
    neighbours: int
    local_steps: int
    step: float | None


@dataclass(frozen=True)
class Settings(Splits):
    """The options of linear models with their defaults, checked."""

    of_others: ClassVar[Mapping[str, str]] = {"rounds": "models that rounds train, given as experiment="}

    methods: Sequence[str] | None = None
    task: str | None = None
    ridge: float | str | ArrayLike | None = None
    couplings: ArrayLike | None = None
    neighbours: int = 5
    local_steps: int = 10
    step: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("local_steps", self.local_steps, 1)
        check_count("neighbours", self.neighbours, 1)
        if self.step is not None and not self.step > 0:
            raise FedpointError(f"step must be above 0, got {self.step}")

    def search(self, network: Network | None, table: GroupedTable) -> Search:
        return Search(
            network,
            self.neighbours,
            self._ridges("classification" if table.classes else "regression"),
            None if self.couplings is None else _grid("couplings", self.couplings),
            self.weights(table),
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
    """Compare local models, one for all, federated ones and models of each agent's own by each agent's held-out error.

    With `experiment`, a function that makes an `fp.Experiment` of the rows to train on, they are its models, such as
    neural networks, after so many `rounds` each, with its participants:

    - local: each agent alone, with the local steps that it takes in the experiment.
    - global: the experiment as it is.
    - personalised: Ditto, with the experiment's step and local steps.
    - fine-tuned: five own steps of every agent from the global model.

    Without one they are linear models of a table.

    All of these are linear in the columns and a constant, with squared errors for numbers and logistic or softmax
    losses for classes. Columns are scaled to variance 1, and predictions start from the target's mean (or the classes'
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
            column of zeros and ones for each category); and targets (n,): numbers or classes. With an experiment rows
            of any shape, (n, ...).
        groups: (n,) whose row it is.
        network: of the agents. None: each is joined to its `neighbours` nearest by gradients at the pooled model, from
            training rows alone.
        options: the arguments below, by name.
        experiment: (X, y, groups) -> `fp.Experiment`, of a training part of the rows.
        rounds: that it is run; default 100.
        seeds: splits, by number or as a list; each holds out rows of every agent anew. Default: 5, of an experiment 1.
        held_out: the share of each agent's rows to test on; an agent with one row keeps it for training.
        time: (n,) when each row was. Then each agent's last rows are tested on, the share `held_out` of them, and of
            the others the last choose: one split, in which nobody knows the future. Random rows of a series have
            neighbours in time among the training rows.
        split: rows to test on instead: a mask (n,), then there is one split; or a function of the seed that returns
            one, for instance whole patients.
        validation: rows that choose ridge and coupling, likewise, among the others; they are fitted afterwards.
            Default: `folds` random folds of each agent's training rows.
        methods: some of "local", "pooled", "SCAFFOLD", "FedAvg" and "coupled"; with an experiment some of "local",
            "global", "personalised" and "fine-tuned", or a mapping of further names to functions that change the
            experiment: {"FedPer": lambda e: e.replace(share="body")}.
        task: "regression" or "classification". Default: words, two values and whole numbers of at most 20 are classes.
        weight: "agents" count alike in means, or by their "rows".
        ridge: one number for all methods (default: 1e-6 for numbers, 0.01 for classes), "tuned", or numbers to choose
            from.
        couplings: to choose from.
        local_steps, step: of FedAvg; the local step's default is 1/L, L the largest smoothness of an agent.
        neighbours: how many agents each one is joined to, where no network is given.
        folds: of the validation, where no rows are named for it.

    >>> import fedpoint as fp
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, bank = rng.normal(size=(200, 3)), np.repeat(["a", "b", "c", "d"], 50)
    >>> y = X @ [1.0, 2.0, 3.0] + np.where(bank > "b", 2.0, -2.0) * X[:, 0] + 0.1 * rng.normal(size=200)
    >>> found = baselines(X, y, groups=bank, seeds=2, neighbours=1)
    >>> found.difference("local", "pooled").clear, found.error("local")[0] < 0.02
    (True, True)
    >>> def experiment(X, y, groups):
    ...     return fp.Experiment(fp.FedAvg(step=0.1), fp.problems.LeastSquares(X, y, groups=groups, mean=True))
    >>> trained = baselines(X, y, groups=bank, experiment=experiment, rounds=50)
    >>> trained.error("personalised")[0] < trained.error("global")[0]
    True
    """
    if options.get("experiment") is not None:
        if network is not None:
            raise FedpointError("network= couples linear models: write the experiment's own network into it")
        return Trained.of_options(options).compare(X, y, groups)
    options.pop("experiment", None)
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
        weighed=settings.weighed(table),
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
