"""Who is examined, and with which settings? An algorithm object in the engine, or a plain function in a loop."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from functools import partial

import jax
import numpy as np
from jax import Array

from fedpoint.channel import Channel
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import Diverged, FedpointError, nearest
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import LIBRARIES, calling
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK, Stream
from fedpoint.core.record import Record, one_agent, values_of
from fedpoint.core.types import Data, Message, Model, Number, State
from fedpoint.core.vector import take, wrap
from fedpoint.experiment import Experiment
from fedpoint.gather import Gather
from fedpoint.problems import Quadratic
from fedpoint.problems.oracle import Mine
from fedpoint.results.certificate import Unexercised
from fedpoint.results.run import Run
from fedpoint.timing.answering import Answering
from fedpoint.timing.schemes import Everyone, Participation
from fedpoint.verbs.certify.battery import SHORT
from fedpoint.verbs.certify.exercise import not_watched, watch_experiments, watch_function
from fedpoint.verbs.certify.methods import Recipe, Settings, average
from fedpoint.verbs.certify.mistakes import METHODS
from fedpoint.verbs.certify.samples import REPEATS, Repeats, Spread, repeats, round_spread, spread
from fedpoint.verbs.certify.world import (
    AGENTS,
    HUGE,
    Normal,
    Play,
    Reading,
    Rounds,
    World,
    build,
    build_network,
    everyone,
    play,
    some,
)
from fedpoint.verbs.run import run

_FIELDS = [f.name for f in dataclasses.fields(Recipe)]
SETTINGS = tuple(_FIELDS[: _FIELDS.index("corrected")])  # what a user may set; then come the switches
STEP, PULL, SERVER_STEP = 0.15, 0.7, 0.8
LOCAL_STEPS = (2, 3, 4, 5, 3)  # unequal, and all more than one: a sample that is reused shows
WATCHED, WATCHED_SOME, WATCHED_NOISY = 60, 24, 12  # rounds in which every decision is watched
WRITTEN = ("init", "say", "local", "combine", "settle", "read", "encode", "decode", "location", "inbox")
OBSERVED = (
    300  # rounds in which a number of local steps that is drawn should change: all one with p = 0.9: once in 1e13
)
NETWORK_REACH = 0.3  # how much of it is safe for methods that track gradients over a network
REACH = 0.3  # the largest eigenvalue of a Hessian times the step


class ObjectSubject:
    """An algorithm, run by the engine, with an experiment's channel and gather."""

    def __init__(self, algorithm: Algorithm, channel: Channel, gather: Gather):
        self.algorithm, self.channel, self.gather = algorithm, channel, gather
        self.name = type(algorithm).__name__

    def _run(self, experiment: Experiment, rounds: int) -> Run:
        with calling(self.name):
            return run(experiment, rounds=rounds)

    def _experiment(
        self,
        world: World,
        participation: Participation | None = None,
        noise: float = 0.0,
        repeats: int = 1,
        seed: int = 0,
    ) -> Experiment:
        return Experiment(
            self.algorithm,
            Quadratic(world.H, world.c, noise=noise, weights=world.p),
            participation,
            channel=self.channel,
            gather=self.gather,
            network=world.network,
            start=world.start,
            exact=not noise,
            seed=seed,
            repeats=repeats,
            record_every=1,
        )

    def _play(self, world: World, rounds: int, participation: Participation | None = None) -> Play:
        diverged = False
        while True:
            try:
                done = self._run(self._experiment(world, participation), rounds)
                break
            except Diverged as error:
                if error.round <= 1 or rounds <= 1:
                    raise FedpointError(f"{self.name} left the finite numbers in its first round") from None
                diverged, rounds = True, min(rounds - 1, error.round - 1)
        models = done.history[0].reshape(rounds + 1, -1)
        huge = np.abs(models).max(1) > HUGE
        if huge.any():
            diverged, models = True, models[: huge.argmax()]
        counts = (np.diff(done.used[0, :, 2]) // AGENTS).tolist()
        return Play(models, diverged, counts, *_controls(done, world))

    def everyone(self, world: World, rounds: int) -> Play:
        return self._play(world, rounds)

    def some(self, world: World, rounds: int) -> Play | None:
        scheme = self._few(world)
        return None if scheme is None else self._play(world, rounds, scheme)

    def _few(self, world: World) -> Participation | None:
        """How some take part; None where all must."""
        scheme = _in_groups(world)
        return None if world.network is not None or self.algorithm.invalid_under(scheme) else scheme

    def noisy_rounds(self, world: World, noise: float, rounds: int, seed: int) -> Play:
        """With samples that are the seed's, whoever asks for them."""
        done = self._run(self._experiment(world, None, noise, 1, seed), rounds)
        return Play(done.history[0].reshape(rounds + 1, -1), False, [])

    def noisy(self, world: World, noise: float, seed: int) -> Spread:
        return spread(
            np.asarray(self._run(self._experiment(world, None, noise, REPEATS, seed), 1).last).reshape(REPEATS, -1)
        )

    def repeats(self, world: World, noise: float, seed: int) -> Repeats | None:
        return None

    @double
    def asks(self, world: World) -> list[bool]:
        """All agents have the same code: from its shapes."""
        bound = self._experiment(world).bind()
        method, model = one_agent(bound.algorithm, 0), wrap(bound.topology.one(bound.start))
        agents: list[Questioned] = []

        def local(own: Data, common: Data, share: Array) -> Message:
            agent = Questioned(bound.oracle, Mine(take(own, 0), common), Stream(NO_LUCK, 0, 0), None, None, True, share)
            agents.append(agent)
            return method.local(*bound.topology.first_words(method, model), agent)[0]

        jax.eval_shape(local, bound.problem.own, bound.problem.common, world.p[0])
        return [agents[0].questions > 0] * AGENTS

    def unexercised(self, world: World, noise: float) -> list[Unexercised]:
        own = [cls for part in (self.algorithm, self.channel, self.gather) for cls in _users_classes(part)]
        written = [function for cls in own for name, function in vars(cls).items() if name in WRITTEN]
        if not own or (unknown := not_watched(self.name, written)):
            return unknown if own else []
        noisy = self._experiment(world, self._few(world), noise)  # few and noisy at once: one program less to compile
        return watch_experiments([(self._experiment(world), WATCHED), (noisy, WATCHED_SOME)])


def _in_groups(world: World) -> Participation:
    """Two or three take part, in turn."""
    return Answering(Everyone(), trace=[[int(k in group) for k in range(AGENTS)] for group in world.groups])


def _users_classes(record: Record) -> Iterator[type]:
    """The classes of a record, and of those that it is made of, that are not the library's."""
    yield from (cls for cls in type(record).__mro__ if cls.__module__.partition(".")[0] not in LIBRARIES)
    for value in values_of(record).values():
        if isinstance(value, Record):
            yield from _users_classes(value)


class Questioned(Agent):
    """An agent that counts what it is asked for, of whatever kind."""

    questions = 0

    def field(self, w: Model, e: Number = 0) -> Model:
        self.questions += 1
        return super().field(w, e)

    def hessian(self, w: Model) -> Array:
        self.questions += 1
        return super().hessian(w)

    def loss(self, w: Model) -> Array:
        self.questions += 1
        return super().loss(w)

    def prox(self, center: Model, weight: Number) -> Model:
        self.questions += 1
        return super().prox(center, weight)


def _controls(run: Run, world: World) -> tuple[float | None, np.ndarray | None]:
    """|sum p_k c_k - c| and c, where they can be told: a hub with `c`, a memory that is one model or has `c`."""
    hub, memories = jax.tree.map(lambda a: np.asarray(a)[0], (run.session.whole().hub, run.memories))
    c, own = _part(hub, "c"), _part(memories, "c")
    own = memories if own is None else own
    if c is None or np.shape(own) != (AGENTS, *np.shape(c)):
        return None, None
    return float(np.linalg.norm(world.p @ np.asarray(own) - np.asarray(c))), np.asarray(c)


def _part(state: State, name: str) -> np.ndarray | None:
    """A part of a state by its name: a field of a tuple, or an entry of a dictionary."""
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    return named.get(f".{name}", named.get(f"['{name}']"))


class FunctionSubject:
    """A plain function round(w, agents) -> w; read: where its agents have models of their own, an agent's."""

    def __init__(self, function: Rounds, read: Reading | None = None):
        self.function, self.read = function, read
        self.name = function.__name__ if inspect.isroutine(function) else type(function).__name__

    def everyone(self, world: World, rounds: int) -> Play:
        return play(self.function, world, everyone(rounds), name=self.name, read=self.read)

    def some(self, world: World, rounds: int) -> Play:
        return play(self.function, world, some(world, rounds), name=self.name, read=self.read)

    def noisy(self, world: World, noise: float, seed: int) -> Spread:
        def once(seed: int, rng: Normal | None = None) -> Play:
            return play(self.function, world, everyone(1), seed, noise, self.name, rng, read=self.read)

        return round_spread(once, len(world.start), seed)

    def repeats(self, world: World, noise: float, seed: int) -> Repeats | None:
        return repeats(play(self.function, world, everyone(3), seed, noise, self.name, read=self.read))

    def asks(self, world: World) -> list[bool]:
        asked = self.everyone(world, SHORT).questions
        assert asked is not None
        return [count > 0 for count in asked]

    def unexercised(self, world: World, noise: float) -> list[Unexercised]:
        if unknown := not_watched(self.name, [self.function]):
            return unknown
        plays = [(everyone(WATCHED), False), (everyone(WATCHED_NOISY), True)]
        if world.network is None:
            plays.append((some(world, WATCHED_SOME), False))
        return watch_function(self.function, self.name, world, noise, plays, self.read)

    def check_repeatable(self, world: World) -> None:
        """The same start, the same rounds, unless the number of local steps is itself random."""
        one, two = (self.everyone(world, 3) for _ in range(2))
        if one.counts == two.counts and not np.array_equal(one.models, two.models):
            raise FedpointError(
                f"{self.name} gives other models when it is run again from the same start: keep what lasts between "
                "rounds in agent.memory and agents.server (both are empty when a run begins), and draw random numbers "
                "from a generator that is kept there"
            )


def check_settings(settings: Settings) -> Settings:
    """Settings by their known names, numbers as arrays of the right length."""
    checked = {}
    for name, value in settings.items():
        if name not in SETTINGS:
            raise FedpointError(f"certify: unknown setting {name!r}: {nearest(name, SETTINGS)}")
        if isinstance(value, list | tuple | np.ndarray):
            value = np.asarray(value, dtype=float)
            if name in ("step", "local_steps", "weights") and value.shape != (AGENTS,):
                raise FedpointError(
                    f"certify: {name} has {counted(value.size, 'number')}; the battery has {AGENTS} agents"
                )
            if name == "local_steps":
                value = value.astype(int)
        if name in ("step", "local_steps") and not np.all(np.asarray(value, dtype=float) > 0):
            raise FedpointError(f"certify: {name} must be above 0, got {value}")
        checked[name] = value
    return checked


def prepare_object(
    algorithm: Algorithm, given: Settings, seed: int, channel: Channel, gather: Gather
) -> tuple[ObjectSubject, Settings, World]:
    """The algorithm with the battery's settings, all its settings, and a world to suit them."""
    if algorithm.at_agents and not algorithm.mixes:
        raise FedpointError(
            f"certify cannot examine {type(algorithm).__name__}: it is a method for networks with a coupling, and of "
            "those it knows only methods that look for one model, such as Diffusion"
        )
    fields = {f.name: f for f in dataclasses.fields(algorithm)}
    values = values_of(algorithm)
    rng = np.random.default_rng([seed, 0xE])
    chosen: Settings = {}
    if values.get("step") is not None:
        chosen["step"] = STEP
    if values.get("local_steps") is not None:
        several = fields["local_steps"].metadata.get("per_agent")
        chosen["local_steps"] = rng.permutation(LOCAL_STEPS) if several else 4
    if values.get("pull"):
        chosen["pull"] = PULL
    if "server_step" in values and "server" not in values:
        chosen["server_step"] = SERVER_STEP
    chosen |= {name: value for name, value in given.items() if name in fields}
    if values.get("optimiser") is not None or not isinstance(values.get("server", ""), str):
        raise FedpointError("certify has no reference for optax optimisers: leave out optimiser=, name the server's")
    with calling(type(algorithm).__name__):
        subject = ObjectSubject(algorithm.replace(**chosen), channel, gather)
    settings = {n: v for n, v in values_of(subject.algorithm).items() if n in SETTINGS} | given

    def made() -> World:
        if not algorithm.mixes:
            return build(seed, steepness(settings))
        return build_network(seed, NETWORK_REACH * steepness(settings), algorithm.directed)

    world = made()
    if "local_steps" not in settings:  # under another name: the engine counts
        settings["local_steps"] = max(1, subject.everyone(world, 1).counts[0])
        world = made()
    return subject, settings, world


def steepness(settings: Settings) -> float:
    """Curvature at which a step of this size is stable and gets somewhere, whatever its size."""
    recipe = Recipe.of({"local_steps": None, "pull": 1.0} | settings)
    if recipe.step is None:
        return 3.0 * recipe.pull if recipe.exact else 2.0
    most = 4.0 if recipe.local_steps is None else float(np.max(recipe.local_steps))
    return float(min(REACH, 4 * REACH / most) / np.max(recipe.step))


def prepare_function(
    function: Rounds, given: Settings, claim: str | None, seed: int
) -> tuple[FunctionSubject, Settings, World]:
    """The function, its settings (given, or read off its first round), and a world to suit them."""
    method = None if claim is None else METHODS[claim]
    subject = FunctionSubject(function, None if method is None else method.reading(Recipe.of(given)))
    if method is not None and method.network:
        world = build_network(seed, NETWORK_REACH * steepness(given), method.network == "one way")
        subject.check_repeatable(world)
        return subject, dict(given), world
    world = build(seed, steepness(given))
    subject.check_repeatable(world)
    settings = dict(given)
    lengths = subject.everyone(world, OBSERVED).counts
    if len(set(lengths)) > 1:  # another number of local steps in every round: Scaffnew's
        settings.setdefault("local_steps", None)
    for name, value in ({} if subject.read else observe(subject, world, claim, given)).items():
        settings.setdefault(name, value)
    return subject, settings, build(seed, steepness(settings))


def observe(subject: FunctionSubject, world: World, claim: str | None, given: Settings) -> Settings:
    """Settings read off where the first round evaluates the fields: y_1 = w - step g_k(w), and so on."""
    seen = subject.everyone(world, 1)
    w = world.start
    if given.get("exact") or not seen.asked or len(seen.models) < 2:
        return {}
    paths = [path_from(w, points) for points in seen.asked]
    if not all(paths):
        return {}

    def field(k: int, y: np.ndarray) -> np.ndarray:
        return world.H[k] @ (y - world.c[k])

    steps = np.array([len(path) for path in paths])
    found: Settings = {"local_steps": one_if_equal(steps)}
    if steps.max() > 1:
        rates = [fit(path[0] - path[1], field(k, w)) for k, path in enumerate(paths) if len(path) > 1]
    else:
        fields = np.array([field(k, w) for k in range(AGENTS)])
        both = (fit(w - seen.last, mean) for mean in (world.p @ fields, fields.mean(0)))
        rates = [next((rate for rate in both if rate is not None), None)]
    known = [rate for rate in rates if rate is not None and rate > 0]
    if len(known) < len(rates):
        return found if "step" in given else {}
    each = np.full(AGENTS, np.mean(known))
    if steps.max() > 1:
        each[steps > 1] = known
    found["step"] = float(each[0]) if np.ptp(each) < 1e-9 * each.mean() else each
    pull = common([
        fit((path[1] - path[2]) / each[k] - field(k, path[1]), path[1] - w)
        for k, path in enumerate(paths)
        if len(path) > 2
    ])  # fmt: skip
    if pull is not None and abs(pull) > 1e-6:
        found["pull"] = pull
    if claim in (None, "scaffold", "fedopt"):
        told = {n: v for n, v in (found | given).items() if n in ("step", "local_steps")}
        plain = play(partial(average, Recipe.of(told)), world, everyone(1))
        factor = fit(seen.last - w, plain.last - w)
        if factor is not None and factor > 0:
            found["server_step"] = factor
    return found


def path_from(w: np.ndarray, points: list[np.ndarray]) -> list[np.ndarray]:
    """The local models at which a field was evaluated, each once, whatever the number of samples there.

    SCAFFOLD's option I asks again at the start, before or after its steps.
    """
    path = [y for y, before in zip(points, [None, *points], strict=False) if not np.array_equal(y, w)
            and (before is None or not np.array_equal(y, before))]  # fmt: skip
    return [w, *path] if any(np.array_equal(y, w) for y in points) else []


def common(values: list[float | None]) -> float | None:
    """The value that all agree on."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values) or np.ptp(known) > 1e-6 * (1 + abs(known[0])):
        return None
    return float(np.mean(known))


def fit(change: np.ndarray, direction: np.ndarray) -> float | None:
    """The factor with change = factor x direction, where there is one."""
    square = direction @ direction
    if not square > 0 or not np.isfinite(change).all():
        return None
    factor = float(change @ direction / square)
    left = np.linalg.norm(change - factor * direction)
    return factor if left <= 1e-8 * (np.linalg.norm(change) + 1e-6 * np.sqrt(square)) else None


def one_if_equal(steps: np.ndarray) -> int | np.ndarray:
    return int(steps[0]) if (steps == steps[0]).all() else steps
