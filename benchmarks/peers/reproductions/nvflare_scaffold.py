"""NVFlare: the hub's control moves by the mean change of those who took part, whatever part of all clients they are.
Two of ten clients take part; the hub's control should move by 2/10 of their mean change."""

import logging
import sys

import numpy as np
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_common.workflows.scaffold import Scaffold

logging.disable(logging.WARNING)


class Here(Scaffold):
    """Ten clients in this process, of which two answer with a change of 1."""

    def event(self, *_):
        pass

    def save_model(self, model):
        pass

    def sample_clients(self, num_clients=None):
        return ["site-1", "site-2"]

    def send_model_and_wait(self, targets, data, **_):
        return [self.answer(name) for name in targets]

    def answer(self, name):
        meta = {AlgorithmConstants.SCAFFOLD_CTRL_DIFF: {"w": np.ones(1)}, "NUM_STEPS_CURRENT_ROUND": 1}
        meta["client_name"] = name
        model = FLModel(params={"w": np.zeros(1)}, params_type=ParamsType.FULL, meta=meta)
        model.current_round = 0
        return model


scaffold = Here(num_clients=2, num_rounds=1)
scaffold.fl_ctx, scaffold.model = FLContext(), FLModel(params={"w": np.zeros(1)}, params_type=ParamsType.FULL)
scaffold._global_ctrl_weights = {"w": np.zeros(1)}
scaffold._run_rounds()
moved = float(scaffold._global_ctrl_weights["w"][0])
print(f"2 of 10 clients change their controls by 1; the hub's moves by {moved:g}, SCAFFOLD's by 0.2")
sys.exit(int(abs(moved - 0.2) < 1e-6))
