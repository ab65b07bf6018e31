"""Synchronized batch norm: mean and variance over the rows of all devices, so that k devices equal one.

Device i has a share w_i of the rows of a batch (and of the pixels, with images), with mean m_i and variance v_i. All
rows together have

    mean      m = sum_i w_i m_i
    variance  v = sum_i w_i (v_i + (m_i - m)^2)             the mean variance plus the variance of the means

and every device computes

    y = gamma (x - m) / sqrt(v + eps) + beta

Large numbers do not cancel, because m_i is subtracted before squaring. Ordinary batch norm uses m_i and v_i instead.

The backward pass also needs sums over all devices. Each x contributes to m and v, and through these to every y on every
device. With x^ = (x - m) / sqrt(v + eps), with dy for the derivative of the loss with respect to y, and with means over
the rows of all devices,

    dx = gamma / sqrt(v + eps) (dy - mean(dy) - x^ mean(dy x^))

On each device, autograd computes the first term, gamma / sqrt(v + eps) dy, and the sums of dy x^ and dy over its rows,
which are the gradients of gamma and beta. `_synchronize` adds these sums over the devices, and the other two terms.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..mxnet_setup.compat import add, as_input, autograd, np, npx
from ..networks.hybridize import HybridizedBlock, unwrapped
from ..networks.pieces import Norm, Piece, accumulate, cut


class SyncBatchNorm(HybridizedBlock):
    """A network whose batch norm layers use the rows of all devices; the block itself does not change.

        net = SyncBatchNorm(net)
        with autograd.record():
            ls = [loss(y_hat, y_shard) for y_hat, y_shard in zip(net.forward(X_shards), y_shards)]
        net.backward(ls)          # not autograd.backward: each loss depends on the rows of all devices
        scores = net(X)           # after training; uses the running statistics

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
        self._parts: list[Piece | Norm] = []
        self._data = self._result = ''
        self._batch: list[dict] = []  # for each device, arrays by name
        self._steps: list = []        # backward functions: a list, one per device, for each piece; one for each norm

    def __call__(self, *args):
        if autograd.is_training():
            raise ValueError('SyncBatchNorm needs the rows of all devices to train: call net.forward(X_shards)')
        return super().__call__(*args)

    def forward(self, X_shards: list) -> list:
        """Return the output for each shard of a batch, while autograd records; does not block after the first call.

        `X_shards` has one array (n_i, ...) with at least one row per device, for some or all devices of the network.
        Raises ValueError outside training mode, without shards, if the previous batch had no `backward`, or if the
        network cannot be traced or has another batch norm than ``gluon.nn.BatchNorm``.
        """
        if not autograd.is_training() or not X_shards:
            raise ValueError('SyncBatchNorm.forward trains on at least one shard: call it within autograd.record(); '
                             'without training, call net(X)')
        if self._steps and autograd.is_recording():
            self._steps = []
            raise ValueError('SyncBatchNorm: the previous forward had no net.backward(ls), and is now discarded: call '
                             'forward again, and net.backward(ls) instead of autograd.backward(ls)')
        if not self._parts:
            self._parts, self._data, self._result = cut(self.block, X_shards[0])
        params = {param.var().name: param for param in self.collect_params().values()}
        arrays_on = [{self._data: X, **{name: param.data(X.ctx) for name, param in params.items()}} for X in X_shards]
        steps = [_synchronize(part, arrays_on) if isinstance(part, Norm) else [part.run(arrays) for arrays in arrays_on]
                 for part in self._parts]
        if autograd.is_recording():
            self._batch, self._steps = arrays_on, steps
        y_hats = [arrays[self._result] for arrays in arrays_on]
        for y_hat in y_hats:
            y_hat.attach_grad()  # zeros, in case no loss depends on it
        return y_hats

    def backward(self, ls: list, head_grads: list | None = None) -> None:
        """Do the same as ``autograd.backward`` for losses that were computed from the outputs; does not block."""
        batch, steps, self._batch, self._steps = self._batch, self._steps, [], []  # first, for a new try after Ctrl-C
        weights = [weight for param in self.collect_params().values() if param.grad_req == 'write'
                   for weight in param.list_data()]
        for weight in weights:
            weight._fresh_grad = False
        autograd.backward(ls, head_grads)
        # Losses may also depend on parameters directly, such as on their squares. Keep these gradients for the end,
        # because the backward passes of the pieces replace the gradients of their parameters
        direct = [(weight.grad, weight.grad.copy()) for weight in weights if weight._fresh_grad]
        for gradient, _ in direct:
            gradient[:] = 0
        gradients_on = [{self._result: arrays[self._result].grad} for arrays in batch]
        for step in reversed(steps):
            if isinstance(step, list):
                for backward, gradients in zip(step, gradients_on):
                    backward(gradients)
            else:
                step(gradients_on)
        for arrays, gradients in zip(batch, gradients_on):  # of X and of parameters that several parts use
            if gradients:
                autograd.backward([arrays[name] for name in gradients], list(gradients.values()))
        for gradient, from_losses in direct:
            gradient += from_losses


def _synchronize(norm: Norm, arrays_on: list[dict]) -> Callable[[list[dict]], None]:
    """Give all devices the arguments for the batch norm that follows; return the backward pass."""
    Xs = [arrays[norm.X] for arrays in arrays_on]
    with autograd.pause(train_mode=True):
        means, variances = zip(*(_local_statistics(norm, arrays) for arrays in arrays_on))
        mean, variance = _global_statistics(means, variances, [X.size for X in Xs])
        for param, new in ((norm.running_mean, mean), (norm.running_var, variance)):
            result = norm.momentum * param.data(mean.ctx) + (1 - norm.momentum) * new
            for running in param.list_data():
                result.copyto(running)
        for X, arrays in zip(Xs, arrays_on):
            gamma = np.ones_like(arrays[norm.gamma]) if norm.fix_gamma else arrays[norm.gamma]
            arrays.update(zip(norm.arguments, [as_input(gamma), as_input(arrays[norm.beta]), mean.as_in_ctx(X.ctx),
                                               variance.as_in_ctx(X.ctx)]))

    def backward(gradients_on: list[dict]) -> None:
        scale, num_pixels = arrays_on[0][norm.arguments[0]], sum(X.size for X in Xs) / mean.size
        factor = -scale / np.sqrt(variance + norm.eps) / num_pixels
        a, b = (factor * _sum([gradients[name] for gradients in gradients_on]) for name in norm.arguments[:2])
        for X, arrays, gradients in zip(Xs, arrays_on, gradients_on):
            if norm.X in gradients:  # it has the first term of dx. The others are a x^ + b, which is batch norm again
                statistics = (arrays[name] for name in norm.arguments[2:])
                rest = _batch_norm(norm, X, a.as_in_ctx(X.ctx), b.as_in_ctx(X.ctx), *statistics, use_global_stats=True)
                gradients[norm.X] = add(gradients[norm.X], rest)
            for name, argument in zip((norm.gamma, norm.beta), norm.arguments):
                accumulate(gradients, name, gradients.pop(argument), arrays)

    return backward


def _batch_norm(norm: Norm, X: Any, scale: Any, shift: Any, mean: Any, variance: Any, **options: bool) -> Any:
    return npx.batch_norm(X, scale, shift, mean, variance, eps=norm.eps, axis=norm.axis, fix_gamma=False, **options)


def _local_statistics(norm: Norm, arrays: dict) -> tuple:
    """Return m_i and v_i, from MXNet's batch norm, whose result is not used. It is much faster than `mean`.

    The error of v_i is within rounding of v_i + eps, which is all that batch norm divides by.
    """
    gamma, beta = arrays[norm.gamma], arrays[norm.beta]
    _, mean, inverse = _batch_norm(norm, arrays[norm.X], gamma, beta, np.zeros_like(beta), np.ones_like(beta),
                                   output_mean_var=True)  # inverse: 1 / sqrt(v_i + eps)
    return mean, 1 / np.square(inverse) - norm.eps


def _global_statistics(means: tuple, variances: tuple, sizes: list[int]) -> tuple:
    """Return m and v on the first device. All devices get copies, so they have the same bits."""
    shares = [size / sum(sizes) for size in sizes]
    mean = _sum([w * m for w, m in zip(shares, means)])
    return mean, _sum([w * (v + np.square(m - mean.as_in_ctx(m.ctx))) for w, m, v in zip(shares, means, variances)])


def _sum(arrays: list) -> Any:
    """Return the sum on the first device."""
    first, *others = arrays
    return sum((array.as_in_ctx(first.ctx) for array in others), first)
