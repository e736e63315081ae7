"""pfl's own methods for a certificate: FedProx weighted by rows, SCAFFOLD as it is."""

from importlib.metadata import version

import bridge
import torch
from bridge_torch import Point, loss
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

EVALUATION = 1 << 30
NOBODY = torch.zeros(1)


class Net(Point):
    def loss(self, _, agent=None):
        return loss(self.w, agent) + 0.0  # pfl adds to it in place

    def metrics(self, _, agent=None):
        return {"nothing": Weighted(0.0, 1)}


class Data(Dataset):
    """As many batches as an agent has local steps. Its length is what pfl weights by, or counts steps by."""

    def __init__(self, agent, length):
        super().__init__(raw_data=[NOBODY], user_id=str(agent.k), train_kwargs={"agent": agent})
        self.length, self.steps = length, agent.steps

    def __len__(self):
        return self.length

    def iter(self, batch_size):
        return iter([[NOBODY]] * (1 if batch_size == EVALUATION else self.steps))


class Federation:
    def __init__(self, scaffold):
        self.scaffold, self.algorithm, self.rounds = scaffold, SCAFFOLD() if scaffold else FedProx(), 0
        self.storage, self.model = InMemoryUserStateStorage(), None

    def round(self, w, agents, population):
        if self.model is None:
            net = Net(w)
            self.model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
            # pfl keeps changes in single precision, which is coarser than what is compared here.
            self.model._model_diff["w"] = torch.empty(len(w))
        net = self.model.pytorch_model
        with torch.no_grad():
            net.w.copy_(torch.tensor(w))
        turn = iter(agents)
        data = FederatedDataset(
            lambda a: Data(a, a.steps if self.scaffold else int(a.weight * 1e12)), lambda: next(turn)
        )
        self.rounds += 1
        common = {
            "central_num_iterations": self.rounds,
            "evaluation_frequency": 10**9,
            "train_cohort_size": len(agents),
            "val_cohort_size": None,
        }
        if self.scaffold:
            more = {"population": population, "use_gradient_as_control_variate": False}
            parameters, extra = SCAFFOLDParams(**common, **more, user_state_storage=self.storage), []
        else:
            parameters, extra = FedProxParams(**common, mu=bridge.PULL), [WeightByDatapoints()]
        batch = 1 if self.scaffold else None
        train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=bridge.STEP, local_batch_size=batch)
        backend = SimulatedBackend(data, data, postprocessors=extra)
        self.algorithm.run(
            parameters,
            backend,
            self.model,
            train,
            NNEvalHyperParams(local_batch_size=EVALUATION),
            send_metrics_to_platform=False,
        )
        return net.w.tolist()


bridge.serve({"scaffold": lambda: Federation(True), "fedprox": lambda: Federation(False)}, version("pfl"))
