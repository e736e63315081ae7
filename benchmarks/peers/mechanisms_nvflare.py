"""NVFlare's privacy filters for a certificate of privacy."""

import logging
from importlib.metadata import version

import mechanism_bridge
import numpy as np
from claims import CLIP, EPSILON, NUMBERS
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

logging.disable(logging.WARNING)
EACH = CLIP / np.sqrt(NUMBERS)  # clipped number by number, so that the norm of all is at most CLIP


def filtered(chosen):
    context = FLContext()

    def release(update):
        dxo = DXO(DataKind.WEIGHT_DIFF, {"w": np.array(update)})
        return chosen.process_dxo(dxo, Shareable(), context).data["w"].tolist()

    return release


mechanism_bridge.serve(
    {
        "SVTPrivacy": lambda: filtered(
            SVTPrivacy(fraction=0.1, epsilon=EPSILON / 2, epsilon_release=EPSILON / 2, gamma=EACH, tau=EACH / 2)
        ),
        "PercentilePrivacy": lambda: filtered(PercentilePrivacy(percentile=10, gamma=EACH)),
    },
    version("nvflare"),
)
