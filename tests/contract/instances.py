"""One or more instances of every card, and the centralised method that each is with one agent, in plain NumPy."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import optax

import fedpoint as fp

STEP, OTHER = 0.11, 0.07
STEPS = np.array([2, 4, 3, 1])  # local steps of the four agents, where they differ
FACTORS = np.array([1.0, 0.5, 1.5, 0.8])  # and their steps


class Damped(fp.Algorithm):
    """What a user may write: local steps, and a memory of the last change, of which a part is repeated."""

    step: float
    local_steps: int = 2
    damping: float = 0.3

    def init(self, w):
        return w, 0.0 * w

    def local(self, w, last, agent):
        y = fp.descend(agent, w, self.local_steps, lambda y, e: y - self.step * agent.field(y, e))
        change = y - w + self.damping * last
        return change, change

    def combine(self, w, inbox):
        return w + inbox.mean


def descent(g, w, rates):
    for rate in rates:
        w = w - rate * g(w)
    return w


def local_solver(g, w, step, steps, momentum=0.0, pull=0.0, decay=1.0):
    """Local steps with momentum, a proximal term and decay: where they end, and |a|_1 by summing a."""
    y, buffer, reach, unit = w, 0 * w, 0.0, 0.0
    for e in range(steps):
        buffer = momentum * buffer + g(y) + pull * (y - w)
        unit = momentum * unit + 1 - step * pull * reach
        y, reach = y - step * decay**e * buffer, reach + decay**e * unit
    return y, reach


class Central:
    """Rounds of the method with one agent: gradient g, loss f, proximal map prox."""

    def __init__(self, g, f, prox):
        self.g, self.f, self.prox = g, f, prox

    def gradient(self, w, r, s):
        return descent(self.g, w, [s])

    def fedavg(self, w, r, s):
        return descent(self.g, w, [s / 3] * 3)

    def fedavg_decaying(self, w, r, s):
        return descent(self.g, w, [s * 8.0 / (8.0 + r * 3 + e) for e in range(3)])

    def two(self, w, r, s):
        return descent(self.g, w, [s] * 2)

    def three(self, w, r, s):
        return descent(self.g, w, [s] * 3)

    def fedavg_local_momentum(self, w, r, s):
        y, m = w, 0 * w
        for _ in range(2):
            m = 0.5 * m + self.g(y)
            y = y - s * m
        return y

    def fedprox(self, w, r, s):
        return local_solver(self.g, w, s, 3, pull=0.4)[0]

    def fedprox_exact(self, w, r, s):
        return self.prox(w, s / 2)

    def general(self, w, r, s):
        return local_solver(self.g, w, s, 3, momentum=0.5, pull=0.3, decay=0.9)[0]

    def custom(self, w, r, s):
        y, total = w, 0 * w
        for a in (1.0, 2.0, 0.5):
            total = total + a * self.g(y)
            y = y - s * self.g(y)
        return w - 1.7 * s * total / 3.5

    def fednova(self, w, r, s):
        y, length = local_solver(self.g, w, s, 2, momentum=0.6)
        return w + 2.5 * (y - w) / length

    def newton(self, w, r, s):
        return self.prox(w, 0.0)

    def scaffold(self, w, r, s):
        return w + 0.8 * (descent(self.g, w, [s] * 3) - w)

    def feddyn(self, w, r, s):
        self.h = getattr(self, "h", 0 * w)
        y = w
        for _ in range(3):
            y = y - s * (self.g(y) - self.h + 0.9 * (y - w))
        self.h = self.h - 0.9 * (y - w)
        return y - self.h / 0.9

    def feddyn_exact(self, w, r, s):
        self.h = getattr(self, "h", 0 * w)
        y = self.prox(w + self.h / s, s / 2)
        self.h = self.h - s * (y - w)
        return y - self.h / s

    def mime(self, w, r, s):
        c, m, y = self.g(w), getattr(self, "m", 0 * w), w
        for _ in range(3):
            y = y - s * (0.4 * self.g(y) + 0.6 * m)
        self.m = 0.4 * c + 0.6 * m
        return y

    def fedexp(self, w, r, s):
        d = descent(self.g, w, [s] * 3) - w
        return w + max(1.0, d @ d / (2 * (d @ d + 1e-3))) * d

    def qfedavg(self, w, r, s):
        F, D = self.f(w), (w - descent(self.g, w, [s] * 2)) / s
        return w - F**1.5 * D / (1.5 * F**0.5 * (D @ D) + F**1.5 / s)

    def ditto(self, w, r, s):
        v = getattr(self, "own", w)
        for _ in range(3):
            v = v - s * (self.g(v) + 0.4 * (v - w))
        self.own = v
        return descent(self.g, w, [s] * 3)

    def fine_tuned(self, w, r, s):
        self.own = descent(self.g, w, [s] * 2)
        return descent(self.g, w, [s] * 3)

    def apfl(self, w, r, s):
        v = self.v = getattr(self, "v", w)
        for _ in range(2):
            v = v - s * 0.6 * self.g(0.6 * v + 0.4 * w)
        self.v, w = v, descent(self.g, w, [s] * 2)
        self.own = 0.6 * v + 0.4 * w
        return w

    def pfedme(self, w, r, s):
        for _ in range(2):
            self.own = self.prox(w, s / 2)
            w = w - 0.3 * s * (w - self.own)
        return w

    def momentum(self, w, r, s):
        self.m = 0.7 * getattr(self, "m", 0) - (descent(self.g, w, [s] * 2) - w)
        return w - 0.9 * self.m

    def adam(self, w, r, s):
        d = -(descent(self.g, w, [s] * 2) - w)
        self.m = 0.9 * getattr(self, "m", 0) + 0.1 * d
        self.v = 0.99 * getattr(self, "v", 0) + 0.01 * d**2
        return w - 0.1 * (self.m / (1 - 0.9 ** (r + 1))) / (np.sqrt(self.v / (1 - 0.99 ** (r + 1))) + 1e-3)

    def yogi(self, w, r, s):
        d = -(descent(self.g, w, [s] * 2) - w)
        self.m = 0.9 * getattr(self, "m", 1e-6) + 0.1 * d
        v = getattr(self, "v", 1e-6 + 0 * w)
        self.v = v - 0.01 * np.sign(v - d**2) * d**2
        return w - 0.1 * (self.m / (1 - 0.9 ** (r + 1))) / (np.sqrt(self.v / (1 - 0.99 ** (r + 1))) + 1e-3)

    def adagrad(self, w, r, s):
        d = -(descent(self.g, w, [s] * 2) - w)
        self.v = getattr(self, "v", 1e-6) + d**2
        return w - 0.1 * d / (np.sqrt(self.v) + 1e-3)

    def extrapolated(self, w, r, s):
        self.whole, self.half = (
            self.scaffold(one, r, step) for one, step in zip(getattr(self, "both", (w, w)), (s, s / 2), strict=True)
        )
        self.both = self.whole, self.half
        return 2 * self.half - self.whole

    def averaged(self, w, r, s):
        self.last = self.two(getattr(self, "last", w), r, s)
        self.seen = [*getattr(self, "seen", []), self.last]
        return np.mean(self.seen[2:] or self.seen[-1:], axis=0)

    def damped(self, w, r, s):
        self.last = descent(self.g, w, [s] * 2) - w + 0.3 * getattr(self, "last", 0)
        return w + self.last


@dataclass(frozen=True)
class Instance:
    """make(step, agents, part): the algorithm for agents (rows of the tables above), with a part of their weight."""

    card: str
    make: Callable
    central: str | None  # the method of `Central`; None where it is random
    number: str = "step"  # the field that is varied
    personal: bool = False  # a model at each agent, in `Central.own`
    engine: bool = True  # also under what the engine may choose, not only under the mathematics


INSTANCES = {
    "GradientExchange": Instance("gradient_exchange", lambda s, k, p: fp.GradientExchange(s), "gradient"),
    "ParameterExchange": Instance("parameter_exchange", lambda s, k, p: fp.ParameterExchange(s), "gradient"),
    "FedAvg": Instance("fedavg", lambda s, k, p: fp.FedAvg(s, 3, normalise=True), "fedavg"),
    "FedAvg, decaying": Instance(
        "fedavg",
        lambda s, k, p: fp.FedAvg(fp.steps.InverseTime(8.0 * s, 8.0), 3, normalise=False),
        "fedavg_decaying",
        engine=False,
    ),
    "FedAvg, unequal": Instance(
        "fedavg", lambda s, k, p: fp.FedAvg(s * FACTORS[k], STEPS[k], normalise=False), "two", number="", engine=True
    ),
    "FedAvg, local momentum": Instance(
        "fedavg",
        lambda s, k, p: fp.FedAvg(s, 2, normalise=False, optimiser=LOCAL),
        "fedavg_local_momentum",
        engine=False,
    ),
    "FedProx": Instance("fedprox", lambda s, k, p: fp.FedProx(s, 3, pull=0.4), "fedprox"),
    "FedProx, exact": Instance(
        "fedprox", lambda s, k, p: fp.FedProx(pull=s, exact=True), "fedprox_exact", number="pull"
    ),
    "GeneralRule": Instance(
        "general_rule", lambda s, k, p: fp.GeneralRule(s, 3, momentum=0.5, pull=0.3, decay=0.9), "general"
    ),
    "GeneralRule, custom": Instance(
        "general_rule",
        lambda s, k, p: fp.GeneralRule(
            s, 3, weights=np.array([0.4, 0.3, 0.2, 0.1])[k] * p * (1 / 0.4 if len(k) == 1 else 1),
            effective=1.7, coefficients=[1.0, 2.0, 0.5],
        ),
        "custom",
        engine=False,
    ),
    "FedNova": Instance("fednova", lambda s, k, p: fp.FedNova(s, STEPS[k], momentum=0.6, effective=2.5), "fednova"),
    "FedNewton": Instance("fednewton", lambda s, k, p: fp.FedNewton(halvings=3), "newton", number=""),
    "FedNewton, products": Instance(
        "fednewton", lambda s, k, p: fp.FedNewton(halvings=3, products=8), "newton", number="", engine=False
    ),
    "SCAFFOLD": Instance("scaffold", lambda s, k, p: fp.Scaffold(s, 3, server_step=0.8), "scaffold"),
    "SCAFFOLD, option 1": Instance(
        "scaffold", lambda s, k, p: fp.Scaffold(s, 3, server_step=0.8, option=1), "scaffold", engine=False
    ),
    "FedDyn": Instance("feddyn", lambda s, k, p: fp.FedDyn(s, 3, pull=0.9), "feddyn"),
    "FedDyn, exact": Instance(
        "feddyn", lambda s, k, p: fp.FedDyn(pull=s, exact=True), "feddyn_exact", number="pull", engine=False
    ),
    "FedExP": Instance("fedexp", lambda s, k, p: fp.FedExP(s, 3), "fedexp"),
    "FedLin": Instance("fedlin", lambda s, k, p: fp.FedLin(s, 3), "three"),
    "Mime": Instance("mime", lambda s, k, p: fp.Mime(s, 3, momentum=0.6), "mime"),
    "Scaffnew": Instance("scaffnew", lambda s, k, p: fp.Scaffnew(s, probability=0.4), None),
    "Scaffnew, fixed": Instance("scaffnew", lambda s, k, p: fp.Scaffnew(s, local_steps=3), "three", engine=False),
    "q-FedAvg": Instance("qfedavg", lambda s, k, p: fp.QFedAvg(1.5, s, 2), "qfedavg"),
    "Ditto": Instance("ditto", lambda s, k, p: fp.Ditto(s, 3, pull=0.4), "ditto", personal=True),
    "Fine-tuning": Instance(
        "fine_tuned", lambda s, k, p: fp.FineTuned(s, 3, own_steps=2), "fine_tuned", personal=True
    ),
    "APFL": Instance("apfl", lambda s, k, p: fp.APFL(s, 2, mix=0.6), "apfl", personal=True),
    "pFedMe": Instance(
        "pfedme", lambda s, k, p: fp.PFedMe(0.3, s, local_steps=2), "pfedme", number="pull", personal=True
    ),
    "FedAvgM": Instance(
        "fedopt", lambda s, k, p: fp.FedAvgM(s, 2, server_step=0.9, momentum=0.7), "momentum", engine=False
    ),
    "FedAdam": Instance("fedopt", lambda s, k, p: fp.FedAdam(s, 2), "adam"),
    "FedYogi": Instance("fedopt", lambda s, k, p: fp.FedYogi(s, 2), "yogi", engine=False),
    "FedAdagrad": Instance("fedopt", lambda s, k, p: fp.FedAdagrad(s, 2), "adagrad", engine=False),
    "Extrapolated": Instance(
        "extrapolated", lambda s, k, p: fp.Extrapolated(fp.Scaffold(s, 3, server_step=0.8)), "extrapolated", number=""
    ),
    "Averaged": Instance("averaged", lambda s, k, p: fp.Averaged(fp.FedAvg(s, 2), 2), "averaged", number=""),
    "a user's own": Instance("own", lambda s, k, p: Damped(s), "damped"),
}  # fmt: skip

LOCAL = optax.trace(0.5)
ENGINE = [name for name, one in INSTANCES.items() if one.engine]
ALL = np.arange(4)
