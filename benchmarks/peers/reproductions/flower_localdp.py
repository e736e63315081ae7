"""Flower: LocalDpMod clips to 1, and takes the sensitivity apart from that. With 0.01, noise for epsilon 2 is 200 times
smaller than what two clients may differ by calls for."""

import os
import sys

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
import logging

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.task_identity import TaskIdentity

logging.disable(logging.WARNING)
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
mod = LocalDpMod(clipping_norm=1.0, sensitivity=0.01, epsilon=2.0, delta=1e-5)
sent = Message(RecordDict({"arrays": ArrayRecord([np.zeros(1)])}), dst_node_id=1, message_type="train")


def released(update):
    reply = RecordDict({"arrays": ArrayRecord([np.array([update])])})
    heard = mod(sent, None, lambda *_: Message(reply, reply_to=sent))
    return heard.content["arrays"].to_numpy_ndarrays()[0][0]


up, down = [released(5.0) for _ in range(1000)], [released(-5.0) for _ in range(1000)]
print(
    f"clients of +5 and -5: 1,000 releases in [{min(up):.2f}, {max(up):.2f}] and in [{min(down):.2f}, {max(down):.2f}]"
)
sys.exit(int(min(up) <= max(down)))
