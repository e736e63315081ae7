"""Which collectives does the program of two processes consist of? Two devices of one process stand in for them."""

import json
import re
import sys

import jax
import numpy as np

import fedpoint as fp
from fedpoint.engine.cluster.session import PROGRAMS, ClusterSession, ProcessGroup
from fedpoint.experiment import Experiment

DIM = 7
COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(-start)?\(")


class Both(ProcessGroup):
    """Every device has the same share."""

    def put(self, tree):
        return super().put(tree) if self.processes == 1 else jax.tree.map(self._twice, tree)

    def _twice(self, a):
        sharding = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec("processes"))
        return jax.device_put(np.stack([np.asarray(a)] * self.processes), sharding)


def collectives(algorithm, participation, fast):
    """(kind, shape) of every collective in the compiled program."""
    problem = fp.problems.LinearStream.sample(agents=50, dim=DIM, seed=0)
    bound = Experiment(algorithm, problem, participation).bind()
    with jax.enable_x64(True):
        here = ClusterSession(bound, 1, Both(0, 2), fast)
        numbers = (np.int32(n) for n in (0, 4, 1))
        lowered = PROGRAMS[here.layout.tuning.compiled].lower(
            here.group.mesh, here.layout, here.inputs, here.state, here.seeds, *numbers
        )
        text = lowered.compile().as_text()
    found = [(kind, shape) for shape, kind, _ in COLLECTIVE.findall(text)]
    return [(kind, one) for kind, shapes in found for one in re.findall(r"[a-z]\d*\[[\d,]*\]", shapes)]


if __name__ == "__main__":
    cases = {
        "fedavg": lambda: collectives(fp.FedAvg(step=0.1), 10, fast=True),
        "scaffold": lambda: collectives(fp.Scaffold(step=0.1, local_steps=2), None, fast=True),
        "blocks": lambda: collectives(fp.FedAvg(step=0.1), 10, fast=False),
    }
    print(json.dumps({name: cases[name]() for name in sys.argv[1:]}))
