"""Broken variants of the methods for networks, registered beside those with a hub."""

import jax
from mutants import mutant, same_sample

import fedpoint as fp
from fedpoint.algorithms.consensus import mixed
from fedpoint.algorithms.fedgd import coupled_step
from fedpoint.algorithms.gradient_tracking import Tracked, Tracker
from fedpoint.algorithms.neighbours import Near
from fedpoint.algorithms.push_sum import Pushed
from fedpoint.core.steps import at


def coupled(base, pull):
    """The base with another coupling: pull(self, w, near) in place of sum_j A_ij (w - w_j)."""

    class Pulled(base):
        def local(self, near, w, agent):
            rate = at(self.step, agent.round)
            new = w - rate * (agent.field(w) + 2 * self.coupling * pull(self, w, near))
            return new, new

    return Pulled


def named(name, cls):
    cls.__name__ = name
    return cls


mutant("fedgd", "late")(
    named("FactorTwoMissing", coupled(fp.FedGD, lambda s, w, near: (near.mass * w - near.total) / 2))
)
mutant("fedgd", "late")(named("CouplingFlipped", coupled(fp.FedGD, lambda s, w, near: near.total - near.mass * w)))
mutant("fedgd", "late")(named("TowardsTheMean", coupled(fp.FedGD, lambda s, w, near: w - near.total / near.mass)))
mutant("fedgd", "late")(named("WeightsForgotten", coupled(fp.FedGD, lambda s, w, near: w - near.total)))


@mutant("fedgd", "late")
class HearsTheMean(fp.FedGD):
    """Keeps the inbox's mean for the sum."""

    def combine(self, near, inbox):
        return Near(inbox.mean, inbox.mass)


@mutant("fedgd", "late")
class SaysWhatItWas(fp.FedGD):
    """Neighbours are sent the model from before the step."""

    def local(self, near, w, agent):
        return w, fp.FedGD.local(self, near, w, agent)[1]


@mutant("fedgd", "schedule")
class StepsDoNotDecay(fp.FedGD):
    def local(self, near, w, agent):
        new = coupled_step(self, w, near, agent.field(w), at(self.step, 0))
        return new, new


mutant("fedsgd", "fresh")(same_sample(fp.FedSGD))


@mutant("fedsgd", "late")
class CountsTicks(fp.FedSGD):
    """The schedule of steps counts ticks, not gradient steps."""

    def local(self, near, w, agent):
        def advance(y, e):
            return coupled_step(self, y, near, agent.field(y, e), at(self.step, agent.round))

        new = fp.descend(agent, w, agent.steps(self.local_steps), advance)
        return new, new


@mutant("fedsgd", "late")
class CouplesAtTheStart(fp.FedSGD):
    """The pull to the neighbours is that of the tick's first iterate."""

    def local(self, near, w, agent):
        steps = agent.steps(self.local_steps)
        pull = 2 * self.coupling * (near.mass * w - near.total)

        def advance(y, e):
            return y - at(self.step, agent.round * steps + e) * (agent.field(y, e) + pull)

        new = fp.descend(agent, w, steps, advance)
        return new, new


@mutant("fedsgd", "late")
class GradientsHalved(fp.FedSGD):
    """The prefactor 1/|B| for 2/|B|."""

    def local(self, near, w, agent):
        steps = agent.steps(self.local_steps)

        def advance(y, e):
            return coupled_step(self, y, near, agent.field(y, e) / 2, at(self.step, agent.round * steps + e))

        new = fp.descend(agent, w, steps, advance)
        return new, new


def relaxed(name, prox):
    """FedRelax with other arguments of the prox: prox(self, near, w) gives centre and weight."""

    class Relaxed(fp.FedRelax):
        def local(self, near, w, agent):
            new = agent.prox(*prox(self, near, w))
            return new, new

    return mutant("fedrelax", "late")(named(name, Relaxed))


relaxed("DegreeForgotten", lambda self, near, w: (near.total / near.mass, self.coupling))
relaxed("HalfOfIt", lambda self, near, w: (near.total / near.mass, self.coupling * near.mass / 2))
relaxed("SumForMean", lambda self, near, w: (near.total, self.coupling * near.mass))
relaxed("TiedToItself", lambda self, near, w: (w, self.coupling * near.mass))
relaxed("OwnModelToo", lambda self, near, w: ((near.total + w) / (near.mass + 1), self.coupling * near.mass))


# One model for all nodes.


@mutant("gradient_tracking", "path")
class Untracked(fp.GradientTracking):
    """Keeps no gradient: adds the new one to the mean of the estimates."""

    def local(self, near, memory, agent):
        told, memory = super().local(near, memory._replace(own=memory.own * 0.0), agent)
        return told, memory


@mutant("gradient_tracking", "path")
class Unmixed(fp.GradientTracking):
    """Averages models and not the estimates."""

    def local(self, near, memory, agent):
        mean = mixed(near, memory.told)
        g = agent.field(mean.model)
        y = memory.told.gradient + g - memory.own
        told = Tracked(mean.model - self.step * y, y)
        return told, Tracker(told, g)


@mutant("exact_diffusion", "path")
class Uncorrected(fp.ExactDiffusion):
    """Forgets where its own steps had led."""

    def local(self, near, own, agent):
        phi, kept = super().local(near, own._replace(before=self.read(near, own)), agent)
        return phi, kept


@mutant("exact_diffusion", "path")
class Unhalved(fp.ExactDiffusion):
    """Averages with W in place of (I + W)/2, as for plain diffusion."""

    def read(self, near, own):
        return mixed(near, own.told)


@mutant("extra", "path")
class OneTick(fp.Extra):
    """Does not subtract the last tick's step."""

    def local(self, near, own, agent):
        new, kept = super().local(near, own, agent)
        return new, kept._replace(before=kept.before + self.step * agent.field(own.model))


@mutant("push_sum", "path")
class Undivided(fp.PushSum):
    """Takes the gradient at the sum of models, not at their mean."""

    def local(self, near, own, agent):
        heard = mixed(near, own)
        new = Pushed(heard.value - self.step * agent.field(heard.value), heard.ones)
        return new, new


@mutant("push_sum", "path")
class OnesStay(fp.PushSum):
    """Hands on models and not the ones."""

    def local(self, near, own, agent):
        said, _ = super().local(near, own, agent)
        new = said._replace(ones=own.ones)
        return new, new


@mutant("push_sum", "path")
class ReadsTheSum(fp.PushSum):
    def read(self, near, own):
        return mixed(near, own).value


@mutant("diffusion", "path")
class OwnOnly(fp.Diffusion):
    """Gives the neighbours' weight to itself."""

    def local(self, near, own, agent):
        return super().local(jax.tree.map(lambda a: a * 0.0, near), own, agent)
