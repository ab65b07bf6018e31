"""The Straight Dope's network for MNIST with Gluon, on one device and on four.

    python examples/straight_dope.py                              # 8,192 training images, 4 epochs
    python examples/straight_dope.py --devices gpu:0-3
    python examples/straight_dope.py --train-size 60000 --epochs 5   # the text's table, with MNIST at hand

`load_data` finds or downloads MNIST. If that fails, the program says so and uses `glyphs`, images of letters. If
`--data-dir` or `GLUON_MGPU_DATA` names a folder, missing files are an error.

Prints, with glyphs on two cores (numbers vary):

    first scores on cpu(0): [-0.051  0.126  0.091]
    first scores on cpu(1): [-0.02   0.12   0.114]
    first scores on cpu(2): [-0.027  0.141  0.124]
    first scores on cpu(3): [-0.006  0.122  0.121]
    row 0 on cpu(0): weight [0.014 0.027 0.063], gradient [0.131 0.119 0.039]
    row 0 on cpu(1): weight [0.014 0.027 0.063], gradient [-0.064 -0.125 -0.086]
    row 0 on cpu(2): weight [0.014 0.027 0.063], gradient [0.022 0.118 0.064]
    row 0 on cpu(3): weight [0.014 0.027 0.063], gradient [ 0.015 -0.06  -0.053]
    run(1, 64, 0.3): ~0.48 ~0.79 ~0.83 ~0.79, ~1.8 sec/epoch
    run(4, 256, 0.3): ~0.32 ~0.61 ~0.71 ~0.75, ~1.0 sec/epoch

The text's table, with MNIST on four GPUs of 2017: accuracy after each of 5 epochs

    run(1, 64, .3)   0.9685 0.9814 0.9862 0.9848 0.9853   3.5 sec/epoch
    run(4, 256, .3)  0.9488 0.9693 0.9763 0.9801 0.9844   2.4 sec/epoch
"""
from __future__ import annotations

from contextlib import nullcontext

from flags import read_flags, run_example
from gluon_mgpu import DownloadError, Timer, accuracy, load_data, prepare_idle_devices, split_batch
from mxnet import autograd, gluon, init, npx

nn = gluon.nn
loss = gluon.loss.SoftmaxCrossEntropyLoss()


def make_net(devices: list):
    """Return the text's CNN, initialized on the devices."""
    prefixes = hasattr(nn.Block, 'name_scope')  # not in MXNet 2
    net = nn.HybridSequential(prefix='cnn_') if prefixes else nn.HybridSequential()
    with net.name_scope() if prefixes else nullcontext():
        net.add(nn.Conv2D(20, 3, activation='relu'), nn.MaxPool2D(2, 2),  # (n, 1, 28, 28) -> (n, 20, 13, 13)
                nn.Conv2D(50, 5, activation='relu'), nn.MaxPool2D(2, 2),  # (n, 50, 4, 4)
                nn.Flatten(), nn.Dense(128, activation='relu'),           # (n, 800) -> (n, 128)
                nn.Dense(10))                                             # (n, 10)
    net.initialize(init=init.Xavier(magnitude=2), ctx=devices)
    return net


def forward_backward(net, X_shards: list, y_shards: list) -> list:
    """Return the losses of every shard and compute the gradients on each device; does not block."""
    with autograd.record():
        ls = [loss(net(X), y) for X, y in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    return ls


def train_batch(X, y, devices: list, net, trainer, batch_size: int) -> None:
    """Take one step on a batch split over the devices; does not block."""
    X_shards, y_shards = split_batch(X, y, devices)
    forward_backward(net, X_shards, y_shards)
    prepare_idle_devices(net, X, devices)  # one without rows adds 0, not its gradients of the batch before
    trainer.step(batch_size)  # also for a short last batch: every image has the same weight


def valid_batch(X, y, devices: list, net) -> float:
    """Return the number of correct rows of the batch."""
    X_shards, y_shards = split_batch(X, y, devices)
    predictions = [net(X) for X in X_shards]
    return sum(accuracy(y_hat, y) for y_hat, y in zip(predictions, y_shards))


def run(num_gpus: int, batch_size: int, lr: float, devices: list, data: tuple, num_epochs: int) -> list:
    """Train on the first `num_gpus` devices; print and return the accuracy after each epoch."""
    devices = devices[:num_gpus]
    train_iter, valid_iter = data
    net = make_net(devices)
    net.hybridize(static_alloc=True, static_shape=True)  # for speed: the same function, as one operator
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': lr})
    accuracies, timer = [], Timer()
    for _ in range(num_epochs):
        timer.start()
        for X, y in train_iter:
            train_batch(X, y, devices, net, trainer, batch_size)
        npx.waitall()
        timer.stop()
        correct = [valid_batch(X, y, devices, net) for X, y in valid_iter]  # every image counts once
        accuracies.append(sum(correct) / valid_iter.num_rows)
    print(f'run({num_gpus}, {batch_size}, {lr}): {" ".join(f"{a:.4f}" for a in accuracies)}, '
          f'{timer.avg():.1f} sec/epoch')
    return accuracies


def load(args, batch_size: int) -> tuple:
    """Return iterators over the training and validation rows of `--dataset`, or glyphs if it cannot be downloaded."""
    try:
        return load_data(args.dataset, batch_size, args.data_dir or None, args.train_size)
    except DownloadError as error:
        print(f'glyphs instead of {args.dataset}: {error}')
        args.dataset = 'glyphs'
        return load(args, batch_size)


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0-3', epochs=4, train_size=8192, dataset='mnist', data_dir='',
                      lr=0.3)
    k = len(args.devices)
    data = load(args, 64 * k)
    X, y = next(iter(data[0]))
    X_shards, y_shards = split_batch(X[:4 * k], y[:4 * k], args.devices)
    net = make_net(args.devices)
    for X_shard in X_shards:
        print(f'first scores on {X_shard.ctx}: {net(X_shard)[0, :3].asnumpy().round(3)}')
    forward_backward(net, X_shards, y_shards)
    weight = net[0].weight
    for device in args.devices:
        print(f'row 0 on {device}: weight {weight.data(device)[0, 0, 0].asnumpy().round(3)}, '
              f'gradient {weight.grad(device)[0, 0, 0].asnumpy().round(3)}')
    for num_gpus in sorted({1, k}):
        run(num_gpus, 64 * num_gpus, args.lr, args.devices, load(args, 64 * num_gpus), args.epochs)


if __name__ == '__main__':
    run_example(main)
