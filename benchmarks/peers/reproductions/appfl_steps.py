"""APPFL: the sensitivity is 2 clip step whatever the number of local steps. After ten steps a model has moved by ten
clips times the step, and the noise is that of one."""

import os
import sys
from pathlib import Path

os.environ["WANDB_MODE"] = "disabled"
sys.path.append(str(Path(__file__).resolve().parents[1]))
import appfl_parts
import numpy as np
import torch
from appfl.algorithm.trainer.vanilla_trainer import VanillaTrainer
from omegaconf import OmegaConf


class Point(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, _):
        return self.w


def released(steps, gradient):
    configs = {"mode": "step", "num_local_steps": steps, "optim": "SGD", "optim_args": {"lr": 1.0}}
    configs |= {"use_dp": True, "dp_mechanism": "gaussian", "epsilon": 2.0, "train_batch_size": 1}
    configs |= {"clip_grad": True, "clip_value": 1.0, "clip_norm": 2.0}
    trainer = VanillaTrainer(
        model=Point(),
        loss_fn=lambda output, target: (output * target).sum(),
        metric=appfl_parts.nothing,
        train_dataset=appfl_parts.One(gradient),
        train_configs=OmegaConf.create(configs),
        logger=appfl_parts.Quiet(),
    )
    trainer.train()
    found = trainer.get_parameters()
    return (found[0] if isinstance(found, tuple) else found)["w"].item()


up, down = [released(10, 5.0) for _ in range(300)], [released(10, -5.0) for _ in range(300)]
apart, noise = abs(np.mean(up) - np.mean(down)), np.std(up)
print(f"ten steps: two clients are {apart:.1f} apart, the noise is {noise:.1f}, made for a distance of 2")
sys.exit(int(apart < 10))
