"""The concise chapter on one device, to compare with `gluon_mgpu/concise.py`.

    python examples/one_device_concise.py

The documentation shows these functions beside the chapter's. Prints, after two epochs on images of bars:

    losses on one device 2.3077 1.6882, on two 2.3371 1.7833

The losses differ, because batch norm computes its statistics from each device's own rows. The functions follow
`train_ch6` of D2L 23.7, and 13.6.3.
"""
from __future__ import annotations

from flags import read_flags, run_example
from gluon_mgpu import Animator, TrainingSetup, concise, cross_entropy, evaluate_accuracy_gpus, resnet18
from mxnet import autograd, gluon, init, npx
from one_device import compare


def forward_backward(X, y, net, device, loss):
    X, y = X.as_in_ctx(device), y.as_in_ctx(device)
    with autograd.record():
        ls = [loss(net(X), y)]
    autograd.backward(ls)
    return ls


def train_batch(X, y, net, loss, trainer, device, batch_size):
    ls = forward_backward(X, y, net, device, loss)
    trainer.step(batch_size)
    return ls


def train(num_gpus, batch_size, lr, **settings):
    setup = TrainingSetup('concise', num_gpus, batch_size, lr, settings)
    (device,), (train_iter, test_iter), run = setup.devices, setup.data, setup.run
    npx.random.seed(setup.seed)  # ResNet-18's parameters get their shapes, and values, at the first batch
    if setup.devices.parts > 1 or setup.clip_norm is not None:
        raise ValueError('accumulate and clip_norm: leave them out, because this program has no such steps')
    net = resnet18(10, setup.dtype) if setup.net is None else setup.net
    net.initialize(init=init.Normal(sigma=0.01), ctx=device, force_reinit=True)  # setup.net may have parameters
    if setup.net is None:
        net.hybridize(static_alloc=True, static_shape=True)  # for speed: it runs as one operator
    trainer = gluon.Trainer(net.collect_params(), setup.optimizer, setup.optimizer_params)
    loss = cross_entropy  # as in scratch.py
    animator = Animator('epoch', 'test acc', xlim=[1, run.num_epochs])
    for epoch in run.epochs(net, trainer, setup.seed, lr):
        for X, y in run.batches(train_iter):  # measures the time, and waits at the end, as npx.waitall()
            trainer.set_learning_rate(run.lr)  # the book's {'learning_rate': lr}; here, a schedule may change it
            run.record_losses(train_batch(X, y, net, loss, trainer, device, batch_size))
        test_acc = evaluate_accuracy_gpus(net, test_iter)
        animator.add(epoch, (test_acc,))
        run.end_epoch(test_acc)
    run.print_summary([device])


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, rows=64)
    compare(train, concise.train, args.devices, args.rows, lr=0.02)


if __name__ == '__main__':
    run_example(main)
