"""fluke: FedNova puts its normalising weights on models in place of changes; they do not sum to one. Two clients
that are at their common optimum already, with 1 and 4 batches, move away from it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import no_torchvision  # noqa: F401 - needed only where torchvision does not load
import torch
from fluke import FlukeENV
from fluke.algorithms.fednova import FedNovaClient, FedNovaServer
from fluke.comm import Channel
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

FlukeENV().set_device("cpu")
ROWS = (1, 4)


def client(k, channel):
    data = FastDataLoader(
        torch.ones(ROWS[k], 1), torch.ones(ROWS[k], 1), num_labels=1, batch_size=1, skip_singleton=False
    )
    sgd = OptimizerConfigurator({"name": "SGD", "lr": 0.05, "momentum": 0.0})
    made = FedNovaClient(k, data, None, sgd, torch.nn.MSELoss(), local_epochs=1)
    made.set_channel(channel)
    return made


model = torch.nn.Linear(1, 1, bias=False)
model.weight.data.fill_(1.0)  # the optimum of both
server = FedNovaServer(model, None, [None, None], weighted=True)
server._channel = Channel()
clients = [client(k, server.channel) for k in (0, 1)]
server.broadcast_model(clients)
for one in clients:
    one.local_update(1)
server.aggregate(clients, server.receive_client_models(clients, state_dict=False))
end = server.model.weight.item()
print(f"after a round from the common optimum 1: {end:.3f}")
sys.exit(int(abs(end - 1.0) < 1e-3))
