"""Flower's local and central differential privacy, for a certificate of privacy. The model that was sent is zero."""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import logging
from importlib.metadata import version

import mechanism_bridge
import numpy as np
from claims import AGENTS, CLIP, DELTA, EPSILON, MULTIPLIER, NUMBERS
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

logging.disable(logging.WARNING)
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # messages ask for it, outside a run too
TINY = 1e-9  # an update of zeros ends in ZeroDivisionError, in clip_inputs_inplace
MODEL = ArrayRecord([np.zeros(NUMBERS)])


class Grid:
    def get_node_ids(self):
        return list(range(1, AGENTS + 1))


def filled(update):
    update = np.array(update)
    return update if update.any() else update + TINY


def local(sensitivity):
    mod = LocalDpMod(CLIP, sensitivity, EPSILON, DELTA)
    sent = Message(RecordDict({"arrays": MODEL}), dst_node_id=1, message_type="train")

    def release(update):
        reply = RecordDict({"arrays": ArrayRecord([filled(update)])})
        heard = mod(sent, None, lambda *_: Message(reply, reply_to=sent))
        return heard.content["arrays"].to_numpy_ndarrays()[0].tolist()

    return release


def central(rows):
    """rows: of each client, by which FedAvg weights."""
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=AGENTS, min_available_nodes=AGENTS)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, MULTIPLIER, CLIP, AGENTS)

    def release(updates):
        sent = strategy.configure_train(1, MODEL, ConfigRecord(), Grid())
        sent = sorted(sent, key=lambda message: message.metadata.dst_node_id)
        replies = []
        for message, update, number in zip(sent, updates, rows, strict=True):
            records = {"arrays": ArrayRecord([filled(update)]), "metrics": MetricRecord({"num-examples": number})}
            replies.append(Message(content=RecordDict(records), reply_to=message))
        found, _ = strategy.aggregate_train(1, replies)
        return found.to_numpy_ndarrays()[0].tolist()

    return release


mechanism_bridge.serve(
    {
        "LocalDpMod, sensitivity 0.01": lambda: local(0.01),
        "LocalDpMod, sensitivity 2": lambda: local(2.0 * CLIP),
        "central, equal rows": lambda: central([100] * AGENTS),
        "central, unequal rows": lambda: central([970] + [10] * (AGENTS - 1)),
    },
    version("flwr"),
)
