"""Networks with batch norm, trained on one device or several."""
import numpy
from trainers import on_each_device, trainable

from gluon_mgpu import concise
from gluon_mgpu.mxnet_setup.compat import gluon, init, np, npx
from gluon_mgpu.parallel.split import split_and_load
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.parallel.sync_batch_norm.train_batch import train_batch_synchronized
from gluon_mgpu.training.parameters import parameters_by_name

nn = gluon.nn
SIZES = (64, 1, 5, 2, 32, 3, 7, 4, 33, 16)  # rows of ten batches; with 1 to 3 rows, devices may get none


def sequential(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def small_net():
    return sequential(nn.Conv2D(4, 3, strides=2), nn.BatchNorm(), nn.Activation('relu'),
                      nn.Conv2D(6, 3), nn.BatchNorm(), nn.Activation('relu'), nn.Dense(10))


def train(make, devices, synchronized, sizes=SIZES, side=12):
    """Train a new network in float64; return it."""
    rng = numpy.random.default_rng(1)
    net = make()
    net.initialize(init=init.Xavier(), ctx=devices)
    for device in devices:
        net(np.zeros((1, 1, side, side), ctx=device))
    net.cast('float64')
    for name, param in parameters_by_name(net).items():
        if 'running' not in name:  # also the gamma that a batch norm without scale ignores
            param.set_data(np.array(rng.normal(scale=0.2, size=param.shape), dtype='float64'))
    trainer = on_each_device(trainable(net), 'sgd', {'learning_rate': 0.1})
    fast, loss = SyncBatchNorm(net) if synchronized else net, gluon.loss.SoftmaxCrossEntropyLoss()
    step = train_batch_synchronized if synchronized else concise.train_batch
    for n in sizes:
        X, y = rng.normal(1, 1, size=(n, 1, side, side)), rng.integers(0, 10, n).astype('int32')
        step(np.array(X, dtype='float64'), np.array(y, dtype='int32'), fast, loss, trainer, devices, 64)
    npx.waitall()
    return net


def values(net, device):
    return {name: param.data(device).asnumpy() for name, param in parameters_by_name(net).items()}


def check_that_k_devices_equal_one(make, device_list, *ks, **options):
    """Compare with Gluon's own batch norm on one device.

    In float64, sums in another order differ by 1e-16 of the largest term. Ten steps through 17 batch norms, of which
    each may divide by a small deviation, make that 1e-13. The tolerance leaves a factor of a thousand; relu, which may
    take a number within rounding of 0 for positive or for negative, is not expected to do so in float64.
    """
    one = values(train(make, device_list(1), False, **options), device_list(1)[0])
    for k in ks:
        net = train(make, device_list(k), True, **options)
        replicas = [values(net, device) for device in device_list(k)]
        for name, expected in one.items():
            assert numpy.isfinite(expected).all()
            if name.endswith('gamma') and parameters_by_name(net)[name].grad_req == 'null':
                continue  # plain Gluon sets it to 1, and it has no effect
            assert abs(replicas[0][name] - expected).max() < 1e-10, name
            for replica in replicas[1:]:
                assert (replica[name] == replicas[0][name]).all(), name


def norm_of(net, devices):
    net.initialize(ctx=devices)
    net(np.zeros((1, 3, 4, 4), ctx=devices[0]))
    X = numpy.random.default_rng(0).normal(2, 1, (5, 3, 4, 4))
    X_shards = split_and_load(np.array(X, dtype='float32'), devices)
    running_mean, = [param for name, param in parameters_by_name(net).items() if 'running_mean' in name]
    return SyncBatchNorm(net), X_shards, running_mean
