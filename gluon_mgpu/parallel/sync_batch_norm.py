"""Synchronized batch norm: mean and variance over the rows of all devices, so that k devices equal one.

Device i has a share w_i of the rows of a batch (and of the pixels, with images), with mean m_i and variance v_i. All
rows together have

    mean      m = sum_i w_i m_i
    variance  v = sum_i w_i (v_i + (m_i - m)^2)             the mean variance plus the variance of the means

and every device computes

    y = gamma (x - m) / sqrt(v + eps) + beta

No difference of large numbers is taken: m_i is subtracted before squaring. Ordinary batch norm has m_i and v_i here.

The backward pass needs sums over all devices, too. Each x contributes to m and v, and through these to every y on every
device. With x^ = (x - m) / sqrt(v + eps), with dy for the derivative of the loss by y, and with means over the rows of
all devices,

    dx = gamma / sqrt(v + eps) (dy - mean(dy) - x^ mean(dy x^))

This formula is not in the code. The arrays m_i, v_i, m and v are copied between devices while autograd records, so that
its backward pass copies their derivatives back, adds them, and continues on each device.
"""
from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy

from ..mxnet_setup.compat import autograd, mx, np
from ..networks.hybridize import HybridizedBlock, unwrapped
from ..networks.pieces import Norm, Piece, cut


class SyncBatchNorm(HybridizedBlock):
    """A network whose batch norm layers use the rows of all devices; the block itself does not change.

        net = SyncBatchNorm(net)
        with autograd.record():
            ls = [loss(y_hat, y_shard) for y_hat, y_shard in zip(net.forward(X_shards), y_shards)]
        autograd.backward(ls)     # not one after the other: each loss depends on the rows of all devices
        scores = net(X)           # after training, by the running statistics

    The network is cut at its batch norms. All devices compute a piece, then the statistics of its output are combined,
    then all compute the next piece. Running statistics are updated as by ``gluon.nn.BatchNorm`` on one device. They are
    the same on all devices, including those without rows.

    Parameters
    ----------
    net : gluon.HybridBlock or the result of `hybridized`
        Initialized on all devices. Only its ``gluon.nn.BatchNorm`` layers may combine rows.
    """

    def __init__(self, net: Any):
        super().__init__(unwrapped(net))
        self._pieces: list[Piece] = []
        self._data = self._result = ''

    def __call__(self, *args):
        if autograd.is_training():
            raise ValueError('SyncBatchNorm needs the rows of all devices to train: call net.forward(X_shards)')
        return super().__call__(*args)

    def forward(self, X_shards: list) -> list:
        """Return the output for each shard of a batch, while autograd records; does not block after the first call.

        `X_shards` has one array (n_i, ...) with at least one row per device, for some or all devices of the network.
        """
        if not self._pieces:
            self._pieces, self._data, self._result = cut(self.block, X_shards[0], _local_statistics)
        num_rows = sum(len(X) for X in X_shards)
        shares = [len(X) / num_rows for X in X_shards]
        arrays_on = {X.ctx: {self._data: X} for X in X_shards}
        for piece in self._pieces:
            local = [piece.run(arrays) for arrays in arrays_on.values()]
            if piece.norm:
                mean, variance = _global_statistics([m for m, _ in local], [v for _, v in local], shares)
                _update_running_statistics(piece.norm, mean, variance)
                for device, arrays in arrays_on.items():
                    arguments = _arguments(piece.norm, mean.as_in_ctx(device), variance.as_in_ctx(device))
                    arrays.update(zip(piece.norm.arguments, arguments))
        return [arrays[self._result] for arrays in arrays_on.values()]


def _local_statistics(X: Any, norm: Norm) -> list:
    """Return the symbols of m_i and v_i, each (c,), for a symbol X (n, c, ...), or with the channels at another axis.

    Matrix products with a vector 1 / (number of pixels) are ten times as fast as MXNet's `mean` over several axes.
    """
    sym, npx = mx.sym, mx.sym.npx
    if numpy.dtype(norm.gamma.dtype) == 'float32':  # X possibly has a lower precision
        X = sym.amp_cast(X.as_nd_ndarray(), dtype='float32').as_np_ndarray()
    if norm.axis != 1:
        X = sym.np.swapaxes(X, 1, norm.axis)
    X = npx.reshape(X, (-2, -2, -1))                    # (n, c, h, w) -> (n, c, h w)
    ones = sym.np.ones_like(X[0][0])
    mean = sym.np.dot(X, ones / ones.sum()).mean(axis=0)
    # v_i = mean of (x - m_i)^2. Its derivative by m_i is 0, so m_i is a constant here. MXNet would compute that 0
    # with a slow sum if the subtraction repeated m_i itself
    constant = sym.broadcast_like(npx.reshape(mean, (1, -1, 1)).as_nd_ndarray(), X.as_nd_ndarray())
    deviation = sym.elemwise_sub(X.as_nd_ndarray(), sym.BlockGrad(constant)).as_np_ndarray()
    return [mean, sym.np.dot(sym.np.square(deviation), ones / ones.sum()).mean(axis=0)]


def _global_statistics(means: list, variances: list, shares: list[float]) -> tuple:
    """Return m and v on the first device. All devices get copies, so they have the same bits."""
    hub = means[0].ctx
    means, variances = ([array.as_in_ctx(hub) for array in arrays] for arrays in (means, variances))
    mean = reduce(add, (w * m for w, m in zip(shares, means)))
    variance = reduce(add, (w * (v + np.square(m - mean)) for w, m, v in zip(shares, means, variances)))
    return mean, variance


def _arguments(norm: Norm, mean: Any, variance: Any) -> list:
    """Return scale, shift, mean and variance, for MXNet's batch norm with given statistics.

    That operator is fast, but treats mean and variance as constants. Their derivatives therefore take the way through
    scale and shift, whose values are gamma and beta: sigma / sigma is 1 and mean - mean is 0.
    """
    gamma, beta = norm.gamma.data(mean.ctx), norm.beta.data(mean.ctx)
    if norm.fix_gamma:
        gamma = np.ones_like(gamma)
    sigma = np.sqrt(variance + norm.eps)
    scale = gamma * (sigma.detach() / sigma)
    shift = beta + gamma * ((mean.detach() - mean) / sigma)
    return [scale, shift, mean.detach(), variance.detach()]


def _update_running_statistics(norm: Norm, mean: Any, variance: Any) -> None:
    with autograd.pause():
        for param, new in ((norm.running_mean, mean), (norm.running_var, variance)):
            for running in param.list_data():
                running[:] = norm.momentum * running + (1 - norm.momentum) * new.as_in_ctx(running.ctx)
