"""NVFlare's components for the jobs: its FedAvg controller with the job's participants, and an executor in NumPy."""

from importlib.metadata import version

from common import Clock, Job, flatten, local_steps, report
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg


class Told(FedAvg):
    """Asks those whom the job names, and looks at the clock."""

    def __init__(self, folder, rounds):
        self.job = Job(folder)
        super().__init__(num_clients=self.job.who.shape[1], num_rounds=rounds)
        self.clock, self.done = Clock(), 0

    def load_model(self):
        return FLModel(params=dict(self.job.parameters), params_type=ParamsType.FULL)

    def sample_clients(self, num_clients=None):
        return [f"site-{k + 1}" for k in self.job.participants(self.current_round)]

    def save_model(self, model):
        self.clock.lap()
        self.done += 1
        if self.done > 1:  # a later report takes its place
            report(self.clock, self.done, flatten(model.params), version=version("nvflare"))


class Trainer(Executor):
    def __init__(self, folder):
        super().__init__()
        self.folder, self.job = folder, None

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        self.job = self.job or Job(self.folder)
        model = FLModelUtils.from_shareable(shareable)
        agent = int(fl_ctx.get_identity_name().split("-")[1]) - 1
        batches = self.job.batches(model.current_round, agent)
        w = local_steps(self.job, {n: model.params[n] for n in self.job.parameters}, batches)
        sent = FLModel(params=w, params_type=ParamsType.FULL, meta={"NUM_STEPS_CURRENT_ROUND": 1})
        return FLModelUtils.to_shareable(sent)
