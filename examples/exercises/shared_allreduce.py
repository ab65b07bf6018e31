"""13.5, exercise 3: an allreduce that sums different parameters on different devices.

    python examples/exercises/shared_allreduce.py
    python examples/exercises/shared_allreduce.py --devices gpu:0-3

Prints, on four CPU contexts, with LeNet's gradients (… are times):

    gradients of 516.3 kB on each of 4 devices
    algorithm                sent and received by the busiest     ms
    star                            3097.6 kB, 6.00 arrays         …
    by parameter                    2670.9 kB, 5.17 arrays         …
    by chunk                        1548.8 kB, 3.00 arrays         …
    ring                            1548.8 kB, 3.00 arrays         …
    tree                            2065.1 kB, 4.00 arrays         …
    all sums are equal: True

In the chapter, every gradient passes through device 0. Here each device is the hub of some parameters. It collects
their gradients from the others (reduce-scatter) and sends the sums back (all-gather). By parameter, the busiest device
is the one with the largest weight, four fifths of all numbers. By chunk, each device sums a k-th of all numbers,
wherever parameters begin, and sends and receives 4 (k - 1) / k arrays, as in a ring.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from common import median_seconds, read_flags, run_example
from gluon_mgpu import ring, shard_rows, tree
from gluon_mgpu.scratch import allreduce, init_params
from mxnet import np


def sum_on(hub: int, parts: list) -> None:
    """Sum the parts, one per device, on the device with number `hub`, and copy the sum to the others."""
    allreduce([parts[hub], *parts[:hub], *parts[hub + 1:]])


def by_parameter(gradients: list, sizes: list[int]) -> None:
    """Sum each parameter on the device that has the fewest numbers to sum so far, largest parameters first."""
    load = [0] * len(gradients)
    ends = {i: sum(sizes[:i + 1]) for i in range(len(sizes))}
    for i in sorted(ends, key=lambda i: -sizes[i]):
        hub = load.index(min(load))
        load[hub] += sizes[i]
        sum_on(hub, [g[ends[i] - sizes[i]:ends[i]] for g in gradients])


def by_chunk(gradients: list) -> None:
    """Sum the i-th of k equal chunks on device i."""
    k = len(gradients)
    for hub in range(k):
        sum_on(hub, [g[shard_rows(g.size, hub, k)] for g in gradients])


def traffic(algorithm: Callable, data: list) -> Counter:
    """Call an algorithm on one array per device; return the bytes that each device sends and receives."""
    num_bytes: Counter = Counter()
    copyto = np.ndarray.copyto

    def counting_copyto(array, other):
        target = getattr(other, 'ctx', other)  # an array or a device
        if target != array.ctx:
            num_bytes[array.ctx] += 4 * array.size
            num_bytes[target] += 4 * array.size
        return copyto(array, other)

    np.ndarray.copyto = counting_copyto
    algorithm(data)
    np.ndarray.copyto = copyto
    return num_bytes


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0-3', at_least=2, rounds=9)
    sizes = [param.size for param in init_params()]
    num_bytes, k = 4 * sum(sizes), len(args.devices)
    print(f'gradients of {num_bytes / 1e3:.1f} kB on each of {k} devices')
    print('algorithm                sent and received by the busiest     ms')
    algorithms = {'star': allreduce, 'by parameter': lambda data: by_parameter(data, sizes), 'by chunk': by_chunk,
                  'ring': ring, 'tree': tree}
    whole = np.arange(sum(sizes)) % 7  # whole numbers, so that every order of adding gives the same sum
    data = [whole.copyto(device) for device in args.devices]
    seconds = median_seconds(*(lambda a=a: a(data) for a in algorithms.values()), rounds=args.rounds)
    equal = True
    for (name, algorithm), time in zip(algorithms.items(), seconds):
        data = [(whole * (i + 1)).copyto(device) for i, device in enumerate(args.devices)]
        busiest = max(traffic(algorithm, data).values())
        equal = equal and all((d.asnumpy() == whole.asnumpy() * k * (k + 1) / 2).all() for d in data)
        print(f'{name:24}  {busiest / 1e3:12.1f} kB, {busiest / num_bytes:4.2f} arrays  {1e3 * time:8.2f}')
    print(f'all sums are equal: {equal}')


if __name__ == '__main__':
    run_example(main)
