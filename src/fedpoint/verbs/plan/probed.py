"""Which method, local steps and participants, where nothing can be forecast? A probe says in which order to look.

A sweep of short runs finds a step, a probe at that step predicts by how much the loss falls in a round of every
setting, and settings are run in the order of what they are expected to cost. What is promised comes from other runs
than those that chose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from fedpoint.algorithms.catalogue import title_of
from fedpoint.algorithms.fedavg import FedAvg
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.experiment import Experiment
from fedpoint.results.plan import Choice, Goal, Unseen
from fedpoint.results.probe import Probe
from fedpoint.theory.planning import LONGEST_PATH, Trial
from fedpoint.theory.probing import LOCAL
from fedpoint.timing.schemes import Participation
from fedpoint.verbs.plan.by_runs import Runs
from fedpoint.verbs.plan.measure import start_loss
from fedpoint.verbs.plan.search import Failure, Foreseen, Found, Method, Search, why_not
from fedpoint.verbs.probe import probe

METHODS = ("fedavg", "scaffold")  # of which a probe predicts what a round gains
CONTROLS = {title_of("fedavg"): False, title_of("scaffold"): True}  # whether a method has control variates
LOOKED = 10  # rounds of the sweep, and of the probe
USUAL = 5  # local steps of both
STEPS = 0.1 * 3.0 ** np.arange(-4, 4)  # that the sweep compares
AROUND = np.array([0.25, 0.5, 1.0, 2.0])  # times that step, which a setting is run with
RUNS, PROMISED = 2, 8  # of every step; of the one that is promised
SHORTER = 3  # probes, each at a third of the step
TRIED = 3  # settings of a method that are run


def unknown(experiment: Experiment) -> bool:
    """Whether there is a loss, and no forecast of it."""
    return experiment.problem.has_loss and experiment.problem.solution() is None


def _usual(step: float) -> FedAvg:
    return FedAvg(step=step, local_steps=USUAL)


class ProbedSearch(Search):
    """The search for one plan, by a probe and by runs."""

    local_steps = LOCAL

    @classmethod
    def check(cls, experiment: Experiment, goal: Goal) -> None:
        if goal.measure != "loss":
            raise FedpointError(
                "the solution of this problem is not known, so there is no distance to plan for: give "
                f'measure="loss", whose target is a value of the loss itself (now {start_loss(experiment):.4g})'
            )
        if goal.confidence is not None:
            raise FedpointError("confidence= needs forecasts, which this problem does not have: leave it out")

    @classmethod
    def default(cls, experiment: Experiment, goal: Goal) -> Sequence[str]:
        return METHODS

    def evidence(self) -> Probe | None:
        return self.probe

    @cached_property
    def step(self) -> float:
        """The step whose loss is least after some rounds of FedAvg."""
        asked = self.experiment.replace(algorithm=_usual(float(STEPS[0])))
        seen = Runs(asked, _usual, self.goal, self.target, 1).watch(STEPS, 1, LOOKED, lambda: False)
        if not math.isfinite(seen.lowest):
            raise FedpointError(f"no step between {STEPS[0]:.2g} and {STEPS[-1]:.2g} is stable: scale the data")
        return float(STEPS[seen.best])

    @cached_property
    def probe(self) -> Probe:
        """At a step, shorter if need be, with which something is gained before the target is reached."""
        step = self.step
        for _ in range(SHORTER):
            found = probe(self.experiment.replace(algorithm=_usual(step)), rounds=LOOKED)
            if any(
                found.gain(E, scaffold=controls, at=self._before(found)) > 0
                for E in LOCAL
                for controls in (False, True)
            ):
                break
            step /= 3
        return found

    def _before(self, found: Probe) -> int:
        """The last of its points that is still above the target."""
        return max((i for i, point in enumerate(found.points) if point.loss > self.target), default=0)

    def gain(self, method: Method, E: int, scheme: Participation) -> float:
        """By how much the loss is expected to fall in a round."""
        name = method.title if method.channel is None else method.plain
        if name not in CONTROLS:
            raise FedpointError(f"nothing is forecast here, and a probe predicts {' and '.join(CONTROLS)} only")
        heard = float(
            self.timing(method(self.probe.step, E), scheme).moments(self.experiment.problem.weights).heard.sum()
        )
        controls = CONTROLS[name]
        return self.probe.gain(E, max(1, round(heard)), scaffold=controls, at=self._before(self.probe))

    def ranked(
        self, method: Method, steps: Sequence[int], schemes: Sequence[Participation]
    ) -> list[tuple[float, int, Participation]]:
        """What a setting is expected to cost for each unit by which the loss falls, with the setting, the least first;
        without those that gain nothing."""
        found = []
        for scheme in schemes:
            for E in steps:
                gain = self.gain(method, E, scheme)
                if gain > 0:
                    found.append(
                        (self.goal.cost(self.use(method, method(self.probe.step, E), scheme, E)) / gain, E, scheme)
                    )
        return sorted(found, key=lambda one: one[0])

    def method(
        self, method: Method, steps: Sequence[int], schemes: Sequence[Participation], tick: Callable[[int], None]
    ) -> Found:
        found, grid = Found(), list(steps)
        try:
            ranked = self.ranked(method, grid, schemes)
        except FedpointError as error:
            found.failures.append(Failure("refused", str(error)))
            ranked = []
        for i, (_, E, scheme) in enumerate(ranked[:TRIED]):
            if self.late() and self.seen:
                self.unseen += [Unseen(method.title, E, scheme) for _, E, scheme in ranked[i:TRIED]]
                break
            self.seen += 1
            choice, trials = self.setting(method, E, scheme, self.probe.step, found.cost)
            if choice is None:
                found.failures.append(why_not(E, scheme, trials))
            else:
                found.good.append(choice)
        if not ranked and not found.failures:
            found.failures.append(
                Failure("slow", f"the probe expects no setting to gain at step {self.probe.step:.2g}")
            )
        tick(len(grid) * len(schemes))
        return found

    def setting(
        self, method: Method, E: int, scheme: Participation, guess: float, most: float
    ) -> tuple[Choice | None, list[Trial]]:
        use = self.use(method, method(guess, E), scheme, E)
        limit = self.rounds_within(most, self.goal.cost(use), LONGEST_PATH)
        if limit < 1:
            return None, [Trial(guess, math.inf, "slow")]
        runs = self.runs(method, E, scheme, guess, self.target, PROMISED)
        seen = runs.watch(guess * AROUND, RUNS, limit, self.late_for_more)
        trials = seen.trials()
        if not seen.reached:
            return None, trials
        trial, trials, repeats = runs.promised(seen.trial(seen.best), trials, limit)
        if trial.why:
            return None, trials
        return self.choice_by_runs(method, E, scheme, trial, use, repeats), trials

    def foreseen(self, method: Method, E: int, scheme: Participation, trial: Trial) -> Foreseen:
        return Foreseen(None, "verified", None)

    def advice(self) -> str:
        p = self.probe
        return (
            f"from a probe at step {self.probe.step:.2g} more than {counted(p.local_steps, 'local step')} and "
            f"{counted(p.enough, 'participant')} do not pay: take a higher target, or more rounds="
        )
