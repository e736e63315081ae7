"""pfl's mechanisms for a certificate of privacy."""

from importlib.metadata import version

import mechanism_bridge
import numpy as np
import torch
from claims import CLIP, DELTA, EPSILON, MULTIPLIER
from pfl.common_types import Population
from pfl.context import CentralContext, UserContext
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.laplace_mechanism import LaplaceMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics

set_framework_module(pytorch_ops)
SEEDS = np.random.default_rng()
HYPER = {"local_num_epochs": 1, "local_learning_rate": 0.1, "local_batch_size": None}


def of(update):
    return MappedVectorStatistics({"w": torch.tensor(update)}, weight=1)


def seed():
    return int(SEEDS.integers(2**31))


def local(mechanism):
    def release(update):
        found, _ = mechanism.privatize(of(update), seed=seed())
        return found["w"].tolist()

    return release


def central(mechanism):
    """A cohort: each update is limited, the sum gets the noise, and is divided by the cohort."""
    wrapped = CentrallyAppliedPrivacyMechanism(mechanism)

    def release(updates):
        total = None
        for update in updates:
            user = UserContext(1, "user", seed(), Metrics())
            found, _ = wrapped.postprocess_one_user(stats=of(update), user_context=user)
            total = found if total is None else total + found
        context = CentralContext(
            current_central_iteration=0,
            do_evaluation=False,
            cohort_size=len(updates),
            population=Population.TRAIN,
            model_train_params=NNTrainHyperParams(**HYPER),
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            algorithm_params=None,
            seed=seed(),
        )
        total, _ = wrapped.postprocess_server(stats=total, central_context=context, aggregate_metrics=Metrics())
        total.average()
        return total["w"].tolist()

    return release


mechanism_bridge.serve(
    {
        "GaussianMechanism": lambda: local(GaussianMechanism.construct_single_iteration(CLIP, EPSILON, DELTA)),
        "LaplaceMechanism": lambda: local(LaplaceMechanism(CLIP, EPSILON)),
        "GaussianMechanism, central": lambda: central(GaussianMechanism(CLIP, MULTIPLIER)),
    },
    version("pfl"),
)
