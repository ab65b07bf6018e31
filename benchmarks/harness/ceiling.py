"""Upper limit of the cores: speed of matrix products and convolutions on one CPU context per core at the same time.

    python benchmarks/harness/ceiling.py 2     # on two CPU contexts; 10 seconds

The last line is a JSON object, name -> GFLOP/s of all contexts together. `compare.py` runs this before each work, to
show how close a contender comes to the speed of oneDNN on this processor at that time.
"""
from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package beside benchmarks/, installed or not

from gluon_mgpu.mxnet_setup.compat import autograd, gluon, mx, np, npx
from gluon_mgpu.networks.precision import Cast, check_dtype, conv2d

ROUNDS = 7


def gflops(step, num_devices: int, flop: float) -> float:
    """Return the median GFLOP/s of all devices together, queueing `step(device)` of `flop` operations on each."""
    devices = [mx.cpu(i) for i in range(num_devices)]
    seconds = []
    for _ in range(ROUNDS + 2):  # the first two allocate memory
        started = time.perf_counter()
        for _ in range(3):
            for device in devices:
                step(device)
        npx.waitall()
        seconds.append((time.perf_counter() - started) / 3)
    return num_devices * flop / statistics.median(seconds[2:]) / 1e9


def product(size: int, num_devices: int) -> float:
    """Return the rate of products of two square matrices."""
    matrices = {mx.cpu(i): np.random.uniform(size=(size, size), ctx=mx.cpu(i)) for i in range(num_devices)}
    return gflops(lambda device: np.dot(matrices[device], matrices[device]), num_devices, 2 * size ** 3)


def convolution(channels_in: int, channels: int, kernel: int, padding: int, size: int, rows: int, dtype: str,
                num_devices: int) -> float:
    """Return the rate of a convolution: forward, and the gradients of its input and weights."""
    devices = [mx.cpu(i) for i in range(num_devices)]
    net = gluon.nn.HybridSequential()
    layer = conv2d(channels, kernel, padding=padding, in_channels=channels_in, dtype=dtype)
    net.add(*([layer] if dtype == 'float32' else [Cast(dtype), layer, Cast('float32')]))
    net.initialize(ctx=devices)
    net.hybridize(static_alloc=True, static_shape=True)
    images = {device: np.random.uniform(size=(rows, channels_in, size, size), ctx=device) for device in devices}
    for array in images.values():
        array.attach_grad()

    def step(device):
        with autograd.record():
            out = net(images[device])
        out.backward()

    positions = (size + 2 * padding - kernel + 1) ** 2
    return gflops(step, num_devices, 3 * 2 * rows * positions * channels * channels_in * kernel ** 2)


def main() -> None:
    k = int(sys.argv[1])
    rates = {'matrix product, 1024': product(1024, k),
             '5x5 convolution, 20 to 50 channels': convolution(20, 50, 5, 0, 12, 128, 'float32', k),
             '3x3 convolution, 128 channels': convolution(128, 128, 3, 1, 14, 64, 'float32', k)}
    try:
        check_dtype('bfloat16', [mx.cpu()])
        rates['the same in bfloat16'] = convolution(128, 128, 3, 1, 14, 64, 'bfloat16', k)
    except ValueError:  # not supported by this processor
        pass
    print(json.dumps(rates))


if __name__ == '__main__':
    main()
