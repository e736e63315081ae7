"""Flower: the client of FedProx's docstring adds (mu/2) |y - w|, a norm that is not squared. The pull it gives does not
grow with the distance."""

import inspect
import sys

import torch
from flwr.serverapp.strategy import FedProx

line = next(row.strip() for row in inspect.getsource(FedProx).splitlines() if ".norm(2)" in row)
pulls = []
for far in (0.1, 1.0, 10.0):
    local, distant, proximal_term = torch.tensor([far], requires_grad=True), torch.zeros(1), 0.0
    local_weights, global_weights = local, distant  # the names of the docstring
    space = {"local_weights": local_weights, "global_weights": global_weights, "proximal_term": proximal_term}
    exec(line, space)
    (1.0 / 2 * space["proximal_term"]).backward()
    pulls.append(local.grad.item())
print(f"'{line}': pull {pulls} at distances 0.1, 1, 10 with mu = 1; FedProx's is [0.1, 1, 10]")
sys.exit(int(len(set(pulls)) != 1))
