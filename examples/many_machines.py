"""Changes in a training step from one device to two, and from two devices to two machines.

    python examples/many_machines.py
    horovodrun -np 2 -H a:1,b:1 python examples/many_machines.py
    horovodrun -np 2 -H localhost:2 python examples/many_machines.py      # two workers on this machine

Prints, in a single process, two diffs of the step and the result of one device and of two:

    --- one_device
    +++ two_devices
    -    X, y = X.as_in_ctx(devices[0]), y.as_in_ctx(devices[0])
    +    X_shards, y_shards = split_batch(X, y, devices)
         with autograd.record():
    -        ls = [loss(lenet(X, device_params[0]), y)]
    +        ls = [loss(lenet(X_shard, params), y_shard)
    +              for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
         autograd.backward(ls)
    +    for i in range(len(device_params[0])):
    +        allreduce([params[i].grad for params in device_params])
         for params in device_params:
             sgd(params, lr, batch_size)
    --- two_devices
    +++ two_machines
         X_shards, y_shards = split_batch(X, y, devices)
         with autograd.record():
             ls = [loss(lenet(X_shard, params), y_shard)
                   for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
         autograd.backward(ls)
         for i in range(len(device_params[0])):
    -        allreduce([params[i].grad for params in device_params])
    +        workers.extend_allreduce(allreduce)([params[i].grad for params in device_params])
         for params in device_params:
             sgd(params, lr, batch_size)
    trained on [cpu(0)]: sum of all parameters -1.0982
    trained on [cpu(0), cpu(1)]: sum of all parameters -1.0982

With several workers, each trains on one device and prints the same sum: `trained by worker 0 of 2: ...`. The functions
follow `train_batch` of D2L 13.5.6; the step to several machines follows Horovod's documentation.
"""
from __future__ import annotations

import difflib
import inspect
import os

import numpy
from flags import read_flags, run_example
from gluon_mgpu import BatchIterator, HorovodWorkers, split_batch
from gluon_mgpu.scratch import allreduce, get_params, init_params, lenet, loss, sgd
from mxnet import autograd, npx


def one_device(X, y, device_params, devices, lr, batch_size, workers):
    X, y = X.as_in_ctx(devices[0]), y.as_in_ctx(devices[0])
    with autograd.record():
        ls = [loss(lenet(X, device_params[0]), y)]
    autograd.backward(ls)
    for params in device_params:
        sgd(params, lr, batch_size)


def two_devices(X, y, device_params, devices, lr, batch_size, workers):
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [loss(lenet(X_shard, params), y_shard)
              for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
    autograd.backward(ls)
    for i in range(len(device_params[0])):
        allreduce([params[i].grad for params in device_params])
    for params in device_params:
        sgd(params, lr, batch_size)


def two_machines(X, y, device_params, devices, lr, batch_size, workers):
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [loss(lenet(X_shard, params), y_shard)
              for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
    autograd.backward(ls)
    for i in range(len(device_params[0])):
        workers.extend_allreduce(allreduce)([params[i].grad for params in device_params])
    for params in device_params:
        sgd(params, lr, batch_size)


def difference(before, after) -> str:
    """Return a diff of the source of two functions."""
    sources = [inspect.getsource(function).splitlines()[1:] for function in (before, after)]
    lines = difflib.unified_diff(*sources, before.__name__, after.__name__, n=9, lineterm='')
    return '\n'.join(line for line in lines if not line.startswith('@@'))


def train(step, devices: list, workers: HorovodWorkers | None = None, num_steps: int = 20,
          batch_size: int = 64) -> float:
    """Train LeNet for a few steps on this worker's shard of each batch; return the sum of all parameters."""
    rng = numpy.random.default_rng(0)
    num_rows = num_steps * batch_size
    images, labels = rng.integers(0, 256, (num_rows, 28, 28), 'uint8'), rng.integers(0, 10, num_rows)
    train_iter = BatchIterator(images, labels, batch_size, 'noise', shard=workers.shard if workers else (0, 1))
    npx.random.seed(0)
    params = init_params()
    device_params = [get_params(params, device) for device in devices]
    for X, y in train_iter:
        step(X, y, device_params, devices, 0.1, batch_size, workers)
    return float(sum(param.sum() for param in device_params[0]))


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2)
    if 'HOROVOD_GLOO_RENDEZVOUS_ADDR' in os.environ:  # a worker of a job
        with HorovodWorkers() as workers:
            total = train(two_machines, [workers.device], workers)
            print(f'trained by worker {workers.rank} of {workers.size}: sum of all parameters {total:.4f}')
        return
    for before, after in ((one_device, two_devices), (two_devices, two_machines)):
        print(difference(before, after))
    for step, devices in ((one_device, args.devices[:1]), (two_devices, args.devices[:2])):
        print(f'trained on {devices}: sum of all parameters {train(step, devices):.4f}')


if __name__ == '__main__':
    run_example(main)
