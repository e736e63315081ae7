"""NVFlare's own methods for a certificate: SCAFFOLD's controller and helper, FedAvg's controller and FedProx's loss."""

import copy
import logging
from importlib.metadata import version

import bridge
import numpy as np
import torch
from bridge_torch import Point, loss
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.app_common.workflows.scaffold import Scaffold
from nvflare.app_opt.pt.fedproxloss import PTFedProxLoss
from nvflare.app_opt.pt.scaffold import PTScaffoldHelper

logging.disable(logging.WARNING)


class Here:
    """A controller whose clients are in this process."""

    def begin(self, w):
        self.fl_ctx, self.helpers = FLContext(), {}
        self.model = FLModel(params={"w": np.array(w)}, params_type=ParamsType.FULL)

    def event(self, *_):
        pass

    def save_model(self, model):
        pass

    def sample_clients(self, num_clients=None):
        return list(self.agents)

    def send_model_and_wait(self, targets, data, **_):
        return [self.train(agent, data) for agent in targets]

    def reply(self, net, agent, **meta):
        meta |= {"NUM_STEPS_CURRENT_ROUND": agent.weight, "client_name": f"site-{agent.k}"}
        model = FLModel(params={"w": net.w.detach().numpy().copy()}, params_type=ParamsType.FULL, meta=meta)
        model.current_round = self.current_round
        return model


class Controlled(Here, Scaffold):
    def begin(self, w):
        super().begin(w)
        self._global_ctrl_weights = {"w": np.zeros(len(w))}

    def go(self):
        self._run_rounds()

    def train(self, agent, data):
        net = Point(data.params["w"].tolist())
        first, optimizer = copy.deepcopy(net), torch.optim.SGD(net.parameters(), lr=bridge.STEP)
        helper = self.helpers.setdefault(agent.k, PTScaffoldHelper())
        if helper.c_local is None:
            helper.init(net)
        else:
            helper._prepare_model(net)
        helper.load_global_controls(data.meta[AlgorithmConstants.SCAFFOLD_CTRL_GLOBAL])
        c_global, c_local = helper.get_params()
        for _ in range(agent.steps):
            optimizer.zero_grad()
            loss(net.w, agent).backward()
            optimizer.step()
            helper.model_update(net, bridge.STEP, c_global, c_local)
        helper.terms_update(net, bridge.STEP, c_global, c_local, first)
        return self.reply(net, agent, **{AlgorithmConstants.SCAFFOLD_CTRL_DIFF: helper.get_delta_controls()})


class Proximal(Here, BaseFedAvg):
    def run(self):
        raise NotImplementedError

    def go(self):
        self.current_round = 0
        results = self.send_model_and_wait(self.sample_clients(), self.model)
        self.model = self.update_model(self.model, self.aggregate(results))

    def train(self, agent, data):
        net, term = Point(data.params["w"].tolist()), PTFedProxLoss(mu=bridge.PULL)
        first, optimizer = copy.deepcopy(net), torch.optim.SGD(net.parameters(), lr=bridge.STEP)
        for _ in range(agent.steps):
            optimizer.zero_grad()
            (loss(net.w, agent) + term(net, first)).backward()
            optimizer.step()
        return self.reply(net, agent)


class Federation:
    def __init__(self, Controller):
        self.controller, self.begun = Controller(num_clients=5, num_rounds=1), False

    def round(self, w, agents, population):
        if not self.begun:
            self.controller.begin(w)
            self.begun = True
        self.controller.agents = agents
        self.controller.model.params = {"w": np.array(w)}
        self.controller.go()
        return self.controller.model.params["w"].tolist()


bridge.serve({"scaffold": lambda: Federation(Controlled), "fedprox": lambda: Federation(Proximal)}, version("nvflare"))
