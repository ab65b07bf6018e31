"""Batch norm over the rows of all devices, of this process or of several workers: the formulas.

Device i has a share w_i of the rows of a batch (with images, of the pixels), mean m_i and variance v_i. All rows have

    mean      m = sum_i w_i m_i
    variance  v = sum_i w_i (v_i + (m_i - m)^2)             the mean variance plus the variance of the means

and every device computes

    y = gamma (x - m) / sqrt(v + eps) + beta

Large numbers do not cancel, because m_i is subtracted before squaring. Ordinary batch norm uses m_i and v_i instead.

The backward pass also needs sums over all devices. Each x contributes to m and v, and through these to every y on every
device. With x^ = (x - m) / sqrt(v + eps), with the derivative dy of the loss by y, and with means over all rows,

    dx = gamma / sqrt(v + eps) (dy - mean(dy) - x^ mean(dy x^))

On each device, autograd computes the first term, gamma / sqrt(v + eps) dy, and the sums of dy x^ and dy over its rows,
which are the gradients of gamma and beta. `Norm` adds these sums over the devices, and the other two terms.

Workers exchange one array in each direction. Forwards, it is a table with a row for each worker: its number of rows
(and pixels), mean and variance. Each fills its own row, so the sum has the rows of all. Backwards, it has the two sums.
"""
from functools import partial
from typing import Any

from ...mxnet_setup.compat import autograd, np, npx
from .cut import Backward, CutBatchNorm, add_gradient


class Norm:
    """The part of a batch norm that needs all devices: it computes the arguments with which the next piece begins."""

    def __init__(self, layer: CutBatchNorm, workers: Any):
        self.layer, self._workers = layer, workers

    def run(self, arrays_on: list[dict[str, Any]], trained: set[str]) -> Backward:
        """Store the arguments in each device's dict of arrays; return the backward pass."""
        # For autograd, the arguments are constants: `_backward` adds what depends on them through mean and variance
        layer = self.layer
        names = layer.X, layer.gamma, layer.beta
        with autograd.pause(train_mode=True):
            statistics = _split(self._global_statistics([[arrays[name] for name in names] for arrays in arrays_on]))
            _, mean, variance = statistics
            for arrays in arrays_on:
                gamma = arrays[layer.gamma]
                arrays.update(zip(layer.arguments, [np.ones_like(gamma) if layer.fix_gamma else gamma,
                                                    arrays[layer.beta],
                                                    mean.as_in_ctx(gamma.ctx), variance.as_in_ctx(gamma.ctx)]))
        needed = trained.intersection(names)
        if not needed:
            return lambda gradients_on: None
        trained.update(layer.arguments[:2])
        return partial(self._backward, arrays_on, statistics, needed)

    def _backward(self, arrays_on: list, statistics: list, needed: set[str], gradients_on: list[dict]) -> None:
        """Replace the gradients of scale and shift by those of X, gamma and beta, as far as `needed`."""
        layer = self.layer
        count, mean, variance = statistics
        self._update_statistics(count, mean, variance)  # here, as gluon.nn.BatchNorm does on MXNet 1.9
        sums_on = [[gradients.pop(name) for name in layer.arguments[:2]] for gradients in gradients_on]
        means = self._global_sums(sums_on, mean) / count  # of dy x^ and of dy
        for arrays, gradients, sums in zip(arrays_on, gradients_on, sums_on):
            if layer.X in needed:
                # The next piece has computed the first term of dx. The others are a x^ + b, which is batch norm again,
                # with the mean of dy x^ in a and that of dy in b
                scale, _, m, v = (arrays[name] for name in layer.arguments)
                a, b = -scale / np.sqrt(v + layer.eps) * means.as_in_ctx(scale.ctx)
                add_gradient(gradients, layer.X, self._batch_norm(arrays[layer.X], a, b, m, v, use_global_stats=True))
            for name, gradient in zip((layer.gamma, layer.beta), sums):
                if name in needed:
                    add_gradient(gradients, name, gradient)

    def _global_sums(self, sums_on: list, mean: Any) -> Any:
        """Return the two sums over all devices and workers. Workers without rows add 0 with the shape of the mean."""
        local = [sum((array.as_in_ctx(first.ctx) for array in others), first) for first, *others in zip(*sums_on)]
        return self._workers.allreduce(np.stack(local or [np.zeros_like(mean)] * 2))

    def _batch_norm(self, *arrays: Any, **options: bool) -> Any:
        return npx.batch_norm(*arrays, eps=self.layer.eps, axis=self.layer.axis, fix_gamma=False, **options)

    def _statistics(self, X: Any, gamma: Any, beta: Any) -> Any:
        """Return the row of the table for one device, from MXNet's batch norm, which is much faster than `mean`."""
        # The error of v_i is within rounding of v_i + eps, which is all that batch norm divides by
        _, mean, inverse = self._batch_norm(X, gamma, beta, np.zeros_like(beta), np.ones_like(beta),
                                            output_mean_var=True)  # inverse: 1 / sqrt(v_i + eps)
        count = np.full_like(mean[:1], X.size // mean.size)
        return np.concatenate([count, mean, 1 / np.square(inverse) - self.layer.eps])

    def _global_statistics(self, inputs_on: list) -> Any:
        """Return the row for all devices, computed on the first; the caller copies it, so all have the same bits."""
        if rows := [self._statistics(*inputs) for inputs in inputs_on]:
            row = _combined(np.stack([row.as_in_ctx(rows[0].ctx) for row in rows]))
        else:
            running = self.layer.running_mean.list_data()[0]
            row = np.zeros(1 + 2 * running.size, dtype=running.dtype, ctx=running.ctx)
        if self._workers.size > 1:
            table = np.zeros((self._workers.size, row.size), dtype=row.dtype, ctx=row.ctx)
            table[self._workers.rank] = row
            row = _combined(self._workers.allreduce(table))
        return row

    def _update_statistics(self, count: Any, mean: Any, variance: Any) -> None:
        for param, new in ((self.layer.running_mean, mean), (self.layer.running_var, variance)):
            old = param.data(new.ctx).as_np_ndarray()
            # A part of a small batch may have no rows on any worker; then the new values are NaN
            result = np.where(count > 0, self.layer.momentum * old + (1 - self.layer.momentum) * new, old)
            for running in param.list_data():
                result.copyto(running.as_np_ndarray())


def _combined(table: Any) -> Any:
    """Combine the rows of a table into one: the total count, the mean and the variance."""
    counts, means, variances = _split(table)
    count = counts.sum(axis=0)
    shares = counts / count
    mean = (shares * means).sum(axis=0)
    return np.concatenate([count, mean, (shares * (variances + np.square(means - mean))).sum(axis=0)])


def _split(rows: Any) -> list:
    """Return counts, means and variances."""
    return np.split(rows, [1, 1 + rows.shape[-1] // 2], axis=-1)
