"""What does a slider do? Three experiments small enough to be rerun while it moves, each beside its `fp.forecast`."""

from __future__ import annotations

import copy
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.algorithms import FedAvg, FedLSA, FedRelax, ScaffLSA
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.experiment import Experiment
from fedpoint.graphs import gtv
from fedpoint.graphs.network import Network
from fedpoint.problems import TD, LinearStream, Quadratic, garnet
from fedpoint.problems.mdp import alias_table
from fedpoint.problems.td import World
from fedpoint.results.forecast import Forecast
from fedpoint.show.lines import ChartLine, Numbers
from fedpoint.ui.live import Live, SomeOf
from fedpoint.verbs.forecast import prepare

DIGITS = 5  # of the numbers that go to the page
LARGEST = 1e12  # above, a curve has left the picture
MOST_STEPS = 64  # local steps on any slider
TOO_LONG = "The step is too long: the expected error grows without bound."


@dataclass(frozen=True)
class Control:
    """A slider: the values it stops at, from the least to the greatest."""

    name: str
    label: str
    symbol: str
    help: str
    values: tuple[float, ...]
    start: float
    whole: bool = False

    def read(self, text: str | None) -> float:
        """A number from a request: anything that is one is brought into the slider's range."""
        if text is None:
            return self.start
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise FedpointError(f"{self.name} must be a number, got {text[:40]!r}")
        value = min(max(value, self.values[0]), self.values[-1])
        return round(value) if self.whole else value


def _log(low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(float(f"{v:.3g}") for v in np.geomspace(low, high, count))


def _even(low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(float(f"{v:.3g}") for v in np.linspace(low, high, count))


def _corners(**values: Iterable[float]) -> tuple[Values, ...]:
    """All positions of these sliders at these values."""
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values()))


def _whole(*values: int) -> tuple[float, ...]:
    return tuple(values)


Values = dict[str, float]  # of the sliders


class Nodes(TypedDict):
    """A network for the page: where its nodes are, and what each has measured, should find and will find."""

    edges: list[list[int]]
    places: list[list[float]]
    own: Numbers
    truth: Numbers
    end: Numbers


class Picture(TypedDict):
    """What the page draws and says."""

    lines: list[ChartLine]
    says: NotRequired[str]
    note: NotRequired[str]
    network: NotRequired[Nodes]
    against: NotRequired[list[ChartLine]]  # a second chart: the sliders' first value across
    history: NotRequired[list[list[float]]]  # of the nodes, round by round
    seconds: NotRequired[float]  # that it took


class Playground(ABC):
    """Experiments with sliders. `forecast` is quick and needs no run; `simulate` runs them.

    compiled: positions of some sliders which need programs of their own, for all positions of the others.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    formula: ClassVar[str]  # LaTeX, of what is run
    rounds: ClassVar[int]
    measures: ClassVar[str] = "squared distance to the solution"
    controls: ClassVar[tuple[Control, ...]]
    compiled: ClassVar[tuple[Values, ...]] = ({},)

    def read(self, given: Mapping[str, str]) -> Values:
        """The sliders' values in a request; a name that is none of them is refused."""
        known = {control.name for control in self.controls}
        unknown = sorted(set(given) - known)
        if unknown:
            raise FedpointError(f"{self.name} has no slider {unknown[0][:40]!r}; it has {', '.join(sorted(known))}")
        return {control.name: control.read(given.get(control.name)) for control in self.controls}

    @abstractmethod
    def experiments(self, values: Values) -> dict[str, Experiment]:
        """What the sliders describe, by the name of the method."""

    def forecasts(self, values: Values) -> dict[str, Forecast]:
        """`fp.forecast` of these, with one program for all numbers of local steps."""
        known = self._merging
        return {t: prepare(e, coarse=MOST_STEPS, merges_linearly=known[t]) for t, e in self.experiments(values).items()}

    @cached_property
    def _merging(self) -> dict[str, bool]:
        """Whether hubs merge linearly, which does not depend on the sliders."""
        start = {control.name: control.start for control in self.controls}
        return {t: prepare(e, coarse=MOST_STEPS).setting.merges_linearly for t, e in self.experiments(start).items()}

    @abstractmethod
    def forecast(self, values: Values) -> Picture:
        """What must happen."""

    @abstractmethod
    def simulate(self, values: Values) -> Picture:
        """What happens."""

    @cached_property
    def lives(self) -> dict[str, Live]:
        """A program for each method, for all positions of the sliders."""
        largest = {c.name: c.values[-1] if c.name == "local_steps" else c.start for c in self.controls}
        return {title: Live(experiment, self.rounds) for title, experiment in self.experiments(largest).items()}

    def run(self, values: Values) -> dict[str, np.ndarray]:
        """The models by method, (repeats, rounds + 1, ...)."""
        return {title: self.lives[title].run(experiment) for title, experiment in self.experiments(values).items()}

    def warm(self) -> None:
        """Compile, so that no position of the sliders has to."""
        start = {control.name: control.start for control in self.controls}
        self.forecast(start)
        self.simulate(start)
        for position in self.compiled:
            self.forecast(start | position)


def line(
    name: str, curve: ArrayLike, x: ArrayLike | None = None, colour: int | str = 0, dash: str = "solid"
) -> ChartLine:
    """A curve for the page; null where it has left the picture."""
    curve = np.asarray(curve)
    places = np.arange(len(curve)) if x is None else np.asarray(x, float)
    return {"name": name, "x": places.tolist(), "y": _short(curve), "colour": colour, "dash": dash}


def _short(values: ArrayLike) -> Numbers:
    return [float(f"{v:.{DIGITS}g}") if abs(v) < LARGEST else None for v in np.asarray(values, float).tolist()]


def _number(value: float) -> str:
    return "infinite" if not math.isfinite(value) else f"{value:.3g}"


def _settled(found: Forecast) -> float:
    """The expected error in the end."""
    return math.inf if found.diverges or found.floor is None else found.floor


class Averaging(Playground):
    """Lecture 000's lab, smaller: the law of every curve is known exactly."""

    name = "averaging"
    title = "Federated averaging"
    about = (
        "After Vlaski and Sayed, Learning with a Fusion Center. K = 20 agents see data of linear models in 10 "
        "dimensions, each its own. In every round L of them "
        "take E steps on fresh samples, and the hub averages. The forecast is exact: it is the expected error."
    )
    formula = (
        r"\phi_{k,e} = \phi_{k,e-1} - \frac{\mu}{E}\, \hat g_k(\phi_{k,e-1}; z_{k,e}), \qquad "
        r"w^+ = w + \frac{1}{L} \sum_{k \in S} (\phi_{k,E} - w)"
    )
    rounds = 200
    controls = (
        Control("step", "step", "μ", "of a round: each local step has length μ/E", _log(0.005, 0.5, 41), 0.05),
        Control("local_steps", "local steps", "E", "of an agent in a round", _whole(*range(1, 11)), 1, whole=True),
        Control("participants", "participants", "L", "of 20 agents in a round", _whole(*range(1, 21)), 20, whole=True),
        Control("heterogeneity", "heterogeneity", "D", "variance of the agents' models", _even(0, 0.5, 26), 0.1),
        Control("noise", "noise", "σ²", "variance of the measurements' noise", _log(1e-4, 1, 33), 0.01),
    )
    compiled = _corners(participants=(1, 20))
    agents, dim, repeats, seed = 20, 10, 4, 1
    everyone: ClassVar[Values] = {"local_steps": 1, "participants": 20}

    def __init__(self) -> None:
        self._plain_floor = lru_cache(maxsize=256)(self._floor_of_everyone)

    def _floor_of_everyone(self, step: float, heterogeneity: float, noise: float) -> float:
        numbers = {"step": step, "heterogeneity": heterogeneity, "noise": noise}
        return _settled(self.forecasts(numbers | self.everyone)["FedAvg"])

    def problem(self, values: Values) -> LinearStream:
        return LinearStream.sample(self.agents, self.dim, values["heterogeneity"], values["noise"], seed=0)

    def experiments(self, values: Values) -> dict[str, Experiment]:
        method = FedAvg(step=values["step"], local_steps=int(values["local_steps"]), normalise=True)
        scheme = SomeOf(np.array(values["participants"]), self.agents)
        problem = self.problem(values)
        return {
            "FedAvg": Experiment(method, problem, participation=scheme, seed=self.seed, repeats=self.repeats),
        }

    def models(self, values: Values) -> np.ndarray:
        return self.run(values)["FedAvg"]

    def forecast(self, values: Values) -> Picture:
        found = self.forecasts(values)["FedAvg"]
        lines = [line("forecast", found.curve(self.rounds), colour="ink", dash="dashed")]
        floor = _settled(found)
        if not math.isfinite(floor):
            return {"lines": lines, "says": TOO_LONG}
        lines.append({"name": "floor", "level": floor, "colour": "pale"})
        says = f"It settles at {_number(floor)}"
        plain = self._plain_floor(values["step"], values["heterogeneity"], values["noise"])
        if math.isfinite(plain) and values | self.everyone != values:
            says += f", {floor / plain:.3g} times the floor of everyone taking one step of the same length a round"
        return {"lines": lines, "says": f"{says}."}

    def simulate(self, values: Values) -> Picture:
        with np.errstate(all="ignore"):
            error = ((self.models(values) - self.problem(values).solution()) ** 2).sum(-1)
            curve = line("simulation", error.mean(0))
            curve["low"], curve["high"] = _short(error.min(0)), _short(error.max(0))
        return {"lines": [curve], "note": f"mean and range of {counted(self.repeats, 'run')}"}


class Coupling(Playground):
    """GTVMin on a network of three clusters: values of the nodes, between everyone alone and one for all."""

    name = "coupling"
    title = "Coupling over a network"
    about = (
        "After Jung, FL Algorithms. 15 nodes in three clusters each have a noisy measurement c_i of their "
        "cluster's value. GTVMin "
        "ties neighbours together; FedRelax solves it by messages between neighbours. Too little coupling keeps the "
        "noise, too much mixes the clusters."
    )
    formula = (
        r"\min_{w_1, \ldots, w_K} \sum_i |w_i - c_i|^2 + \alpha \sum_{i,j} A_{ij} |w_i - w_j|^2, \qquad "
        r"w_i \leftarrow \frac{c_i + \alpha \sum_j A_{ij} w_j}{1 + \alpha \sum_j A_{ij}}"
    )
    rounds = 60
    measures = "mean squared distance to GTVMin's solution"
    controls = (
        Control("coupling", "coupling", "α", "how closely neighbours are tied", _log(0.01, 100, 41), 1.0),
        Control("heterogeneity", "heterogeneity", "D", "distance of the clusters' values", _even(0, 2, 21), 1.0),
        Control("noise", "noise", "σ²", "variance of the measurements", _log(0.001, 1, 31), 0.1),
    )
    clusters, size = 3, 5

    @property
    def grid(self) -> np.ndarray:
        """(n,): couplings."""
        return np.array(self.controls[0].values[::2])

    @cached_property
    def network(self) -> Network:
        edges = []
        for c in range(self.clusters):
            nodes = [c * self.size + i for i in range(self.size)]
            edges += [(nodes[i], nodes[(i + 1) % self.size]) for i in range(self.size)]
            edges += [(nodes[0], nodes[2]), (nodes[1], nodes[3])]
        bridges = [(4, 5 + 1), (5 + 4, 10 + 1), (10 + 4, 1)]
        return Network.from_edges([*edges, *bridges])

    @cached_property
    def places(self) -> np.ndarray:
        """(K, 2): clusters on a triangle, each on a circle."""
        around = 2 * np.pi * np.arange(self.clusters) / self.clusters - np.pi / 2
        own = 2 * np.pi * np.arange(self.size) / self.size
        centres = 1.25 * np.stack([np.cos(around), np.sin(around)], axis=1)
        turned = own[None] + around[:, None] + np.pi
        circles = np.stack([np.cos(turned), np.sin(turned)], axis=2)
        return (centres[:, None] + 0.68 * circles).reshape(-1, 2)

    def truth(self, values: Values) -> np.ndarray:
        return np.repeat(values["heterogeneity"] * np.linspace(-1, 1, self.clusters), self.size)

    def problem(self, values: Values) -> Quadratic:
        luck = np.random.default_rng(3).standard_normal(self.clusters * self.size)
        return Quadratic(2.0, (self.truth(values) + math.sqrt(values["noise"]) * luck)[:, None])

    @cached_property
    def _solutions(self) -> tuple[np.ndarray, np.ndarray]:
        """(n, K) each: GTVMin's solution for every coupling of the grid, of the clusters' values and of noise alone."""
        alone = ({"heterogeneity": 1.0, "noise": 0.0}, {"heterogeneity": 0.0, "noise": 1.0})
        of_values, of_noise = (gtv.path(self.problem(v), self.network, self.grid).models[..., 0] for v in alone)
        return of_values, of_noise

    def missed(self, values: Values) -> np.ndarray:
        """(n,): how far GTVMin's solution, linear in the measurements, is from the truth: mean square over nodes."""
        of_values, of_noise = self._solutions
        found = values["heterogeneity"] * of_values + math.sqrt(values["noise"]) * of_noise
        return np.asarray(((found - self.truth(values)) ** 2).mean(1))

    def experiments(self, values: Values) -> dict[str, Experiment]:
        method, problem = FedRelax(coupling=values["coupling"]), self.problem(values)
        start = np.zeros((problem.agents, 1))
        return {"FedRelax": Experiment(method, problem, network=self.network, start=start, exact=True)}

    def models(self, values: Values) -> np.ndarray:
        return self.run(values)["FedRelax"][0, :, :, 0]

    def forecast(self, values: Values) -> Picture:
        found = self.forecasts(values)["FedRelax"]
        curve, end = found.curve(self.rounds), np.asarray(found.fixed_point)[:, 0]  # nothing is random
        own, truth = self.problem(values).own.center[:, 0], self.truth(values)
        missed = self.missed(values)
        alone, here = ((own - truth) ** 2).mean(), ((end - truth) ** 2).mean()
        best, coupling = int(np.argmin(missed)), values["coupling"]
        says = (
            f"GTVMin's solution misses the truth by {_number(here)} (mean square); everyone alone by {_number(alone)}. "
            f"The best coupling on the grid is {self.grid[best]:.2g}, with {_number(missed[best])}."
        )
        return {
            "lines": [line("forecast", curve, colour="ink", dash="dashed")],
            "says": says,
            "network": {
                "edges": self.network.edges.tolist(),
                "places": _places(self.places),
                "own": _short(own),
                "truth": _short(truth),
                "end": _short(end),
            },
            "against": [
                line("coupled", missed, self.grid, colour=2),
                {"name": "alone", "level": float(alone), "colour": "pale"},
                line("α now", [min(*missed, here), max(*missed, here)], [coupling, coupling], colour=1),
            ],
        }

    def simulate(self, values: Values) -> Picture:
        models = self.models(values)
        end = gtv.solve(self.problem(values), self.network, values["coupling"])[:, 0]
        error = ((models - end) ** 2).mean(1)
        history = [[float(f"{v:.4g}") for v in row] for row in models.tolist()]
        return {"lines": [line("simulation", error)], "history": history, "note": "FedRelax, exact fields"}


def _places(places: np.ndarray) -> list[list[float]]:
    return [[round(x, 4), round(y, 4)] for x, y in places.tolist()]


class LocalSteps(Playground):
    """FedLSA and SCAFFLSA on TD in small random MDPs."""

    name = "local-steps"
    title = "Local steps and drift"
    about = (
        "After Mangold, Taming Heterogeneity. 10 agents evaluate a policy by TD(0), each in its own random "
        "MDP of 6 states (Garnet), with 2 features. FedLSA takes H steps and averages: its bias grows with H where "
        "agents differ. SCAFFLSA corrects each agent's drift. The forecasts are the exact expected errors."
    )
    formula = (
        r"\theta_c \leftarrow \theta_c - \eta (A(Z) \theta_c - b(Z) - \xi_c) \quad (H \text{ times}), \qquad "
        r"\theta^+ = \sum_c p_c \theta_c, \qquad \xi_c \leftarrow \xi_c + \frac{1}{\eta H} (\theta^+ - \theta_c)"
    )
    rounds = 80
    controls = (
        Control(
            "local_steps",
            "local steps",
            "H",
            "of an agent in a round",
            _whole(*range(1, 11), *range(12, 30, 2), *range(30, 65, 5)),
            30,
            whole=True,
        ),
        Control("step", "step", "η", "of a local step", _log(0.01, 0.5, 35), 0.05),
        Control("heterogeneity", "heterogeneity", "D", "0: one MDP for all; 1: each its own", _even(0, 1, 21), 1.0),
    )
    compiled = _corners(heterogeneity=(0, 1))  # equal agents share tables
    agents, states, dim, gamma, repeats, seed = 10, 6, 2, 0.9, 4, 1

    def __init__(self) -> None:
        self._garnet = lru_cache(maxsize=64)(self._make)

    def _make(self, heterogeneity: float) -> TD:
        return garnet(
            states=self.states,
            dim=self.dim,
            agents=self.agents,
            gamma=self.gamma,
            heterogeneity=heterogeneity,
            seed=3,
        )

    def warm(self) -> None:
        for heterogeneity in self.controls[2].values:  # a world takes longer to make than to evaluate
            self._garnet(round(heterogeneity, 2))
        super().warm()

    @cached_property
    def _width(self) -> int:
        """The most outcomes of an agent, whatever the heterogeneity."""
        return max(self._garnet(h).own.chance.shape[1] for h in (0.0, 0.5, 1.0))

    def problem(self, values: Values) -> TD:
        return self._garnet(round(values["heterogeneity"], 2))

    def padded(self, problem: TD) -> World:
        """The agents' worlds with impossible outcomes up to one width, so that one program fits all."""
        own = problem.own
        room = ((0, 0), (0, self._width - own.chance.shape[1]))
        state, after, reward, chance = (np.pad(part, room) for part in (own.state, own.after, own.reward, own.chance))
        cut, other = (np.stack(part) for part in zip(*map(alias_table, chance), strict=True))
        return own._replace(state=state, after=after, reward=reward, chance=chance, cut=cut, other=other)

    def experiments(self, values: Values) -> dict[str, Experiment]:
        problem = copy.copy(self.problem(values))
        problem.own = self.padded(problem)
        step, steps = values["step"], int(values["local_steps"])
        methods = {"FedLSA": FedLSA(step, steps), "SCAFFLSA": ScaffLSA(step, steps)}
        return {
            title: Experiment(method, problem, seed=self.seed, repeats=self.repeats)
            for title, method in methods.items()
        }

    def forecast(self, values: Values) -> Picture:
        found = self.forecasts(values)
        curves = [forecast.curve(self.rounds) for forecast in found.values()]
        lines = [
            line(f"{title}, forecast", curve, colour=i, dash="dashed")
            for i, (title, curve) in enumerate(zip(found, curves, strict=True))
        ]
        bias = found["FedLSA"].bias2
        ends = [float(curve[-1]) for curve in curves]
        if not any(forecast.diverges for forecast in found.values()):
            says = (
                f"After {self.rounds} rounds FedLSA is at {_number(ends[0])}; in the end, {_number(bias)} of that is "
                f"bias. SCAFFLSA is at {_number(ends[1])} and has no bias."
            )
        else:
            says = TOO_LONG
        if bias > 1e-9:
            lines.append({"name": "FedLSA's bias²", "level": bias, "colour": "pale"})
        return {"lines": lines, "says": says}

    def simulate(self, values: Values) -> Picture:
        solution, lines = self.problem(values).solution(), []
        for i, (title, models) in enumerate(self.run(values).items()):
            with np.errstate(all="ignore"):
                lines.append(line(title, ((models - solution) ** 2).sum(-1).mean(0), colour=i))
        return {"lines": lines, "note": f"mean of {counted(self.repeats, 'run')}"}


def playgrounds() -> dict[str, Playground]:
    return {made.name: made for made in (Averaging(), Coupling(), LocalSteps())}
