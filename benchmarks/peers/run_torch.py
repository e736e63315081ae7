"""The jobs as a plain PyTorch loop over agents."""

import sys

import torch
from common import Job, measure
from torch_model import Model, criterion, tensors, train


def main(folder):
    job = Job(folder)
    model, loss, rows = Model(job), criterion(job.kind), tensors(job)
    parameters = list(model.parameters())
    server = [p.detach().clone() for p in parameters]

    def fedavg(r):
        total = [torch.zeros_like(p) for p in server]
        who = job.participants(r)
        for k in who:
            with torch.no_grad():
                for p, s in zip(parameters, server, strict=True):
                    p.copy_(s)
            train(model, loss, rows, job.step, job.batches(r, k))
            for t, p in zip(total, parameters, strict=True):
                t += p.detach()
        for s, t in zip(server, total, strict=True):
            s.copy_(t / len(who))

    def flat():
        with torch.no_grad():
            for p, s in zip(parameters, server, strict=True):
                p.copy_(s)
        return model.flat()

    measure(job, fedavg, flat, version=torch.__version__)


main(sys.argv[1])
