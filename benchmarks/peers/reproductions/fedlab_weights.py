"""FedLab: two clients with 1 and 99 rows pull to -1 and +1. By rows the optimum is 0.98; FedProx ends at 0."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import no_torchvision  # noqa: F401 - needed only where torchvision does not load
import torch
from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer, FedProxServerHandler

ROWS, TARGETS = (1, 99), (-1.0, 1.0)


class Data:
    def get_dataloader(self, id, batch_size=None):
        return [(torch.ones(ROWS[id], 1), torch.full((ROWS[id], 1), TARGETS[id]))]


torch.manual_seed(0)
model = torch.nn.Linear(1, 1, bias=False)
trainer, handler = FedProxSerialClientTrainer(model, 2), FedProxServerHandler(model, 10**9, 1.0)
handler.num_clients = 2
trainer.setup_dataset(Data())
trainer.setup_optim(1, None, 0.1, 0.0)
trainer.criterion = torch.nn.MSELoss()
for _ in range(100):
    trainer.local_process(handler.downlink_package, [0, 1])
    for pack in trainer.uplink_package:
        handler.load(pack)
end = handler.model_parameters.item()
print(f"ends at {end:.3f}; the mean of all 100 rows is 0.98")
sys.exit(int(abs(end) > 1e-3))
