"""Fine-tuning (D2L 14.2): a network of the model zoo with a new output layer, on several devices.

    python examples/fine_tuning.py
    python examples/fine_tuning.py --devices gpu:all --params resnet18_v2.params    # weights of the model zoo

Prints, on two CPU contexts with random weights (numbers with ~ vary):

    the output layer alone:
    epoch 1/2: loss ~1.564, test acc ~0.555, ~0.5 s, ~540 images/s
    epoch 2/2: loss ~1.611, test acc ~0.555, ~0.5 s, ~560 images/s
    loss ~1.611, train acc ~0.543, test acc ~0.555
    ~560 examples/sec on [cpu(0), cpu(1)]
    check: right
    all layers:
    epoch 1/3: loss ~0.525, test acc ~0.984, ~1.6 s, ~160 images/s
    epoch 2/3: loss ~0.033, test acc ~0.992, ~1.4 s, ~190 images/s
    epoch 3/3: loss ~0.004, test acc ~1.000, ~1.4 s, ~190 images/s
    loss ~0.004, train acc ~1.000, test acc ~1.000
    ~190 examples/sec on [cpu(0), cpu(1)]
    check: right

The generated images are horizontal or vertical stripes with noise. The learning rate of the output layer is ten times
that of the other layers, which are frozen at first. On random weights, it learns little alone. The check compares a few
steps on these devices with those on one.
"""
from __future__ import annotations

from pathlib import Path

import numpy
from flags import read_flags, run_example
from gluon_mgpu import check_data_parallel, train_batch_ch13, train_ch13
from mxnet import gluon, init, np, npx

loss = gluon.loss.SoftmaxCrossEntropyLoss()


def draw(n: int, side: int) -> tuple:
    """Return n images of noise (n, 3, side, side) with horizontal or vertical stripes, and their labels 0 or 1."""
    y = np.random.randint(0, 2, size=n)
    waves = np.sin(np.arange(side) * np.random.uniform(0.5, 1.5, size=(n, 1)) + np.random.uniform(0, 6, size=(n, 1)))
    rows, columns = waves.reshape(n, 1, side, 1), waves.reshape(n, 1, 1, side)
    stripes = np.where(y.reshape(n, 1, 1, 1) == 0, rows + 0 * columns, columns + 0 * rows)
    return stripes + np.random.normal(0, 1, size=(n, 3, side, side)), y


def make(devices: list, params: str, frozen: bool, lr: float = 0.01) -> tuple:
    """Return the network with a new output layer, and its Trainer; `params` is a file with the zoo's weights, or ''."""
    pretrained_net = gluon.model_zoo.vision.resnet18_v2()
    if params:
        pretrained_net.load_parameters(params, ctx=devices)
    else:
        pretrained_net.initialize(init.Xavier(), ctx=devices)
    net = gluon.model_zoo.vision.resnet18_v2(classes=2)
    net.features = pretrained_net.features
    net.output.initialize(init.Xavier(), ctx=devices)
    for param in net.output.collect_params().values():
        param.lr_mult = 10
    # Before layers are frozen. From batch norm's statistics, without gradients, it would copy the first device's to all
    params = [param for param in net.collect_params().values() if param.grad_req != 'null']
    trainer = gluon.Trainer(params, 'sgd', {'learning_rate': lr, 'wd': 0.001})
    freeze(net, frozen)
    return net, trainer


def freeze(net, frozen: bool) -> None:
    """Freeze all layers but the output layer, or train them again."""
    for param in net.features.collect_params().values():
        param.grad_req = 'null' if frozen else 'write'


def train_batch(state: tuple, X, y, devices: list) -> None:
    """Take the step of `train_ch13`."""
    net, trainer = state
    train_batch_ch13(net, X, y, loss, trainer, devices)


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, params='', rows=256, side=32, batch_size=32,
                      lr=0.01, epochs=3)
    devices = args.devices
    if args.params and not Path(args.params).is_file():
        args.refuse(f'--params {args.params}: no such file')
    npx.random.seed(0)
    numpy.random.seed(0)  # of the DataLoader's order
    train_iter, test_iter = (gluon.data.DataLoader(gluon.data.ArrayDataset(*draw(rows, args.side)), args.batch_size,
                                                   shuffle=True) for rows in (args.rows, args.rows // 2))
    net, trainer = make(devices, args.params, frozen=True, lr=args.lr)
    for name, frozen, num_epochs in (('the output layer alone', True, 2), ('all layers', False, args.epochs)):
        print(f'{name}:')
        freeze(net, frozen)
        train_ch13(net, train_iter, test_iter, loss, trainer, num_epochs, devices)
        report = check_data_parallel(lambda devices, frozen=frozen: make(devices, args.params, frozen), train_batch,
                                     [draw(4 * len(devices), args.side)], devices)
        print(f'check: {"right" if report.ok else report}')


if __name__ == '__main__':
    run_example(main)
