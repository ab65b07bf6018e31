"""``train_batch_ch13`` and ``train_ch13``, with which the book trains in other chapters (D2L 14.1)."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .base.text import counted
from .data.batches import as_pair
from .devices import try_all_gpus
from .mxnet_setup.compat import autograd, gluon
from .outputs.plot import Animator
from .parallel.split import split_batch
from .parallel.step import check_trainer, prepare_idle_devices, zero_unused_gradient
from .training.evaluate import count_correct, evaluate_accuracy_gpus
from .training.run import Run


def train_batch_ch13(net: Callable, features: Any, labels: Any, loss: Callable, trainer: gluon.Trainer, devices: list,
                     split_f: Callable = split_batch) -> tuple[float, float]:
    """Train on one batch; return the sum of its losses and its number of correct predictions; waits for the devices.

    Layers that the batch does not use are not updated; by ``gluon.Trainer`` on several devices, as for the gradient 0.
    `features`, arrays (n, ...) in nested lists or tuples, are split by ``split_f(features, labels, devices)``. `net`
    maps those of a device to scores, and `loss` these to a loss per row: a mean would depend on the number of devices.
    All else is as in `concise.train_batch`.
    """
    ls, correct = _train_batch(net, features, labels, loss, trainer, devices, split_f)
    return sum(float(l.as_np_ndarray().sum()) for l in ls), sum(map(float, correct))


def train_ch13(net: Callable, train_iter: Iterable, test_iter: Iterable, loss: Callable, trainer: gluon.Trainer,
               num_epochs: int, devices: list | None = None, split_f: Callable = split_batch) -> None:
    """Train as `train_batch_ch13`, by default on all devices; print loss, accuracy and time as a `Run` does."""
    devices, run = try_all_gpus() if devices is None else devices, Run(num_epochs)
    run.check_data(train_iter, test_iter)
    animator = Animator('epoch', xlim=[1, num_epochs], ylim=[0, 1], legend=['train loss', 'train acc', 'test acc'])
    for epoch in run.epochs(net if hasattr(net, 'collect_params') else [], trainer):  # a function has no parameters
        counts = []
        for features, labels in map(as_pair, run.batches(train_iter)):
            ls, correct = _train_batch(net, features, labels, loss, trainer, devices, split_f)
            run.record_losses(ls)
            counts.append((correct, labels.size))
        num_correct, size = sum(float(n) for correct, _ in counts for n in correct), sum(size for _, size in counts)
        train_acc, test_acc = num_correct / size, evaluate_accuracy_gpus(net, test_iter, split_f, devices)
        result = run.end_epoch(test_acc)
        animator.add(epoch, (result.loss, train_acc, test_acc))
    run.print(f'loss {result.loss:.3f}, train acc {train_acc:.3f}, test acc {test_acc:.3f}',
              f'{result.images_per_second:.1f} examples/sec on {devices}')


def _train_batch(net, features, labels, loss, trainer, devices: list, split_f) -> tuple[list, list]:
    """Train on one batch; return the losses and numbers of correct predictions, as arrays; does not block."""
    _prepare_trainer(trainer, devices)
    X_shards, y_shards = split_f(features, labels, devices)
    num_shards = min(len(labels), len(devices))
    y_shards = y_shards[:num_shards]  # Gluon's own functions return others, without rows
    if len(y_shards) < num_shards or not all(map(len, y_shards)):
        raise ValueError(f'split_f leaves a device without rows: each of the first {num_shards} must get some')
    with autograd.record():
        y_hats = [net(X_shard) for X_shard in X_shards[:num_shards]]
        ls = [loss(y_hat, y_shard) for y_hat, y_shard in zip(y_hats, y_shards)]
    for l in ls:
        l.backward()
    # `net` may be a function, which has no list of its parameters
    prepare_idle_devices(net if hasattr(net, 'collect_params') else trainer._params, labels, devices)
    _check_losses(ls, labels)
    for param in trainer._params:  # the devices stay equal if only some of them have used a parameter
        if trainer._update_on_kvstore or any(weight._fresh_grad for weight in param._data or ()):
            zero_unused_gradient(param)
    trainer.step(len(labels), ignore_stale_grad=True)  # a BERT classifier does not use all layers of BERT
    return ls, [*map(count_correct, y_hats, y_shards)]


def _prepare_trainer(trainer: gluon.Trainer, devices: list) -> None:
    """Check the Trainer; if its key-value store updates, mark all gradients as not yet written, as Gluon does not."""
    check_trainer(trainer, list(devices))
    for param in trainer._params if trainer._update_on_kvstore else ():
        for weight in param._data or () if param.grad_req != 'null' else ():
            weight._fresh_grad = False  # otherwise old gradients of unused layers would be added again


def _check_losses(ls: list, labels: Any) -> None:
    if (size := sum(l.size for l in ls)) < len(labels):
        raise ValueError(f'the loss has {counted(size, "value")} for {counted(len(labels), "row")}: return one for '
                         'each row, because the mean of a shard would depend on the number of devices')
