"""What happens? `fp.run` runs an algorithm on a problem and returns a `Run`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedpoint.core.participation import as_participation
from fedpoint.core.room import check_room
from fedpoint.core.schedule import Schedule, Synchronous
from fedpoint.core.vector import wrap
from fedpoint.errors import FedpointError
from fedpoint.metrics import Cost, Fairness, fairness
from fedpoint.metrics.held_out import HeldOut
from fedpoint.problems.any_model import AnyModel
from fedpoint.runtimes.layout import LARGE_MODEL
from fedpoint.runtimes.session import HISTORY_BYTES, Progress, Session
from fedpoint.runtimes.state import Records
from fedpoint.trackers.base import Tracker
from fedpoint.trackers.follow import Following, following

if TYPE_CHECKING:  # it loads scipy, which runs with a fusion center can do without
    from fedpoint.core.network import Network

MOST_ROUNDS = 2**31 - 1  # the program counts them in 32 bits
WORK = 3  # models' sizes that an agent at work takes: its model, its message, what it drew
EVALUATIONS = 200  # at most so many recorded rounds are evaluated on held-out data


class Run:
    """The result of a run. Everything leads with the repeat axis.

    rounds: (n,) the recorded rounds, from 0 on. history: the global models at them, (repeats, n, ...).
    error: (repeats, n) squared distance to the solution, None where it is not known. loss: (repeats, n) the
    objective sum_k p_k f_k, computed when first asked for.
    """

    def __init__(self, session: Session, rounds: np.ndarray, history: Any, used: np.ndarray, folder: Any = None):
        self.session, self.rounds, self.history, self.used = session, rounds, history, used
        self.folder = folder
        self.algorithm, self.problem = session.algorithm, session.problem
        self.participation, self.seed = session.participation, session.seed
        self.evaluation: dict[str, np.ndarray] = {}
        self.evaluated_rounds = np.zeros(0, int)
        self.held_out: dict[str, np.ndarray] = {}  # of the final model: (repeats, agents), nan where there is no row
        self._loss: np.ndarray | None = None

    @cached_property
    def error(self) -> np.ndarray | None:
        return self.session.errors(self.history)

    @property
    def has_loss(self) -> bool:
        return self.problem.has_loss

    @property
    def loss(self) -> np.ndarray:
        if self._loss is None:
            flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), self.history)
            lead = jax.tree.leaves(self.history)[0].shape[:2]
            self._loss = objective_of(self.problem, self.network, flat).reshape(lead)
        return self._loss

    @property
    def last(self) -> Any:
        """What was recorded last, of each repeat."""
        return take_last(self.history)  # not the session's, which goes on when the run is extended

    @property
    def network(self) -> Network | None:
        return self.session.network

    @property
    def model(self) -> Any:
        """The final global model of each repeat; on a network the nodes' mean, weighted by p_k."""
        return self.last if self.network is None else mean_model(self.last, self.problem.weights)

    @property
    def models(self) -> Any:
        """The final model of each agent, (repeats, agents, ...): with a fusion center all hold the global one."""
        if self.network is not None:
            return self.last
        K = self.problem.agents
        return jax.tree.map(lambda a: np.broadcast_to(a[:, None], (len(a), K, *a.shape[1:])), self.last)

    @cached_property
    def variation(self) -> np.ndarray | None:
        """(repeats, n): sum over edges of A_ij |w_i - w_j|^2 at the recorded rounds; None without a network."""
        if self.network is None:
            return None
        i, j = self.network.edges.T
        leaves = jax.tree.leaves(self.history)
        gaps = [((a[:, :, i] - a[:, :, j]) ** 2).sum(axis=tuple(range(3, a.ndim))) for a in leaves]
        return np.asarray(sum(gap @ self.network.weights for gap in gaps))

    @property
    def time(self) -> np.ndarray:
        """(repeats, n): virtual seconds at the recorded rounds; a round is a second where there is no clock."""
        return self.session.times(self.rounds)

    @property
    def memories(self) -> Any:
        """What agents keep between rounds, (repeats, agents, ...)."""
        return self.session.memories()

    @property
    def cost(self) -> Cost:
        """Messages, numbers, bytes and field evaluations; a mean over repeats."""
        down, up, width = self.session.message[:3]
        return Cost.of(int(self.rounds[-1]), self.used[:, -1].mean(0), down, up, width)

    @property
    def fairness(self) -> list[Fairness]:
        """Fairness of each repeat's final model over the agents."""
        if self.network is not None:
            return [fairness(losses) for losses in self.problem.own_losses(self.models)]
        return [fairness(self.problem.losses(take_repeat(self.model, r))) for r in range(self.session.repeats)]

    @property
    def speed(self) -> float:
        """Rounds a second; compilation, which is in the first segment, counts only when there was no other."""
        session = self.session
        rounds, seconds = session.first
        if session.round > rounds and session.seconds > seconds:
            return (session.round - rounds) / (session.seconds - seconds)
        return session.round / max(session.seconds, 1e-9)

    @property
    def engine(self) -> str:
        """What the engine chose."""
        return self.session.layout.explain()

    def extend(self, rounds: int, **options) -> Run:
        """The same run, gone on to `rounds` rounds in all: the bits of a run that was that long from the start."""
        if rounds <= self.session.round:
            raise FedpointError(f"the run has {self.session.round} rounds already: extend it to more")
        return drive(self, rounds, **options)

    def evaluate(self, data: Any) -> None:
        """Held-out metrics at (at most 200 of) the recorded rounds, into `evaluation`."""
        n = len(self.rounds)
        chosen = np.unique(np.linspace(0, n - 1, min(n, EVALUATIONS)).round().astype(int))
        measure = data if callable(data) else HeldOut(self.problem, data, own=self.network is not None)
        rows = [
            [measure(jax.tree.map(lambda a, r=r, i=i: a[r, i], self.history)) for i in chosen]
            for r in range(self.session.repeats)
        ]
        if not isinstance(rows[0][0], dict):
            raise FedpointError(f"evaluate= must return a dictionary of numbers, got {rows[0][0]!r}")
        self.evaluated_rounds = self.rounds[chosen]
        self.evaluation = {name: np.array([[float(m[name]) for m in row] for row in rows]) for name in rows[0][0]}
        if isinstance(measure, HeldOut) and measure.agent is not None:
            each: list[Any] = [measure.agents(take_repeat(self.last, r)) for r in range(self.session.repeats)]
            self.held_out = {name: np.stack([found[name] for found in each]) for name in each[0]}

    def description(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The algorithm in plain types, and how rows of data become predictions."""
        from fedpoint.config import methods
        from fedpoint.report.model import use_of

        return methods.describe(self.algorithm), use_of(self.problem, take_repeat(self.model, 0))

    def export(self, path: str, repeat: int = 0) -> None:
        """Write one repeat's model as npz with a manifest, for `fedpoint predict` and other programs."""
        from fedpoint.report.model import export

        export(self, path, repeat)

    def plot(self, path: str | None = None, what: str = "error", x: str = "rounds", title: str | None = None):
        """Draw the curves; saved when `path` is given (png, svg or pdf)."""
        from fedpoint.report.plots import curves

        return curves([self], path=path, what=what, x=x, title=title)

    def _repr_html_(self) -> str:
        from fedpoint.report.html import run_html

        return run_html(self)

    def __repr__(self) -> str:
        card = type(self.algorithm).card
        last = ""
        if self.error is not None:
            last = f", error {self.error[:, -1].mean():.3g}"
        return f"<Run {card.title}: {int(self.rounds[-1])} rounds, {self.session.repeats} repeats{last}>"


def objective_of(problem: Any, network: Any, models: Any) -> np.ndarray:
    """(n,): sum_k p_k f_k at each of n models, on a network each agent's at its own."""
    return problem.objective(models) if network is None else problem.own_losses(models) @ problem.weights


def mean_model(models: Any, weights: np.ndarray) -> Any:
    """sum_k p_k w_k over the second axis."""
    return jax.tree.map(lambda a: np.tensordot(a, weights.astype(a.dtype), axes=(1, 0)), models)


def take_repeat(model: Any, repeat: int) -> Any:
    return jax.tree.map(lambda a: a[repeat], model)


def run(
    algorithm: Any,
    problem: Any,
    rounds: int = 100,
    participation: Any = None,
    network: Any = None,
    schedule: Any = None,
    start: Any = None,
    exact: bool = False,
    seed: int = 0,
    repeats: int = 1,
    record_every: int | None = None,
    folder: Any = None,
    evaluate: Any = None,
    stop: Any = None,
    callbacks: Iterable[Callable[[Progress], Any]] = (),
    processes: Any = None,
) -> Run:
    """Run an algorithm on a problem.

    Args:
        algorithm: for instance `fp.FedAvg(step=0.02, local_steps=10)`.
        problem: from `fp.problems`, or your own.
        rounds: how many.
        participation: None for everyone, a number L for `fp.Uniform(L)`, or a scheme.
        network: an `fp.Network`: then every agent is a node with a model of its own, and there is no fusion center.
        schedule: when nodes of a network work and how old is what they hear (`fp.PartiallyAsynchronous`, ...), or, with
            a fusion center, answers on a clock (`fp.Arrivals`, `fp.Waiting`).
        start: the model to start from (default: the problem's own start).
        exact: exact fields: no sampling noise. Participation stays random.
        seed, repeats: repeats are independent runs, batched.
        record_every: rounds between records; default 1, or more where all models would not fit into memory.
        folder: a run folder, from which the run can be resumed.
        evaluate: held-out data (X, y), or (X, y, groups): then `run.held_out` has the agents' own metrics, and
            `evaluation` the worst tenth's loss; or a function model -> {name: number}.
        stop: a tolerance on the mean squared error (or, without a known solution, on the squared change of the
            model between records), or a function (round, model, error) -> bool; models and errors lead with repeats.
        callbacks: called with a `Progress` after every segment of rounds; trackers (`fp.trackers`) among them follow
            the run from its start to its end.
        processes: over how many processes the agents are shared out, or `fp.Processes` with more to say about it. The
            same bits whatever their number; those of a run in this process but for rounding. In a script, call it below
            `if __name__ == "__main__"`.
    """
    check_count("rounds", rounds, 0)
    check_count("repeats", repeats, 1)
    if isinstance(problem, AnyModel):
        from fedpoint.verbs.run_any import run_any

        others = {"participation": participation, "start": start, "exact": exact, "folder": folder}
        if processes is not None:
            raise FedpointError(
                "models that are no arrays cannot be shared out between processes: leave out processes="
            )
        options = {"record_every": record_every, "evaluate": evaluate, "stop": stop, "callbacks": callbacks}
        network = check_network(network, problem)
        scheme = None if network is None else check_schedule(None, schedule, network)
        done: Any = run_any(algorithm, problem, network, rounds, scheme, int(seed), repeats, **options, **others)
        return done
    check_inputs(algorithm, problem, seed)
    network = check_network(network, problem)
    model = check_start(problem, start, network)
    every = choose_every(record_every, rounds, repeats, model)
    scheme = check_schedule(participation, schedule, network)
    check_repeats(algorithm, problem, model, network, scheme, repeats)
    if processes is not None:
        from fedpoint.verbs.run_on import run_on

        settings = (scheme, network, model, exact, int(seed), repeats, every, rounds)
        return run_on(processes, algorithm, problem, *settings, stop, evaluate, folder, callbacks)
    session = Session(algorithm, problem, scheme, model, exact, int(seed), repeats, every, network=network)
    begun = begin(session)
    if folder is not None:
        from fedpoint.report.store import create

        begun.folder = create(folder, begun, rounds, algorithm, scheme)
    return drive(begun, rounds, stop=stop, callbacks=callbacks, evaluate=evaluate)


def check_inputs(algorithm: Any, problem: Any, seed: Any) -> None:
    if not hasattr(type(algorithm), "card"):
        raise FedpointError(f"the algorithm must be an object such as fp.FedAvg(step=0.1), got {algorithm!r}")
    if not hasattr(problem, "oracle"):
        raise FedpointError(f"the problem must be one of fp.problems, or your own fp.problems.Problem; got {problem!r}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise FedpointError(f"seed must be a whole number, got {seed!r}")


def check_network(network: Any, problem: Any) -> Any:
    """The network with its nodes in the agents' order, or None."""
    if network is None:
        return None
    if not hasattr(network, "arcs"):
        raise FedpointError(f"network must be an fp.Network, for instance fp.Network.from_networkx(G); got {network!r}")
    return network.aligned(problem.names)


def check_schedule(participation: Any, schedule: Any, network: Any) -> Any:
    """Who takes part, and when: a schedule for networks, a participation or a timed schedule with a fusion center."""
    if network is not None:
        if participation is not None:
            raise FedpointError("on a network nodes take turns by schedule=, not by participation=")
        schedule = Synchronous() if schedule is None else schedule
        if not isinstance(schedule, Schedule):
            raise FedpointError(f"schedule must be one for networks, such as fp.Synchronous(); got {schedule!r}")
        return schedule
    if schedule is None or isinstance(schedule, Synchronous):
        return as_participation(participation)
    if participation is not None:
        raise FedpointError("give participation= or schedule=: a schedule says who takes part")
    if isinstance(schedule, Schedule):
        raise FedpointError(f"{type(schedule).__name__} is a schedule for networks: give network= too")
    return as_participation(schedule)


def check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise FedpointError(f"{name} must be a whole number, at least {least}; got {value!r}")
    if value > MOST_ROUNDS:
        raise FedpointError(f"{name} must be at most {MOST_ROUNDS}; got {value}")


def check_start(problem: Any, start: Any, network: Any = None) -> Any:
    """The start, checked against the problem's own. On a network it leads with the nodes; one for all is copied."""
    own = problem.start()
    if network is not None:
        spread = jax.tree.map(lambda a: np.broadcast_to(a, (network.nodes, *np.shape(a))).copy(), own)
        if start is None:
            return spread
        one = [np.shape(a) for a in jax.tree.leaves(own)]
        if [np.shape(a) for a in jax.tree.leaves(start if not hasattr(own, "dtype") else np.asarray(start))] == one:
            one_start = _fitting(own, start)
            return jax.tree.map(lambda a: np.broadcast_to(a, (network.nodes, *np.shape(a))).copy(), one_start)
        own = spread
    return own if start is None else _fitting(own, start)


def _fitting(own: Any, start: Any) -> Any:
    """A start that fits the problem's own."""
    if hasattr(own, "dtype"):  # a model that is one array may be given as a list
        start = np.asarray(start)
    built: list[Any] = [jax.tree.structure(tree) for tree in (start, own)]
    if built[0] != built[1]:
        raise FedpointError(f"start is built as {built[0]}, but a model of this problem as {built[1]}")
    given, like = jax.tree.leaves(start), jax.tree.leaves(own)
    if len(given) != len(like) or any(np.shape(a) != np.shape(b) for a, b in zip(given, like, strict=True)):
        shapes = [np.shape(a) for a in given], [np.shape(b) for b in like]
        raise FedpointError(f"start has shapes {shapes[0]}, but a model of this problem has {shapes[1]}")
    if not all(np.isfinite(a).all() for a in given):
        raise FedpointError("start holds NaN or inf")
    dtypes = [np.asarray(b).dtype for b in like]
    leaves = [np.asarray(a, d) for a, d in zip(given, dtypes, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(own), leaves)


def check_repeats(algorithm: Any, problem: Any, model: Any, network: Any, scheme: Any, lanes: int) -> None:
    """Refuse more repeats (times points of a sweep) than there is memory for: their states, and the work of a round."""
    if lanes == 1:
        return
    node = model if network is None else jax.tree.map(lambda a: a[0], model)
    hub, memory = (_numbers(part) for part in jax.eval_shape(lambda w: algorithm.init(wrap(w)), node))
    size, agents = _numbers(node), problem.agents
    hubs = 1 if network is None else agents
    at_once = scheme.slots(agents) if size <= LARGE_MODEL else 1  # large models are worked on one after the other
    each = hubs * hub + agents * memory + WORK * at_once * size
    check_room(lanes * each, f"{lanes:,} repeats at once", "take fewer, with other seeds for more")


def _numbers(tree: Any) -> int:
    return sum(math.prod(np.shape(a)) for a in jax.tree.leaves(tree))


def choose_every(record_every: int | None, rounds: int, repeats: int, model: Any) -> int:
    if record_every is not None:
        check_count("record_every", record_every, 1)
        return int(record_every)
    bytes_ = sum(np.asarray(a).nbytes for a in jax.tree.leaves(model)) * repeats * (rounds + 1)
    return max(1, math.ceil(bytes_ / HISTORY_BYTES))


def begin(session: Session) -> Run:
    """The run before its first round: it records the start."""
    history = jax.tree.map(lambda a: a[:, None], session.model())
    return Run(session, np.zeros(1, int), history, np.zeros((session.repeats, 1, 3), np.int64))


def drive(begun: Run, rounds: int, stop=None, callbacks=(), evaluate=None) -> Run:
    """Go on with a run, in its folder where it has one, followed by the trackers among the callbacks."""
    callbacks = [callbacks] if callable(callbacks) else list(callbacks)
    with contextlib.ExitStack() as stack:
        if begun.folder is not None:
            stack.enter_context(begun.folder.writing(begun.session, rounds))
        follow = stack.enter_context(following(begun, rounds, callbacks))
        others = [callback for callback in callbacks if not isinstance(callback, Tracker)]
        return _go_on(begun, rounds, stop, others, evaluate, follow)


def _go_on(begun: Run, rounds: int, stop, callbacks, evaluate, follow: Following) -> Run:
    """Put the records of more rounds behind those of a run."""
    session, folder = begun.session, begun.folder
    parts, used, at = [begun.history], [begun.used], [begun.rounds]
    if begun.rounds[-1] % session.every:  # a last record off the grid is replaced by the grid's own
        parts, used = [jax.tree.map(lambda a: a[:, :-1], begun.history)], [begun.used[:, :-1]]
        at = [begun.rounds[:-1]]
    every = session.every

    def keep(rounds: np.ndarray, records: Records) -> None:
        at.append(rounds)
        parts.append(records.model)
        used.append(records.used)
        if folder is not None:
            folder.keep(session, rounds, records)
        follow.keep(rounds, records.model, records.used)

    session.advance(rounds, None if stop is None else stopper(stop, parts[0]), callbacks, keep)
    if folder is not None:
        folder.commit(session)
    if session.round % every:  # the end is always recorded
        parts.append(jax.tree.map(lambda a: a[:, None], session.model()))
        at.append(np.array([session.round]))
        last = jax.tree.map(lambda a: np.asarray(a)[:, None], session.state.used)
        used.append(session.used(at[-1], last))
    history = jax.tree.map(lambda *a: np.concatenate(a, axis=1), *parts)
    done = Run(session, np.concatenate(at), history, np.concatenate(used, axis=1), folder)
    if evaluate is not None:
        done.evaluate(evaluate)
    if folder is not None:
        folder.finish(done)
    follow.finish(done)
    return done


def stopper(stop: Any, history: Any) -> Callable[[int, Any, np.ndarray | None], bool]:
    """stop= as a function of (round, model, error), for a run that has recorded `history`."""
    if callable(stop):
        return stop
    if isinstance(stop, bool) or not (isinstance(stop, int | float) and 0 < stop < math.inf):
        raise FedpointError(f"stop must be a tolerance above 0 or a function, got {stop!r}")
    last = [take_last(history)]

    def enough(round, model, error):
        if error is not None:
            return error.mean() <= stop
        leaves = zip(jax.tree.leaves(model), jax.tree.leaves(last[0]), strict=True)
        change = sum(((a - b) ** 2).sum() / len(a) for a, b in leaves)
        last[0] = model
        return change <= stop

    return enough


def take_last(history: Any) -> Any:
    return jax.tree.map(lambda a: a[:, -1], history)
