"""pfl: an agent's control learns its change of the model with the opposite sign. One client whose gradient is 1: after
a round its control should be 1."""

import sys

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel


class Slope(torch.nn.Module):
    """The loss is w: its gradient is 1 everywhere."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def loss(self, row):
        return self.w.sum() + 0.0 * row.sum()

    def metrics(self, row):
        return {"nothing": Weighted(0.0, 1)}


saved = []


class Storage(InMemoryUserStateStorage):
    def save_state(self, state, user_id, *more, **other):
        saved.append(state)
        return super().save_state(state, user_id, *more, **other)


net = Slope()
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
rows = FederatedDataset(lambda user: Dataset(raw_data=[torch.ones(4, 1)], user_id="0"), lambda: "0")
parameters = SCAFFOLDParams(
    central_num_iterations=1,
    evaluation_frequency=10**9,
    train_cohort_size=1,
    val_cohort_size=None,
    population=1,
    use_gradient_as_control_variate=False,
    user_state_storage=Storage(),
)
train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=1)
SCAFFOLD().run(
    parameters, SimulatedBackend(rows, rows), model, train, NNEvalHyperParams(local_batch_size=None),
    send_metrics_to_platform=False,
)  # fmt: skip
control = saved[-1]["w"].item()
print(f"the gradient is 1 everywhere; after a round the client's control is {control:g}")
sys.exit(int(control > 0))
