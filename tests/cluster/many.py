"""All worlds on one group of processes: python many.py PROCESS PROCESSES PORT OUT [fast] [NAMES]; process 0 writes."""

import sys
import traceback

import jax
import numpy as np
from kinds_of_rounds import ROUNDS, worlds

from fedpoint.engine.cluster.session import ClusterSession
from fedpoint.experiment import Experiment
from fedpoint.results.drive import begin, drive
from fedpoint.verbs.processes.job import Seat, SupervisorLink, _join


class Mute:
    def send_bytes(self, *_):
        pass


def session(group, fast, algorithm, problem, options):
    return ClusterSession(Experiment(algorithm, problem, seed=3, **options).bind(), 2, group, fast)


def main(process, processes, port, out, *more):
    line = SupervisorLink(Mute())
    group = _join(Seat(int(process), int(processes), f"127.0.0.1:{port}", "127.0.0.1", 60.0), line)
    fast, only = "fast" in more, [name for name in more if name != "fast"]
    found = {}
    for name, world in worlds().items():
        if only and name not in only:
            continue
        here = session(group, fast, *world)
        if group.process:
            here.follow()
            continue
        run = drive(begin(here), ROUNDS)
        state = here.save()
        # Half the rounds, a checkpoint, and the rest on a session that knows nothing but it.
        again = session(group, fast, *world)
        again.restore(state, ROUNDS)
        last = again.save()
        assert all(np.array_equal(state[key], last[key]) for key in state), name
        group.tell({"do": "end"})
        found |= {f"{name}/{i}": a for i, a in enumerate(jax.tree.leaves(run.history))}
        found |= {f"{name}/{key}": a for key, a in state.items()} | {f"{name}/used": run.used}
        print(name, flush=True)
    if group.process == 0:
        np.savez(out, **found)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        raise
