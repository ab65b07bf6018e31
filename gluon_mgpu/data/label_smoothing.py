"""Label smoothing: probabilities as labels."""
from collections.abc import Iterable, Iterator
from typing import Any

from ..mxnet_setup.compat import np, npx
from .batches import num_outputs


class SmoothedLabels:
    """Batches whose labels are probabilities (n, num_classes) instead of class numbers (n,).

    The class of a row gets the probability 1 - `epsilon`, to which the rest adds in equal parts for all classes, as
    many as `net` has outputs, by default 10. Source: Szegedy et al., Rethinking the Inception architecture, 2016.
    """

    def __init__(self, batches: Iterable, epsilon: float, net: Any = None):
        self._batches: Any = batches
        self._epsilon, self._net = epsilon, net
        self._num_classes = 10 if net is None else None

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple]:
        if 'epoch' in vars(self):  # set by `Run.batches`
            self._batches.epoch = self.epoch
        for X, y in self._batches:
            self._num_classes = self._num_classes or num_outputs(self._net, X.shape)
            if self._num_classes is None:
                raise ValueError(f'label_smoothing {self._epsilon}: the outputs of net are unknown; initialize it and '
                                 'call it with one batch before training')
            if y.size != len(y):
                raise ValueError(f'label_smoothing {self._epsilon}: labels {y.shape} must be class numbers (n,)')
            y = (y.as_np_ndarray() if hasattr(y, 'as_np_ndarray') else np.array(y)).reshape(-1)
            # A worker may have no rows
            chosen = npx.one_hot(y, self._num_classes) if len(y) else np.zeros((0, self._num_classes))
            yield X, (1 - self._epsilon) * chosen + self._epsilon / self._num_classes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
