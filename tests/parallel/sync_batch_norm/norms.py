"""Networks with batch norm, trained on one device or several."""
import re
from functools import partial

import numpy
from equals_one import Plain, equals_one, sequential, started
from refused import refused
from trainers import on_each_device, trainable

from gluon_mgpu import concise
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, np
from gluon_mgpu.networks.loss import cross_entropy
from gluon_mgpu.parallel.split import split_and_load
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.parallel.sync_batch_norm.train_batch import train_batch_synchronized

nn = gluon.nn
SIZES = (64, 1, 5, 2, 32, 3, 7, 4, 33, 16)  # rows of ten batches; with 1 to 3 rows, devices may get none


def small_net():
    return sequential(nn.Conv2D(4, 3, strides=2), nn.BatchNorm(), nn.Activation('relu'),
                      nn.Conv2D(6, 3), nn.BatchNorm(), nn.Activation('relu'), nn.Dense(10))


def train(devices, rng, make=small_net, wrap=SyncBatchNorm, sizes=SIZES, side=12):
    """Train a new network in float64; yield it after each batch."""
    net = started(make(), devices, rng, (1, side, side), scale=0.2)
    trainer, fast = on_each_device(trainable(net), 'sgd', {'learning_rate': 0.1}), wrap(net)
    step = train_batch_synchronized if wrap is SyncBatchNorm else concise.train_batch
    for n in sizes:
        X, y = rng.normal(1, 1, size=(n, 1, side, side)), rng.integers(0, 10, n)
        step(X, y, fast, cross_entropy, trainer, devices, None if n == 33 else 64)
        yield net


def trained(devices, **options):
    *_, net = train(devices, numpy.random.default_rng(1), **options)
    return net


def equals_gluon(program, devices, **options):
    """Compare ``program(devices, rng, wrap=SyncBatchNorm)`` with plain Gluon on one device."""
    equals_one(partial(program, wrap=SyncBatchNorm), devices, one=partial(program, wrap=Plain), **options)


def backward(fast, *shards, loss=lambda y_hat: y_hat.sum()):
    with autograd.record():
        ls = [loss(y_hat) for y_hat in fast.forward(*shards)]
    fast.backward(ls)


def square(y_hat):
    return (y_hat ** 2).sum()


def refuses(fast, message, *shards):
    """Check that a batch is an error of one line."""
    with autograd.record():
        assert re.search(message, refused(fast.forward, *shards))


def norm_of(devices, *layers):
    """Return a network, by default of a batch norm and a dense layer, and a batch of 5 images."""
    net = sequential(*(layers or (nn.BatchNorm(), nn.Dense(2))))
    net.initialize(ctx=devices)
    net(np.zeros((1, 3, 4, 4), ctx=devices[0]))
    X = numpy.random.default_rng(0).normal(2, 1, (5, 3, 4, 4))
    return SyncBatchNorm(net), split_and_load(np.array(X, dtype='float32'), devices)
