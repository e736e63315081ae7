"""`fp.prove`: how bad can it get, among all agents of a class?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count, NonNegative, Positive
from fedpoint.core.numbers import counted
from fedpoint.core.record import values_of
from fedpoint.core.semidefinite import require
from fedpoint.experiment.experiment import Experiment
from fedpoint.graphs.network import Network
from fedpoint.proofs import worst
from fedpoint.proofs.instances import instance
from fedpoint.proofs.motion import Motion
from fedpoint.proofs.rounds import trace
from fedpoint.proofs.scenes import Class
from fedpoint.results.proof import Claim, Promise, Proof
from fedpoint.theory.bounds import bounds
from fedpoint.theory.bounds.bound import FACTOR, FLOOR
from fedpoint.verbs.run import run

Name = Literal["contraction", "bias", "distance", "step"]
NAMES: tuple[Name, ...] = ("contraction", "bias", "distance", "step")
SETTLED = 1e-9  # how near to its limit a run of the worst agents comes
MOST_ROUNDS = 20_000


@checked
def prove(
    algorithm: Algorithm,
    smooth: Positive,
    strong: NonNegative = 0.0,
    heterogeneity: NonNegative = 1.0,
    agents: Count = 2,
    rounds: Count = 1,
    network: Network | None = None,
    quadratic: bool = False,
    claims: Sequence[Name] = NAMES,
    attain: bool = False,
) -> Proof:
    r"""Compute the worst case of a method over all agents of a class, by semidefinite programming.

    The method's own round is run on symbolic vectors; what is known of agents is that their gradients fit together as
    those of $L$-smooth, $\mu$-strongly convex losses do (performance estimation). Everyone takes part with equal
    weights and exact fields, in any dimension. The claims are

    - contraction: the factor by which a round brings two runs among the same agents closer (a run to w*, where the
      method ends there for all agents), in a norm of model and memories that is found; of a method without memories in
      the distance of models.
    - bias: the largest $|w - w^\star|$ at which a round changes nothing.
    - distance: the largest $|w_n - w^\star|$ after n rounds from $|w_0 - w^\star| \le 1$, memories as the method
      starts them.
    - step: the largest step with which runs never move apart.

    On a network models are measured by the root of their mean squared distance.

    Args:
        algorithm: from the catalogue or your own.
        smooth, strong: $L$ and $\mu$; with strong=0 losses are convex.
        heterogeneity: $G$ with $\frac1K \sum_k |g_k(w^\star)|^2 \le G^2$.
        agents: their number; for methods that average two are as bad as many.
        rounds: n of the distance.
        network: for methods that need one; default: all agents joined, each keeping half of the weight.
        quadratic: quadratic losses only.
        claims: some of "contraction", "bias", "distance", "step".
        attain: run the worst agents, to see how far they get (`proof["bias"].attained`).

    >>> import fedpoint as fp
    >>> proof = fp.prove(fp.FedAvg(step=0.5, local_steps=2), smooth=1.0, strong=0.1, claims=["contraction", "bias"])
    >>> round(proof["contraction"].value, 4), round(proof["bias"].value, 3)
    (0.9025, 0.508)

    References: Taylor, Hendrickx and Glineur (2017); Colla and Hendrickx (2024).
    """
    require("fp.prove")
    if not strong < smooth:
        raise FedpointError(f"fp.prove: strong must be below smooth, got {strong:g} and {smooth:g}")
    if network is None and algorithm.at_agents:
        if agents < 2:
            raise FedpointError("fp.prove: a network needs two agents")
        network = Network.complete(agents, weight=1 / (2 * (agents - 1)))
    if network is not None:
        agents = network.nodes
    case = _Case(algorithm, Class(smooth, strong, quadratic), heterogeneity, agents, rounds, network)
    found: dict[str, Claim] = {name: case.claim(name) for name in NAMES if name in claims}
    if attain:
        found = {name: replace(claim, attained=case.attained(claim)) for name, claim in found.items()}
    return Proof(repr(algorithm), case.words(), found)


class _Case:
    """A method among agents of a class."""

    def __init__(
        self, method: Algorithm, cls: Class, G: float, agents: int, rounds: int, network: Network | None
    ) -> None:
        self.method, self.cls, self.G, self.rounds, self.network = method, cls, G, rounds, network
        self.traced = trace(method, agents, network)
        self.traced.round(0, self.traced.numbers)  # refused here, if at all

    @cached_property
    def motion(self) -> Motion:
        return Motion.of(self.traced)

    @cached_property
    def rests(self) -> bool:
        return self.motion.rests()

    def words(self) -> str:
        where = "" if self.network is None else " on a network"
        who = f"{counted(self.traced.agents, 'agent')}{where}, {self.cls.words()} losses of any dimension"
        return f"{who}, mean |g_k(w*)|^2 <= {self.G**2:g}"

    def claim(self, name: Name) -> Claim:
        maker: dict[Name, Callable[[], Claim]] = {
            "contraction": self._contraction,
            "bias": self._bias,
            "distance": self._distance,
            "step": self._step,
        }
        try:
            return maker[name]()
        except FedpointError as error:
            return Claim(name, "", None, str(error))

    def _contraction(self) -> Claim:
        found = worst.contraction(self.motion, self.cls)
        memory = "" if self.motion.size == 1 else ", in a norm of models and memories that was found"
        who = "distance to w*" if self.rests else "distance of two runs"
        if math.isinf(found.value) and self.motion.size > 1:
            return Claim("contraction", "", None, "no quadratic norm was found in which runs approach each other")
        return self._made("contraction", f"factor of the {who} per round{memory}", found, 1, FACTOR)

    def _bias(self) -> Claim:
        found = worst.bias(self.motion, self.cls, self.G)
        return self._made("bias", "|w - w*| at the end, at most", found, self._long(), FLOOR)

    def _distance(self) -> Claim:
        found = worst.distance(self.traced, self.cls, self.G, self.rounds)
        words = f"|w - w*| after {counted(self.rounds, 'round')} from |w - w*| = 1, at most"
        return self._made("distance", words, found, self.rounds, FLOOR)

    def _step(self) -> Claim:
        factor = worst.largest_step(self.traced, self.cls)
        step = values_of(self.method).get("step")
        one = isinstance(step, float | int) or (isinstance(step, np.ndarray) and step.ndim == 0)
        found = factor * float(step) if one else factor  # type: ignore[arg-type]
        return Claim("step", "up to which runs never move apart" if one else "times the steps given, likewise", found)

    def _long(self) -> int:
        """Rounds until a run has settled."""
        factor = worst.contraction(self.motion, self.cls).value if not self.rests else 0.0
        if not 0 < factor < 1:
            return 1
        return min(MOST_ROUNDS, math.ceil(math.log(SETTLED) / math.log(factor)))

    def _made(self, name: str, words: str, found: worst.Found, rounds: int, quantity: str) -> Claim:
        claim = Claim(name, words, found.value, rounds=rounds)
        if found.agents is None or not found.agents[0][0].shape[1]:
            return claim
        problem = instance(self.cls, found.agents)
        starts: Sequence[np.ndarray | None] = [None] if found.starts is None else list(found.starts)
        whole = tuple(
            Experiment(self.method, problem, network=self.network, start=start, exact=True) for start in starts
        )
        claim = replace(claim, experiments=whole)
        return replace(claim, promises=tuple(self._promises(claim, quantity)))

    def _promises(self, claim: Claim, quantity: str) -> list[Promise]:
        """What the lectures' bounds say of the worst agents."""
        first = claim.experiments[0]
        if self.network is not None or claim.value is None or not math.isfinite(claim.value):
            return []
        found = []
        after = f"E|w - w*|^2 after {counted(self.rounds, 'round')}"
        for bound in bounds(self.method, first.problem, None, first.start_model, True, claim.rounds):
            value = bound.value
            if value is None or bound.kind == "an order of magnitude":
                continue
            if claim.name == "distance":
                if bound.curve is None or bound.quantity not in (FACTOR, FLOOR, after):
                    continue
                value = float(np.ravel(bound.curve(np.array([claim.rounds])))[0])
            elif bound.quantity != quantity:
                continue
            found.append(Promise(bound.lecture, bound.name, math.sqrt(value), claim.value, bound.strict))
        return found

    def attained(self, claim: Claim) -> float | None:
        """What runs of the worst agents come to."""
        if not claim.experiments or claim.value is None or not math.isfinite(claim.value):
            return None
        ends = [self._models(self._end(one, claim.rounds)) for one in claim.experiments]
        if claim.name != "contraction":
            return _size(ends[0])
        begins = [self._models(one.start_model) for one in claim.experiments]
        origin = np.zeros_like(begins[0])  # w*, where a run rests
        return _size(ends[0] - (ends[1:] or [origin])[0]) / _size(begins[0] - (begins[1:] or [origin])[0])

    def _end(self, experiment: Experiment, rounds: int) -> np.ndarray:
        found = run(experiment, rounds=rounds)
        return found.model[0] if self.network is None else found.models[0]

    def _models(self, model: np.ndarray) -> np.ndarray:
        """(n, d)"""
        array = np.asarray(model, float)
        return array.reshape(self.traced.agents if self.network is not None else 1, -1)


def _size(models: np.ndarray) -> float:
    return float(np.sqrt((models**2).sum(axis=1).mean()))
