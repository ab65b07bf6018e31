"""Synchronized batch norm of one layer, compared with formulas in NumPy and with Gluon's."""
import numpy
import pytest
from equals_one import Plain, sequential
from norms import norm_of

from gluon_mgpu.mxnet_setup.compat import autograd, gluon, np, npx
from gluon_mgpu.parallel.split import split_and_load
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.training.parameters import parameters_by_name

nn = gluon.nn


def batch_norm(X, dY, gamma, beta, eps):
    """The formulas in the module's docstring, with NumPy: y, dx, dgamma, dbeta."""
    def mean(array):
        return array.mean(axis=(0, 2, 3), keepdims=True)

    gamma, beta = gamma.reshape(1, -1, 1, 1), beta.reshape(1, -1, 1, 1)
    sigma = numpy.sqrt(mean((X - mean(X)) ** 2) + eps)
    X_hat = (X - mean(X)) / sigma
    dX = gamma / sigma * (dY - mean(dY) - X_hat * mean(dY * X_hat))
    return gamma * X_hat + beta, dX, (dY * X_hat).sum(axis=(0, 2, 3)), dY.sum(axis=(0, 2, 3))


def run_layer(X, dY, gamma, beta, devices, dtype, eps=1e-5):
    """Run one synchronized batch norm forward and backward; return y, dx, dgamma, dbeta and the layer."""
    layer = nn.BatchNorm(epsilon=eps, in_channels=X.shape[1])
    layer.initialize(ctx=devices)
    layer.cast(dtype)
    layer.gamma.set_data(np.array(gamma, dtype=dtype))
    layer.beta.set_data(np.array(beta, dtype=dtype))
    X_shards, dY_shards = (split_and_load(array.astype(dtype), devices) for array in (X, dY))
    for X_shard in X_shards:
        X_shard.attach_grad()
    with autograd.record():
        net = SyncBatchNorm(layer)
        Y_shards = net.forward(X_shards)
    net.backward(Y_shards, dY_shards)
    return (*(numpy.concatenate([a.asnumpy() for a in arrays])
              for arrays in (Y_shards, [X_shard.grad for X_shard in X_shards])),
            *(sum(param.grad(device).asnumpy() for device in devices) for param in (layer.gamma, layer.beta)), layer)


def random_layer(seed, mean=2.0):
    rng = numpy.random.default_rng(seed)
    X, dY = rng.normal(mean, 3, size=(7, 3, 4, 5)), rng.normal(size=(7, 3, 4, 5))
    return X, dY, rng.normal(size=3), rng.normal(size=3)


def test_formulas_on_uneven_shards(device_list, seed):
    X, dY, gamma, beta = random_layer(seed)
    *found, layer = run_layer(X, dY, gamma, beta, device_list(3), 'float64')
    for array, expected in zip(found, batch_norm(X, dY, gamma, beta, 1e-5)):
        numpy.testing.assert_allclose(array, expected, rtol=1e-10, atol=1e-12)  # other order of 140 float64 numbers
    for device in device_list(3):
        running_mean, running_var = (p.data(device).asnumpy() for p in (layer.running_mean, layer.running_var))
        numpy.testing.assert_allclose(running_mean, 0.1 * X.mean(axis=(0, 2, 3)), rtol=1e-6)  # momentum is float32
        numpy.testing.assert_allclose(running_var, 0.9 + 0.1 * X.var(axis=(0, 2, 3)), rtol=1e-6)


def test_a_large_mean_does_not_spoil_the_variance(device_list, seed):
    """Mean 10,000, standard deviation 3: mean of squares minus square of the mean would leave no right digit."""
    X, dY, gamma, beta = random_layer(seed, mean=1e4)
    X = X.astype('float32').astype('float64')  # the input that float32 can represent
    *found, layer = run_layer(X, dY, gamma, beta, device_list(2), 'float32')
    for array, expected in zip(found, batch_norm(X, dY, gamma, beta, 1e-5)):
        # float32 represents numbers near 10,000 with an error of 1e-3, 3e-4 standard deviations
        numpy.testing.assert_allclose(array, expected, rtol=1e-3, atol=1e-2)
    for device in device_list(2):
        found = layer.running_var.data(device).asnumpy()
        numpy.testing.assert_allclose(found, 0.9 + 0.1 * X.var(axis=(0, 2, 3)), rtol=1e-3)


@pytest.mark.parametrize(('frozen', 'updated'), [('1.gamma 1.beta', True), ('0.weight 0.bias 1.gamma 1.beta', False),
                                                 ('0.weight 0.bias', True)])
def test_running_statistics_change_as_in_gluon(frozen, updated, device_list):
    """In the backward pass, unless it ends behind the batch norm."""
    changed = []
    for wrap in (SyncBatchNorm, Plain):
        fast, X_shards, running_mean = norm_of(sequential(nn.Conv2D(3, 1), nn.BatchNorm(), nn.Dense(2)), device_list(2))
        for name in frozen.split():
            parameters_by_name(fast)[name].grad_req = 'null'
        fast = wrap(fast.block)
        for steps in ('forward', 'forward and backward'):
            with autograd.record():
                Y_shards = fast.forward(X_shards)
            if 'backward' in steps:
                fast.backward(Y_shards)
            npx.waitall()
            changed.append([bool(abs(array).max() > 0) for array in running_mean.list_data()])
    assert changed == 2 * [[False, False], [updated, updated]]


def test_the_running_statistics_of_a_single_value(devices):
    X = numpy.array([5., -2.]).reshape(1, 2, 1, 1)
    *_, layer = run_layer(X, X, numpy.ones(2), numpy.ones(2), devices, 'float64')
    for device in devices:
        numpy.testing.assert_allclose(layer.running_mean.data(device).asnumpy(), [0.5, -0.2], rtol=1e-6)
        numpy.testing.assert_allclose(layer.running_var.data(device).asnumpy(), [0.9, 0.9], rtol=1e-6)
