"""LeNet from scratch on multiple devices, with gradients summed by hand (D2L 13.5).

    python -m gluon_mgpu.scratch                       # two devices (one, if there is only one GPU), 10 epochs
    python -m gluon_mgpu.scratch --devices gpu:0,gpu:1
    python -m gluon_mgpu.scratch --num-gpus 1 --batch-size 256 --lr 0.2   # the book's first run

Each device holds a copy of the parameters and gets its shard of every batch. It computes the gradient of that shard.
The gradients are summed over the devices, and every device takes the same step.

Four things are only for speed: `@hybridized`, which runs a function as one operator, `cross_entropy`, and in `lenet`
the crop and ``npx.activation``. They change results only by rounding, as long as all values are finite. A function that
"does not block" queues operations in MXNet's engine and returns before they are computed.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

if not __package__:
    sys.exit('run this program as a module: python -m gluon_mgpu.scratch')

from mxnet import autograd, np, npx  # after npx.set_np(), which the package has called

from .data import load_data
from .devices import devices_from
from .networks.hybridized import hybridized
from .networks.loss import cross_entropy
from .outputs.plot import Animator
from .parallel.split import split_batch
from .training.checks import Default, check_training
from .training.evaluate import evaluate_accuracy_gpus
from .training.run import Run


def init_params(scale: float = 0.01) -> list:
    """Return LeNet's parameters on the current device: normal weights with standard deviation `scale`, zero biases.

    Source: D2L 13.5.3, "A Toy Network".
    """
    W1 = np.random.normal(scale=scale, size=(20, 1, 3, 3))
    b1 = np.zeros(20)
    W2 = np.random.normal(scale=scale, size=(50, 20, 5, 5))
    b2 = np.zeros(50)
    W3 = np.random.normal(scale=scale, size=(800, 128))
    b3 = np.zeros(128)
    W4 = np.random.normal(scale=scale, size=(128, 10))
    b4 = np.zeros(10)
    return [W1, b1, W2, b2, W3, b3, W4, b4]


@hybridized
def lenet(X: np.ndarray, params: list) -> np.ndarray:
    """Return the scores (n, 10) of the ten classes for each image; does not block.

    The images `X`, (n, 1, 28, 28), and `params`, from `init_params` or `get_params`, are on the same device.

    Source: D2L 13.5.3, ``lenet``.
    """
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    # For speed, crop the last two rows and columns of an image, which do not affect the scores. Without the crop,
    # h2_conv would be 9x9, and the pooling would ignore its ninth row and column
    X = X[:, :, :-2, :-2]                                                                 # (n, 1, 26, 26)
    h1_conv = npx.convolution(data=X, weight=W1, bias=b1, kernel=(3, 3), num_filter=20)   # (n, 20, 24, 24)
    h1_activation = npx.activation(h1_conv, act_type='relu')                              # npx.relu is slower
    h1 = npx.pooling(data=h1_activation, pool_type='avg', kernel=(2, 2), stride=(2, 2))   # (n, 20, 12, 12)
    h2_conv = npx.convolution(data=h1, weight=W2, bias=b2, kernel=(5, 5), num_filter=50)  # (n, 50, 8, 8)
    h2_activation = npx.activation(h2_conv, act_type='relu')
    h2 = npx.pooling(data=h2_activation, pool_type='avg', kernel=(2, 2), stride=(2, 2))   # (n, 50, 4, 4)
    # -1 instead of the book's h2.shape[0]: `hybridized` records the operators once, for any number of rows
    h2 = h2.reshape(-1, 800)                                                              # (n, 800)
    h3_linear = np.dot(h2, W3) + b3                                                       # (n, 128)
    h3 = npx.relu(h3_linear)
    return np.dot(h3, W4) + b4                                                            # (n, 10)


loss = cross_entropy  # gluon.loss.SoftmaxCrossEntropyLoss(), as one operator


def get_params(params: list, device: Any) -> list:
    """Copy a list of parameters to a device, and attach gradients, initially 0; does not block.

    Returns the list of the copies, each with its gradient in ``.grad``.

    Source: D2L 13.5.4, ``get_params``.
    """
    new_params = [p.copyto(device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


def allreduce(data: list) -> None:
    """Replace each array in a list by the sum of all; works in place, does not block.

    `data` has one array per device, all with the same shape and dtype.

    Source: D2L 13.5.4, ``allreduce``. `parallel/allreduce.py` has other algorithms.
    """
    for i in range(1, len(data)):
        data[0] += data[i].copyto(data[0].ctx)  # in place, as the book's data[0][:]
    for i in range(1, len(data)):
        data[0].copyto(data[i])


# D2L 13.5.5, split_batch, is in parallel/split.py, because both chapters use it. Unlike the book's, it takes any number
# of rows; devices without rows get no shard


def sgd(params: list, lr: float, batch_size: int) -> None:
    """Take one step of minibatch stochastic gradient descent, in place; does not block.

    The gradients in ``param.grad`` are sums over the rows of the batch.

    Source: D2L 23.7, ``sgd``; called in 13.5.6.
    """
    for param in params:
        # w <- w - lr / batch_size * (sum of the gradients of all rows)
        param -= lr / batch_size * param.grad


def train_batch(X: np.ndarray, y: np.ndarray, device_params: list, devices: list, lr: float,
                batch_size: int | None = None, allreduce: Callable = allreduce) -> list:
    """Train on one batch, split over the devices; does not block.

    Returns the losses, one array for each device that got rows.

    Source: D2L 13.5.6, ``train_batch``.

    Parameters
    ----------
    X, y : np.ndarray, (n, 1, 28, 28) and (n,)
        With any number n of rows, possibly fewer than devices.
    device_params : list of lists of np.ndarray
        The parameters on each device, from `get_params`. They are updated in place and stay equal on all devices.
    devices : list of mx.Context
    batch_size : int, optional
        Divisor of the summed gradient, by default n.
    allreduce : callable
        Sums a list of arrays, one per device, in place.
    """
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():  # The loss is calculated separately on each device
        ls = [loss(lenet(X_shard, device_W), y_shard)
              for X_shard, y_shard, device_W in zip(X_shards, y_shards, device_params)]
    for l in ls:  # Backpropagation is performed separately on each device
        l.backward()
    # A device that got no rows of a small batch still holds the gradients of the batch before: it must add 0
    for params in device_params[len(X_shards):]:
        for param in params:
            param.grad[:] = 0
    # Sum the gradients of all devices and give every device the sum
    for i in range(len(device_params[0])):
        allreduce([device_params[c][i].grad for c in range(len(devices))])
    # The parameters are updated separately on each device
    for param in device_params:
        sgd(param, lr, batch_size or X.shape[0])
    return ls


def train(num_gpus: int | None, batch_size: int, lr: float | Callable, num_epochs: int = Default(10), *,
          devices: list | None = None, data: tuple | None = None, run: Run | None = None, seed: int = 0,
          train_batch: Callable = train_batch, allreduce: Callable = allreduce) -> Run:
    """Train LeNet on multiple devices; print the accuracy, the seconds per epoch and the devices.

    Source: D2L 13.5.6, ``train``, which returns nothing and waits for the devices after every batch. Here the program
    queues the next batches while the devices compute. It reads the losses later, and waits at the end of an epoch.

    Returns the `Run`, with ``net`` (here, the parameters on each device) and ``history``. Raises ValueError if an
    argument is invalid, or if a device or data is missing. Raises its subclass `DivergenceError` if the loss or a
    parameter is NaN or infinite.

    Parameters
    ----------
    num_gpus : int or None
        Number of GPUs, or of CPU contexts if MXNet sees no GPU. With `devices`, None or their number.
    batch_size : int
        Rows in a batch, over all devices. The summed gradient is always divided by it, even if the last batch is
        smaller, so that every image has the same weight. The book does so in 13.6; in 13.5 it divides by the rows.
    lr : float or callable
        The learning rate, or a function of the number of the update, from 1, such as one of MXNet's schedulers.
    num_epochs : int
        Passes over the training images. Leave it out if you pass `run`, which has its own number.
    devices : list of mx.Context, optional
        The devices, if not the first `num_gpus`, such as ``[mx.gpu(0), mx.gpu(2)]``.
    data : (train_iter, test_iter), optional
        Iterables over batches (X, y), by default of Fashion-MNIST.
    run : Run, optional
        A run with settings of its own: callbacks such as checkpoints, no output, or several processes.
    seed : int
        Seed of the initial parameters and of the order of the images.
    train_batch, allreduce : callable
        Functions that are called like those above, such as ``scratch_in_parts(train_batch, 4)`` of
        `parallel/accumulation.py` and `ring` of `parallel/allreduce.py`.
    """
    run = run or Run(num_epochs)  # measures the time, reads the losses and prints
    devices = devices_from(num_gpus, devices)
    data = data or load_data('fashion-mnist', batch_size, seed=seed)
    check_training(run, num_epochs, batch_size, data)
    train_iter, test_iter = data
    npx.random.seed(seed)
    params = init_params()
    # Copy the model parameters to every device
    device_params = [get_params(params, d) for d in devices]
    params_on = dict(zip(devices, device_params))
    animator = Animator('epoch', f'{run.evaluated} acc', xlim=[1, run.num_epochs])
    # `run` counts the epochs from 1, seeds each, and checks the parameters after it. run.lr is lr, or what lr returns
    for epoch in run.epochs(device_params, seed=seed, lr=lr):
        # After the last batch, `run.batches` waits for the devices, as npx.waitall() does in 13.6, and stops the clock
        for X, y in run.batches(train_iter):
            # Perform multi-device training for a single minibatch
            run.record_losses(train_batch(X, y, device_params, devices, run.lr, batch_size, allreduce))
        # Evaluate the model on all devices; the book does so on the first, and asks for this in an exercise
        accuracy = evaluate_accuracy_gpus(lambda X: lenet(X, params_on[X.ctx]), test_iter, devices=devices,
                                          workers=run.workers)
        animator.add(epoch, (accuracy,))
        run.end_epoch(accuracy)
    run.print_summary(devices)
    return run


def main(argv: list | None = None) -> int:
    """Run the command line ``python -m gluon_mgpu.scratch``; return the exit status."""
    from .settings import cli
    return cli.run('scratch', sys.modules[__name__], argv)


if __name__ == '__main__':
    sys.exit(main())
