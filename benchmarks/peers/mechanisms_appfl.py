"""APPFL's perturbation of what a trainer sends, for a certificate of privacy: the change of the model, in clips.

The gradient is the update that was chosen, the step is 1; the trainer clips gradients, and says by itself how far a
model can move: 2 clip step.
"""

from importlib.metadata import version

import appfl_parts
import mechanism_bridge
import torch
from appfl.algorithm.trainer.vanilla_trainer import VanillaTrainer
from claims import CLIP, EPSILON, NUMBERS
from omegaconf import OmegaConf

torch.set_default_dtype(torch.float64)


class Point(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(NUMBERS))

    def forward(self, _):
        return self.w


def trained(mechanism, norm=2.0, steps=1):
    data = appfl_parts.One(torch.zeros(NUMBERS))
    configs = {"mode": "step", "num_local_steps": steps, "optim": "SGD", "optim_args": {"lr": 1.0}}
    configs |= {"use_dp": True, "dp_mechanism": mechanism, "epsilon": EPSILON, "train_batch_size": 1}
    configs |= {"clip_grad": True, "clip_value": CLIP, "clip_norm": norm}
    trainer = VanillaTrainer(
        model=Point(),
        loss_fn=lambda output, target: (output * target[0]).sum(),
        metric=appfl_parts.nothing,
        train_dataset=data,
        train_configs=OmegaConf.create(configs),
        logger=appfl_parts.Quiet(),
    )

    def release(update):
        data.target = torch.tensor(update)
        trainer.load_parameters({"w": torch.zeros(NUMBERS)})
        trainer.train()
        found = trainer.get_parameters()
        return (found[0] if isinstance(found, tuple) else found)["w"].tolist()

    return release


mechanism_bridge.serve(
    {
        "gaussian, one step": lambda: trained("gaussian"),
        "gaussian, ten steps": lambda: trained("gaussian", steps=10),
        "laplace, clipped by sums of absolute values": lambda: trained("laplace", norm=1.0),
        "laplace, clipped by Euclidean norm": lambda: trained("laplace"),
    },
    version("appfl"),
)
