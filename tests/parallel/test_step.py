"""A training step in parts gives the gradient of the whole batch; its devices must fit."""
import numpy
import pytest

from gluon_mgpu.mxnet_setup.compat import autograd, np
from gluon_mgpu.parallel import step
from gluon_mgpu.parallel.devices import Devices, as_devices
from gluon_mgpu.parallel.split import split_and_load, split_batch
from gluon_mgpu.parallel.workers import Workers


def of_three():
    """Return a worker, one of three."""
    workers = Workers()
    workers.size = 3
    return workers


def weights_on(devices):
    """Return a list of one weight for each device, whose gradients are NaN, as if left by the step before."""
    weights = [np.ones(2, ctx=device) for device in devices]
    for w in weights:
        w.attach_grad()
        w.grad[:] = numpy.nan
    return [[w] for w in weights]


def backward(X, y, params, devices, calls=None):
    """The gradient of w in sum(w * x) is the sum of the rows of the device."""
    X_shards, y_shards = split_batch(X, y, devices)
    if calls is not None:
        calls.append([y_shard.tolist() for y_shard in y_shards])
    with autograd.record():
        ls = [(w * X_shard).sum(axis=1) for [w], X_shard in zip(params, X_shards)]
    for l in ls:
        l.backward()
    step.prepare_idle_devices(params, X, devices)
    return ls


def rows_of_parts(num_rows, devices, **options):
    """Return the rows of each part on each device, where row i holds the number i."""
    calls = []
    X = np.arange(2 * num_rows, dtype='float32').reshape(-1, 2)
    step.in_parts(backward, X, np.arange(num_rows), weights_on(devices), Devices(devices, **options), calls)
    return calls


def test_parts_by_hand(device_list):
    two = device_list(2)
    assert rows_of_parts(8, two) == [[[0, 1, 2, 3], [4, 5, 6, 7]]]
    assert rows_of_parts(8, two, parts=2) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert rows_of_parts(7, two, parts=2) == [[[0, 1], [2, 3]], [[4, 5], [6]]]
    assert rows_of_parts(3, two, parts=2) == [[[0, 1], [2]]]      # every device has rows of each part
    assert rows_of_parts(8, two, parts=9) == [[[i], [i + 1]] for i in (0, 2, 4, 6)]
    assert rows_of_parts(8, two, parts=2, shares=[1, 3]) == [[[0], [1, 2, 3]], [[4], [5, 6, 7]]]
    assert rows_of_parts(1, two, parts=2) == [[[0]]]              # the second device has no rows
    # A worker of several takes part in the exchanges of every part
    assert rows_of_parts(1, two[:1], parts=2, workers=of_three()) == [[[0]], []]


def test_no_parts(device_list):
    with pytest.raises(ValueError, match='parts 0: must be an integer of at least 1'):
        Devices(device_list(2), parts=0)


def test_shards_instead_of_a_batch(device_list):
    X = np.ones((2, 2))
    with pytest.raises(ValueError, match='cannot split a tuple: pass an array'):
        backward((X, X), np.zeros(4), weights_on(device_list(2)), Devices(device_list(2), parts=2))


@pytest.mark.parametrize('num_rows', [8, 7, 3, 1])
@pytest.mark.parametrize('parts', [1, 2, 3])
def test_gradients_are_sums_over_all_parts(num_rows, parts, device_list):
    devices = Devices(device_list(2), parts=parts)
    params = weights_on(devices)
    X = np.arange(2 * num_rows, dtype='float32').reshape(-1, 2)
    ls = step.in_parts(backward, X, np.zeros(num_rows), params, devices)
    assert sum(l.size for l in ls) == num_rows
    on_devices = [w.grad.asnumpy() for w, in params]
    assert sum(on_devices).tolist() == X.asnumpy().sum(axis=0).tolist()  # whole numbers: no rounding
    assert on_devices[1].any() == (num_rows > 1)  # zero on a device without rows


def test_a_parameter_of_shape_0_on_a_device_without_rows(device_list):
    devices = device_list(2)
    params = [[np.array(2.0, ctx=device)] for device in devices]
    for (w,) in params:
        w.attach_grad()
        w.grad[()] = 7

    def scale(X, y, params, devices):
        with autograd.record():
            ls = [X_shard * w for X_shard, (w,) in zip(split_and_load(X, devices), params)]
        autograd.backward(ls)
        step.prepare_idle_devices(params, X, devices)
        return ls
    step.in_parts(scale, np.array([3.0]), np.zeros(1), params, as_devices(devices))
    assert [w.grad.item() for w, in params] == [3, 0]


def test_the_gradients_of_a_worker_without_rows_are_zero(device_list):
    devices = Devices(device_list(1), parts=3, workers=of_three())
    params = weights_on(devices)
    assert step.in_parts(backward, np.zeros((0, 2)), np.zeros(0), params, devices) == []
    assert params[0][0].grad.tolist() == [0, 0]
