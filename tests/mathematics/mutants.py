"""Broken variants of algorithms with a hub: the library's class with one mistake, and the law that convicts it."""

import executions
import jax.numpy as jnp

import fedpoint as fp
from fedpoint.algorithms.fedavg import local_descent
from fedpoint.algorithms.feddyn import Dynamic
from fedpoint.algorithms.fednewton import ProductSurvey, SlopeSurvey
from fedpoint.algorithms.general_rule import Normalised, accumulate
from fedpoint.algorithms.qfedavg import Fair
from fedpoint.algorithms.scaffnew import Corrected
from fedpoint.algorithms.scaffold import Controlled
from fedpoint.algorithms.surveyed import FieldSurvey, Mimicked
from fedpoint.core.steps import at

MUTANTS: list[tuple[str, str, type]] = []


def mutant(name, law):
    """Register a broken variant of the algorithm `name`, and the law that convicts it."""

    def decorate(cls):
        MUTANTS.append((name, law, cls))
        return cls

    return decorate


class SameSample:
    """An agent that answers every question of a round with its first sample."""

    def __init__(self, agent):
        self._agent = agent

    def __getattr__(self, name):
        return getattr(self._agent, name)

    def __setattr__(self, name, value):
        if name == "_agent":
            object.__setattr__(self, name, value)
        else:
            setattr(self._agent, name, value)

    def field(self, w, e=0):
        return self._agent.field(w, 0)


def same_sample(base):
    """The base with one sample for all local steps, as lecture 000 prints it in (85)."""

    class ReusesItsSample(base):
        def local(self, heard, memory, agent):
            return base.local(self, heard, memory, SameSample(agent))

    ReusesItsSample.__name__ = f"ReusesItsSample{base.__name__}"
    return ReusesItsSample


# Gradient exchange and parameter exchange.


@mutant("gradient_exchange", "all")
class SignFlipped(fp.GradientExchange):
    def combine(self, hub, inbox):
        return hub[0] + at(self.step, hub[1]) * inbox.mean, hub[1] + 1


@mutant("gradient_exchange", "few")
class Renormalised(fp.GradientExchange):
    """Divides by the weight of those selected: biased for unequal p."""

    def combine(self, hub, inbox):
        return hub[0] - at(self.step, hub[1]) * inbox.total / inbox.mass, hub[1] + 1


@mutant("gradient_exchange", "schedule")
class StoppedClock(fp.GradientExchange):
    def combine(self, hub, inbox):
        return hub[0] - at(self.step, hub[1]) * inbox.mean, hub[1]


@mutant("parameter_exchange", "few")
class MergesModels(fp.ParameterExchange):
    """Weights v that do not add up to one, applied to models."""

    def local(self, w, memory, agent):
        return w - at(self.step, agent.round) * agent.field(w), memory

    def combine(self, w, inbox):
        return inbox.mean


@mutant("parameter_exchange", "few")
class RenormalisedModels(fp.ParameterExchange):
    def combine(self, w, inbox):
        return w + inbox.total / inbox.mass


# FedAvg.

mutant("fedavg", "fresh")(same_sample(fp.FedAvg))


@mutant("fedavg", "schedule")
class NotNormalised(fp.FedAvg):
    def local(self, w, memory, agent):
        return local_descent(self, w, agent, lambda e, steps: at(self.step, agent.round * steps + e)) - w, memory


@mutant("fedavg", "schedule")
class CountsRounds(fp.FedAvg):
    """The schedule of steps counts rounds, not gradient steps."""

    def local(self, w, memory, agent):
        def rate(e, steps):
            return at(self.step, agent.round) / (steps if self.normalise else 1)

        return local_descent(self, w, agent, rate) - w, memory


@mutant("fedavg", "few")
class DividesBySelected(fp.FedAvg):
    def combine(self, w, inbox):
        return w + inbox.total / inbox.mass


@mutant("fedavg", "all")
class ForgetsWeights(fp.FedAvg):
    """An agent undoes its own weight: the plain mean of those selected."""

    def local(self, w, memory, agent):
        change, memory = fp.FedAvg.local(self, w, memory, agent)
        return change / (5 * agent.share), memory


# FedProx.


@mutant("fedprox", "all")
class PullNotSquared(fp.FedProx):
    """The gradient of pull |y - w| instead of (pull/2) |y - w|^2."""

    def local(self, w, memory, agent):
        def advance(y, e):
            away = jnp.sqrt(jnp.sum((y - w) ** 2) + 1e-30)
            return y - self.step * (agent.field(y, e) + self.pull * (y - w) / away)

        return fp.descend(agent, w, agent.steps(self.local_steps), advance) - w, memory


@mutant("fedprox", "exact")
class PullTwice(fp.FedProx):
    """pull |y - w|^2 in the exact solve: lecture 003's 1/eta read as Li et al.'s mu."""

    def local(self, w, memory, agent):
        if self.exact:
            return agent.prox(w, self.pull) - w, memory
        return fp.FedProx.local(self, w, memory, agent)


@mutant("fedprox", "all")
class PulledToZero(fp.FedProx):
    def local(self, w, memory, agent):
        def advance(y, e):
            return y - self.step * (agent.field(y, e) + self.pull * y)

        return fp.descend(agent, w, agent.steps(self.local_steps), advance) - w, memory


# FedNova and the general rule.


@mutant("fednova", "all")
class BufferNotCounted(fp.FedNova):
    """|a|_1 taken as tau although there is momentum, pull or decay."""

    def local(self, w, memory, agent):
        sent, memory = fp.FedNova.local(self, w, memory, agent)
        steps = agent.steps(self.local_steps) * jnp.ones_like(sent.length)
        return Normalised(sent.direction * sent.length / steps, steps), memory


@mutant("fednova", "all")
class PrintedLength(fp.FedNova):
    """tau_eff = sum p_j tau_j, as lecture 002 prints it, instead of sum p_j |a_j|_1."""

    def local(self, w, memory, agent):
        sent, memory = fp.FedNova.local(self, w, memory, agent)
        return sent._replace(length=agent.steps(self.local_steps) * jnp.ones_like(sent.length)), memory


@mutant("fednova", "all")
class NotDivided(fp.FedNova):
    """FedAvg under another name: changes are not normalised."""

    def combine(self, w, inbox):
        return w - inbox.mean.direction

    def local(self, w, memory, agent):
        sent, memory = fp.FedNova.local(self, w, memory, agent)
        return sent._replace(direction=sent.direction * sent.length), memory


@mutant("fednova", "few")
class SumOfLengths(fp.FedNova):
    """tau_eff = sum_k v_k |a_k|_1, also where the v do not add up to one: biased even with equal tau."""

    def combine(self, w, inbox):
        effective = inbox.mean.length if self.effective is None else self.effective
        return w - effective * inbox.mean.direction


@mutant("general_rule", "given")
class IgnoresCoefficients(fp.GeneralRule):
    def local(self, w, memory, agent):
        direction, length = accumulate(self, w, agent)
        return Normalised(direction * self.step * self.weights / agent.share, length), memory


@mutant("general_rule", "given")
class WeighsTwice(fp.GeneralRule):
    """Given weights w_k come on top of p_k instead of in its place."""

    def local(self, w, memory, agent):
        sent, memory = fp.GeneralRule.local(self, w, memory, agent)
        if isinstance(self.weights, str):
            return sent, memory
        return sent._replace(direction=sent.direction * agent.share), memory


@mutant("general_rule", "all")
class NovaForAll(fp.GeneralRule):
    """FedAvg's weights forgotten: w_k = p_k always."""

    def local(self, w, memory, agent):
        sent, memory = fp.GeneralRule.local(self, w, memory, agent)
        return sent._replace(direction=sent.direction / sent.length), memory


# SCAFFOLD.

mutant("scaffold", "fresh")(same_sample(fp.Scaffold))


@mutant("scaffold", "all")
class NeverRemembers(fp.Scaffold):
    def local(self, heard, c_k, agent):
        return fp.Scaffold.local(self, heard, c_k, agent)[0], c_k


@mutant("scaffold", "all")
class CorrectionFlipped(fp.Scaffold):
    def local(self, heard, c_k, agent):
        x, c = heard
        steps = agent.steps(self.local_steps)
        y = fp.descend(agent, x, steps, lambda y, e: y - self.step * (agent.field(y, e) + c_k - c))
        new = agent.field(x, steps) if self.option == 1 else c_k - c + (x - y) / (steps * self.step)
        return Controlled(y - x, new - c_k), new


@mutant("scaffold", "few")
class MeanControl(fp.Scaffold):
    """c takes the mean with the schedule's weights instead of the total: sum p_k c_k - c is not conserved."""

    def combine(self, hub, inbox):
        return Controlled(hub.w + self.server_step * inbox.mean.w, hub.c + inbox.mean.c)


@mutant("scaffold", "all")
class ServerStepInControl(fp.Scaffold):
    def combine(self, hub, inbox):
        return Controlled(hub.w + self.server_step * inbox.mean.w, hub.c + self.server_step * inbox.total.c)


@mutant("scaffold", "all")
class NotPerStep(fp.Scaffold):
    """Option 2 without the division by E."""

    def local(self, heard, c_k, agent):
        if self.option == 1:
            return fp.Scaffold.local(self, heard, c_k, agent)
        x, c = heard
        steps = agent.steps(self.local_steps)
        y = fp.descend(agent, x, steps, lambda y, e: y - self.step * (agent.field(y, e) - c_k + c))
        new = c_k - c + (x - y) / self.step
        return Controlled(y - x, new - c_k), new


# FedNewton.


@mutant("fednewton", "all")
class ClimbsUp(fp.FedNewton):
    def local(self, heard, memory, agent):
        said, memory = fp.FedNewton.local(self, heard, memory, agent)
        return said._replace(gradient=-said.gradient), memory


@mutant("fednewton", "all")
class OneAgentsHessian(fp.FedNewton):
    def local(self, heard, memory, agent):
        said, memory = fp.FedNewton.local(self, heard, memory, agent)
        alone = 1 / agent.share if agent.share == max(executions.WORLD.p) else 0.0
        return said._replace(hessian=alone * said.hessian), memory


@mutant("fednewton", "all")
class EqualWeights(fp.FedNewton):
    def local(self, heard, memory, agent):
        said, memory = fp.FedNewton.local(self, heard, memory, agent)
        return said._replace(gradient=said.gradient / (5 * agent.share)), memory


@mutant("fednewton", "all")
class HalfTheTriangle(fp.FedNewton):
    def local(self, heard, memory, agent):
        said, memory = fp.FedNewton.local(self, heard, memory, agent)
        off = [0, 3, 5]  # of a 3 by 3 triangle, where the diagonal is
        return said._replace(hessian=said.hessian.at[jnp.array(off)].multiply(0.5)), memory


@mutant("fednewton", "products")
class EqualWeightsOfProducts(fp.FedNewton):
    def local(self, heard, memory, agent):
        product, memory = fp.FedNewton.local(self, heard, memory, agent)
        return product / (5 * agent.share), memory


@mutant("fednewton", "products")
class OneDirection(fp.FedNewton):
    def survey(self):
        return SlopeSurvey(self)


@mutant("fednewton", "products")
class SteepestDescent(fp.FedNewton):
    """Residuals themselves for directions: nothing is conjugate."""

    def survey(self):
        return ResidualSurvey(self)


class ResidualSurvey(ProductSurvey):
    def combine(self, hub, inbox):
        hub = ProductSurvey.combine(self, hub, inbox)
        return hub._replace(direction=hub.residual)


@mutant("fednewton", "damped")
class NeverDamped(fp.FedNewton):
    def combine(self, hub, inbox):
        return fp.FedNewton(halvings=0).combine(hub, inbox)


# FedDyn.

mutant("feddyn", "fresh")(same_sample(fp.FedDyn))


@mutant("feddyn", "all")
class ForgetsItsTerm(fp.FedDyn):
    def local(self, w, h_k, agent):
        return fp.FedDyn.local(self, w, h_k, agent)[0], h_k


@mutant("feddyn", "few")
class MeanTerm(fp.FedDyn):
    """h takes the mean with the schedule's weights instead of the total: sum p_k h_k - h is not conserved."""

    def combine(self, hub, inbox):
        h = hub.h - self.pull * inbox.mean
        return Dynamic(hub.w + inbox.mean - h / self.pull, h)


@mutant("feddyn", "all")
class TermOfTheRoundBefore(fp.FedDyn):
    def combine(self, hub, inbox):
        return Dynamic(hub.w + inbox.mean - hub.h / self.pull, hub.h - self.pull * inbox.total)


@mutant("feddyn", "exact, few")
class CentreNotShifted(fp.FedDyn):
    def local(self, w, h_k, agent):
        change = agent.prox(w - h_k / self.pull, self.pull / 2) - w
        return change, h_k - self.pull * change


# FedExP.


@mutant("fedexp", "all")
class NotHalved(fp.FedExP):
    def combine(self, w, inbox):
        change, length = inbox.mean
        return w + change * jnp.maximum(1.0, length / ((change**2).sum() + self.adaptivity))


@mutant("fedexp", "all")
class ShorterToo(fp.FedExP):
    """The step may fall below one."""

    def combine(self, w, inbox):
        change, length = inbox.mean
        return w + change * length / (2 * ((change**2).sum() + self.adaptivity))


@mutant("fedexp", "few")
class SharesOfTheSquares(fp.FedExP):
    """Squares are summed with p_k over those heard, the change with v_k."""

    def combine(self, w, inbox):
        change, length = inbox.mean.change, inbox.total.length
        return w + change * jnp.maximum(1.0, length / (2 * ((change**2).sum() + self.adaptivity)))


# FedLin and Mime.

mutant("fedlin", "fresh")(same_sample(fp.FedLin))


@mutant("fedlin", "all")
class NeverAsksFirst(fp.FedLin):
    def survey(self):
        return None


@mutant("fedlin", "all")
class CountsItselfTwice(fp.FedLin):
    def local(self, heard, memory, agent):
        w, steps = heard.w, agent.steps(self.local_steps)
        y = fp.descend(agent, w, steps, lambda y, e: y - self.step * (agent.field(y, e) + heard.g))
        return y - w, memory


@mutant("fedlin", "all")
class StaleGradient(fp.FedLin):
    """The gradient of the round before: as if fields were sent with the changes."""

    def survey(self):
        return KeptBack(self)

    def init(self, w):
        return Mimicked(w, 0 * w, 0 * w), ()

    def combine(self, hub, inbox):
        return Mimicked(hub.w + inbox.mean, hub.m, hub.m)


class KeptBack(FieldSurvey):
    def combine(self, hub, inbox):
        return hub._replace(m=inbox.mean)


@mutant("mime", "all")
class MovesTheMomentum(fp.Mime):
    def local(self, heard, memory, agent):
        w, c, m = heard

        def advance(state, e):
            y, m = state
            m = (1 - self.momentum) * (agent.field(y, e) - agent.field(w, e) + c) + self.momentum * m
            return y - self.step * m, m

        return fp.descend(agent, (w, m), agent.steps(self.local_steps), advance)[0] - w, memory


@mutant("mime", "few")
class SharesOfTheGradient(fp.Mime):
    """c sums p_k over those heard, without K/L."""

    def survey(self):
        return UnscaledSurvey(self)


class UnscaledSurvey(FieldSurvey):
    def combine(self, hub, inbox):
        return hub._replace(g=inbox.total)


@mutant("mime", "samples")
class TwoSamples(fp.Mime):
    """Each of both fields of a step has a sample of its own: their noises add up instead of cancelling."""

    def local(self, heard, memory, agent):
        w, c, m = heard
        steps, beta = agent.steps(self.local_steps), self.momentum

        def advance(y, e):
            return y - self.step * ((1 - beta) * (agent.field(y, e) - agent.field(w, steps + e) + c) + beta * m)

        return fp.descend(agent, w, steps, advance) - w, memory


# Scaffnew.

mutant("scaffnew", "fresh")(same_sample(fp.Scaffnew))


@mutant("scaffnew", "fixed")
class AddsCorrection(fp.Scaffnew):
    def local(self, heard, memory, agent):
        w, steps = heard
        h = self.settle(w, memory).h
        x = fp.descend(agent, w, steps, lambda x, e: x - self.step * (agent.field(x, e) + h))
        return x - w, Corrected(h, x)


@mutant("scaffnew", "fixed")
class LosesCorrection(fp.Scaffnew):
    def local(self, heard, memory, agent):
        sent, new = fp.Scaffnew.local(self, heard, memory, agent)
        return sent, Corrected(memory.h, new.x)


@mutant("scaffnew", "fixed")
class FullCorrection(fp.Scaffnew):
    """h += (mean - x)/gamma, without the probability."""

    def settle(self, w, memory):
        return Corrected(memory.h + (w - memory.x) / self.step, w)


@mutant("scaffnew", "fixed")
class OwnLengths(fp.Scaffnew):
    """Agents take different numbers of steps."""

    def local(self, heard, memory, agent):
        w, steps = heard
        return fp.Scaffnew.local(self, (w, 1 if agent.share > 0.2 else steps), memory, agent)


@mutant("scaffnew", "lengths")
class FromZero(fp.Scaffnew):
    """Geometric on 0, 1, 2, ...: the mean is (1-p)/p."""

    def say(self, w, row):
        w, steps = fp.Scaffnew.say(self, w, row)
        return w, steps if self.local_steps is not None else steps - 1


# q-FedAvg.


@mutant("qfedavg", "all")
class NoCurvature(fp.QFedAvg):
    """h without q F^(q-1) |D|^2."""

    def local(self, w, memory, agent):
        sent, memory = fp.QFedAvg.local(self, w, memory, agent)
        return sent._replace(curvature=jnp.power(agent.loss(w), self.q) / self.step), memory


@mutant("qfedavg", "all")
class LossOfTheEnd(fp.QFedAvg):
    """F_k at the model that the local steps end with."""

    def local(self, w, memory, agent):
        sent, memory = fp.QFedAvg.local(self, w, memory, agent)
        before = jnp.power(agent.loss(w), self.q)
        direction = sent.direction / before
        after = jnp.power(agent.loss(w - self.step * direction), self.q)
        return Fair(after * direction, sent.curvature * after / before), memory


@mutant("qfedavg", "few")
class RenormalisedRatio(fp.QFedAvg):
    """sum v F^q D / sum v h: renormalises over the sample, so that q = 0 is not FedAvg."""

    def combine(self, w, inbox):
        return w - inbox.mean.direction / inbox.mean.curvature


# Methods with a model of its own at each agent.


@mutant("ditto", "all")
class Repelled(fp.Ditto):
    """The own model is pushed away from the common one."""

    def slope(self, w, v, field):
        return field(v) - self.pull * (v - w)


@mutant("ditto", "all")
class BeginsAnew(fp.Ditto):
    def begins(self, w, v):
        return w


@mutant("ditto", "few")
class PulledToItsOwnSteps(fp.Ditto):
    """The pull is to where the agent's common steps end, not to what it heard."""

    def local(self, w, v, agent):
        change, _ = fp.Ditto.local(self, w, v, agent)
        return change, fp.Ditto.local(self, w + change, v, agent)[1]


@mutant("ditto", "all")
class SendsItsOwn(fp.Ditto):
    def local(self, w, v, agent):
        _, v = fp.Ditto.local(self, w, v, agent)
        return v - w, v


mutant("ditto", "fresh")(same_sample(fp.Ditto))


@mutant("fine_tuned", "all")
class GoesOnTuning(fp.FineTuned):
    """From its last own model."""

    def begins(self, w, v):
        return v


@mutant("fine_tuned", "few")
class TunesAsOftenAsItSteps(fp.FineTuned):
    def own(self, steps):
        return steps


@mutant("apfl", "all")
class SwapsTheMixture(fp.APFL):
    def _mixed(self, v, w):
        return v + self.mix * (w - v)


@mutant("apfl", "all")
class ForgetsTheChainRule(fp.APFL):
    def slope(self, w, v, field):
        return field(self._mixed(v, w))


@mutant("apfl", "few")
class EvaluatesItsOwn(fp.APFL):
    def slope(self, w, v, field):
        return self.mix * field(v)


@mutant("pfedme", "all")
class PullMissing(fp.PFedMe):
    """Steps along w - theta instead of pull (w - theta)."""

    def local(self, w, theta, agent):
        change, theta = fp.PFedMe.local(self, w, theta, agent)
        return change / self.pull, theta


@mutant("pfedme", "few")
class SendsItsProximalPoint(fp.PFedMe):
    def local(self, w, theta, agent):
        _, theta = fp.PFedMe.local(self, w, theta, agent)
        return theta - w, theta


# Server optimisers.


@mutant("fedopt", "momentum")
class Ascends(fp.FedOpt):
    def combine(self, hub, inbox):
        return fp.FedOpt.combine(self, hub, inbox._replace(mean=-inbox.mean))


@mutant("fedopt", "momentum")
class NoServerMemory(fp.FedOpt):
    def combine(self, hub, inbox):
        return hub._replace(w=fp.FedOpt.combine(self, hub, inbox).w)


@mutant("fedopt", "adagrad")
class UnderTheRoot(fp.FedOpt):
    """optax's Adagrad: tau inside the square root."""

    def _server(self):
        import optax

        if self.server == "adagrad":
            tau = self.adaptivity
            return optax.adagrad(self.server_step, initial_accumulator_value=tau**2, eps=tau)
        return fp.FedOpt._server(self)
