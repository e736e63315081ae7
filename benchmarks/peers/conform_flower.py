"""Flower's strategies for a certificate. It leaves the client to the user: FedProx's is the one of its docstring."""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import copy
import gc
import logging
from importlib.metadata import version

import bridge
import torch
from bridge_torch import Point, loss
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedProx, QFedAvg
from flwr.supercore.task_identity import TaskIdentity

logging.disable(logging.INFO)
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # messages ask for it, outside a run too


class Grid:
    """Who is there: all that a strategy asks for before it sends."""

    def __init__(self, nodes):
        self.nodes = nodes

    def get_node_ids(self):
        return self.nodes


class Federation:
    def __init__(self, strategy, prox):
        self.strategy, self.prox, self.rounds = strategy, prox, 0

    def round(self, w, agents, population):
        self.rounds += 1
        by_node = {a.k + 1: a for a in agents}
        arrays = ArrayRecord([torch.tensor(w).numpy()])
        self.strategy.min_train_nodes = self.strategy.min_available_nodes = len(agents)
        sent = self.strategy.configure_train(self.rounds, arrays, ConfigRecord(), Grid(list(by_node)))
        # It asks in a random order; sums in another order are other numbers.
        sent = sorted(sent, key=lambda message: message.metadata.dst_node_id)
        replies = [self.train(message, by_node[message.metadata.dst_node_id]) for message in sent]
        gc.freeze()  # its q-FedAvg collects garbage after every reply: a second a round, over all that PyTorch imported
        found, _ = self.strategy.aggregate_train(self.rounds, replies)
        gc.unfreeze()
        return found.to_numpy_ndarrays()[0].tolist()

    def train(self, msg, agent):
        net = Point(msg.content["arrays"].to_numpy_ndarrays()[0].tolist())
        global_params = list(copy.deepcopy(net).parameters())
        optimizer, first = torch.optim.SGD(net.parameters(), lr=bridge.STEP), 0.0
        if not self.prox:
            first = agent.loss(net.w.tolist())
        for _ in range(agent.steps):
            optimizer.zero_grad()
            value = loss(net.w, agent)
            if self.prox:
                mu = msg.content["config"]["proximal-mu"]
                proximal_term = 0.0
                for local_weights, global_weights in zip(net.parameters(), global_params, strict=True):
                    proximal_term += (local_weights - global_weights).norm(2)
                value = value + (mu / 2) * proximal_term
            value.backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": agent.weight, "train_loss": first})
        arrays = ArrayRecord([net.w.detach().numpy()])
        return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


def prox():
    return Federation(FedProx(fraction_evaluate=0.0, proximal_mu=bridge.PULL), True)


def fair():
    return Federation(QFedAvg(client_learning_rate=bridge.STEP, q=bridge.Q, fraction_evaluate=0.0), False)


bridge.serve({"fedprox": prox, "qfedavg": fair}, version("flwr"))
