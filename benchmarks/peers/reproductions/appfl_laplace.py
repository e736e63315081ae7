"""APPFL: Laplace noise needs a bound on the sum of absolute values; `clip_norm` 2 bounds the Euclidean norm, and the
sensitivity does not ask which. In 10,000 numbers a clipped gradient of norm 1 has a sum of 100, the noise is for 2."""

import os
import sys

os.environ["WANDB_MODE"] = "disabled"
import torch
from appfl.privacy import laplace_mechanism_output_perturb

torch.manual_seed(0)
CLIP, STEP, EPSILON = 1.0, 1.0, 2.0
point = torch.nn.Linear(10_000, 1, bias=False)
gradient = torch.ones(1, 10_000)
point.weight.data.zero_()
point.weight.grad = gradient
torch.nn.utils.clip_grad_norm_(point.parameters(), CLIP, norm_type=2.0)  # as VanillaTrainer does
moved = STEP * point.weight.grad.abs().sum().item()
noise = laplace_mechanism_output_perturb(point, 2.0 * CLIP * STEP, EPSILON)["weight"]
scale = noise.abs().mean().item()
spent = moved / scale
print(f"moved by {moved:.0f} in absolute values, noise of scale {scale:.2f}: epsilon {spent:.0f} at delta 0, not 2")
sys.exit(int(spent < 2 * EPSILON))
