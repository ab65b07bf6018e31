"""Data parallelism: an array split by rows, and one training step of LeNet on up to four devices.

    python examples/data_parallel.py
    python examples/data_parallel.py --devices gpu:all

Prints, on four CPU contexts (possibly more than cores; numbers with ~ vary):

    cpu(0): [[0.0, 1.0, 2.0, 3.0, 4.0]]
    cpu(1): [[5.0, 6.0, 7.0, 8.0, 9.0]]
    cpu(2): [[10.0, 11.0, 12.0, 13.0, 14.0]]
    cpu(3): [[15.0, 16.0, 17.0, 18.0, 19.0]]
    cpu(0): 64 rows
    cpu(1): 64 rows
    cpu(2): 64 rows
    cpu(3): 64 rows
    largest change of a parameter:      ~0.04
    largest difference between devices: 0.0
    from a step on one device:          ~3e-07

Each device holds all parameters and gets a quarter of the rows. The gradients of the quarters add up to the gradient of
the batch, so the step equals that of a single device.
"""
from __future__ import annotations

from flags import read_flags, run_example
from gluon_mgpu import split_and_load
from gluon_mgpu.scratch import get_params, init_params, train_batch
from mxnet import np


def scatter(devices: list) -> list:
    """Split the rows of a 4x5 array over the devices."""
    data = np.arange(20).reshape(4, 5)
    return split_and_load(data, devices)  # (4, 5) -> (1, 5) on each of four devices


def step(X, y, params: list, devices: list, lr: float) -> tuple[list, list]:
    """Take one training step; return the losses of each shard and the new parameters of each device."""
    device_params = [get_params(params, device) for device in devices]
    ls = train_batch(X, y, device_params, devices, lr)
    return ls, device_params


def largest_difference(params: list, others: list) -> float:
    """Return the largest absolute difference between two lists of parameters."""
    return max(float(abs(p.asnumpy() - q.asnumpy()).max()) for p, q in zip(params, others))


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0-3', batch_size=256, lr=0.2)
    devices = args.devices[:4]
    for shard in scatter(devices):
        print(f'{shard.ctx}: {shard.asnumpy().tolist()}')

    params = init_params(scale=0.1)
    X = np.random.uniform(size=(args.batch_size, 1, 28, 28))
    y = np.random.randint(0, 10, size=args.batch_size)
    ls, device_params = step(X, y, params, devices, args.lr)
    for l in ls:
        print(f'{l.ctx}: {len(l)} rows')
    print(f'largest change of a parameter:      {largest_difference(params, device_params[0]):.4f}')
    between = max(largest_difference(device_params[0], other) for other in device_params)
    print(f'largest difference between devices: {between}')
    _, alone = step(X, y, params, devices[:1], args.lr)
    print(f'from a step on one device:          {largest_difference(device_params[0], alone[0]):.0e}')


if __name__ == '__main__':
    run_example(main)
