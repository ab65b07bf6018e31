"""Softmax cross-entropy."""
from ..mxnet_setup.compat import np, npx
from .hybridized import hybridized


def cross_entropy(y_hat: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the softmax cross-entropy of each row in nats, from the scores (n, num_classes) -> (n,); does not block.

    The labels `y` are class numbers (n,) or (n, 1). Raises ValueError for others.

    Source: D2L 13.5.3, where it is ``gluon.loss.SoftmaxCrossEntropyLoss()``.
    """
    y_hat, y = y_hat.as_np_ndarray(), y.as_np_ndarray()  # the same arrays, possibly of a network of mx.nd
    y_shape, shape = y.shape, y_hat.shape  # read once, because each time takes a few microseconds
    if len(shape) != 2 or y_shape not in (shape[:1], (shape[0], 1)):
        raise ValueError(f'labels {y_shape} for scores {shape}: with scores (n, num_classes), labels are class numbers '
                         '(n,)')
    return _cross_entropy(y_hat, y)


# Called one by one, the operators would take other scratch memory of MXNet in each batch, and a network with static
# shapes would keep all that it has used: 140 MB for ResNet-18 on two CPU contexts
@hybridized
def _cross_entropy(y_hat, y):
    """l = -log softmax(y_hat)[y]"""
    return -npx.pick(npx.log_softmax(y_hat, axis=-1), y, axis=-1)
