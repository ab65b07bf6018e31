"""13.6, exercise 2: devices of unequal speed, and the best share of the rows for each.

    python examples/exercises/unequal_devices.py    # CPU contexts on Linux only

Prints, with two CPU contexts on two cores, the second shared with another busy process (… are images/s, or depend on
them):

    LeNet, batches of 256, cpu(1) with a busy neighbour on its core
    images/s of each device alone:     …,     …
    shares        images/s
    1,1                  …
    3,2                  …
    2,1                  …
    3,1                  …
    7,1                  …
    alone                …
    …,…                  …  in proportion to the speeds; their sum is …

With k devices, a step takes as long as the slowest: max over i of n_i / r_i, with n_i rows and a rate of r_i
images/s. It is shortest if all finish at the same time, n_i = n r_i / (r_1 + ... + r_k): the shares are the rates, and
the speed is their sum. Equal shares reach k times the slowest rate. A second device that is f times as fast as the
first makes training at most 1 + f times as fast, less what the allreduce costs.
"""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from common import median_seconds, part_of, read_flags, run_example, split_by
from gluon_mgpu.scratch import allreduce, get_params, init_params, lenet, loss, sgd
from mxnet import autograd, np, npx


def thread_of(device) -> int:
    """Return the number of the thread that computes for a CPU context."""
    def seconds():
        return {int(task.name): sum(map(int, (task / 'stat').read_text().rsplit(')')[-1].split()[11:13]))
                for task in Path('/proc/self/task').iterdir()}
    X = np.ones((1000, 1000), ctx=device)
    before = seconds()
    for _ in range(20):
        np.dot(X, X)
    npx.waitall()
    return max(seconds().items(), key=lambda item: item[1] - before.get(item[0], 0))[0]


def train_batch(X, y, device_params: list, devices: list, shares: list[float], lr: float) -> None:
    """Take the chapter's step, with another split; each device must get rows."""
    X_shards, y_shards = split_by(shares)(X, y, devices)
    with autograd.record():
        ls = [loss(lenet(X_shard, params), y_shard)
              for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
    for l in ls:
        l.backward()
    for i in range(len(device_params[0])):
        allreduce([params[i].grad for params in device_params])
    for params in device_params:
        sgd(params, lr, len(y))


def speed(devices: list, shares: list[float], batches: list, params: list, rounds: int) -> float:
    """Return the images per second of training."""
    device_params = [get_params(params, device) for device in devices]

    def epoch():
        for X, y in batches:
            train_batch(X, y, device_params, devices, shares, 0.1)
    return sum(len(y) for _, y in batches) / median_seconds(epoch, rounds=rounds)[0]


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, batch_size=256, steps=16, rounds=3,
                      dataset='auto')
    devices = args.devices[:2]
    if any(device.device_type != 'cpu' for device in devices):
        args.refuse(f'--devices: {devices} must be CPU contexts, because the second shares its core')
    batches, params = list(part_of(args.dataset, args.batch_size, args.steps * args.batch_size, 1)[0]), init_params()
    cores = sorted(os.sched_getaffinity(0))
    for device, core in zip(devices, (cores[0], cores[-1])):
        os.sched_setaffinity(thread_of(device), {core})
    neighbour = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
    try:
        os.sched_setaffinity(neighbour.pid, {cores[-1]})
        print(f'LeNet, batches of {args.batch_size}, {devices[1]} with a busy neighbour on its core')
        rates = [speed([device], [1], batches, params, args.rounds) for device in devices]
        print('images/s of each device alone: ' + ', '.join(f'{rate:.0f}' for rate in rates))
        print('shares        images/s')
        for shares in ([1, 1], [3, 2], [2, 1], [3, 1], [7, 1]):
            print(f'{",".join(map(str, shares)):12}  {speed(devices, shares, batches, params, args.rounds):8.0f}')
        print(f'{"alone":12}  {rates[0]:8.0f}')
        best = f'{rates[0] / rates[1]:.2f},1.00'
        print(f'{best:12}  {speed(devices, rates, batches, params, args.rounds):8.0f}  in proportion to the speeds; '
              f'their sum is {sum(rates):.0f}')
    finally:
        neighbour.kill()
        neighbour.wait()


if __name__ == '__main__':
    run_example(main)
