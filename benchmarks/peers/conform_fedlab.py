"""FedLab's own methods for a certificate."""

from importlib.metadata import version

import bridge
import no_torchvision  # noqa: F401
import torch
from bridge_torch import Point, loss
from fedlab.contrib.algorithm.fednova import FedNovaSerialClientTrainer, FedNovaServerHandler
from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer, FedProxServerHandler
from fedlab.contrib.algorithm.qfedavg import qFedAvgClientTrainer, qFedAvgServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler


class Data:
    """As many batches as an agent has local steps; a batch says whose it is."""

    def __init__(self):
        self.agents = {}

    def get_dataloader(self, id, batch_size=None):
        return [(0, self.agents[id])] * self.agents[id].steps


class Federation:
    def __init__(self, Trainer, Handler, local=(), server=None, value=False):
        self.Trainer, self.Handler, self.local, self.server, self.value = Trainer, Handler, local, server, value
        self.trainer = None

    def begin(self, w, population):
        self.data, model = Data(), Point(w)
        self.trainer = self.Trainer(model, population)
        self.handler = self.Handler(model, 10**9, 1.0)
        self.handler.num_clients = population
        if self.server is not None:
            self.handler.setup_optim(**self.server)
        self.trainer.setup_dataset(self.data)
        self.trainer.setup_optim(1, None, bridge.STEP, *self.local)
        self.trainer.criterion = lambda w, agent: loss(w, agent, self.value)

    def round(self, w, agents, population):
        if self.trainer is None:
            self.begin(w, population)
        self.handler.set_model(torch.tensor(w))
        self.handler.sample_ratio = (len(agents) + 0.5) / population if len(agents) < population else 1.0
        self.data.agents = {a.k: a for a in agents}
        self.work([a.k for a in agents])
        return self.handler.model_parameters.tolist()

    def work(self, who):
        self.trainer.local_process(self.handler.downlink_package, who)
        for pack in self.trainer.uplink_package:
            self.handler.load(pack)


class Alone(Federation):
    """q-FedAvg has no serial trainer: one trainer plays all clients."""

    def begin(self, w, population):
        make = self.Trainer
        self.Trainer = lambda model, population: make(model)
        super().begin(w, population)
        self.trainer.lr = bridge.STEP  # its own setup_optim does not set what its train reads

    def work(self, who):
        down = self.handler.downlink_package
        for k in who:
            self.trainer.local_process(down, k)
            self.handler.load(self.trainer.uplink_package)


bridge.serve(
    {
        "scaffold": lambda: Federation(ScaffoldSerialClientTrainer, ScaffoldServerHandler, server={"lr": 1.0}),
        "fedprox": lambda: Federation(FedProxSerialClientTrainer, FedProxServerHandler, (bridge.PULL,)),
        "fednova": lambda: Federation(FedNovaSerialClientTrainer, FedNovaServerHandler, server={}),
        "qfedavg": lambda: Alone(qFedAvgClientTrainer, qFedAvgServerHandler, (bridge.Q,), value=True),
    },
    version("fedlab"),
)
