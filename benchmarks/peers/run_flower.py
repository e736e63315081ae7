"""The jobs on Flower's simulation: FedAvg of flwr.serverapp.strategy, clients in NumPy."""

import os
import sys

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))  # Ray's workers read the job too

from importlib.metadata import version

from common import Clock, Job, flatten, local_steps, report
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

FOLDER, ROUNDS = sys.argv[1], int(sys.argv[2])
CACHE = {}


class Told(FedAvg):
    """FedAvg that asks those whom the job names, and looks at the clock."""

    def __init__(self, job, clock):
        super().__init__(fraction_evaluate=0.0, min_available_nodes=job.agents)
        self.job, self.clock, self.nodes = job, clock, None

    def configure_train(self, server_round, arrays, config, grid):
        while self.nodes is None or len(self.nodes) < self.job.agents:
            self.nodes = sorted(grid.get_node_ids())
        for k in self.job.participants(server_round - 1):
            told = ConfigRecord({"agent": k, "round": server_round - 1})
            content = RecordDict({"arrays": arrays, "config": told})
            yield Message(content=content, message_type=MessageType.TRAIN, dst_node_id=self.nodes[k])

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        self.clock.lap()
        return found


client = ClientApp()
TORCH = ("cnn", "transformer")  # kinds of models that are trained by PyTorch


def with_torch(job, w, batches):
    import torch
    from torch_model import Model, criterion, tensors, train

    if "model" not in CACHE:
        torch.set_num_threads(1)
        CACHE["model"], CACHE["rows"] = Model(job), tensors(job)
    model = CACHE["model"]
    model.load_state_dict({n: torch.from_numpy(v) for n, v in w.items()})
    train(model, criterion(job.kind), CACHE["rows"], job.step, batches)
    return {n: p.numpy() for n, p in model.state_dict().items()}


@client.train()
def train(message, context):
    if "job" not in CACHE:
        CACHE["job"] = Job(FOLDER)
    job, told = CACHE["job"], message.content["config"]
    names = sorted(job.parameters)
    w = dict(zip(names, message.content["arrays"].to_numpy_ndarrays(), strict=True))
    batches = job.batches(told["round"], told["agent"])
    w = with_torch(job, w, batches) if job.kind in TORCH else local_steps(job, w, batches)
    content = {"arrays": ArrayRecord([w[n] for n in names]), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)


def main():
    job, clock, server = Job(FOLDER), Clock(many=True), ServerApp()
    names = sorted(job.parameters)
    held, flat = job.parameters, flatten
    if job.kind in TORCH:
        from torch_model import Model

        held, flat = {n: p.detach().numpy() for n, p in Model(job).named_parameters()}, Model.flattened

    @server.main()
    def run(grid, context):
        start = ArrayRecord([held[n] for n in names])
        strategy = Told(job, clock)
        if job.clip is not None:
            size = job.who.shape[1]
            strategy = DifferentialPrivacyServerSideFixedClipping(strategy, job.noise, job.clip, size)
        result = strategy.start(grid=grid, initial_arrays=start, num_rounds=ROUNDS)
        w = dict(zip(names, result.arrays.to_numpy_ndarrays(), strict=True))
        report(clock, ROUNDS, flat(w), version=version("flwr"))

    ray = {"num_cpus": os.cpu_count(), "_node_ip_address": "127.0.0.1"}  # else it listens on every interface
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": ray}
    run_simulation(server, client, num_supernodes=job.agents, backend_config=resources)


if __name__ == "__main__":
    main()
