"""The concise chapter on one device, to compare with `gluon_mgpu/concise.py`.

    python examples/one_device_concise.py

The documentation shows `train_batch` beside the chapter's. Prints, after two epochs on images of bars:

    losses on one device 2.3077 1.6882, on two 2.3371 1.7833

The losses differ, because batch norm computes its statistics from each device's own rows. The functions follow
`train_ch6` of D2L 23.7, and 13.6.3.
"""
from __future__ import annotations

from flags import read_flags, run_example
from gluon_mgpu import concise, cross_entropy, evaluate_accuracy_gpus, resnet18
from mxnet import autograd, gluon, init
from one_device import compare


def train_batch(X, y, net, loss, trainer, device, batch_size):
    X, y = X.as_in_ctx(device), y.as_in_ctx(device)
    with autograd.record():
        l = loss(net(X), y)
    l.backward()
    trainer.step(batch_size)
    return [l]


def train(batch_size, lr, devices, data, run):
    (device,), (train_iter, test_iter) = devices, data
    net = resnet18(10)
    net.initialize(init=init.Normal(sigma=0.01), ctx=device)
    net.hybridize(static_alloc=True, static_shape=True)  # for speed: it runs as one operator
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': lr})
    for _ in run.epochs(net, trainer, seed=0):
        for X, y in run.batches(train_iter):
            run.record_losses(train_batch(X, y, net, cross_entropy, trainer, device, batch_size))
        run.end_epoch(evaluate_accuracy_gpus(net, test_iter))


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, rows=64)
    compare(train, concise.train, args.devices, args.rows, lr=0.02)


if __name__ == '__main__':
    run_example(main)
