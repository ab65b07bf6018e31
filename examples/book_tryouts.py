"""Small experiments that the two chapters show between their functions.

    python examples/book_tryouts.py
    python examples/book_tryouts.py --devices gpu:0,gpu:1

Prints, on a machine without GPUs (the two means vary, but are equal):

    GPUs: 0; try_gpu(1): cpu(1); try_all_gpus(): [cpu(0), cpu(1)]
    on cpu(0):
    b1 weight: [0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0.]
    b1 grad:   [0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0.]
    before allreduce: [([[1.0, 1.0]], cpu(0)), ([[2.0, 2.0]], cpu(1))]
    after allreduce:  [([[3.0, 3.0]], cpu(0)), ([[3.0, 3.0]], cpu(1))]
    input:
    [[ 0  1  2  3  4  5]
     [ 6  7  8  9 10 11]
     [12 13 14 15 16 17]
     [18 19 20 21 22 23]]
    on cpu(0):
    [[ 0  1  2  3  4  5]
     [ 6  7  8  9 10 11]]
    on cpu(1):
    [[12 13 14 15 16 17]
     [18 19 20 21 22 23]]
    first weight on cpu(0): (64, 1, 3, 3), mean ~0.0001
    first weight on cpu(1): (64, 1, 3, 3), mean ~0.0001
    first weight on cpu(99): not there
"""
from __future__ import annotations

from flags import read_flags, run_example
from gluon_mgpu import resnet18, split_and_load, try_all_gpus, try_gpu
from gluon_mgpu.scratch import allreduce, get_params, init_params
from mxnet import cpu, init, np, npx


def first_bias(device) -> tuple:
    """Return LeNet's b1, copied to the device, and its gradient (13.5.4)."""
    params = get_params(init_params(), device)
    return params[1], params[1].grad  # (20,), (20,)


def two_vectors(devices: list) -> list:
    """Return [[1, 1]] on one device and [[2, 2]] on another (13.5.4)."""
    return [np.ones((1, 2), ctx=device) * (i + 1) for i, device in enumerate(devices[:2])]


def split_array(devices: list) -> tuple:
    """Return the numbers 0 to 23 as 4 rows of 6, and these rows split over two devices (13.5.5)."""
    data = np.arange(24).reshape(4, 6)
    return data, split_and_load(data, devices[:2])  # (4, 6) -> (2, 6) on each


def initialized(devices: list):
    """Return ResNet-18 with parameters on the devices (13.6.2)."""
    net = resnet18(10)
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
    for shard in split_and_load(np.zeros((4, 1, 28, 28)), devices):
        net(shard)  # the first batch determines shapes and allocates memory
    return net


def exists_on(weight, device) -> bool:
    """Return True if a parameter has a copy on the device."""
    try:
        weight.data(device)
    except RuntimeError:
        return False
    return True


def main(argv: list | None = None) -> None:
    devices = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2).devices
    print(f'GPUs: {npx.num_gpus()}; try_gpu(1): {try_gpu(1)}; try_all_gpus(): {try_all_gpus()}')

    b1, grad = first_bias(devices[0])
    print(f'on {b1.ctx}:\nb1 weight: {b1.asnumpy()}\nb1 grad:   {grad.asnumpy()}')

    data = two_vectors(devices)
    print(f'before allreduce: {[(d.asnumpy().tolist(), d.ctx) for d in data]}')
    allreduce(data)
    print(f'after allreduce:  {[(d.asnumpy().tolist(), d.ctx) for d in data]}')

    data, shards = split_array(devices)
    print(f'input:\n{data.asnumpy().astype(int)}')
    for shard in shards:
        print(f'on {shard.ctx}:\n{shard.asnumpy().astype(int)}')

    weight = initialized(devices)[0].weight
    for device in [*devices, cpu(99)]:
        if exists_on(weight, device):
            print(f'first weight on {device}: {weight.shape}, mean {float(weight.data(device).mean()):.5f}')
        else:
            print(f'first weight on {device}: not there')


if __name__ == '__main__':
    run_example(main)
