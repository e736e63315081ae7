"""The jobs on pfl with PyTorch: its FederatedAveraging and SCAFFOLD on its simulated backend."""

import sys
from importlib.metadata import version
from itertools import chain, count

import torch
from common import Clock, Job, report
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch_model import Model, criterion, tensors

EVALUATION = 1 << 30  # rows: pfl evaluates in the first round, whatever it is told


class Net(Model):
    """A module as pfl wants it."""

    def __init__(self, job):
        super().__init__(job)
        self.criterion = criterion(job.kind)

    def loss(self, x, y):
        return self.criterion(self(x), y)

    def metrics(self, x, y):
        return {"loss": Weighted(float(self.loss(x, y)) * len(x), len(x))}


class Told(Dataset):
    """A user's rows, in the batches of the job."""

    def __init__(self, job, batches, agent, X, y):
        self.batches = [(X[rows], y[rows]) for rows in batches]
        self.each = len(batches) // job.epochs
        rows = list(chain.from_iterable(batches[: self.each]))
        super().__init__(raw_data=[X[rows], y[rows]], user_id=str(agent))
        self.epoch = 0

    def iter(self, batch_size):
        if batch_size == EVALUATION:
            return iter([self.raw_data])
        first, self.epoch = self.epoch * self.each, self.epoch + 1
        return iter(self.batches[first : first + self.each])


class Watch(TrainingProcessCallback):
    def __init__(self, job, clock):
        self.job, self.clock, self.rounds = job, clock, 0

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.lap()
        self.rounds += 1
        return self.clock.enough(self.job), Metrics()


def main(folder):
    job, clock = Job(folder), Clock()
    X, y = tensors(job)
    net = Net(job)
    people = ((r, k) for r in count() for k in job.participants(r))

    def dataset(person):
        return Told(job, job.batches(*person), person[1], X, y)

    data = FederatedDataset(dataset, lambda: next(people))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    common = {
        "central_num_iterations": job.rounds,
        "evaluation_frequency": job.rounds + 1,
        "train_cohort_size": job.who.shape[1],
        "val_cohort_size": None,
    }
    if job.method == "scaffold":
        algorithm, more = SCAFFOLD(), {"use_gradient_as_control_variate": False, "population": job.agents}
        parameters = SCAFFOLDParams(**common, **more, user_state_storage=InMemoryUserStateStorage())
    else:
        algorithm, parameters = FederatedAveraging(), NNAlgorithmParams(**common)
    train = NNTrainHyperParams(local_num_epochs=job.epochs, local_learning_rate=job.step, local_batch_size=job.batch)
    evaluate = NNEvalHyperParams(local_batch_size=EVALUATION)
    watch = Watch(job, clock)
    limits = []
    if job.clip is not None:
        limits = [CentrallyAppliedPrivacyMechanism(GaussianMechanism(job.clip, job.noise))]
    backend = SimulatedBackend(data, data, postprocessors=limits)
    algorithm.run(parameters, backend, model, train, evaluate, callbacks=[watch])
    report(clock, watch.rounds, net.flat(), version=version("pfl"))


main(sys.argv[1])
