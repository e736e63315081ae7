"""fluke: SCAFFOLD averages models by numbers of examples (weighted=True) and controls alike. Two clients with 1 and 3
rows, of unequal curvature, pull to -1 and +1: it ends at the optimum of equal weights."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import no_torchvision  # noqa: F401 - needed only where torchvision does not load
import torch
from fluke import FlukeENV
from fluke.algorithms.scaffold import SCAFFOLDClient, SCAFFOLDServer
from fluke.comm import Channel
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

FlukeENV().set_device("cpu")
ROWS, TARGETS = (1, 3), (-1.0, 1.0)
torch.manual_seed(0)


def client(k, channel):
    x, y = torch.ones(ROWS[k], 1), torch.full((ROWS[k], 1), TARGETS[k])
    data = FastDataLoader(x, y, num_labels=1, batch_size=ROWS[k], skip_singleton=False)
    sgd = OptimizerConfigurator({"name": "SGD", "lr": 0.05})
    made = SCAFFOLDClient(k, data, None, sgd, torch.nn.MSELoss(), local_epochs=5)
    made.set_channel(channel)
    return made


server = SCAFFOLDServer(torch.nn.Linear(1, 1, bias=False), None, [None, None], weighted=True)
server._channel = Channel()
clients = [client(k, server.channel) for k in (0, 1)]
for r in range(300):
    server.broadcast_model(clients)
    for one in clients:
        one.local_update(r + 1)
    server.aggregate(clients, server.receive_client_models(clients, state_dict=False))
end = server.model.weight.item()
print(f"ends at {end:.3f}; the optimum by rows is 0.5, of equal weights 0")
sys.exit(int(abs(end) > 1e-3))
