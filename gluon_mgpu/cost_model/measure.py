"""Measurement of the link between two devices, and of each allreduce algorithm on several."""
from __future__ import annotations

import statistics
import time
from functools import partial

from ..mxnet_setup.compat import mx, np, npx
from ..networks.resnet import resnet18
from ..parallel.allreduce import ALGORITHMS
from ..scratch import init_params
from ..training.parameters import trainable

HOPS = 20            # messages there and back in one measurement; a single one would mostly time Python and waiting
LARGE = 4 * 2**20    # float32 elements of a large message, 16 MiB: more than a core's cache


def measure_link(source, target, rounds: int) -> tuple:
    """Measure alpha, in seconds, and beta, in seconds per byte, between two devices: medians of `rounds`; blocks."""
    def seconds_per_message(size):
        here, there = np.zeros(size, ctx=source), np.zeros(size, ctx=target)

        def there_and_back():
            for _ in range(HOPS // 2):
                here.copyto(there)
                there.copyto(here)

        return _median_seconds(there_and_back, rounds) / HOPS

    alpha = seconds_per_message(1)
    return alpha, max(seconds_per_message(LARGE) - alpha, 0) / (4 * LARGE)


def _median_seconds(function, rounds: int) -> float:
    """Return the median time of a function and the work that it queues, after two warm-up calls."""
    times = []
    for _ in range(rounds + 2):
        npx.waitall()
        start = time.perf_counter()
        function()
        npx.waitall()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def gradient_sizes() -> dict:
    """Return the number of elements in the gradients of each chapter's network."""
    net = resnet18(10)
    net.initialize(ctx=mx.cpu(0))
    net(np.zeros((1, 1, 28, 28), ctx=mx.cpu(0)))  # infers the shapes
    return {'LeNet': sum(p.size for p in init_params()),
            'ResNet-18': sum(param.data().size for param in trainable(net))}


def measure(devices: list, rounds: int) -> dict:
    """Measure the link between two devices, and each algorithm on the first 2, 3, ... of all devices; blocks.

    Prints a line for each result. Returns all results, JSON-serializable.
    """
    alpha, beta = measure_link(devices[0], devices[1], rounds)
    print(f'alpha {alpha * 1e6:.1f} us, beta {beta * 1e9:.3f} ns/byte'
          + (f' ({1e-9 / beta:.1f} GB/s)' if beta else '') + f' between {devices[0]} and {devices[1]}')
    sizes, measured = gradient_sizes(), []
    print(f'{"network":10} {"devices":>7} {"algorithm":16} {"measured ms":>11} {"model ms":>9} {"busiest MB":>10}')
    for network, size in sizes.items():
        for k in range(2, len(devices) + 1):
            data = [np.zeros(size, ctx=device) for device in devices[:k]]
            for name, algorithm in ALGORITHMS.items():
                traffic = algorithm(data)
                row = {'network': network, 'devices': k, 'algorithm': name,
                       'seconds': _median_seconds(partial(algorithm, data), rounds),
                       'model_seconds': algorithm.cost(k).seconds(4 * size, alpha, beta),
                       'busiest_bytes': max(traffic.sent[d] + traffic.received[d] for d in devices[:k])}
                measured.append(row)
                print(f'{network:10} {k:7} {name:16} {row["seconds"] * 1e3:11.3f} '
                      f'{row["model_seconds"] * 1e3:9.3f} {row["busiest_bytes"] / 1e6:10.2f}')
    return {'alpha': alpha, 'beta': beta, 'devices': [str(d) for d in devices],
            'gradient_bytes': {network: 4 * size for network, size in sizes.items()}, 'measured': measured}
