"""What a user may bring: a method, a participation, a problem and a metric, in a module of their own."""

import jax.numpy as jnp

import fedpoint as fp


class Dithered(fp.FedAvg):
    sigma: float = 0.1

    def local(self, w, memory, agent):
        change, memory = super().local(w, memory, agent)
        return change + self.sigma * agent.normal(change), memory


class RoundRobin(fp.Participation):
    size: int

    def slots(self, agents):
        return self.size

    def tick(self, key, p, round):
        agents = (jnp.arange(self.size) + round * self.size) % len(p)
        return fp.Tick.of(agents, weight=p[agents] * len(p) / self.size)


class Shifted(fp.problems.Quadratic):
    def __init__(self, shift, **more):
        super().__init__(1.0, [[shift], [1.0 + shift]], **more)


def drift(state):
    return jnp.sum(state.model**2)
