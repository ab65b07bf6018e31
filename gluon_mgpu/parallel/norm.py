"""Batch norm over the rows of all devices: the formulas.

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
which are the gradients of gamma and beta. `Norm` adds these sums over the devices, and the other two terms.
"""
from __future__ import annotations

from typing import Any

from ..mxnet_setup.compat import autograd, np, npx
from ..networks.cut import BatchNorm
from ..networks.pieces import Backward, accumulate, as_input


class Norm:
    """The part of a batch norm that needs all devices: it computes the arguments with which the next piece begins."""

    def __init__(self, layer: BatchNorm):
        self._layer = layer

    def run(self, arrays_on: list[dict[str, Any]]) -> Backward:
        """Store the arguments in each device's dict of arrays; return the backward pass, as `Piece.run` does."""
        layer = self._layer
        inputs_on = [[arrays[name] for name in (layer.X, layer.gamma, layer.beta)] for arrays in arrays_on]
        sizes = [X.size for X, _, _ in inputs_on]
        is_trained = any(array.grad is not None for array in inputs_on[0])
        with autograd.pause(train_mode=True):
            mean, variance = _global_statistics([self._statistics(*inputs) for inputs in inputs_on], sizes)
            for (X, gamma, beta), arrays in zip(inputs_on, arrays_on):
                factors = [np.ones_like(gamma) if layer.fix_gamma else gamma, beta]
                arrays.update(zip(layer.arguments, [
                    *(as_input(array) if is_trained else array.detach() for array in factors),
                    mean.as_in_ctx(X.ctx), variance.as_in_ctx(X.ctx)]))

        def backward(gradients_on: list[dict]) -> None:
            if not is_trained:
                return
            self._update_statistics(mean, variance)  # here, as gluon.nn.BatchNorm does on MXNet 1.9
            factor = -arrays_on[0][layer.arguments[0]] / np.sqrt(variance + layer.eps) / (sum(sizes) / mean.size)
            sums_on = [[gradients.pop(name) for name in layer.arguments[:2]] for gradients in gradients_on]
            a, b = (factor * _sum(list(sums)) for sums in zip(*sums_on))
            for inputs, arrays, gradients, sums in zip(inputs_on, arrays_on, gradients_on, sums_on):
                X, gamma, beta = inputs
                # The next piece has computed the first term of dx. The others are a x^ + b, which is batch norm again
                if X.grad is not None:
                    statistics = (arrays[name] for name in layer.arguments[2:])
                    accumulate(gradients, layer.X, self._batch_norm(X, a.as_in_ctx(X.ctx), b.as_in_ctx(X.ctx),
                                                                    *statistics, use_global_stats=True))
                for name, array, total in zip((layer.gamma, layer.beta), (gamma, beta), sums):
                    accumulate(gradients, name, total if array.grad is not None else None)

        return backward

    def _batch_norm(self, *arrays: Any, **options: bool) -> Any:
        return npx.batch_norm(*arrays, eps=self._layer.eps, axis=self._layer.axis, fix_gamma=False, **options)

    def _statistics(self, X: Any, gamma: Any, beta: Any) -> tuple:
        """Return m_i and v_i, from MXNet's batch norm, whose result is not used. It is much faster than `mean`.

        The error of v_i is within rounding of v_i + eps, which is all that batch norm divides by.
        """
        _, mean, inverse = self._batch_norm(X, gamma, beta, np.zeros_like(beta), np.ones_like(beta),
                                            output_mean_var=True)  # inverse: 1 / sqrt(v_i + eps)
        return mean, 1 / np.square(inverse) - self._layer.eps

    def _update_statistics(self, mean: Any, variance: Any) -> None:
        for param, new in ((self._layer.running_mean, mean), (self._layer.running_var, variance)):
            result = self._layer.momentum * param.data(new.ctx) + (1 - self._layer.momentum) * new
            for running in param.list_data():
                result.copyto(running)


def _global_statistics(statistics_on: list[tuple], sizes: list[int]) -> tuple:
    """Return m and v on the first device. All devices get copies, so they have the same bits."""
    shares = [size / sum(sizes) for size in sizes]
    mean = _sum([w * m for w, (m, _) in zip(shares, statistics_on)])
    return mean, _sum([w * (v + np.square(m - mean.as_in_ctx(m.ctx))) for w, (m, v) in zip(shares, statistics_on)])


def _sum(arrays: list) -> Any:
    """Return the sum on the first device."""
    first, *others = arrays
    return sum((array.as_in_ctx(first.ctx) for array in others), first)
