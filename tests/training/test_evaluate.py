"""Accuracy: numbers done by hand, every row counted once on any number of devices."""
from types import SimpleNamespace

import numpy
import pytest
from book_steps import split_batch_multi_inputs
from failing import failing
from refused import refused
from semantics import KINDS, semantics

from gluon_mgpu.base.program import Stopped
from gluon_mgpu.data.batches import check_training_data
from gluon_mgpu.mxnet_setup.compat import gluon, mx, np
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training import evaluate
from gluon_mgpu.training.evaluate import accuracy, evaluate_accuracy_gpu, evaluate_accuracy_gpus
from gluon_mgpu.training.run import Run

SCORES = [[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.5, 0.6]]
LABELS = [1, 0, 0, 1, 1]  # rows 0, 1 and 4 are right
X, y = np.array(SCORES), np.array(LABELS, dtype='int32')


def batches(rows):
    """SCORES and LABELS in batches of that many rows."""
    return [(X[i:i + rows], y[i:i + rows]) for i in range(0, len(y), rows)]


def accuracy_of(data, devices, **options):
    """Return the accuracy of a network that returns its input."""
    return evaluate_accuracy_gpus(lambda X: X, data, devices=devices, **options)


def test_accuracy_counts_rows():
    assert accuracy(X, y) == 3
    assert accuracy(np.array([1, 0, 0]), np.array([1, 0, 1])) == 2


def loader(*arrays):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays), 2)


@pytest.mark.parametrize(('data', 'found'), [
    ('text', 'str'), ({'X': 1}, 'str'), ((X, y), 'array (5, 2)'),
    ([(X, y), (X, y, X)], 'tuple (array (5, 2), array (5,), array (5, 2))'),
    (loader(X, X, y), 'list (array (2, 2), array (2, 2), array (2,))'),
    # Their last batch has the first rows again, to be full
    (mx.io.NDArrayIter(numpy.array(SCORES), numpy.array(LABELS), 2), 'DataBatch')])
def test_what_is_no_dataset(data, found, devices):
    message = f'the batches have {found} instead of a pair (X, y): pass a list such as [(X, y)], or a DataLoader of '
    assert refused(accuracy_of, data, devices).startswith(message)
    if isinstance(data, (list, tuple)):
        assert refused(Run(1).check_data, data).startswith(message)  # the others are not read before training


def test_a_data_loader(devices):
    assert accuracy_of(loader(X, y), devices) == 3 / 5


def test_labels_and_classes_as_columns():
    """(n,) == (n, 1) would be (n, n)."""
    labels = y.reshape(-1, 1)
    assert accuracy(X, labels) == 3
    for classes in (np.array([[1], [0], [0]], dtype='int32'), np.array([[0.3], [-2], [-1]]) > 0):
        assert accuracy(classes, np.array([1, 0, 1])) == 2
    line = refused(accuracy, np.array([[0.7], [0.2]]), np.array([1, 0]))
    assert line.startswith('scores (2, 1): one score for each row is no class; pass a function of')
    assert accuracy_of([(X, labels)], [X.ctx]) == 3 / 5
    assert '5 predictions and 4 labels: there must be one label for each row' in refused(accuracy, X, y[:4])


@pytest.mark.parametrize('dtype', ['uint8', 'int32', 'int64', 'float16', 'float32'])
def test_predictions_are_not_cast_to_the_type_of_the_labels(dtype):
    """300 as uint8 is 44, 2049 as float16 is 2048, and 0.7 as an integer is 0."""
    for prediction, label in ((300, 44), (2049, 2048), (2**24 + 1, 2**24)):
        if label < 256 or dtype != 'uint8':
            labels = np.array([label], dtype=dtype)
            assert accuracy(np.array([prediction], dtype='int64'), labels) == 0
            if prediction < 10_000:
                assert accuracy(np.eye(prediction + 1)[-1:], labels) == 0
    assert accuracy(np.array([0.7, 3, numpy.nan]), np.array([0, 3, 1], dtype=dtype)) == 1
    assert accuracy(np.array([44, 3, 1], dtype='uint8'), np.array([300, 3, 1])) == 2


@pytest.mark.parametrize('row', [[numpy.nan] * 3, [1, numpy.nan, 3], [numpy.nan, 2, 1], [3, 2, numpy.nan]])
def test_scores_that_are_not_numbers_are_not_right(row):
    scores = np.array([row, [1, 3, numpy.inf], [-numpy.inf, -1, -2]])
    for label in range(3):
        for dtype in ('int32', 'uint8'):
            assert accuracy(scores, np.array([label, 2, 1], dtype=dtype)) == 2
    of_pixels = scores.T.reshape(1, 3, 3, 1)  # (n, classes, height, width)
    assert accuracy(of_pixels, np.array([[[0], [2], [1]]])) == 2


def test_a_large_number_of_rows_is_counted_exactly():
    """A sum in float32 would end at 2**24."""
    zeros = np.zeros(2**24 + 3, dtype='int32')
    assert accuracy(zeros, zeros) == 2**24 + 3


def test_scores_of_sequences():
    """(n, T, V): with T == V, the classes could be taken from the wrong axis without an error."""
    scores = np.stack([X[:2], X[1:3]])  # (2, 2, 2), classes in the last axis
    labels = np.stack([y[:2], y[1:3]])
    for of_words in (labels, labels.reshape(2, 2, 1)):
        line = refused(accuracy, scores, of_words)
        assert line.startswith('scores (2, 2, 2): the classes may be in axis 1 or in the last; ')
    assert evaluate_accuracy_gpus(lambda X: X.reshape(-1, 2), [(scores, labels)], devices=[scores.ctx]) == 3 / 4
    of_pixels = X[:4].T.reshape(1, 2, 4, 1)  # (n, classes, height, width)
    assert accuracy(of_pixels, y[:4].reshape(1, 4, 1)) == 2


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


def test_devices_come_from_the_network(devices):
    net = gluon.nn.Dense(2, use_bias=False, in_units=2)
    net.initialize(ctx=devices)
    net.weight.set_data(np.array([[1.0, 0], [0, 1]]))
    asked = []

    def split_f(X, y, devices):
        asked.append(devices)
        return [X.as_in_ctx(devices[0])], [y.as_in_ctx(devices[0])]

    assert evaluate_accuracy_gpus(net, batches(2), split_f) == 3 / 5
    assert asked == [devices] * 3
    assert evaluate_accuracy_gpus(net, batches(2)) == 3 / 5
    assert evaluate_accuracy_gpu(net, batches(2)) == 3 / 5


def test_a_split_with_rows_for_the_last_device_only(devices):
    def split_f(X, y, devices):
        return [[array[:0].as_in_ctx(devices[0]), array.as_in_ctx(devices[1])] for array in (X, y)]

    assert accuracy_of([(X, y)], devices, split_f=split_f) == 3 / 5


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('split_f', [split_batch, split_batch_multi_inputs])
def test_several_inputs_and_networks_of_mx_nd(kind, split_f, devices):
    """As in the book, the network is called with the shards of all inputs as one argument."""
    with semantics(kind) as array:
        features, labels, net = array(SCORES), array(LABELS), gluon.nn.Dense(2, use_bias=False, in_units=2)
        net.initialize(ctx=devices)
        net.weight.set_data(array([[1, 0], [0, 1]]))
        batches = [((features[i:i + 2], features[i:i + 2]), labels[i:i + 2]) for i in (0, 2, 3)]
        # the same scores; rows 0 and 1, 2 and 3, 3 and 4
        assert evaluate_accuracy_gpus(lambda X: net(X[0]) + X[1], batches, split_f, devices) == 3 / 6
        if split_f is split_batch:
            assert evaluate_accuracy_gpus(net, [(features, labels)]) == 3 / 5
            assert evaluate_accuracy_gpu(net, [(numpy.array(SCORES, 'float32'), numpy.array(LABELS))]) == 3 / 5
        assert accuracy(features, labels) == 3


@pytest.mark.parametrize('kind', ['np', 'nd'])
def test_csr_batches(kind, devices):
    """As of a linear model on sparse features."""
    rng = numpy.random.default_rng(0)
    dense, W = rng.integers(0, 3, (7, 5)).astype('float32'), rng.normal(size=(5, 3)).astype('float32')
    expected = (dense @ W).argmax(axis=1)
    labels = numpy.where(numpy.arange(7) < 5, expected, (expected + 1) % 3)  # five are right
    with semantics(kind):
        batches = [(mx.nd.sparse.csr_matrix(dense[rows]), mx.nd.array(labels[rows], dtype='int32'))
                   for rows in (slice(0, 4), slice(4, 7))]
        check_training_data((batches, batches), 4, net=gluon.nn.HybridSequential())
        found = evaluate_accuracy_gpus(lambda X: mx.nd.sparse.dot(X, mx.nd.array(W, ctx=X.ctx)), batches,
                                       devices=devices)
    assert found == 5 / 7


def test_evaluation_on_one_device(devices):
    seen = []

    def net(X):
        seen.append(X.ctx)
        return X

    assert evaluate_accuracy_gpu(net, batches(5), devices[1]) == 3 / 5
    assert seen == [devices[1]]


def test_few_batches_are_queued_during_evaluation(devices, monkeypatch):
    """A dataset may be larger than the memory: batches are waited for while the next ones are started."""
    drawn, waiting, read = [], [], evaluate._sum

    def lazily():
        for batch in batches(1) * 10:
            drawn.append(batch)
            yield batch

    def spied(started):
        waiting.append(len(drawn))
        drawn[:len(started)] = []
        return read(started)

    monkeypatch.setattr(evaluate, '_sum', spied)
    assert accuracy_of(lazily(), devices) == 3 / 5
    assert max(waiting) == evaluate.MAX_STARTED and drawn == []


def test_evaluation_on_several_workers(devices):
    """After a signal, each starts no more batches, but still sends its counts, because the others wait for them."""
    class OfTwo(Workers):
        def allgather(self, value, what=''):
            self.signals = self.own_signals
            sent.append(value)
            return [value, (3.0, 4)]

    def data(signal_after):
        workers.own_signals, workers.signals = SimpleNamespace(received=0), SimpleNamespace(received=0)
        for number, batch in enumerate(batches(2)):
            workers.own_signals.received = 15 * (number == signal_after)
            yield batch

    workers, sent = OfTwo(), []
    assert accuracy_of(data(None), devices, workers=workers) == (3 + 3) / (5 + 4)
    with pytest.raises(Stopped):
        accuracy_of(data(1), devices, workers=workers)
    assert sent == [(3, 5), (2, 4)]


def test_invalid_arguments(devices):
    assert '0 rows: accuracy needs at least one' in refused(accuracy_of, [], devices)
    for net in (lambda X: X, gluon.nn.Flatten(), gluon.nn.Dense(2)):
        for function in (evaluate_accuracy_gpus, evaluate_accuracy_gpu):
            line = refused(function, net, batches(2))
            assert 'has no initialized parameters, so its devices are unknown: pass dev' in line
    assert evaluate_accuracy_gpus(gluon.nn.Flatten(), batches(2), devices=devices) == 3 / 5


def test_a_call_after_one_that_failed(device_list):
    """MXNet raises the error of one device, and keeps that of the other for the next wait."""
    with pytest.raises(RuntimeError, match='Check failed'):
        evaluate_accuracy_gpus(lambda X: failing(X.ctx)[:len(X)], batches(4), devices=device_list(2))
    assert accuracy_of(batches(4), device_list(2)) == 3 / 5
