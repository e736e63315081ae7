"""What is an algorithm? Four pure functions of hub, memory and messages; its fields are its hyper-parameters."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self, TypeVar, cast

import jax
import numpy as np

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.inbox import Inbox
from fedpoint.core.lectures import named
from fedpoint.core.numbers import counted, there_are
from fedpoint.core.random import Row
from fedpoint.core.record import PerAgent, Record, owner_of, untouched, values_of, with_leaves
from fedpoint.core.steps import Epochs, LocalSteps, Step, StepSchedule, most_steps, scaled
from fedpoint.core.types import Form, Message, Model, Number, Setting, State

if TYPE_CHECKING:  # asked, not known: these lie above
    from fedpoint.core.agent import Agent
    from fedpoint.graphs.network import Network
    from fedpoint.problems.base import Problem
    from fedpoint.timing.base import Timing
from fedpoint.core.reference import Reference
from fedpoint.core.settings import check_value


@checked
@dataclass(frozen=True)
class Card:
    """A method's entry in the catalogue, which the command line, the documentation and the conformance tests list.

    Args:
        name: how files and the command line call the method, in lower case.
        title: how people call it.
        summary: what it does, in one line without a full stop.
        lecture: which lectures define it, by number, and where; empty where none does.
        references: the publications that introduced it.
        limit: where it converges with exact fields and every agent in every round.
        fails: when not to use it.
        restriction: why every agent must answer in every round; empty where any participation is valid.
        cls: the class of the method, filled in when that is defined.
    """

    name: str
    title: str
    summary: str
    lecture: str
    references: tuple[Reference, ...] = ()
    limit: str = ""  # where it ends with exact fields and everyone
    fails: str = ""  # when not to use it
    restriction: str = ""  # why everyone must answer in every round; empty: any participation is valid
    cls: type[Algorithm] | None = field(default=None, compare=False)

    @property
    def taught(self) -> str:
        """The lectures that define it, by authors and titles; empty where none does."""
        return named(self.lecture)

    @property
    def network(self) -> bool:
        """It runs on networks only."""
        return self.cls is not None and self.cls.at_agents

    @property
    def participation(self) -> tuple[str, ...] | None:
        """The names of the schemes under which it is valid; None: all."""
        return ("Everyone",) if self.restriction else None


CATALOGUE: dict[str, Card] = {}  # by name; complete once `fedpoint.algorithms` is imported

Bindable = TypeVar("Bindable", bound=Record)


class Outcomes(NamedTuple):
    """What a hub draws in a round, for forecasts: values, (n, ...), and their probabilities (n,)."""

    values: np.ndarray
    probabilities: np.ndarray


class Averaging(NamedTuple):
    """A method whose models are read as a mean, and after how many rounds that begins."""

    method: Algorithm
    burn_in: int


class Composition(NamedTuple):
    """Methods that run by themselves, and what is read of the models of all of them, each (rounds + 1, d)."""

    methods: tuple[Algorithm, ...]  # the inner one first
    read: Callable[..., np.ndarray]
    words: str  # what is read


class Algorithm(Record):
    """A method: subclass it, name its hyper-parameters as fields, and write `init`, `local` and `combine`.

    init(w) -> (hub, memory): the hub's state before the first round, and what one agent remembers.
    local(heard, memory, agent) -> (message, memory): what an agent does; the only method that sees data.
    combine(hub, inbox) -> hub: what the hub makes of the weighted sums of the messages. All else has a default.

    Arguments of methods:
        w: a model.
        hub: the hub's state.
        memory: what an agent remembers from its last round.
        heard: what an agent hears: what `say` sent down; on a network, the hub of its node.
        agent: the agent that works: its data, its share of the objective and its luck.
        inbox: what the hub hears.
        problem: what agents hold.
        network: who hears whom; None with a fusion center.

    >>> import fedpoint as fp
    >>> import jax.numpy as jnp
    >>> class SignDescent(fp.Algorithm):
    ...     step: float
    ...     def init(self, w):
    ...         return w, ()
    ...     def local(self, w, memory, agent):
    ...         return jnp.sign(agent.field(w)), memory
    ...     def combine(self, w, inbox):
    ...         return w - self.step * inbox.mean
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> fp.run(SignDescent(step=0.25), quad, rounds=3).model
    array([[0.125]])
    """

    card: ClassVar[Card]
    catalogued = True  # False: it is a method only around another one
    unbounded = False  # True: the number of local steps is drawn in the run, without a bound
    proximal = False  # True: it solves a proximal problem every round
    full = False  # True: it asks for exact fields only
    at_agents = False  # True: for networks; a node's model is its memory, and `hello` is what neighbours know at first
    personal = False  # True: agents have models of their own: `read` makes an agent's of the hub and its memory
    coupled = False  # True: for networks; it solves GTVMin with its hyper-parameter `coupling`
    merges = (
        False  # True: its hub adds what it hears, so that a mean of hubs is the hub of all: regions may have one each
    )
    mixes = False  # True: for networks; nodes look for one model, and average with the weights of their edges
    directed = False  # True: for networks; edges may go one way
    goal = "w*"  # in words: what its models are compared with
    chains = 1  # models that run side by side: messages are changes of as many
    fits_any_model = False  # True: it also runs with models that only fit and predict
    exact_moments = False  # True: it uses each sample once, so that second moments can be computed from the update

    # What a method without such a hyper-parameter has in its place; not fields, which have an annotation.
    step = cast(Step | None, None)
    local_steps = cast(LocalSteps | None, 1)
    times = 1  # of what agents are asked for first: how often in a round

    def __init_subclass__(cls, **options: Setting) -> None:
        own_doc = vars(cls).get("__doc__")  # a dataclass makes one where there is none
        super().__init_subclass__(**options)
        own = vars(cls).get("card")
        if isinstance(own, Card):
            cls.card = dataclasses.replace(own, cls=cls)
            if cls.catalogued:
                CATALOGUE[own.name] = cls.card
        elif own is None and not untouched(
            cls, "card", Algorithm
        ):  # a method of its own, with the restrictions of what it is made of
            snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
            summary = "" if own_doc is None else own_doc.split("\n")[0]
            inherited = cls.card.restriction if owner_of(cls, "card") is not None else ""
            cls.card = Card(snake, cls.__name__, summary, lecture="", restriction=inherited, cls=cls)

    def check(self) -> None:
        for name in ("init", "local", "combine"):
            if owner_of(type(self), name) is Algorithm:
                raise FedpointError(f"algorithm {type(self).__name__} lacks the method {name!r}")
        for f in dataclasses.fields(self):
            value = values_of(self)[f.name]
            if "low" not in f.metadata or (value is None and f.default is None):
                continue
            if value is None:
                raise FedpointError(f"{type(self).__name__}: {f.name} must be a number, got None")
            object.__setattr__(self, f.name, check_value(type(self).__name__, f.name, value, f.metadata))

    # The update.

    def init(self, w: Model) -> tuple[State, State]:
        """The hub's state, and what one agent remembers."""
        raise FedpointError(f"{type(self).__name__} lacks the method 'init'")

    def say(self, hub: State, row: Row) -> State:
        """What the hub sends down.

        Args:
            row: the hub's own randomness of this round.
        """
        return hub

    def local(self, heard: State, memory: State, agent: Agent) -> tuple[Message, State]:
        """A message and a new memory: the only method that sees data."""
        raise FedpointError(f"{type(self).__name__} lacks the method 'local'")

    def begun_from(self, heard: State, memory: State) -> Model:
        """The model from which an agent that hears this begins its round."""
        return self.read(heard, memory)

    def combine(self, hub: State, inbox: Inbox) -> State:
        """The hub's new state."""
        raise FedpointError(f"{type(self).__name__} lacks the method 'combine'")

    def settle(self, hub: State, memory: State) -> State:
        """An agent's memory once it has heard the merged model."""
        return memory

    def read(self, hub: State, memory: State) -> Model:
        """The model; of a method with `personal = True` the agent's own."""
        return hub

    def shown(self, hub: State, newcomer: State) -> Model:
        """The model that a hub has to show where nobody but the agents knows their memories.

        Args:
            newcomer: what an agent remembers that has not worked yet.
        """
        return self.read(hub, newcomer)

    def hello(self, w: Model) -> Message:
        """Of methods for networks: what neighbours know of a node that has not worked yet."""
        raise FedpointError(f"{type(self).__name__} has at_agents = True and lacks the method 'hello'")

    def survey(self) -> Algorithm | None:
        """What agents are asked for at the beginning of a round, `times` times, as a method on the same hub and
        memories, which may have a survey itself; None: nothing, and a round is one exchange."""
        return None

    def exchanges(self) -> list[tuple[Algorithm, int]]:
        """Of a round, in their order: as whom agents are asked, and how often. The last is the method itself."""
        asked = self.survey()
        return [*([] if asked is None else asked.exchanges()), (self, self.times)]

    def suited(self, problem: Problem) -> Self:
        """With what it leaves open until the problem is known."""
        return self

    def acknowledge(self, memory: State, sent: Message, credited: Message) -> State:
        """A new memory, once it is known what arrived of a message over a lossy channel.

        Args:
            sent: the message as the agent sent it.
            credited: what arrived of it.
        """
        return memory

    def remembered(self, heard: State, memory: State, arrived: Message) -> State | None:
        """An agent's memory after a round as others know it, from what it heard and what arrived of its message; None
        where only the agent can know. A federated study whose sites are watched needs it.

        Args:
            arrived: what arrived of the agent's message.
        """
        return None if jax.tree.leaves(memory) else memory

    def base(self, heard: State) -> Model:
        """The model that messages are changes of; lets a method with a hub run on a network too."""
        raise FedpointError(f"{type(self).__name__}: its messages are not changes of one model")

    def sends_changes(self) -> bool:
        """Whether messages are changes of one model, `base`."""
        return owner_of(type(self), "base") is not Algorithm

    # What it may tell.

    def samples(self, steps: int) -> int:
        """How many samples a round of so many steps draws.

        Args:
            steps: local steps of the round.
        """
        return steps

    def counts_samples(self) -> bool:
        """Whether `samples` and `local_steps` tell how many samples are drawn; else only tracing does."""
        own = {f.name for f in dataclasses.fields(self)}
        return "local_steps" in own or owner_of(type(self), "samples") is not Algorithm

    def invalid_under(self, timing: Timing) -> str:
        """Why it must not run with this participation; empty where it may.

        Args:
            timing: who works when.
        """
        if not self.card.restriction or timing.everyone or timing.on_network:
            return ""
        name = next(name for name in timing.names() if name != "Everyone")
        return f"{self.card.title} cannot run with participation {name}: {self.card.restriction}. Use Everyone."

    def advice(self, problem: Problem, network: Network | None, exact: bool) -> str:
        """What to say of a run that diverged: which step would not have.

        Args:
            exact: whether fields are exact, without sampling noise.
        """
        limits = problem.step_limits()
        if limits is None:
            return ". Take a smaller step."
        strictest = problem.names[int(limits.argmin())]
        if not limits.min() > 0:
            return f"; agent {strictest} is unstable for every step."
        limits = limits * self.work_of_a_step()
        strictest = problem.names[int(limits.argmin())]
        noise = "" if exact else "; sampled fields and few participants allow less"
        return (
            f"; with exact fields the largest stable step here is {limits.min():.4g} (agent {strictest}){noise}. "
            "Take a smaller step."
        )

    def work_of_a_step(self) -> float | np.ndarray:
        """How many local steps one `step` stands for: those of a round, where they share it."""
        return 1.0

    def longer(self, factor: float) -> Self | None:
        """The method with a local step so many times as long; None where it has none.

        Args:
            factor: how many times as long.
        """
        step = values_of(self).get("step")
        return None if step is None else with_leaves(self, {"step": scaled(step, factor)})

    def farther(self, factor: float) -> Algorithm | None:
        """The method whose hub goes so many times as far; None where the hub has no step of its own.

        Args:
            factor: how many times as far.
        """
        step = values_of(self).get("server_step")
        return None if step is None else with_leaves(self, {"server_step": factor * step})

    def outcomes(self) -> Outcomes | None:
        """What `say` draws, where it does."""
        return None

    def gradient_outcomes(self) -> Outcomes | None:
        """The same in fewer values, right for a mean over them where fields are gradients."""
        return self.outcomes()

    def given(self, value: Number) -> Self:
        """The method with what `say` draws decided.

        Args:
            value: what is drawn, decided.
        """
        return self

    def adaptive(self) -> bool:
        """Changes depend on ratios of their own history, as Adam's and those of conjugate gradients: near the limit a
        round has no slope, and with noise a forecast has no floor."""
        return False

    def why_no_forecast(self) -> str:
        """Why nothing can be said of a run beforehand; empty where something can."""
        return ""

    def alike(self) -> bool:
        """Every local step is the same map: forecasts of long rounds are then cheaper."""
        return False

    def averages_descent(self) -> bool:
        """A round is plain gradient steps of the agents and the mean of where they lead: the lectures' bounds hold."""
        return False

    def corrects_descent(self) -> bool:
        """The same with a correction h_k in every step of an agent, h_k += (mean - x_k)/(step E) once everyone has
        answered, from h_k = 0: SCAFFLSA."""
        return False

    def composition(self) -> Composition | None:
        """Of which methods' runs it makes its own; None where it is one by itself."""
        return None

    def averaging(self) -> Averaging | None:
        """What it reads the mean of; None where it reads a last model."""
        return None

    def scheduled(self) -> bool:
        """Steps change from round to round."""
        return any(isinstance(value, StepSchedule) for value in values_of(self).values())

    def aim(self, problem: Problem, network: Network | None) -> Model | None:
        """What a run is after: w*, or on a network a model for each node; None where it is not known."""
        return problem.solution()

    def why_no_aim(self, problem: Problem, network: Network | None) -> str:
        """Why `aim` is None."""
        return problem.why_no_solution()

    def invariants(self, hub: State, memory: State, p: np.ndarray) -> dict[str, State]:
        """What a run conserves, by name: arrays that stay zero. Hub and memories lead with the repeats.

        Args:
            p: (K,) the agents' weights.
        """
        return {}

    def conserves_a_sum(self) -> bool:
        """Whether a sum over all agents must stay what it is."""
        return owner_of(type(self), "invariants") is not Algorithm

    def divides(self) -> bool:
        """Whether a part of its messages is a scale that others are multiplied with or divided by at the hub: it must
        arrive as it was sent."""
        return False

    def forms(self) -> Mapping[str, Form]:
        """Closed forms, by name: functions of (algorithm, problem), or of (algorithm, problem, participation)."""
        return {}

    def closed_forms(self) -> Mapping[str, Form]:
        """Those that hold: none where a subclass has changed what they were derived from."""
        return self.forms() if untouched(type(self), "forms", Algorithm) else {}

    def innermost(self) -> Algorithm:
        """The method itself, without what is around it."""
        return self

    def own_kind(self) -> bool:
        """Nothing is known of how it uses its samples: it is somebody's own, or has changed an update."""
        return not (self.exact_moments and untouched(type(self), "exact_moments", Algorithm))


def samples_per_round(algorithm: Algorithm) -> int | None:
    """The most samples any agent draws in a round; None when only the run will tell."""
    return None if algorithm.unbounded else algorithm.samples(int(most_steps(algorithm.local_steps).max()))


def bind_algorithm(algorithm: Bindable, problem: Problem) -> Bindable:
    """The algorithm with its per-agent numbers known, at any depth: epochs counted, lengths checked."""
    changes: dict[str, Setting] = {}
    for f in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        value = values_of(algorithm)[f.name]
        if isinstance(value, Epochs):
            value = _epochs(value, problem)
        elif isinstance(value, Algorithm):
            value = bind_algorithm(value, problem)
        axes = f.metadata.get("axes", 1 if f.metadata.get("per_agent") else 0)
        if axes and np.ndim(value) == axes and not isinstance(value, PerAgent):
            if len(value) != problem.agents:
                raise FedpointError(
                    f"{type(algorithm).__name__}: {f.name} has {counted(len(value), 'value')}, but "
                    f"{there_are(problem.agents, 'agent')}"
                )
            value = PerAgent(np.asarray(value, np.int32 if f.metadata.get("whole") else None))
        if value is not values_of(algorithm)[f.name]:
            changes[f.name] = value
    traced = {name: value for name, value in changes.items() if isinstance(value, PerAgent | Algorithm)}
    plain = {name: value for name, value in changes.items() if name not in traced}
    bound = algorithm.replace(**plain) if plain else algorithm
    bound = with_leaves(bound, traced) if traced else bound
    if not isinstance(bound, Algorithm):
        return bound
    if any(isinstance(value, Algorithm) for value in traced.values()):
        bound.check()  # what is inside may have more exchanges only now
    return bound.suited(problem)


def _epochs(steps: Epochs, problem: Problem) -> int | np.ndarray:
    rows = problem.local_rows()
    if rows is None:
        raise FedpointError("local_steps=Epochs needs agents that store rows; a stream has no epoch: give a number")
    batch = problem.batch or rows.max()
    found = steps.count * -(-rows // batch)
    return int(found[0]) if (found == found[0]).all() else found.astype(np.int32)


def find(name: str) -> Card:
    """The card of a method by its name in the catalogue, forgiving case, dashes and spaces."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for card in CATALOGUE.values():
        titles = (card.name, card.title, card.cls.__name__ if card.cls else "")
        if plain in [re.sub(r"[^a-z0-9]", "", t.lower()) for t in titles]:
            return card
    raise FedpointError(f"unknown algorithm {name!r}: {nearest(name, CATALOGUE)}")
