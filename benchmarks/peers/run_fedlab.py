"""The jobs on FedLab: its serial trainers and server handlers of FedAvg and SCAFFOLD in its standalone pipeline."""

import sys
from importlib.metadata import version

import no_torchvision  # noqa: F401
from common import Clock, Job, report
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch_model import Model, criterion, tensors


class Loader:
    """A client's batches, epoch after epoch."""

    def __init__(self, job, batches, X, y):
        self.batches, self.each, self.epoch = [(X[b], y[b]) for b in batches], len(batches) // job.epochs, 0

    def __len__(self):
        return self.each

    def __iter__(self):
        first, self.epoch = self.epoch * self.each, self.epoch + 1
        return iter(self.batches[first : first + self.each])


class Told:
    """The dataset: rows as the job has them for the round that the server is in."""

    def __init__(self, job, handler):
        self.job, self.handler, self.rows = job, handler, tensors(job)

    def get_dataloader(self, id, batch_size):
        return Loader(self.job, self.job.batches(self.handler.round, id), *self.rows)


class Pipeline(StandalonePipeline):
    def __init__(self, job, clock, handler, trainer):
        super().__init__(handler, trainer)
        self.job, self.clock = job, clock

    def evaluate(self):
        self.clock.lap()
        if self.clock.enough(self.job):
            self.handler.global_round = self.handler.round


def main(folder):
    job, clock = Job(folder), Clock()
    model, share = Model(job), job.who.shape[1] / job.agents
    scaffold = job.method == "scaffold"
    handler = (ScaffoldServerHandler if scaffold else SyncServerHandler)(model, job.rounds, share)
    trainer = (ScaffoldSerialClientTrainer if scaffold else SGDSerialClientTrainer)(model, job.agents)
    if scaffold:
        handler.setup_optim(lr=1.0)
    handler.sample_clients = lambda: job.participants(handler.round)
    trainer.setup_dataset(Told(job, handler))
    trainer.setup_optim(job.epochs, 10, job.step)
    trainer.criterion = criterion(job.kind)
    Pipeline(job, clock, handler, trainer).main()
    report(clock, handler.round, handler.model.flat(), version=version("fedlab"))


main(sys.argv[1])
