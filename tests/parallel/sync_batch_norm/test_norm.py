"""Synchronized batch norm of one layer, compared with formulas in NumPy and with Gluon's."""
import numpy
import pytest
from equals_one import Plain, rows, total_gradients
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


def run_layer(X, dY, gamma, beta, devices, dtype):
    """Run one synchronized batch norm forward and backward; return y, dx, dgamma, dbeta and the layer."""
    layer = nn.BatchNorm(epsilon=1e-5, in_channels=X.shape[1])
    layer.initialize(ctx=devices)
    layer.cast(dtype)
    layer.gamma.set_data(np.array(gamma, dtype=dtype))
    layer.beta.set_data(np.array(beta, dtype=dtype))
    X_shards, dY_shards = (split_and_load(array.astype(dtype), devices) for array in (X, dY))
    for X_shard in X_shards:
        X_shard.attach_grad()
    net = SyncBatchNorm(layer)
    with autograd.record():
        Y_shards = net.forward(X_shards)
    net.backward(Y_shards, dY_shards)
    return rows(Y_shards), rows([X_shard.grad for X_shard in X_shards]), *total_gradients(layer), layer


@pytest.mark.parametrize('k, shape, mean, dtype, rtol, atol', [
    (3, (7, 3, 4, 5), 2, 'float64', 1e-10, 1e-12),  # sums of 140 numbers in another order
    (2, (1, 2, 1, 1), 2, 'float64', 1e-10, 1e-12),
    # With a standard deviation of 3, mean of squares minus square of the mean would leave no right digit of the
    # variance. float32 represents numbers near 10,000 with an error of 1e-3, 3e-4 standard deviations
    (2, (7, 3, 4, 5), 1e4, 'float32', 1e-3, 3e-2)], ids=['uneven shards', 'one number', 'large mean'])
def test_formulas(k, shape, mean, dtype, rtol, atol, device_list, rng):
    X, dY = rng.normal(mean, 3, size=shape).astype(dtype).astype('float64'), rng.normal(size=shape)
    gamma, beta = rng.normal(size=(2, shape[1]))
    *found, layer = run_layer(X, dY, gamma, beta, device_list(k), dtype)
    for array, expected in zip(found, batch_norm(X, dY, gamma, beta, 1e-5)):
        numpy.testing.assert_allclose(array, expected, rtol=rtol, atol=atol)
    for device in device_list(k):
        running_mean, running_var = (p.data(device).asnumpy() for p in (layer.running_mean, layer.running_var))
        numpy.testing.assert_allclose(running_mean, 0.1 * X.mean(axis=(0, 2, 3)), rtol=1e-6)  # momentum is float32
        numpy.testing.assert_allclose(running_var, 0.9 + 0.1 * X.var(axis=(0, 2, 3)), rtol=max(1e-6, rtol))


@pytest.mark.parametrize(('frozen', 'updated'), [('1.gamma 1.beta', True), ('0.weight 0.bias 1.gamma 1.beta', False),
                                                 ('0.weight 0.bias', True)])
def test_running_statistics_change_as_in_gluon(frozen, updated, device_list):
    """In the backward pass, unless it ends behind the batch norm, as other-chapters.md says of Gluon."""
    changed = []
    for wrap in (SyncBatchNorm, Plain):
        fast, X_shards = norm_of(device_list(2), nn.Conv2D(3, 1), nn.BatchNorm(), nn.Dense(2))
        for name in frozen.split():
            parameters_by_name(fast)[name].grad_req = 'null'
        fast = wrap(fast.block)
        for steps in ('forward', 'forward and backward'):
            with autograd.record():
                Y_shards = fast.forward(X_shards)
            if 'backward' in steps:
                fast.backward(Y_shards)
            npx.waitall()
            changed.append([bool(abs(array).max() > 0) for array in fast.block[1].running_mean.list_data()])
    assert changed == 2 * [[False, False], [updated, updated]]
