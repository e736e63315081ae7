"""The jobs on FedLab: its serial trainers and server handlers of FedAvg and SCAFFOLD in its standalone pipeline."""

import sys
from importlib.metadata import version

import no_torchvision  # noqa: F401
from common import Clock, Job, report
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from fedlab.contrib.compressor.topk import TopkCompressor
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators, SerializationTool
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


class Sends(SGDSerialClientTrainer):
    """A trainer as one writes it with FedLab's compressor: the largest numbers of a change, and their places."""

    def __init__(self, model, clients, top):
        super().__init__(model, clients)
        self.compressor = TopkCompressor(top)

    def train(self, model_parameters, train_loader):
        (end,) = super().train(model_parameters, train_loader)
        return [*self.compressor.compress(end - model_parameters)]


class Hears(SyncServerHandler):
    def __init__(self, model, rounds, share, top):
        super().__init__(model, rounds, share)
        self.compressor = TopkCompressor(top)

    def global_update(self, buffer):
        shape = self.model_parameters.shape
        heard = [self.compressor.decompress(values, places, shape) for values, places in buffer]
        SerializationTool.deserialize_model(self._model, self.model_parameters + Aggregators.fedavg_aggregate(heard))


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
    if job.top is not None:
        handler, trainer = Hears(model, job.rounds, share, job.top), Sends(model, job.agents, job.top)
    if scaffold:
        handler.setup_optim(lr=1.0)
    handler.sample_clients = lambda: job.participants(handler.round)
    trainer.setup_dataset(Told(job, handler))
    trainer.setup_optim(job.epochs, job.batch, job.step)
    trainer.criterion = criterion(job.kind)
    Pipeline(job, clock, handler, trainer).main()
    report(clock, handler.round, handler.model.flat(), version=version("fedlab"))


main(sys.argv[1])
