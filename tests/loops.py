"""A user's own training loop, with checkpoints."""
import warnings

import numpy
from trainers import trainable

from gluon_mgpu.mxnet_setup.compat import autograd, gluon, init, np, npx
from gluon_mgpu.networks.resnet import Residual
from gluon_mgpu.networks.static_shapes import StaticSequential
from gluon_mgpu.parallel.split import split_and_load
from gluon_mgpu.training.parameters import copies

OPTIMIZERS = {'sgd': ('sgd', {'learning_rate': 0.1}),
              'momentum': ('sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 1e-3}),
              'adam': ('adam', {'learning_rate': 0.01})}


def network(devices):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(3, 3), gluon.nn.BatchNorm(), gluon.nn.Flatten(),
            gluon.nn.Dense(5, activation='relu'), gluon.nn.Dense(2))
    net.initialize(init.Xavier(), ctx=devices)
    return net


def small_resnet(devices):
    """Return a network whose shapes are static."""
    net = StaticSequential()
    net.add(gluon.nn.Conv2D(3, 3), gluon.nn.BatchNorm(), Residual(3), gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(10))
    net.initialize(init.Xavier(), ctx=devices)
    net.hybridize(static_alloc=True, static_shape=True)
    return net


def sharing_layers(devices):
    """Return a network of which two layers have the same parameters, on MXNet 2."""
    first, second = gluon.nn.Dense(36, in_units=36), gluon.nn.Dense(36, in_units=36)
    net = gluon.nn.HybridSequential()
    net.add(first, second.share_parameters(first.collect_params()), gluon.nn.Dense(2))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # shared parameters are initialized once
        net.initialize(init.Constant(0.1), ctx=devices)
    return net


class Loop:
    """Training loop as a user might write it. The number of the step determines the batch."""

    def __init__(self, devices, optimizer='sgd', params=trainable, make=network, **options):
        self.devices, self.net, self.num_steps = devices, make(devices), 0
        self.net(np.zeros((1, 1, 6, 6), ctx=devices[0]))
        name, settings = OPTIMIZERS[optimizer]
        self.trainer = gluon.Trainer(params(self.net), name, settings, **options)
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def train(self, num_steps):
        for _ in range(num_steps):
            rng = numpy.random.default_rng(self.num_steps)
            X, y = np.array(rng.random((9, 1, 6, 6), 'float32')), np.array(rng.integers(2, size=9))
            with autograd.record():
                ls = [self.loss(self.net(X_shard), y_shard) for X_shard, y_shard in
                      zip(split_and_load(X, self.devices), split_and_load(y, self.devices))]
            autograd.backward(ls)
            self.trainer.step(len(X))
            self.num_steps += 1
        npx.waitall()
        return self

    def values(self):
        return values(self.net)


def values(net):
    """Return the numbers of all parameters on each device, by name."""
    return {name: [array.asnumpy().tolist() for array in arrays] for name, arrays in copies(net).items()}


def dense(devices, **options):
    net = gluon.nn.Dense(2, in_units=3, use_bias=False)  # GroupAdaGrad takes matrices only
    net.initialize(init.Xavier(), ctx=devices)
    return net, gluon.Trainer(net.collect_params(), **options)
