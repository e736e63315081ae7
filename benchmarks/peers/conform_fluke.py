"""fluke's own methods for a certificate, weighted by numbers of examples."""

from importlib.metadata import version

import bridge
import no_torchvision  # noqa: F401
import torch
from bridge_torch import Point, loss
from fluke import FlukeENV
from fluke.algorithms.fednova import FedNovaClient, FedNovaServer
from fluke.algorithms.fedprox import FedProxClient
from fluke.algorithms.scaffold import SCAFFOLDClient, SCAFFOLDServer
from fluke.comm import Channel
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server

NOBODY = torch.zeros(1)


class Data(FastDataLoader):
    """As many batches as an agent has local steps; its size is what fluke weights by."""

    def __init__(self, agent):
        self.size, self.n_batches = round(agent.weight * 1e12), agent.steps

    def __iter__(self):
        return iter([(NOBODY, NOBODY)] * self.n_batches)


class Federation:
    def __init__(self, Client, MakeServer, **more):
        self.Client, self.MakeServer, self.more = Client, MakeServer, more
        self.server, self.clients, self.rounds = None, {}, 0

    def client(self, agent, channel):
        client = self.Client(
            index=agent.k,
            train_set=Data(agent),
            test_set=None,
            optimizer_cfg=OptimizerConfigurator({"name": "SGD", "lr": bridge.STEP, "momentum": 0.0}),
            loss_fn=lambda w, _: loss(w, agent),
            local_epochs=1,
            **self.more,
        )
        client.set_channel(channel)
        return client

    def round(self, w, agents, population):
        if self.server is None:
            self.server = self.MakeServer(Point(w), None, [None] * population, weighted=True)
            self.server._channel = Channel()
        self.rounds += 1
        with torch.no_grad():
            self.server.model.w.copy_(torch.tensor(w))
        who = []
        for agent in agents:
            client = self.clients.setdefault(agent.k, self.client(agent, self.server.channel))
            client.hyper_params.loss_fn = lambda y, _, agent=agent: loss(y, agent)
            who.append(client)
        self.server.broadcast_model(who)
        for client in who:
            client.local_update(self.rounds)
        self.server.aggregate(who, self.server.receive_client_models(who, state_dict=False))
        return self.server.model.w.tolist()


FlukeENV().set_device("cpu")
bridge.serve(
    {
        "scaffold": lambda: Federation(SCAFFOLDClient, SCAFFOLDServer),
        "fedprox": lambda: Federation(FedProxClient, Server, mu=bridge.PULL),
        "fednova": lambda: Federation(FedNovaClient, FedNovaServer),
    },
    version("fluke-fl"),
)
