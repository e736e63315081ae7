"""The app that Flower's SuperLink and SuperNodes run: FedAvg of flwr.serverapp.strategy, clients in NumPy."""

from importlib.metadata import version

from common import Clock, Job, flatten, local_steps, report
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()  # each in a line of its own: Flower looks for them in the text


class Timed(FedAvg):
    """FedAvg that looks at the clock."""

    clock = None

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        self.clock.lap()
        return found


@client.train()
def train(message, context):
    job, round = Job(context.run_config["folder"]), message.content["config"]["server-round"] - 1
    names = sorted(job.parameters)
    w = dict(zip(names, message.content["arrays"].to_numpy_ndarrays(), strict=True))
    w = local_steps(job, w, job.batches(round, context.node_config["agent"]))
    content = {"arrays": ArrayRecord([w[n] for n in names]), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)


@server.main()
def run(grid, context):
    job, rounds = Job(context.run_config["folder"]), context.run_config["rounds"]
    names = sorted(job.parameters)
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=job.agents, min_available_nodes=job.agents)
    strategy.clock = Clock(many=True)
    start = ArrayRecord([job.parameters[n] for n in names])
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)
    w = dict(zip(names, result.arrays.to_numpy_ndarrays(), strict=True))
    report(strategy.clock, rounds, flatten(w), version=version("flwr"))
