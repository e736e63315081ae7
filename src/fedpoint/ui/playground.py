"""What does a slider do? Three experiments small enough to be rerun while it moves, each beside its exact forecast."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedpoint.algorithms import FedAvg, FedLSA, FedRelax, ScaffLSA
from fedpoint.closed.lsa import lsa_bias
from fedpoint.core.errors import FedpointError
from fedpoint.engine.session import Session
from fedpoint.experiment import Experiment
from fedpoint.graphs import gtv
from fedpoint.graphs.network import Network
from fedpoint.problems import TD, LinearStream, Quadratic, garnet
from fedpoint.problems.mdp import alias_table
from fedpoint.theory import lms_floor, lms_msd
from fedpoint.theory.networks import iteration_matrix
from fedpoint.ui.live import Live, SomeOf
from fedpoint.ui.second_moments import outcomes_of, squared_error

DIGITS = 5  # of the numbers that go to the page
LARGEST = 1e12  # above, a curve has left the picture


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


def _whole(*values: int) -> tuple[float, ...]:
    return tuple(values)


Values = dict[str, float]  # of the sliders


class Playground(ABC):
    """An experiment with sliders. `forecast` is quick and needs no run; `simulate` runs it."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    formula: ClassVar[str]  # LaTeX, of what is run
    rounds: ClassVar[int]
    controls: ClassVar[tuple[Control, ...]]

    def read(self, given: Mapping[str, str]) -> Values:
        """The sliders' values in a request; a name that is none of them is refused."""
        known = {control.name for control in self.controls}
        unknown = sorted(set(given) - known)
        if unknown:
            raise FedpointError(f"{self.name} has no slider {unknown[0][:40]!r}; it has {', '.join(sorted(known))}")
        return {control.name: control.read(given.get(control.name)) for control in self.controls}

    @abstractmethod
    def forecast(self, values: Values) -> dict[str, Any]:
        """What must happen: lines for a chart, sentences, and what else the page draws."""

    @abstractmethod
    def simulate(self, values: Values) -> dict[str, Any]:
        """What happens."""

    def warm(self) -> None:
        """Compile."""
        start = {control.name: control.start for control in self.controls}
        self.forecast(start)
        self.simulate(start)


def line(name: str, curve: ArrayLike, x: Any = None, **more: Any) -> dict[str, Any]:
    """A curve for the page; null where it has left the picture."""
    curve = np.asarray(curve)
    x = np.arange(len(curve)) if x is None else x
    return {"name": name, "x": _short(x), "y": _short(curve), **more}


def _short(values: ArrayLike) -> list[float | None]:
    return [float(f"{v:.{DIGITS}g}") if abs(v) < LARGEST else None for v in np.asarray(values, float).tolist()]


def _number(value: float) -> str:
    return "infinite" if not math.isfinite(value) else f"{value:.3g}"


class Averaging(Playground):
    """Lecture 000's lab, smaller: the law of every curve is known exactly."""

    name = "averaging"
    title = "Federated averaging"
    about = (
        "Lecture 000. K = 20 agents see data of linear models in 10 dimensions, each its own. Every round L of them "
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
    agents, dim, repeats, seed = 20, 10, 4, 1

    def problem(self, values: Values) -> LinearStream:
        return LinearStream.sample(self.agents, self.dim, values["heterogeneity"], values["noise"], seed=0)

    @staticmethod
    def setting(values: Values) -> dict[str, Any]:
        return {"normalise": True, **{name: values[name] for name in ("step", "local_steps", "participants")}}

    @cached_property
    def live(self) -> Live:
        start = {control.name: control.start for control in self.controls}
        problem, most = self.problem(start), int(self.controls[1].values[-1])
        algorithm, scheme = (
            FedAvg(step=start["step"], local_steps=most, normalise=True),
            SomeOf(np.array(1), self.agents),
        )
        asked = Experiment(algorithm, problem, participation=scheme, seed=self.seed, repeats=self.repeats)
        session = Session(asked.bind(), 1)
        return Live(session, self.rounds, local_steps=True)

    def models(self, values: Values) -> np.ndarray:
        algorithm = FedAvg(step=values["step"], local_steps=int(values["local_steps"]), normalise=True)
        scheme = SomeOf(np.array(values["participants"]), self.agents)
        return self.live.run(algorithm, self.problem(values), scheme)

    def forecast(self, values: Values) -> dict[str, Any]:
        problem, setting = self.problem(values), self.setting(values)
        curve, floor = lms_msd(problem, rounds=self.rounds, **setting), lms_floor(problem, **setting)
        lines = [line("forecast", curve, colour="ink", dash="dashed")]
        if math.isfinite(floor):
            lines.append({"name": "floor", "level": floor, "colour": "pale"})
            alone = lms_floor(problem, values["step"], 1, self.agents)
            says = f"It settles at {_number(floor)}"
            if (values["local_steps"], values["participants"]) != (1, self.agents):
                says += f", {floor / alone:.3g} times the floor of everyone taking one step of the same length a round"
            says += "."
        else:
            says = "The step is too long: the expected error grows without bound."
        return {"lines": lines, "says": says}

    def simulate(self, values: Values) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            error = ((self.models(values) - self.problem(values).solution()) ** 2).sum(-1)
            mean, low, high = error.mean(0), error.min(0), error.max(0)
        band = {"low": _short(low), "high": _short(high)}
        return {"lines": [line("simulation", mean, colour=0, **band)], "note": f"mean and range of {self.repeats} runs"}


class Coupling(Playground):
    """GTVMin on a network of three clusters: values of the nodes, between everyone alone and one for all."""

    name = "coupling"
    title = "Coupling over a network"
    about = (
        "Lecture 003. 15 nodes in three clusters each have a noisy measurement c_i of their cluster's value. GTVMin "
        "ties neighbours together; FedRelax solves it by messages between neighbours. Too little coupling keeps the "
        "noise, too much mixes the clusters."
    )
    formula = (
        r"\min_{w_1, \ldots, w_K} \sum_i |w_i - c_i|^2 + \alpha \sum_{i,j} A_{ij} |w_i - w_j|^2, \qquad "
        r"w_i \leftarrow \frac{c_i + \alpha \sum_j A_{ij} w_j}{1 + \alpha \sum_j A_{ij}}"
    )
    rounds = 60
    controls = (
        Control("coupling", "coupling", "α", "how closely neighbours are tied", _log(0.01, 100, 41), 1.0),
        Control("heterogeneity", "heterogeneity", "D", "distance of the clusters' values", _even(0, 2, 21), 1.0),
        Control("noise", "noise", "σ²", "variance of the measurements", _log(0.001, 1, 31), 0.1),
    )
    clusters, size = 3, 5

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
    def modes(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues and eigenvectors of the network's Laplacian."""
        return np.linalg.eigh(self.network.laplacian.toarray())

    def path(self, own: np.ndarray, couplings: np.ndarray) -> np.ndarray:
        """(n, K): `gtv.solve` for many couplings at once: (I + coupling Lap) w = c, in the Laplacian's modes."""
        values, axes = self.modes
        return ((own @ axes) / (1 + couplings[:, None] * values)) @ axes.T

    @cached_property
    def live(self) -> Live:
        start = {control.name: control.start for control in self.controls}
        problem = self.problem(start)
        asked = Experiment(
            FedRelax(coupling=1.0), problem, network=self.network, start=np.zeros((problem.agents, 1)), exact=True
        )
        session = Session(asked.bind(), 1)
        return Live(session, self.rounds)

    def models(self, values: Values) -> np.ndarray:
        return self.live.run(FedRelax(coupling=values["coupling"]), self.problem(values))[0, :, :, 0]

    def forecast(self, values: Values) -> dict[str, Any]:
        problem, network, truth = self.problem(values), self.network, self.truth(values)
        coupling, own = values["coupling"], problem.own.center[:, 0]
        end = gtv.solve(problem, network, coupling)[:, 0]
        T = iteration_matrix(FedRelax(coupling=coupling), problem, network)
        gap, curve = -end, np.empty(self.rounds + 1)
        for t in range(self.rounds + 1):
            curve[t] = (gap**2).mean()
            gap = T @ gap
        grid = np.array(self.controls[0].values[::2])
        missed = [((w - truth) ** 2).mean() for w in self.path(own, grid)]
        alone, here = ((own - truth) ** 2).mean(), ((end - truth) ** 2).mean()
        best = int(np.argmin(missed))
        says = (
            f"GTVMin's solution misses the truth by {_number(here)} (mean square); everyone alone by {_number(alone)}. "
            f"The best coupling on the grid is {grid[best]:.2g}, with {_number(missed[best])}."
        )
        return {
            "lines": [line("forecast", curve, colour="ink", dash="dashed")],
            "says": says,
            "network": {
                "edges": network.edges.tolist(),
                "places": _places(self.places),
                "own": _short(own),
                "truth": _short(truth),
                "end": _short(end),
            },
            "against": [
                line("coupled", missed, grid, colour=2),
                {"name": "alone", "level": float(alone), "colour": "pale"},
                line("α now", [min(*missed, here), max(*missed, here)], [coupling, coupling], colour=1),
            ],
        }

    def simulate(self, values: Values) -> dict[str, Any]:
        models = self.models(values)
        end = gtv.solve(self.problem(values), self.network, values["coupling"])[:, 0]
        error = ((models - end) ** 2).mean(1)
        history = [[float(f"{v:.4g}") for v in row] for row in models.tolist()]
        return {"lines": [line("simulation", error, colour=0)], "history": history, "note": "FedRelax, exact fields"}


def _places(places: np.ndarray) -> list[list[float]]:
    return [[round(x, 4), round(y, 4)] for x, y in places.tolist()]


class LocalSteps(Playground):
    """FedLSA and SCAFFLSA on TD in small random MDPs."""

    name = "local-steps"
    title = "Local steps and drift"
    about = (
        "Lecture 001. 20 agents evaluate a policy by TD(0), each in its own random MDP of 6 states (Garnet), with 2 "
        "features. FedLSA takes H steps and averages: its bias grows with H where agents differ. SCAFFLSA corrects "
        "each agent's drift. The forecasts are the exact expected errors."
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
    agents, states, dim, gamma, repeats, seed = 20, 6, 2, 0.9, 4, 1

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

    def padded(self, problem: TD) -> Any:
        """The agents' worlds with impossible outcomes up to one width, so that one program fits all."""
        own = problem.own
        room = ((0, 0), (0, self._width - own.chance.shape[1]))
        wide = {name: np.pad(getattr(own, name), room) for name in ("state", "after", "reward", "chance")}
        tables = [alias_table(chance) for chance in wide["chance"]]
        cut, other = (np.stack(part) for part in zip(*tables, strict=True))
        return own._replace(**wide, cut=cut, other=other)

    @cached_property
    def lives(self) -> dict[str, Live]:
        start = {control.name: control.start for control in self.controls}
        problem, most = self.problem(start), int(self.controls[0].values[-1])
        found = {}
        for title, make in (("FedLSA", FedLSA), ("SCAFFLSA", ScaffLSA)):
            algorithm = make(step=start["step"], local_steps=most)
            session = Session(Experiment(algorithm, problem, seed=self.seed, repeats=self.repeats).bind(), 1)
            with jax.enable_x64(True):
                session.inputs = session.inputs._replace(own=jax.device_put(self.padded(problem)))
            found[title] = Live(session, self.rounds, local_steps=True)
        return found

    def models(self, values: Values) -> dict[str, np.ndarray]:
        problem, setting = self.problem(values), {"step": values["step"], "local_steps": int(values["local_steps"])}
        world = _Numbers(self.padded(problem), problem.common)
        makers: dict[str, Any] = {"FedLSA": FedLSA, "SCAFFLSA": ScaffLSA}
        return {title: live.run(makers[title](**setting), world) for title, live in self.lives.items()}

    def forecast(self, values: Values) -> dict[str, Any]:
        problem, step, steps = self.problem(values), values["step"], int(values["local_steps"])
        outcomes, first = outcomes_of(problem), problem.start() - problem.solution()
        curves = [
            squared_error(outcomes, problem.weights, step, steps, self.rounds, first, corrected)
            for corrected in (False, True)
        ]
        bias = float((lsa_bias(problem, step, steps) ** 2).sum())
        names = ("FedLSA, forecast", "SCAFFLSA, forecast")
        lines = [line(n, c, colour=i, dash="dashed") for i, (n, c) in enumerate(zip(names, curves, strict=True))]
        ends = [float(curve[-1]) for curve in curves]
        if all(map(math.isfinite, ends)):
            says = (
                f"After {self.rounds} rounds FedLSA is at {_number(ends[0])}; in the end, {_number(bias)} of that is "
                f"bias. SCAFFLSA is at {_number(ends[1])} and has no bias."
            )
        else:
            says = "The step is too long: the expected error grows without bound."
        if bias > 1e-9:
            lines.append({"name": "FedLSA's bias²", "level": bias, "colour": "pale"})
        return {"lines": lines, "says": says}

    def simulate(self, values: Values) -> dict[str, Any]:
        star, lines = self.problem(values).solution(), []
        for i, (title, models) in enumerate(self.models(values).items()):
            with np.errstate(all="ignore"):
                lines.append(line(title, ((models - star) ** 2).sum(-1).mean(0), colour=i))
        return {"lines": lines, "note": f"mean of {self.repeats} runs"}


@dataclass(frozen=True)
class _Numbers:
    """What a run reads of a problem."""

    own: Any
    common: Any


def playgrounds() -> dict[str, Playground]:
    return {made.name: made for made in (Averaging(), Coupling(), LocalSteps())}
