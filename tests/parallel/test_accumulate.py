"""Training a batch in parts gives the gradient of the whole batch."""
import numpy
import pytest

from gluon_mgpu.mxnet_setup.compat import autograd, np
from gluon_mgpu.parallel.accumulate import in_parts
from gluon_mgpu.parallel.split import split_batch


def rows_of_parts(num_rows, devices, num_parts, shares=None):
    """Return the rows of each part on each device, where row i holds the number i."""
    X_shards, y_shards = split_batch(np.arange(num_rows), np.arange(num_rows) + 100, devices, shares)
    parts = []
    for X_parts, y_parts in in_parts(X_shards, y_shards, num_parts, lambda device: []):
        assert [(X + 100).tolist() for X in X_parts] == [y.tolist() for y in y_parts]
        assert [X.ctx for X in X_parts] == devices[:len(X_parts)]
        parts.append([X.tolist() for X in X_parts])
    return parts


def test_parts_by_hand(device_list):
    two = device_list(2)
    assert rows_of_parts(8, two, 1) == [[[0, 1, 2, 3], [4, 5, 6, 7]]]
    assert rows_of_parts(8, two, 2) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert rows_of_parts(7, two, 2) == [[[0, 1], [4, 5]], [[2, 3], [6]]]
    assert rows_of_parts(3, two, 2) == [[[0, 1], [2]]]            # no part without rows
    assert rows_of_parts(8, two, 9) == [[[i], [4 + i]] for i in range(4)]
    assert rows_of_parts(8, two, 2, shares=[1, 3]) == [[[0], [2, 3, 4]], [[1], [5, 6, 7]]]
    assert rows_of_parts(1, two, 2) == [[[0]]]                    # the second device has no rows
    assert rows_of_parts(0, two, 2) == []                         # a worker of Horovod without rows


def test_no_parts(device_list):
    with pytest.raises(ValueError, match='accumulate 0: must be an integer of at least 1'):
        rows_of_parts(8, device_list(2), 0)


@pytest.mark.parametrize('num_rows', [8, 7, 3, 1])
@pytest.mark.parametrize('num_parts', [1, 2, 3])
def test_gradients_are_sums_over_all_parts(num_rows, num_parts, device_list):
    """The gradient of w in sum(w * x) is the sum of the rows of the device."""
    devices = device_list(2)
    weights = [np.ones(2, ctx=device) for device in devices]
    for w in weights:
        w.attach_grad()
        w.grad[:] = numpy.nan  # from the step before
    X = np.arange(2 * num_rows, dtype='float32').reshape(-1, 2)
    X_shards, y_shards = split_batch(X, np.zeros(num_rows), devices)
    for X_parts, _ in in_parts(X_shards, y_shards, num_parts, lambda i: [weights[i].grad]):
        with autograd.record():
            ls = [(w * X_part).sum() for w, X_part in zip(weights, X_parts)]
        for l in ls:
            l.backward()
    for w, X_shard in zip(weights, X_shards):
        assert w.grad.tolist() == X_shard.asnumpy().sum(axis=0).tolist()  # whole numbers: no rounding
