"""13.6, exercise 1: 16 devices: the same parameters as on one, and the time to start a step.

    python examples/exercises/sixteen_devices.py
    python examples/exercises/sixteen_devices.py --rows 16 --rows-of-resnet 16    # the devices hardly use the cores

Prints, on CPU contexts (… are times):

    LeNet, 5 steps of 256 rows
      1 device: starting a step takes    … ms
     16 devices: starting a step takes    … ms
     16 replicas are equal to the last bit: True
     parameters differ from those of one device by ~2e-09
    ResNet-18, 2 steps of 32 rows
      1 device: starting a step takes    … ms
     16 devices: starting a step takes     … ms
     16 replicas are equal to the last bit: True
     parameters differ from those of one device by ~3e-01

LeNet on 16 devices is LeNet on one, up to rounding. ResNet-18 is not: each device computes batch norm's statistics from
its own 2 rows. In both, one Python thread starts the work of all devices, so the time to start a step grows with them.
"""
from __future__ import annotations

from common import part_of, read_flags, run_example
from gluon_mgpu import Timer, concise, cross_entropy, resnet18, scratch
from mxnet import gluon, init, npx


def lenet_on(devices: list) -> tuple:
    """Return a function that returns the copies of each of LeNet's parameters, and one that trains on one batch."""
    params = scratch.init_params()
    device_params = [scratch.get_params(params, device) for device in devices]
    return lambda: zip(*device_params), lambda X, y: scratch.train_batch(X, y, device_params, devices, 0.2)


def resnet18_on(devices: list) -> tuple:
    """Return the same functions for ResNet-18."""
    net = resnet18(10)
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
    net.hybridize(static_alloc=True, static_shape=True)
    # Not batch norm's statistics, which have no gradients, and differ between devices
    params = [param for param in net.collect_params().values() if param.grad_req != 'null']
    trainer = gluon.Trainer(params, 'sgd', {'learning_rate': 0.1})
    return (lambda: [param.list_data() for param in params],
            lambda X, y: concise.train_batch(X, y, net, cross_entropy, trainer, devices))


def train(network, devices: list, batches: list) -> tuple[list, float]:
    """Train on the batches; return each parameter's replicas as NumPy arrays, and the seconds to start a step."""
    npx.random.seed(0)
    (copies, train_batch), timer = network(devices), Timer()
    for X, y in batches:
        npx.waitall()  # then `train_batch` does not wait for earlier work; CPU contexts still share the cores
        timer.start()
        train_batch(X, y)
        timer.stop()
    return [[array.asnumpy() for array in arrays] for arrays in copies()], min(timer.times[1:])


def compare(name: str, network, devices: list, steps: int, batch_size: int, dataset: str) -> None:
    """Train on one device and on all; print the time to start a step, and how far the parameters differ."""
    print(f'{name}, {steps} steps of {batch_size} rows')
    batches = list(part_of(dataset, batch_size, steps * batch_size, batch_size)[0])
    one, seconds = train(network, devices[:1], batches)
    print(f'  1 device: starting a step takes {1e3 * seconds:.1f} ms')
    several, seconds = train(network, devices, batches)
    print(f' {len(devices)} devices: starting a step takes {1e3 * seconds:.1f} ms')
    equal = all((array == arrays[0]).all() for arrays in several for array in arrays)
    print(f' {len(devices)} replicas are equal to the last bit: {equal}')
    difference = max(abs(arrays[0] - of_one).max() for arrays, (of_one,) in zip(several, one))
    print(f' parameters differ from those of one device by {difference:.0e}')


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0-15', at_least=2, rows=256, rows_of_resnet=32, dataset='auto')
    compare('LeNet', lenet_on, args.devices, 5, args.rows, args.dataset)
    compare('ResNet-18', resnet18_on, args.devices, 2, args.rows_of_resnet, args.dataset)


if __name__ == '__main__':
    run_example(main)
