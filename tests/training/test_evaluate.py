"""Accuracy: numbers done by hand, every row counted once on any number of devices."""
import re
from types import SimpleNamespace

import numpy
import pytest
from book_steps import split_batch_multi_inputs
from failing import failing
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


def batches(rows):
    """SCORES and LABELS in batches of that many rows."""
    X, y = np.array(SCORES), np.array(LABELS, dtype='int32')
    return [(X[i:i + rows], y[i:i + rows]) for i in range(0, len(y), rows)]


def test_accuracy_counts_rows():
    assert accuracy(np.array(SCORES), np.array(LABELS)) == 3
    assert accuracy(np.array([1, 0, 0]), np.array([1, 0, 1])) == 2


def test_what_is_no_dataset(device_list):
    for data_iter in ('text', {'X': 1}):
        with pytest.raises(ValueError, match=r'the batches have str instead of a pair \(X, y\)'):
            evaluate_accuracy_gpus(lambda X: X, data_iter, devices=device_list(1))


def test_labels_and_classes_as_columns():
    """(n,) == (n, 1) would be (n, n)."""
    scores, labels = np.array(SCORES), np.array(LABELS)
    assert accuracy(scores, labels.reshape(-1, 1)) == 3
    for classes in (np.array([[1], [0], [0]], dtype='int32'), np.array([[0.3], [-2], [-1]]) > 0):
        assert accuracy(classes, np.array([1, 0, 1])) == 2
    with pytest.raises(ValueError, match=r'^scores \(2, 1\): one score for each row is no class; pass a function of'):
        evaluate_accuracy_gpus(lambda X: X, [(np.array([[0.7], [0.2]]), np.array([1, 0]))], devices=[scores.ctx])
    batch = scores, labels.reshape(-1, 1)
    assert evaluate_accuracy_gpus(lambda X: X, [batch], devices=[scores.ctx]) == 3 / 5
    with pytest.raises(ValueError, match='5 predictions and 4 labels: there must be one label for each row'):
        accuracy(scores, labels[:4])


@pytest.mark.parametrize('dtype', ['uint8', 'int32', 'int64', 'float16', 'float32'])
def test_predictions_are_not_cast_to_the_type_of_the_labels(dtype):
    """300 as uint8 is 44, 2049 as float16 is 2048, and 0.7 as an integer is 0."""
    for prediction, label in ((300, 44), (2049, 2048), (2**24 + 1, 2**24)):
        if label < 256 or dtype != 'uint8':
            y = np.array([label], dtype=dtype)
            assert accuracy(np.array([prediction], dtype='int64'), y) == 0
            if prediction < 10_000:
                assert accuracy(np.eye(prediction + 1)[-1:], y) == 0
    y = np.array([0, 3, 1], dtype=dtype)
    assert accuracy(np.array([0.7, 3, numpy.nan]), y) == 1
    assert accuracy(np.array([44, 3, 1], dtype='uint8'), np.array([300, 3, 1])) == 2


@pytest.mark.parametrize('row', [[numpy.nan] * 3, [1, numpy.nan, 3], [numpy.nan, 2, 1], [3, 2, numpy.nan]])
def test_scores_that_are_not_numbers_are_not_right(row, device_list):
    scores = np.array([row, [1, 3, numpy.inf], [-numpy.inf, -1, -2]])
    for label in range(3):
        assert accuracy(scores, np.array([label, 2, 1], dtype='int32')) == 2
        batch = scores, np.array([label, 2, 1], dtype='uint8')
        assert evaluate_accuracy_gpus(lambda X: X, [batch], devices=device_list(2)) == 2 / 3
    of_pixels = scores.T.reshape(1, 3, 3, 1)  # (n, classes, height, width)
    assert accuracy(of_pixels, np.array([[[0], [2], [1]]])) == 2


def test_a_large_number_of_rows_is_counted_exactly():
    """A sum in float32 would end at 2**24."""
    y = np.zeros(2**24 + 3, dtype='int32')
    assert accuracy(y, y) == 2**24 + 3


def test_older_iterators_are_refused():
    """Their last batch has the first rows again, to be full."""
    data_iter = mx.io.NDArrayIter(numpy.array(SCORES), numpy.array(LABELS), 2)
    with pytest.raises(ValueError, match=r'^the batches have DataBatch instead of a pair \(X, y\): .* or a DataLoader'):
        evaluate_accuracy_gpus(lambda X: X, data_iter, devices=[mx.cpu()])
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(np.array(SCORES), np.array(LABELS)), 2)
    assert evaluate_accuracy_gpus(lambda X: X, data, devices=[mx.cpu()]) == 3 / 5


def test_scores_of_sequences():
    """(n, T, V): with T == V, the classes could be taken from the wrong axis without an error."""
    scores = np.array([SCORES[:2], SCORES[1:3]])  # (2, 2, 2), classes in the last axis
    labels = np.array([LABELS[:2], LABELS[1:3]])
    for y in (labels, labels.reshape(2, 2, 1)):
        with pytest.raises(ValueError, match=r'^scores \(2, 2, 2\): the classes may be in axis 1 or in the last; .*$'):
            evaluate_accuracy_gpus(lambda X: X, [(scores, y)], devices=[scores.ctx])
    assert evaluate_accuracy_gpus(lambda X: X.reshape(-1, 2), [(scores, labels)], devices=[scores.ctx]) == 3 / 4
    of_pixels = np.array(SCORES[:4]).T.reshape(1, 2, 4, 1)  # (n, classes, height, width)
    assert accuracy(of_pixels, np.array(LABELS[:4]).reshape(1, 4, 1)) == 2


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


def test_a_split_with_rows_for_the_last_device_only(devices):
    def split_f(X, y, devices):
        return [[array[:0].as_in_ctx(devices[0]), array.as_in_ctx(devices[1])] for array in (X, y)]

    assert evaluate_accuracy_gpus(lambda X: X, [(np.array(SCORES), np.array(LABELS))], split_f, devices) == 3 / 5


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('split_f', [split_batch, split_batch_multi_inputs])
def test_several_inputs_and_networks_of_mx_nd(kind, split_f, devices):
    """As in the book, the network is called with the shards of all inputs as one argument."""
    with semantics(kind) as array:
        features, labels, net = array(SCORES), array(LABELS), gluon.nn.Dense(2, use_bias=False)
        net.initialize(mx.init.One(), ctx=devices)
        net(features[:1].as_in_context(devices[0]))
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
    assert evaluate_accuracy_gpus(lambda X: X, lazily(), devices=devices) == 3 / 5
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
    assert evaluate_accuracy_gpus(lambda X: X, data(None), devices=devices, workers=workers) == (3 + 3) / (5 + 4)
    with pytest.raises(Stopped):
        evaluate_accuracy_gpus(lambda X: X, data(1), devices=devices, workers=workers)
    assert sent == [(3, 5), (2, 4)]


def test_invalid_arguments(devices):
    with pytest.raises(ValueError, match='0 rows: accuracy needs at least one'):
        evaluate_accuracy_gpus(lambda X: X, [], devices=[np.zeros(1).ctx])
    for net in (lambda X: X, gluon.nn.Flatten(), gluon.nn.Dense(2)):
        for function in (evaluate_accuracy_gpus, evaluate_accuracy_gpu):
            with pytest.raises(ValueError, match='has no initialized parameters, so its devices are unknown: pass dev'):
                function(net, batches(2))
    X, y = np.zeros((4, 2)), np.zeros(4)
    for data, words in (((X, y), 'array (4, 2)'), ([(X, y), (X, y, X)], 'tuple (array (4, 2), array (4,), array')):
        words = f'^the batches have {re.escape(words)}.* instead of a pair'
        with pytest.raises(ValueError, match=words):
            evaluate_accuracy_gpus(gluon.nn.Flatten(), data, devices=devices)
        with pytest.raises(ValueError, match=words):
            Run(1).check_data(data)
    with pytest.raises(ValueError, match='^the batches have list .* instead of a pair'):  # when it is read
        evaluate_accuracy_gpus(gluon.nn.Flatten(), gluon.data.DataLoader(gluon.data.ArrayDataset(X, X, y), 2),
                               devices=devices)
    assert evaluate_accuracy_gpus(gluon.nn.Flatten(), batches(2), devices=devices) == 3 / 5


def test_a_call_after_one_that_failed(device_list):
    """MXNet raises the error of one device, and keeps that of the other for the next wait."""
    with pytest.raises(RuntimeError, match='Check failed'):
        evaluate_accuracy_gpus(lambda X: failing(X.ctx)[:len(X)], batches(4), devices=device_list(2))
    assert evaluate_accuracy_gpus(lambda X: X, batches(4), devices=device_list(2)) == 3 / 5
