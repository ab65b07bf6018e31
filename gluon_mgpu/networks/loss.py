"""Softmax cross-entropy, for labels that are class numbers or probabilities."""
from __future__ import annotations

from ..mxnet_setup.compat import np, npx
from .hybridize import hybridized


def cross_entropy(y_hat: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the softmax cross-entropy of each row in nats, from the scores (n, num_classes) -> (n,); does not block.

    The labels `y` are class numbers (n,), or probabilities (n, num_classes).

    Source: D2L 13.5.3, where it is ``gluon.loss.SoftmaxCrossEntropyLoss()``.
    """
    return (_of_classes if y.ndim == 1 else _of_probabilities)(y_hat, y)


@hybridized
def _of_classes(y_hat, y):
    # l = -log softmax(y_hat)[y]
    return -npx.pick(npx.log_softmax(y_hat, axis=-1), y, axis=-1)


@hybridized
def _of_probabilities(y_hat, y):
    # l = -sum_j y[j] log softmax(y_hat)[j]
    return -(y * npx.log_softmax(y_hat, axis=-1)).sum(axis=-1)
