"""What APPFL's trainers need around them."""

import os

os.environ["WANDB_MODE"] = "disabled"  # its trainer imports wandb, which writes folders

from torch.utils.data import Dataset


class One(Dataset):
    """A data set of one row: whatever `target` is at the moment."""

    def __init__(self, target):
        self.target = target

    def __len__(self):
        return 1

    def __getitem__(self, _):
        return 0.0, self.target


class Quiet:
    """A logger of nothing."""

    def log_title(self, *_):
        pass

    set_title = log_content = info = log_title


def nothing(*_):
    """A metric of nothing."""
    return 0.0
