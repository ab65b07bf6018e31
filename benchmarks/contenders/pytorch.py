"""Contender: the same networks and updates in PyTorch.

The job's "mode" is "eager", "compile" (`torch.compile`) or "ddp" (DistributedDataParallel over gloo, one process with
one thread per core). Its "dtype" may be "bfloat16", by autocast. The rows are one tensor in memory, and a batch takes
one indexing and one division, the fastest loader that we know. Evaluation uses the network before `torch.compile`, so
that nothing is compiled for it.
"""
from __future__ import annotations

import os
import socket

import torch
from common import Stopwatch, read_job, read_rows
from torch import distributed, nn
from torch.nn import functional


def lenet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(),
                         nn.AvgPool2d(2), nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10))


class Residual(nn.Module):
    """Residual block relu(X + f(X)); f has two 3x3 convolutions, the first with a stride and new channels."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))
        self.skip = nn.Conv2d(channels_in, channels, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, X):
        return functional.relu(self.f(X) + self.skip(X))


def resnet18() -> nn.Module:
    layers, channels_in = [nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()], 64
    for channels in (64, 128, 256, 512):
        layers += [Residual(channels_in, channels, 1 if channels == 64 else 2), Residual(channels, channels, 1)]
        channels_in = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def initialize(module: nn.Module) -> None:
    """Initialize weights with standard deviation 0.01 and biases with zero, as in the chapters."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.normal_(module.weight, std=0.01)
        nn.init.zeros_(module.bias)


def batch(images, labels, rows) -> tuple:
    return images[rows, None].float().div_(255), labels[rows]  # (b, 1, h, w), (b,)


def accuracy(net, images, labels, batch_size, autocast) -> float:
    right = 0
    net.eval()
    with torch.no_grad(), autocast():
        for rows in torch.arange(len(images)).split(batch_size):
            X, y = batch(images, labels, rows)
            right += int((net(X).argmax(1) == y).sum())
    net.train()
    return right / len(images)


def work(rank: int, job: dict, num_ranks: int, port: int) -> None:
    """Run the job in one process: all of it, or this rank's shard of every batch. Rank 0 prints the result."""
    if job['mode'] == 'ddp':
        torch.set_num_threads(1)
        os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
        distributed.init_process_group('gloo', rank=rank, world_size=num_ranks)
    else:
        torch.set_num_threads(job['cores'])
    torch.manual_seed(0)  # same network and order of rows on all ranks
    images, labels, test_images, test_labels = (torch.from_numpy(a) for a in read_rows(job))
    if job['crop']:
        images, test_images = (a[:, :26, :26].contiguous() for a in (images, test_images))
    labels, test_labels = labels.long(), test_labels.long()

    def autocast():
        return torch.autocast('cpu', torch.bfloat16, enabled=job['dtype'] == 'bfloat16')

    net = {'scratch': lenet, 'concise': resnet18}[job['work']]()
    net.apply(initialize)
    model = {'eager': lambda net: net, 'compile': torch.compile, 'ddp': nn.parallel.DistributedDataParallel}[
        job['mode']](net)
    optimizer = torch.optim.SGD(net.parameters(), job['lr'])
    watch = Stopwatch()
    for _ in range(job['epochs']):
        watch.start()
        losses = []
        for rows in torch.randperm(len(images)).split(job['batch_size']):
            X, y = batch(images, labels, rows.tensor_split(num_ranks)[rank])
            with autocast():
                loss = functional.cross_entropy(model(X), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach() * len(rows))  # with ddp, the loss of rank 0's shards
        watch.stop()
        if rank == 0:
            test_acc = accuracy(net, test_images, test_labels, job['batch_size'], autocast)
        if job['mode'] == 'ddp':
            distributed.barrier()  # wait while rank 0 evaluates
    if rank == 0:
        print(watch.line(job, len(images), sum(losses) / len(images), test_acc), flush=True)
    if job['mode'] == 'ddp':
        distributed.destroy_process_group()


def main() -> None:
    job = read_job()
    if job['mode'] != 'ddp':
        return work(0, job, 1, 0)
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(work, (job, job['cores'], port), nprocs=job['cores'])


if __name__ == '__main__':
    main()
