"""The jobs' models in PyTorch, for the peers that use it."""

import numpy as np
import torch
from common import flatten
from torch import nn
from torch.nn import functional as F

HEADS = 4


class Model(nn.Module):
    """Kernels are held as PyTorch has them: outputs, inputs, height, width."""

    def __init__(self, job):
        super().__init__()
        self.kind, self.run = job.kind, getattr(self, f"_{job.kind}")
        for name, value in job.parameters.items():
            value = np.ascontiguousarray(value.transpose(3, 2, 0, 1)) if value.ndim == 4 else np.array(value)
            setattr(self, name, nn.Parameter(torch.from_numpy(value)))

    def forward(self, x):
        return self.run(x)

    def flat(self):
        """All parameters in the order and shapes of the job."""
        return self.flattened({n: p.detach().numpy() for n, p in self.named_parameters()})

    @staticmethod
    def flattened(arrays):
        return flatten({n: a.transpose(2, 3, 1, 0) if a.ndim == 4 else a for n, a in arrays.items()})

    def _linear(self, x):
        return x @ self.w

    _logistic = _softmax = _linear

    def _network(self, x):
        return F.relu(x @ self.w1 + self.b1) @ self.w2 + self.b2

    def _cnn(self, x):
        x = F.max_pool2d(F.relu(F.conv2d(x, self.c1, self.bc1, padding=2)), 2)
        x = F.max_pool2d(F.relu(F.conv2d(x, self.c2, self.bc2, padding=2)), 2)
        x = x.permute(0, 2, 3, 1).flatten(1)
        return F.relu(x @ self.d1 + self.bd1) @ self.d2 + self.bd2

    def _transformer(self, x):
        z = self.letters[x] + self.places
        width = z.shape[-1:]
        for n in range(2):
            looked = F.rms_norm(z, width, eps=1e-6) @ getattr(self, f"look{n}")
            q, k, v = looked.unflatten(-1, (HEADS, -1)).transpose(1, 2).chunk(3, -1)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            z = z + seen.transpose(1, 2).flatten(2) @ getattr(self, f"join{n}")
            z = z + F.relu(F.rms_norm(z, width, eps=1e-6) @ getattr(self, f"up{n}")) @ getattr(self, f"down{n}")
        return F.rms_norm(z, width, eps=1e-6) @ self.out


def criterion(kind):
    """The mean over a batch, as a function of output and target."""
    if kind == "linear":
        return lambda out, y: 0.5 * F.mse_loss(out, y)
    if kind == "logistic":
        return lambda out, y: F.binary_cross_entropy_with_logits(out, y.to(out.dtype))
    if kind == "transformer":
        return lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten())
    return F.cross_entropy


def tensors(job):
    """All rows of the job."""
    X = job.X.transpose(0, 3, 1, 2) if job.X.ndim == 4 else job.X
    return torch.from_numpy(np.ascontiguousarray(X)), torch.from_numpy(job.y)


def train(model, loss, rows, step, batches):
    """Plain local gradient steps, with PyTorch's optimiser."""
    X, y = rows
    optimizer = torch.optim.SGD(model.parameters(), lr=step)
    for batch in batches:
        optimizer.zero_grad()
        loss(model(X[batch]), y[batch]).backward()
        optimizer.step()
