"""Who else follows a run? Trackers: TensorBoard, MLflow, Weights & Biases, or your own.

    fp.run(..., callbacks=[fp.trackers.TensorBoard("logs")])

A tracker is a callback of `fp.run` that is told three things: what is run (`start`), what is measured (`log`) and how
it ended (`finish`). The packages are optional and loaded when a run begins.
"""

from fedpoint.trackers.base import Tracker
from fedpoint.trackers.mlflow import MLflow
from fedpoint.trackers.tensorboard import TensorBoard
from fedpoint.trackers.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB"]
