"""Accuracy: numbers done by hand, every row counted once on any number of devices."""
import pytest

from gluon_mgpu.mxnet_setup.compat import gluon, np
from gluon_mgpu.training.evaluate import accuracy, evaluate_accuracy_gpu, evaluate_accuracy_gpus

SCORES = [[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.5, 0.6]]
LABELS = [1, 0, 0, 1, 1]  # rows 0, 1 and 4 are right


def batches(rows):
    """SCORES and LABELS in batches of that many rows."""
    X, y = np.array(SCORES), np.array(LABELS, dtype='int32')
    return [(X[i:i + rows], y[i:i + rows]) for i in range(0, len(y), rows)]


def test_accuracy_is_a_number_of_rows():
    assert accuracy(np.array(SCORES), np.array(LABELS)) == 3
    assert accuracy(np.array([1, 0, 0]), np.array([1, 0, 1])) == 2


@pytest.mark.parametrize('k', [1, 2, 3, 4])
@pytest.mark.parametrize('rows', [1, 2, 3, 5])
def test_every_row_counts_once(device_list, k, rows):
    devices, seen = device_list(k), []

    def net(X):
        seen.append((X.ctx, len(X)))
        return X

    assert evaluate_accuracy_gpus(net, batches(rows), devices=devices) == 3 / 5
    assert sum(n for _, n in seen) == 5 and all(n > 0 for _, n in seen)
    assert {device for device, _ in seen} == set(devices[:rows])


def test_a_network_knows_its_devices(devices):
    net = gluon.nn.Dense(2, use_bias=False)
    net.initialize(ctx=devices)
    for device in devices:
        net(np.zeros((1, 2), ctx=device))
    net.weight.set_data(np.array([[1.0, 0], [0, 1]]))
    asked = []

    def split_f(X, y, devices):
        asked.append(devices)
        return [X.as_in_ctx(devices[0])], [y.as_in_ctx(devices[0])]

    assert evaluate_accuracy_gpus(net, batches(2), split_f) == 3 / 5
    assert asked == [devices] * 3
    assert evaluate_accuracy_gpus(net, batches(2)) == 3 / 5
    assert evaluate_accuracy_gpu(net, batches(2)) == 3 / 5


def test_one_gpu_is_the_first_or_the_one_named(devices):
    seen = []

    def net(X):
        seen.append(X.ctx)
        return X

    assert evaluate_accuracy_gpu(net, batches(5), devices[1]) == 3 / 5
    assert seen == [devices[1]]


def test_refusals():
    with pytest.raises(ValueError, match='0 rows: accuracy needs at least one'):
        evaluate_accuracy_gpus(lambda X: X, [], devices=[np.zeros(1).ctx])
    with pytest.raises(ValueError, match='pass devices='):
        evaluate_accuracy_gpus(lambda X: X, batches(2))
