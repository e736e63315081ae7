"""APPFL's FedProx trainer and its FedAvg aggregator, weighted by numbers of rows, for a certificate."""

from importlib.metadata import version

import appfl_parts
import bridge
import torch
from appfl.algorithm.aggregator import FedAvgAggregator
from appfl.algorithm.trainer.fedprox_trainer import FedProxTrainer
from bridge_torch import Point, loss
from omegaconf import OmegaConf

WEIGHTED = {"client_weights_mode": "sample_size", "optimize_memory": False}  # it collects garbage at every number


class Model(Point):
    def forward(self, data):
        return self.w + 0.0 * data.sum()


class Federation:
    def __init__(self):
        self.aggregator = None
        self.trainers = {}

    def trainer(self, agent, w):
        configs = {"mode": "step", "num_local_steps": agent.steps, "optim": "SGD", "optim_args": {"lr": bridge.STEP}}
        configs |= {"mu": bridge.PULL, "train_batch_size": 1, "optimize_memory": False}
        return FedProxTrainer(
            model=Model(w),
            loss_fn=None,
            metric=appfl_parts.nothing,
            train_dataset=appfl_parts.One(0.0),
            train_configs=OmegaConf.create(configs),
            logger=appfl_parts.Quiet(),
        )

    def round(self, w, agents, population):
        if self.aggregator is None:
            self.aggregator = FedAvgAggregator(Model(w), OmegaConf.create(WEIGHTED))
        local = {}
        for agent in agents:
            trainer = self.trainers.setdefault(agent.k, self.trainer(agent, w))
            trainer.loss_fn = lambda output, _, agent=agent: loss(output, agent)
            trainer.load_parameters({"w": torch.tensor(w)})
            trainer.train()
            found = trainer.get_parameters()
            local[agent.k] = found[0] if isinstance(found, tuple) else found
            self.aggregator.set_client_sample_size(agent.k, round(agent.weight * 1e12))
        self.aggregator.global_state = {"w": torch.tensor(w)}
        return self.aggregator.aggregate(local)["w"].tolist()


bridge.serve({"fedprox": Federation}, version("appfl"))
