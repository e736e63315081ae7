"""Methods with one mistake each, as plain functions and as classes: every one must be convicted of its own."""

import jax.numpy as jnp
import node_models
import numpy as np
import own_models
from right import STEP, STEPS, hessian_of_all, scale

import fedpoint as fp
from fedpoint.algorithms.consensus import mixed
from fedpoint.algorithms.scaffnew import Corrected
from fedpoint.algorithms.scaffold import Controlled

# Plain functions ------------------------------------------------------------------------------------------------------


def local_steps(agent, w, steps=3, step=STEP, extra=lambda y: 0.0, sample=lambda agent: None):
    y, z = w, sample(agent)
    for _ in range(steps):
        y = y - step * (agent.field(y, z) + extra(y))
    return y


def averaging(local, weight=scale):
    def broken_round(w, agents):
        return w + sum(weight(a, agents) * (local(a, w) - w) for a in agents)

    return broken_round


def unsquared(factor):
    def local(agent, w):
        def unit(y):
            return factor * (y - w) / (np.linalg.norm(y - w) + 1e-12)

        return local_steps(agent, w, 4, extra=unit)

    return averaging(local)


def towards_zero(agent, w):
    return local_steps(agent, w, 4, extra=lambda y: 0.6 * y)


def doubled_pull(agent, w):
    return local_steps(agent, w, 4, extra=lambda y: 2 * 0.6 * (y - w))


def one_sample(agent, w):
    return local_steps(agent, w, sample=lambda agent: agent.sample())


def one_gradient(agent, w):
    g = agent.field(w)
    return w - 3 * STEP * g


def divided_twice(agent, w):
    return local_steps(agent, w, 3, STEP / 3 / 3)


def one_step_less(agent, w):
    return local_steps(agent, w, 2)


def models_summed(w, agents):
    return sum(scale(a, agents) * local_steps(a, w) for a in agents)


def uphill(agent, w):
    return local_steps(agent, w, step=-STEP)


def scaffold(
    store=("hub", "agents"),
    correction=1,
    sign=1,
    c_sign=1,
    control=lambda a, agents: a.weight,
    weight=scale,
    per=lambda E: E,
    first=0.0,
    reuse=False,
    option=2,
    server_step=1.0,
    control_step=1.0,
    steps=STEPS,
):
    """SCAFFOLD with whatever is asked for."""

    def scaffold_round(w, agents):
        zero = np.zeros_like(w)
        c, new_w, change = agents.server.get("c", zero), w.copy(), zero.copy()
        for agent in agents:
            c_k = agent.memory.get("c", zero + first)
            E, y = steps[agent.index], w
            z = agent.sample() if reuse else None
            for _ in range(E):
                y = y - STEP * (agent.field(y, z) + correction * (c - c_k))
            new = sign * agent.field(w) if option == 1 else c_k - c_sign * c + sign * (w - y) / (per(E) * STEP)
            new_w += server_step * weight(agent, agents) * (y - w)
            change += control(agent, agents) * (new - c_k)
            if "agents" in store:
                agent.memory["c"] = new
        if "hub" in store:
            agents.server["c"] = c + control_step * change
        return new_w

    return scaffold_round


def plain_mean(agent, agents):
    return 1 / len(agents)


def renormalised(agent, agents):
    return agent.weight / sum(a.weight for a in agents)


def alone(agent, agents):
    return agent.weight


def of_all(agent, agents):
    return 1 / agent.population


def fednova(tau, divide=True):
    def nova_round(w, agents):
        v = np.array([scale(a, agents) for a in agents])
        taus = np.array([STEPS[a.index] for a in agents], float)
        changes = np.array([w - local_steps(a, w, STEPS[a.index]) for a in agents])
        if not divide:
            return w - v @ changes
        return w - tau(v, taus) * (v @ (changes / taus[:, None]))

    return nova_round


def scaffnew(store=True, correction=1, sign=1, p=1 / 3):
    def scaffnew_round(w, agents):
        old = [a.memory.get("h", np.zeros_like(w)) for a in agents]
        ends = [local_steps(a, w, extra=lambda y, h=h: -correction * h) for a, h in zip(agents, old, strict=True)]
        new = sum(a.weight * x for a, x in zip(agents, ends, strict=True))
        if store:
            for agent, x, h in zip(agents, ends, old, strict=True):
                agent.memory["h"] = h + sign * p / STEP * (new - x)
        return new

    return scaffnew_round


def forgetful_momentum(w, agents):
    return w - 0.9 * (w - averaging(lambda a, w: local_steps(a, w))(w, agents))


def deaf_momentum(w, agents):
    """Momentum, but the server's step is not used."""
    m = 0.8 * agents.server.get("m", 0.0) + w - averaging(lambda a, w: local_steps(a, w))(w, agents)
    agents.server["m"] = m
    return w - m


def qfedavg(slope=True, summed=False, at_end=False):
    def fair_round(w, agents):
        q, v = 1.5, np.array([scale(a, agents) for a in agents])
        ends = [local_steps(a, w, 2) for a in agents]
        F = np.array([a.loss(y if at_end else w) for a, y in zip(agents, ends, strict=True)])
        D = (w - np.array(ends)) / STEP
        h = slope * q * F ** (q - 1) * (D**2).sum(1) + F**q / STEP
        return w - (v * F**q) @ D / (v @ h / (1 if summed else v.sum()))

    return fair_round


def feddyn(store=("hub", "agents"), own=1, hub=1, minus=1, control=lambda a, agents: a.weight, first=0.0):
    def feddyn_round(w, agents):
        a, moved, total = 0.6, np.zeros_like(w), np.zeros_like(w)
        for agent in agents:
            h = agent.memory.get("h", first + np.zeros_like(w))
            y = local_steps(agent, w, extra=lambda y, h=h: a * (y - w) - h)
            if "agents" in store:
                agent.memory["h"] = h - own * a * (y - w)
            moved += scale(agent, agents) * (y - w)
            total += control(agent, agents) * (y - w)
        if "hub" in store:
            agents.server["h"] = agents.server.get("h", 0.0) - hub * a * total
        return w + moved - minus * agents.server.get("h", 0.0) / a

    return feddyn_round


def fedexp(half=2.0, least=1.0, power=2):
    def exp_round(w, agents):
        v = np.array([scale(a, agents) for a in agents])
        changes = np.array([local_steps(a, w) - w for a in agents])
        mean = v @ changes
        ratio = v @ np.linalg.norm(changes, axis=1) ** power / (half * (mean @ mean + 1e-3))
        return w + max(least, ratio) * mean

    return exp_round


def fedlin(stale=False, own=1, everybody=1):
    def lin_round(w, agents):
        fields = [agent.field(w) for agent in agents]
        g = sum(agent.weight * one for agent, one in zip(agents, fields, strict=True))
        used = agents.server.get("g", 0.0 * w) if stale else g
        agents.server["g"] = g
        ends = [
            local_steps(a, w, extra=lambda y, one=one: everybody * used - own * one)
            for a, one in zip(agents, fields, strict=True)
        ]
        return w + sum(a.weight * (y - w) for a, y in zip(agents, ends, strict=True))

    return lin_round


def mime(moves=False, kept=True, damped=True):
    def mime_round(w, agents):
        c = sum(scale(agent, agents) * agent.field(w) for agent in agents)
        before, new = agents.server.get("m", np.zeros_like(w)), w.copy()
        for agent in agents:
            y, m = w, before
            for _ in range(3):
                z = agent.sample()
                move = (0.4 if damped else 1.0) * (agent.field(y, z) - agent.field(w, z) + c) + 0.6 * m
                y, m = y - STEP * move, move if moves else m
            new += scale(agent, agents) * (y - w)
        if kept:
            agents.server["m"] = 0.4 * c + 0.6 * before
        return new

    return mime_round


# Subjects that were once taken for something else -----------------------------------------------------------------


def identity(w, agents):
    return w


def plus_one(w, agents):
    return w + 1


def to_zero(w, agents):
    """It reads the weights, which are nobody's data."""
    return w * (1 - sum(agent.weight for agent in agents))


def deaf(w, agents):
    for agent in agents:
        agent.field(w)
    return w


def times_zero(w, agents):
    return w + 0.0 * sum(local_steps(agent, w) for agent in agents)


def of(which):
    """FedAvg of some of the agents that take part."""

    def some_of_them(w, agents):
        heard = which(agents)
        return w + sum(scale(a, agents) * (local_steps(a, w) - w) for a in heard)

    return some_of_them


def asks_all_hears_one(w, agents):
    changes = [local_steps(agent, w) - w for agent in agents]
    return w + changes[0]


def plus(subject, constant):
    def shifted(w, agents):
        return subject(w, agents) + constant

    return shifted


def of_changes(merge):
    """No mean."""

    def merged(w, agents):
        return w + merge([local_steps(agent, w) - w for agent in agents], axis=0)

    return merged


def cut(g, most):
    return g * min(1.0, most / np.linalg.norm(g))


def clipped(pull, most=2.0):
    """FedAvg or FedProx with clipped gradients, which a pull that is not squared resembles: neither is linear."""

    def local(agent, w):
        y = w
        for _ in range(4):
            y = y - STEP * (cut(agent.field(y), most) + pull * (y - w))
        return y

    return averaging(local)


def sharing(steps, once):
    """All agents use the sample that the first of them draws: at every step, or `once` in a round."""

    def shared_round(w, agents):
        y, z = {a.index: w for a in agents}, agents[0].sample()
        for _ in range(steps):
            for a in agents:
                y[a.index] = y[a.index] - STEP * a.field(y[a.index], z)
            z = z if once else agents[0].sample()
        return w + sum(scale(a, agents) * (y[a.index] - w) for a in agents)

    return shared_round


def kept_samples(agent, w):
    """Drawn in the first round, one for each step, and used ever after."""
    kept = agent.memory.setdefault("samples", [agent.sample() for _ in range(3)])
    y = w
    for z in kept:
        y = y - STEP * agent.field(y, z)
    return y


def no_samples(agent, w):
    return local_steps(agent, w, sample=lambda agent: np.zeros(3))


def extrapolated(agent, w):
    y = w
    for _ in range(3):
        y = y - STEP * (2 * agent.field(y) - agent.field(y))
    return y


FEDAVG = {"step": STEP, "local_steps": 3}
PROX = {"step": STEP, "local_steps": 4, "pull": 0.6}
UNEQUAL = {"step": STEP, "local_steps": STEPS}
FAIR = {"step": STEP, "local_steps": 2, "q": 1.5}
DYNAMIC = FEDAVG | {"pull": 0.6}
MIMICKED = FEDAVG | {"momentum": 0.6}
MOMENTUM = FEDAVG | {"momentum": 0.8, "server_step": 0.9}


# (mistake, variant): function, claim, settings.
def newton(hessians, solve=np.linalg.solve):
    """hessians: how they are put together."""

    def broken_round(w, agents):
        g = sum(agent.weight * agent.field(w) for agent in agents)
        return w - solve(hessians(w, agents), g)

    return broken_round


def own_newton_steps(w, agents):
    return w - sum(agent.weight * np.linalg.solve(agent.hessian(w), agent.field(w)) for agent in agents)


def hessian_of_equals(w, agents):
    return sum(agent.hessian(w) for agent in agents) / len(agents)


def diagonal(w, agents):
    return np.diag(sum(agent.weight * np.diag(agent.hessian(w)) for agent in agents))


def upwards(H, g):
    return -np.linalg.solve(H, g)


FUNCTIONS = own_models.BROKEN | node_models.BROKEN | {
    ("newton_steps_averaged", ""): (own_newton_steps, "fednewton", {}),
    ("hessian_summed", ""): (newton(lambda w, agents: len(agents) * hessian_of_equals(w, agents)), "fednewton", {}),
    ("hessian_diagonal", ""): (newton(diagonal), "fednewton", {}),
    ("weights_dropped", "FedNewton's Hessian"): (newton(hessian_of_equals), "fednewton", {}),
    ("ascent", "FedNewton"): (newton(hessian_of_all, upwards), "fednewton", {}),
    ("control_never_stored", "FedDyn, nobody"): (feddyn(store=()), "feddyn", DYNAMIC),
    ("control_never_stored", "FedDyn, agents forget"): (feddyn(store=("hub",)), "feddyn", DYNAMIC),
    ("control_never_stored", "FedDyn, hub forgets"): (feddyn(store=("agents",)), "feddyn", DYNAMIC),
    ("control_sign_flipped", "FedDyn, agents"): (feddyn(own=-1), "feddyn", DYNAMIC),
    ("control_sign_flipped", "FedDyn, hub"): (feddyn(hub=-1), "feddyn", DYNAMIC),
    ("control_divided_by_selected", "FedDyn"): (feddyn(control=scale), "feddyn", DYNAMIC),
    ("controls_not_zero", "FedDyn"): (feddyn(first=1.0), "feddyn", DYNAMIC),
    ("half_missing", ""): (fedexp(half=1.0), "fedexp", FEDAVG),
    ("step_below_one", ""): (fedexp(least=0.0), "fedexp", FEDAVG),
    ("not_squared", ""): (fedexp(power=1), "fedexp", FEDAVG),
    ("gradient_stale", ""): (fedlin(stale=True), "fedlin", FEDAVG),
    ("own_gradient_kept", ""): (fedlin(own=0), "fedlin", FEDAVG),
    ("correction_missing", ""): (fedlin(own=0, everybody=0), "fedlin", FEDAVG),
    ("momentum_moved", ""): (mime(moves=True), "mime", MIMICKED),
    ("server_state_lost", "Mime"): (mime(kept=False), "mime", MIMICKED),
    ("gradient_not_damped", ""): (mime(damped=False), "mime", MIMICKED),
    ("pull_not_squared", "mu/2"): (unsquared(0.3), "fedprox", PROX),
    ("pull_not_squared", "mu"): (unsquared(0.6), "fedprox", PROX),
    ("pull_not_squared", "not foreseen"): (unsquared(0.47), "fedprox", PROX),
    ("pull_to_zero", ""): (averaging(towards_zero), "fedprox", PROX),
    ("pull_doubled", ""): (averaging(doubled_pull), "fedprox", PROX),
    ("pull_missing", ""): (averaging(lambda a, w: local_steps(a, w, 4)), "fedprox", PROX),
    ("control_never_stored", "nobody"): (scaffold(store=()), "scaffold", UNEQUAL),
    ("control_never_stored", "agents forget"): (scaffold(store=("hub",)), "scaffold", UNEQUAL),
    ("control_never_stored", "hub forgets"): (scaffold(store=("agents",)), "scaffold", UNEQUAL),
    ("control_never_stored", "option I"): (scaffold(store=(), option=1), "scaffold", UNEQUAL),
    ("control_never_stored", "settings observed"): (scaffold(store=()), "scaffold", {}),
    ("control_never_stored", "half a server step"): (
        scaffold(store=(), server_step=0.5), "scaffold", UNEQUAL | {"server_step": 0.5},
    ),
    ("control_sign_flipped", "new information"): (scaffold(sign=-1), "scaffold", UNEQUAL),
    ("control_sign_flipped", "c"): (scaffold(c_sign=-1), "scaffold", UNEQUAL),
    ("control_sign_flipped", "hub"): (scaffold(control_step=-1.0), "scaffold", UNEQUAL),
    ("control_sign_flipped", "option I"): (scaffold(sign=-1, option=1), "scaffold", UNEQUAL),
    ("correction_sign_flipped", ""): (scaffold(correction=-1), "scaffold", UNEQUAL),
    ("correction_sign_flipped", "option I"): (scaffold(correction=-1, option=1), "scaffold", UNEQUAL),
    ("control_divided_by_selected", "weighted"): (scaffold(control=scale), "scaffold", UNEQUAL),
    ("control_divided_by_selected", "plain"): (scaffold(control=plain_mean), "scaffold", UNEQUAL),
    ("control_divided_by_selected", "plain, both"): (
        scaffold(control=plain_mean, weight=plain_mean), "scaffold", UNEQUAL,
    ),
    ("control_divided_by_selected", "option I"): (scaffold(control=scale, option=1), "scaffold", UNEQUAL),
    ("weights_dropped", "SCAFFOLD"): (scaffold(control=of_all, weight=plain_mean), "scaffold", UNEQUAL),
    ("weights_dropped", "SCAFFOLD's c"): (scaffold(control=of_all), "scaffold", UNEQUAL),
    ("weights_dropped", "FedAvg"): (averaging(local_steps, plain_mean), "fedavg", FEDAVG),
    ("weights_dropped", "FedAvg, settings observed"): (averaging(local_steps, plain_mean), "fedavg", {}),
    ("weights_dropped", "FedProx"): (
        averaging(lambda a, w: local_steps(a, w, 4, extra=lambda y: 0.6 * (y - w)), plain_mean), "fedprox", PROX,
    ),
    ("weights_renormalised", "FedAvg"): (averaging(local_steps, renormalised), "fedavg", FEDAVG),
    ("weights_renormalised", "SCAFFOLD"): (scaffold(weight=renormalised), "scaffold", UNEQUAL),
    ("models_weighted", ""): (models_summed, "fedavg", FEDAVG),
    ("not_scaled_up", ""): (averaging(local_steps, alone), "fedavg", FEDAVG),
    ("sample_reused", "FedAvg"): (averaging(one_sample), "fedavg", FEDAVG),
    ("sample_reused", "SCAFFOLD"): (scaffold(reuse=True), "scaffold", UNEQUAL),
    ("sample_reused", "settings observed"): (averaging(one_sample), "fedavg", {}),
    ("gradient_frozen", ""): (averaging(one_gradient), "fedavg", FEDAVG),
    ("step_divided", ""): (averaging(divided_twice), "fedavg", FEDAVG),
    ("wrong_number_of_steps", ""): (averaging(one_step_less), "fedavg", FEDAVG),
    ("ascent", ""): (averaging(uphill), "fedavg", FEDAVG),
    ("control_per_wrong_steps", "none"): (scaffold(per=lambda E: 1), "scaffold", UNEQUAL),
    ("control_per_wrong_steps", "one more"): (scaffold(per=lambda E: E + 1), "scaffold", UNEQUAL),
    ("control_per_wrong_steps", "the largest"): (scaffold(per=lambda E: max(STEPS)), "scaffold", UNEQUAL),
    ("controls_not_zero", "one"): (scaffold(first=1.0), "scaffold", UNEQUAL),
    ("controls_not_zero", "not foreseen"): (scaffold(first=np.array([0.3, -0.2, 0.5])), "scaffold", UNEQUAL),
    ("server_step_in_control", ""): (
        scaffold(server_step=0.7, control_step=0.7), "scaffold", UNEQUAL | {"server_step": 0.7},
    ),
    ("not_normalised", ""): (fednova(None, divide=False), "fednova", UNEQUAL),
    ("wrong_effective_length", "plain mean"): (fednova(lambda v, t: t.mean()), "fednova", UNEQUAL),
    ("wrong_effective_length", "one"): (fednova(lambda v, t: 1.0), "fednova", UNEQUAL),
    ("wrong_effective_length", "sum over the selected"): (fednova(lambda v, t: v @ t), "fednova", UNEQUAL),
    ("control_never_stored", "Scaffnew"): (scaffnew(store=False), "scaffnew", FEDAVG),
    ("control_sign_flipped", "Scaffnew"): (scaffnew(sign=-1), "scaffnew", FEDAVG),
    ("control_sign_flipped", "Scaffnew, where it is used"): (scaffnew(correction=-1), "scaffnew", FEDAVG),
    ("probability_missing", ""): (scaffnew(p=1.0), "scaffnew", FEDAVG),
    ("server_state_lost", ""): (forgetful_momentum, "fedavgm", MOMENTUM),
    ("server_step_missing", ""): (deaf_momentum, "fedavgm", MOMENTUM),
    ("curvature_without_slope", ""): (qfedavg(slope=False), "qfedavg", FAIR),
    ("curvature_summed", ""): (qfedavg(summed=True), "qfedavg", FAIR),
    ("loss_at_end", ""): (qfedavg(at_end=True), "qfedavg", FAIR),
    ("fairness_missing", ""): (averaging(lambda a, w: local_steps(a, w, 2)), "qfedavg", FAIR),
    ("pull_sign_flipped", ""): (
        averaging(lambda a, w: local_steps(a, w, 4, extra=lambda y: -0.6 * (y - w))), "fedprox", PROX,
    ),
    ("nobody_asked", "identity"): (identity, "fedavg", FEDAVG),
    ("nobody_asked", "identity, nothing said"): (identity, "fedavg", {}),
    ("nobody_asked", "identity for SCAFFOLD"): (identity, "scaffold", UNEQUAL),
    ("nobody_asked", "identity for Scaffnew"): (identity, "scaffnew", FEDAVG),
    ("nobody_asked", "identity for one step"): (identity, "fedavg", {"step": STEP, "local_steps": 1}),
    ("nobody_asked", "plus one"): (plus_one, "fedavg", FEDAVG),
    ("nobody_asked", "plus one for FedProx"): (plus_one, "fedprox", PROX),
    ("nobody_asked", "to zero"): (to_zero, "fedavg", {}),
    ("answers_ignored", "the model stays"): (deaf, "fedavg", FEDAVG),
    ("answers_ignored", "times zero"): (times_zero, "scaffold", UNEQUAL),
    ("agents_left_out", "first only"): (of(lambda agents: agents[:1]), "fedavg", FEDAVG),
    ("agents_left_out", "all but the last"): (of(lambda agents: agents[:-1]), "fedavg", FEDAVG),
    ("agents_left_out", "the light ones"): (of(lambda agents: [a for a in agents if a.weight > 0.2]), "fedavg", {}),
    ("agents_left_out", "asked"): (asks_all_hears_one, "fedavg", FEDAVG),
    ("constant_added", "FedAvg"): (plus(averaging(local_steps), 0.05), "fedavg", FEDAVG),
    ("constant_added", "SCAFFOLD"): (plus(scaffold(), 0.05), "scaffold", UNEQUAL),
    ("constant_added", "FedProx"): (
        averaging(lambda a, w: local_steps(a, w, 4, extra=lambda y: 0.6 * (y - w) + 0.3)), "fedprox", PROX,
    ),
    ("constant_added", "for the pull"): (
        averaging(lambda a, w: local_steps(a, w, 4, extra=lambda y: 0.3)), "fedprox", PROX,
    ),
    ("not_averaged", "median"): (of_changes(np.median), "fedavg", FEDAVG),
    ("not_averaged", "the smallest"): (of_changes(np.min), "scaffold", FEDAVG),
    ("not_linear", "FedAvg"): (clipped(0.0), "fedavg", FEDAVG),
    ("not_linear", "FedProx"): (clipped(0.6), "fedprox", PROX),
    ("samples_shared", "at each step"): (sharing(3, once=False), "fedavg", FEDAVG),
    ("samples_shared", "in a round"): (sharing(3, once=True), "fedavg", FEDAVG),
    ("samples_shared", "one step"): (sharing(1, once=False), "gradient_exchange", {"step": STEP}),
    ("sample_kept", ""): (averaging(kept_samples), "fedavg", FEDAVG),
    ("samples_not_used", ""): (averaging(no_samples), "fedavg", FEDAVG),
    ("noise_amplified", ""): (averaging(extrapolated), "fedavg", FEDAVG),
}  # fmt: skip

# Classes --------------------------------------------------------------------------------------------------------------


class UnsquaredProx(fp.Algorithm):
    """What a user writes who copies |v - w| without the square."""

    step: float
    local_steps: int = 2
    pull: float = 0.1

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        def advance(y, e):
            distance = jnp.sqrt(jnp.sum((y - w) ** 2) + 1e-24)
            return y - self.step * (agent.field(y, e) + 0.5 * self.pull * (y - w) / distance)

        return fp.descend(agent, w, self.local_steps, advance) - w, memory

    def combine(self, w, inbox):
        return w + inbox.mean


class ForgetsE(fp.FedAvg):
    """agent.field(y) without e: the first sample again and again."""

    def local(self, w, memory, agent):
        rate = self.step / self.local_steps if self.normalise else self.step
        y = fp.descend(agent, w, self.local_steps, lambda y, e: y - rate * agent.field(y))
        return y - w, memory


class DropsWeights(fp.FedAvg):
    def local(self, w, memory, agent):
        change, memory = fp.FedAvg.local(self, w, memory, agent)
        return change / (5 * agent.share), memory


class Renormalises(fp.FedAvg):
    def combine(self, w, inbox):
        return w + inbox.total / inbox.mass


class NeverStores(fp.Scaffold):
    def local(self, heard, c_k, agent):
        return fp.Scaffold.local(self, heard, c_k, agent)[0], c_k


class HubForgets(fp.Scaffold):
    def combine(self, hub, inbox):
        return Controlled(hub.w + self.server_step * inbox.mean.w, hub.c)


class FlipsUpdate(fp.Scaffold):
    def local(self, heard, c_k, agent):
        x, c = heard
        E = agent.steps(self.local_steps)
        y = fp.descend(agent, x, E, lambda y, e: y - self.step * (agent.field(y, e) - c_k + c))
        new = c_k - c - (x - y) / (E * self.step)
        return Controlled(y - x, new - c_k), new


class FlipsCorrection(fp.Scaffold):
    def local(self, heard, c_k, agent):
        x, c = heard
        E = agent.steps(self.local_steps)
        y = fp.descend(agent, x, E, lambda y, e: y - self.step * (agent.field(y, e) + c_k - c))
        new = c_k - c + (x - y) / (E * self.step)
        return Controlled(y - x, new - c_k), new


class DividesBySelected(fp.Scaffold):
    """The mean over those selected where the total belongs."""

    def combine(self, hub, inbox):
        return Controlled(hub.w + self.server_step * inbox.mean.w, hub.c + inbox.mean.c)


class NotPerStep(fp.Scaffold):
    def local(self, heard, c_k, agent):
        x, c = heard
        y = fp.descend(
            agent, x, agent.steps(self.local_steps), lambda y, e: y - self.step * (agent.field(y, e) - c_k + c)
        )
        new = c_k - c + (x - y) / self.step
        return Controlled(y - x, new - c_k), new


class ServerStepInControl(fp.Scaffold):
    def combine(self, hub, inbox):
        return Controlled(hub.w + self.server_step * inbox.mean.w, hub.c + self.server_step * inbox.total.c)


class LosesCorrection(fp.Scaffnew):
    def local(self, heard, memory, agent):
        sent, new = fp.Scaffnew.local(self, heard, memory, agent)
        return sent, Corrected(memory.h, new.x)


class FullCorrection(fp.Scaffnew):
    def settle(self, w, memory):
        return Corrected(memory.h + (w - memory.x) / self.step, w)


class NotDivided(fp.FedNova):
    def local(self, w, memory, agent):
        sent, memory = fp.FedNova.local(self, w, memory, agent)
        return sent._replace(direction=sent.direction * sent.length), memory

    def combine(self, w, inbox):
        return w - inbox.mean.direction


class SumOfLengths(fp.FedNova):
    def combine(self, w, inbox):
        return w - inbox.mean.length * inbox.mean.direction


class CountsSteps(fp.FedNova):
    """|a|_1 taken as the number of steps although there is momentum."""

    def local(self, w, memory, agent):
        sent, memory = fp.FedNova.local(self, w, memory, agent)
        steps = agent.steps(self.local_steps) * jnp.ones_like(sent.length)
        return sent._replace(direction=sent.direction * sent.length / steps, length=steps), memory


class NoServerMemory(fp.FedOpt):
    def combine(self, hub, inbox):
        return hub._replace(w=fp.FedOpt.combine(self, hub, inbox).w)


class Silent(fp.FedAvg):
    """It asks nobody."""

    def local(self, w, memory, agent):
        return 0.0 * w, memory


class Deaf(fp.Scaffold):
    """The hub makes nothing of what it hears."""

    def combine(self, hub, inbox):
        return hub


class LeavesOut(fp.FedAvg):
    """Agents with a small share send nothing."""

    def local(self, w, memory, agent):
        change, memory = fp.FedAvg.local(self, w, memory, agent)
        return jnp.where(agent.share > 0.2, 1.0, 0.0) * change, memory


class Drifts(fp.Scaffold):
    """Something is added at the hub, which looks like controls that do not start at zero."""

    def combine(self, hub, inbox):
        new = fp.Scaffold.combine(self, hub, inbox)
        return Controlled(new.w + 0.05, new.c)


class ClipsProx(fp.FedProx):
    """Clipped changes: not linear, and no fault of the pull."""

    def local(self, w, memory, agent):
        change, memory = fp.FedProx.local(self, w, memory, agent)
        return change * jnp.minimum(1.0, 0.1 / jnp.linalg.norm(change)), memory


class Extrapolates(fp.FedAvg):
    """Two fresh samples at each step, with weights 2 and -1: five times the noise, and nothing is reused."""

    def local(self, w, memory, agent):
        rate = self.step / self.local_steps if self.normalise else self.step

        def advance(y, e):
            return y - rate * (2 * agent.field(y, 2 * e) - agent.field(y, 2 * e + 1))

        return fp.descend(agent, w, agent.steps(self.local_steps), advance) - w, memory

    def samples(self, steps):
        return 2 * steps


class PulledAway(fp.Ditto):
    """The own model is pushed away from the common one."""

    def slope(self, w, v, field):
        return field(v) - self.pull * (v - w)


class SwapsTheMixture(fp.APFL):
    def _mixed(self, v, w):
        return v + self.mix * (w - v)


class ForgetsItsGradient(fp.GradientTracking):
    """Adds the new gradient to the mean of the estimates, and subtracts none."""

    def local(self, near, memory, agent):
        return fp.GradientTracking.local(self, near, memory._replace(own=memory.own * 0.0), agent)


class MovesOn(fp.ExactDiffusion):
    """Forgets where its own steps had led, so that nothing is corrected."""

    def local(self, near, own, agent):
        return fp.ExactDiffusion.local(self, near, own._replace(before=self.read(near, own)), agent)


class ReadsTheSum(fp.PushSum):
    def read(self, near, own):
        return mixed(near, own).value


# class: (object, claim or None where the base class says it, mistake)
CLASSES = {
    "UnsquaredProx": (UnsquaredProx(0.1, 3, 0.5), "fedprox", "pull_not_squared"),
    "ForgetsE": (ForgetsE(0.1, 3), None, "sample_reused"),
    "DropsWeights": (DropsWeights(0.1, 3), None, "weights_dropped"),
    "Renormalises": (Renormalises(0.1, 3), None, "weights_renormalised"),
    "NeverStores": (NeverStores(0.1, 3), None, "control_never_stored"),
    "HubForgets": (HubForgets(0.1, 3), None, "control_never_stored"),
    "FlipsUpdate": (FlipsUpdate(0.1, 3), None, "control_sign_flipped"),
    "FlipsCorrection": (FlipsCorrection(0.1, 3), None, "correction_sign_flipped"),
    "DividesBySelected": (DividesBySelected(0.1, 3), None, "control_divided_by_selected"),
    "NotPerStep": (NotPerStep(0.1, 3), None, "control_per_wrong_steps"),
    "PulledAway": (PulledAway(0.1, 3, pull=0.5), None, "pull_sign_flipped"),
    "SwapsTheMixture": (SwapsTheMixture(0.1, 3, mix=0.3), None, "mixture_swapped"),
    "ForgetsItsGradient": (ForgetsItsGradient(0.1), None, "old_gradient_forgotten"),
    "MovesOn": (MovesOn(0.1, 3), None, "correction_missing"),
    "ReadsTheSum": (ReadsTheSum(0.1), None, "sum_for_ratio"),
    "ServerStepInControl": (ServerStepInControl(0.1, 3), None, "server_step_in_control"),
    "LosesCorrection": (LosesCorrection(0.1, local_steps=3), None, "control_never_stored"),
    "FullCorrection": (FullCorrection(0.1, local_steps=3), None, "probability_missing"),
    "NotDivided": (NotDivided(0.1, 3), None, "not_normalised"),
    "SumOfLengths": (SumOfLengths(0.1, 3), None, "wrong_effective_length"),
    "CountsSteps": (CountsSteps(0.1, 3, momentum=0.6), None, "wrong_length"),
    "Silent": (Silent(0.1, 3), None, "nobody_asked"),
    "Deaf": (Deaf(0.1, 3), None, "answers_ignored"),
    "LeavesOut": (LeavesOut(0.1, 3), None, "agents_left_out"),
    "Drifts": (Drifts(0.1, 3), None, "constant_added"),
    "ClipsProx": (ClipsProx(0.1, 3, pull=0.3), None, "not_linear"),
    "Extrapolates": (Extrapolates(0.1, 3), None, "noise_amplified"),
    "NoServerMemory": (NoServerMemory(0.1, 3, server="momentum"), None, "server_state_lost"),
}
