"""Flower: central differential privacy divides the noise by the number of clients, the mean weights them by rows. Of
four clients one has 97 % of the rows: the mean moves by 0.97 clip with it, the noise is that for 0.25 clip."""

import os
import sys

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
import logging

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

logging.disable(logging.WARNING)
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
MULTIPLIER, ROWS, MODEL = 3.0, (970, 10, 10, 10), ArrayRecord([np.zeros(1)])
inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4)
strategy = DifferentialPrivacyServerSideFixedClipping(inner, MULTIPLIER, 1.0, 4)


class Grid:
    def get_node_ids(self):
        return [1, 2, 3, 4]


def released(first):
    sent = sorted(strategy.configure_train(1, MODEL, ConfigRecord(), Grid()), key=lambda m: m.metadata.dst_node_id)
    replies = []
    for message, rows in zip(sent, ROWS, strict=True):
        update = first if rows == max(ROWS) else 1e-9
        records = {"arrays": ArrayRecord([np.array([update])]), "metrics": MetricRecord({"num-examples": rows})}
        replies.append(Message(content=RecordDict(records), reply_to=message))
    return strategy.aggregate_train(1, replies)[0].to_numpy_ndarrays()[0][0]


with_it, without = [released(1.0) for _ in range(2000)], [released(1e-9) for _ in range(2000)]
moved, noise = np.mean(with_it) - np.mean(without), np.std(without)
print(f"one client moves the mean by {moved:.2f}, the noise is {noise:.2f}: a multiplier of {noise / moved:.2f}, not 3")
sys.exit(int(noise / moved > 1.5))
