"""Training with devices and with workers, for comparison: the same few steps on the same batches."""
import numpy
import oracle
from trainers import trainable

from gluon_mgpu import concise, scratch
from gluon_mgpu.data.shards import shard_rows
from gluon_mgpu.mxnet_setup.compat import gluon, np
from gluon_mgpu.networks.static_shapes import StaticSequential

LR = 0.1
ROWS = (16, 7, 2, 16, 1)  # some with fewer rows than workers


def batches(dtype):
    """Return batches of random images. In real ones, some inputs of relu are so near 0 that rounding decides."""
    rng = numpy.random.default_rng(3)
    return [oracle.images(rng, n, dtype) for n in ROWS]


def rows_of_worker(X, y, workers):
    """Return this worker's rows of a batch, possibly none, as MXNet arrays."""
    rows = shard_rows(len(X), *workers.shard)
    if rows.start == rows.stop:
        return np.empty((0, *X.shape[1:]), dtype=X.dtype), np.empty(0, dtype='int32')
    return np.array(X[rows], dtype=X.dtype), np.array(y[rows], dtype='int32')


def scratch_case(devices, dtype, workers):
    """Return a function that trains LeNet from scratch for one step, and the parameters on each device."""
    params = oracle.to_mx(oracle.lenet_params(numpy.random.default_rng(5), 0.1, dtype))
    if workers.rank:
        params = [param + 1 for param in params]  # overwritten by `broadcast_parameters`
    device_params = [scratch.get_params(params, device) for device in devices]

    def step(X, y):
        ls = scratch.train_batch(*rows_of_worker(X, y, workers), device_params, devices, LR, len(X),
                                 workers.extend_allreduce(scratch.allreduce))
        return sum(workers.allgather(total(ls)))
    return step, device_params


def concise_case(devices, dtype, workers):
    """Return a function that trains a small Gluon network for one step, and the network."""
    nn = gluon.nn
    net = StaticSequential()
    net.add(nn.Conv2D(4, 3, activation='sigmoid'), nn.BatchNorm(), nn.AvgPool2D(2, 2), nn.Dense(10))
    net.initialize(ctx=devices)
    for device in devices:
        net(np.zeros((1, 1, 28, 28), ctx=device))
    rng = numpy.random.default_rng(5 + workers.rank)
    for param in trainable(net):
        param.set_data(np.array(rng.normal(scale=0.1, size=param.shape)))
    net.cast(dtype)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = workers.trainer(trainable(net), 'sgd', {'learning_rate': LR, 'momentum': 0.9}, clip_norm=0.1)

    def step(X, y):
        ls = concise.train_batch(*rows_of_worker(X, y, workers), net, loss, trainer, devices, len(X))
        return sum(workers.allgather(total(ls)))
    return step, net


def total(ls):
    """Return the sum of the losses of all devices, added in float64."""
    return float(sum(numpy.float64(l.asnumpy().astype('float64').sum()) for l in ls))


def params_of(net):
    """Return the trained parameters of the first device as NumPy arrays."""
    if isinstance(net, list):
        return [array.asnumpy() for array in net[0]]
    return [param.list_data()[0].asnumpy() for param in trainable(net)]
