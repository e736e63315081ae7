"""NVFlare's components for the jobs: its controllers with the job's participants, and executors in NumPy."""

import os
from importlib.metadata import version
from pathlib import Path

import numpy as np
from common import Clock, Job, flatten, gradient, local_steps, report
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scaffold import Scaffold


class Told:
    """Asks those whom the job names, and looks at the clock."""

    def __init__(self, folder, rounds):
        self.job = Job(folder)
        super().__init__(num_clients=self.job.who.shape[1], num_rounds=rounds)
        self.clock, self.done = Clock(many=True), 0

    def load_model(self):
        return FLModel(params=dict(self.job.parameters), params_type=ParamsType.FULL)

    def sample_clients(self, num_clients=None):
        return [f"site-{k + 1}" for k in self.job.participants(self.current_round)]

    def save_model(self, model):
        self.clock.lap()
        self.done += 1
        if self.done > 1:  # a later report takes its place
            report(self.clock, self.done, flatten(model.params), version=version("nvflare"))


class ToldFedAvg(Told, FedAvg):
    pass


class ToldScaffold(Told, Scaffold):
    pass


class Trainer(Executor):
    def __init__(self, folder):
        super().__init__()
        self.folder, self.job = folder, None

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        self.job = self.job or Job(self.folder)
        model = FLModelUtils.from_shareable(shareable)
        agent = int(fl_ctx.get_identity_name().split("-")[1]) - 1
        w = {n: model.params[n] for n in self.job.parameters}
        batches = self.job.batches(model.current_round, agent)
        w, meta = self.train(agent, w, batches, model.meta)
        meta["NUM_STEPS_CURRENT_ROUND"] = 1
        return FLModelUtils.to_shareable(FLModel(params=w, params_type=ParamsType.FULL, meta=meta))

    def train(self, agent, w, batches, meta):
        return local_steps(self.job, w, batches), {}


class ScaffoldTrainer(Trainer):
    """Keeps its control in a file: a client's process ends with its turn."""

    def train(self, agent, w, batches, meta):
        file = Path(os.environ["PEER_OUT"]) / f"control-{os.environ['PEER_MARK']}-{agent}.npz"
        c = meta[AlgorithmConstants.SCAFFOLD_CTRL_GLOBAL]
        own = dict(np.load(file)) if file.exists() else {n: np.zeros_like(v) for n, v in w.items()}
        y = {n: v.copy() for n, v in w.items()}
        for rows in batches:
            for n, g in gradient(self.job, y, rows).items():
                y[n] -= self.job.step * (g - own[n] + c[n])
        change = {n: (w[n] - y[n]) / (len(batches) * self.job.step) - c[n] for n in w}
        np.savez(file, **{n: own[n] + change[n] for n in own})
        return y, {AlgorithmConstants.SCAFFOLD_CTRL_DIFF: change}
