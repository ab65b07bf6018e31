"""Tests of the batches."""
import gc

import numpy
import pytest
from datasets import labels, rows
from idx_files import dataset
from refused import refused

from gluon_mgpu import scratch
from gluon_mgpu.base.program import InputError
from gluon_mgpu.data import load_data
from gluon_mgpu.data.batches import BatchIterator, check_training_data, num_outputs
from gluon_mgpu.data.folders import FILES
from gluon_mgpu.mxnet_setup.compat import gluon, mx, np, npx
from gluon_mgpu.programs.onnx.graph import semantics_of


def make_batches(batch_size=32, n=100, **kwargs):
    arrays = dataset(num_train=n)
    return BatchIterator(arrays[FILES[0]].astype('uint8'), arrays[FILES[1]], batch_size, 'mnist', **kwargs)


def order(data_iter) -> list:
    """Return the position in the dataset of each row of one epoch."""
    sums = dataset()[FILES[0]].sum((1, 2)).tolist()
    assert len(set(sums)) == 100  # so that each row can be recognized
    return [sums.index(round(float(s))) for s in (rows(data_iter)[0].astype('float64') * 255).sum((1, 2, 3))]


@pytest.mark.parametrize('batch_size, sizes', [
    (32, [32, 32, 32, 4]), (50, [50, 50]), (99, [99, 1]), (300, [100])])
@pytest.mark.parametrize('shuffle', [False, True])
def test_shapes(batch_size, sizes, shuffle):
    data_iter = make_batches(batch_size, shuffle=shuffle)
    batches = list(data_iter)
    assert len(data_iter) == len(batches) == len(sizes)
    assert (data_iter.num_rows, data_iter.batch_size) == (100, batch_size)
    for (X, y), b in zip(batches, sizes):
        assert (X.shape, X.dtype, X.ctx) == ((b, 1, 28, 28), 'float32', mx.cpu(0))
        assert (y.shape, y.dtype, y.ctx) == ((b,), 'int32', mx.cpu(0))
        assert isinstance(X, np.ndarray) and isinstance(y, np.ndarray)
    assert min(X.min() for X, _ in batches) == 0 and max(X.max() for X, _ in batches) == 1


def test_in_order_unless_shuffled():
    data_iter = make_batches()
    for _ in range(2):
        X, y = rows(data_iter)
        numpy.testing.assert_allclose(X, dataset()[FILES[0]][:, None] / 255, rtol=1e-7)  # float32
        numpy.testing.assert_array_equal(y, dataset()[FILES[1]])


def test_every_row_once_in_a_new_order_each_epoch():
    data_iter = make_batches(shuffle=True)
    orders = [order(data_iter) for _ in range(5)]
    assert all(sorted(o) == list(range(100)) for o in orders)
    assert len({tuple(o) for o in [*orders, range(100)]}) == 6


def test_images_keep_their_labels():
    data_iter = make_batches(shuffle=True)
    data_iter.epoch = 3
    rows_taken = order(data_iter)
    data_iter.epoch = 3
    assert labels(data_iter) == dataset()[FILES[1]][rows_taken].tolist()


def test_the_seed_and_the_epoch_decide_the_order():
    a, b, other = (make_batches(size, shuffle=True, seed=seed) for size, seed in ((7, 5), (32, 5), (32, 6)))
    orders = [order(a) for _ in range(4)]
    assert a.epoch == 4
    b.epoch = 2  # as a resumed run does
    assert [order(b), order(b)] == orders[2:]
    assert not any(order(other) in orders for _ in range(4))  # as with the seed plus the epoch
    numpy.random.seed(1)
    mx.random.seed(1)
    assert order(make_batches(shuffle=True, seed=5)) == orders[0]  # other random numbers have no influence


def test_an_epoch_left_halfway():
    data_iter, whole = make_batches(shuffle=True), make_batches(shuffle=True)
    for _ in data_iter:
        break
    assert data_iter.epoch == 1
    order(whole)
    assert order(data_iter) == order(whole)


@pytest.mark.parametrize('shuffle', [False, True])
def test_a_batch_never_changes(shuffle):
    data_iter = make_batches(shuffle=shuffle)
    batches = list(data_iter)
    before = [(X.asnumpy().copy(), y.asnumpy().copy()) for X, y in batches]
    for X, y in data_iter:  # neither by later batches, nor by writing to them
        X[:] = -1
        y[:] = -1
    gc.collect()
    for (X, y), (X_before, y_before) in zip(batches, before):
        numpy.testing.assert_array_equal(X.asnumpy(), X_before)
        numpy.testing.assert_array_equal(y.asnumpy(), y_before)
    npx.waitall()
    assert sorted(labels(data_iter)) == sorted(dataset()[FILES[1]])


def queue_work() -> np.ndarray:
    """Queue about half a second of work on cpu(0) without waiting for it."""
    a = np.ones((1200, 1200))
    for _ in range(10):
        b = np.dot(a, a)
    return b


def test_memory_is_kept_until_queued_work_has_read_it():
    expected = [float(X.asnumpy().astype('float64').sum()) for X, _ in make_batches()]
    queue_work()
    sums = []
    for X, _ in make_batches():
        sums.append(X.sum())
        del X
    gc.collect()
    overwriting = [numpy.full((32, 1, 28, 28), 1e9, 'float32') for _ in range(10)]
    numpy.testing.assert_allclose([float(s) for s in sums], expected, rtol=1e-5)  # float32 sums of 25,000
    assert overwriting


def test_reading_batches_does_not_wait(no_waiting):
    with no_waiting():
        assert len(list(make_batches())) == 4


@pytest.mark.parametrize('images, labels, message', [
    (numpy.zeros((4, 2, 2), 'float32'), numpy.arange(4), 'images must be uint8 (n, height, width), not float32 (4, 2'),
    (numpy.zeros((2, 2), 'uint8'), numpy.arange(2), 'images must be uint8 (n, height, width), not uint8 (2, 2)'),
    *((numpy.zeros((4, 28, 28), 'uint8'), labels, 'labels must be integers of at least 0, one for each of 4 images')
      for labels in (numpy.arange(4) / 2, numpy.arange(4)[:, None], numpy.arange(3), numpy.arange(-1, 3)))])
def test_arrays_that_are_not_images_and_labels(images, labels, message):
    assert refused(BatchIterator, images, labels, 2, 'mnist').startswith(message)


@pytest.mark.parametrize('dtype', ['>i4', 'uint8', 'int8', 'uint64'])
def test_labels_of_any_integer_dtype(dtype):
    data_iter = BatchIterator(numpy.zeros((4, 28, 28), 'uint8'), numpy.arange(4, dtype=dtype), 3, 'mnist')
    assert labels(data_iter) == [0, 1, 2, 3]
    assert check_training_data((data_iter, data_iter), 3) == (data_iter, data_iter)
    images = numpy.zeros((4, 1, 28, 28), 'float32')
    as_list = [(images, numpy.arange(4, dtype=dtype)), (images[:0], np.zeros(0))]
    assert check_training_data((as_list, []), 4) == (as_list, [])


def batches_of(*sizes):
    return [(np.zeros((size, 1, 28, 28)), np.zeros(size)) for size in sizes]


@pytest.mark.parametrize('train_iter, rows', [
    (lambda: batches_of(4, 4), 4), (lambda: batches_of(4, 3), 4), (lambda: batches_of(5), 5),
    (lambda: gluon.data.DataLoader(gluon.data.ArrayDataset(np.zeros((8, 1)), np.zeros(8)), 4), 4)])
def test_another_batch_size_than_that_of_the_data(train_iter, rows):
    data = train_iter(), []
    assert check_training_data(data, rows) == data
    for batch_size in (1, rows - 1):
        line = f'batch_size {batch_size}, but the training data has batches of {rows} '
        assert refused(check_training_data, data, batch_size).startswith(line)
    assert check_training_data((batches_of(2), []), 4)  # all rows in one batch


@pytest.mark.parametrize('batch', [(np.zeros(2), np.zeros(2), np.zeros(2)), np.zeros(2), (np.zeros(2),)])
def test_batches_that_are_no_pairs(batch):
    for data in (([batch], []), ([], [batch])):
        with pytest.raises(ValueError, match=r'^the batches have \w+ \(.*\) instead of a pair \(X, y\): pass a list'):
            check_training_data(data, 2)


@pytest.mark.parametrize('data, words', [
    (lambda: load_data('glyphs', 256, validation_size=9), r'tuple \(BatchIterator, BatchIterator, BatchIterator\)'),
    (lambda: load_data('glyphs', 256)[0], 'BatchIterator'), (lambda: batches_of(4, 4, 4), 'list .*'),
    (lambda: batches_of(4)[0], r'tuple \(array \(4, 1, 28, 28\), array \(4,\)\)')])
def test_data_that_are_no_pair(data, words):
    with pytest.raises(ValueError, match=f'^data is {words}: must be a pair of iterables over .* validation_iter'):
        scratch.train(1, 256, 0.1, data=data())


def loader_of(X, y, **options):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(X, y), 2, **options)


@pytest.mark.parametrize('labels, words', [
    (numpy.arange(9, 13), 'labels are from 9 to 12, but the network has 10 outputs: labels must be from 0 to 9'),
    (numpy.array([0, 1, 2, -1]), 'labels are from -1 to 2, but'),
    (numpy.array([0, numpy.nan, 1, 2]), 'labels are from nan to nan, but'),
    (numpy.array([0, 1, 2, 0.5]), r'labels float64 \(4,\): must be class numbers \(n,\), as integers'),
    (numpy.ones((4, 10)) / 10, r'labels float64 \(4, 10\): must be class numbers \(n,\)')])  # probabilities
def test_labels_that_mxnet_would_take_for_others(labels, words):
    X = np.zeros((4, 1, 28, 28))
    for batches in ([(X, labels)], [(X, np.array(labels))], loader_of(X, np.array(labels))):
        words = words.replace('float64', 'float(64|32)')
        with pytest.raises(ValueError, match=f'^the training {words}'):
            check_training_data((batches, []), 4 if isinstance(batches, list) else 2)
        with pytest.raises(ValueError, match=f'^the test {words}'):
            check_training_data(([], batches), 2)
    column = X, np.zeros((4, 1))
    assert check_training_data(([column], [column]), 4)
    others = loader_of(X, np.array(labels), batchify_fn=lambda rows: (X, 0 * labels))  # makes of them what it wants
    assert check_training_data((others, []), 2) == (others, [])


def test_batches_of_mx_nd():
    with semantics_of(mx.nd.ones(1)):
        data = [(mx.nd.zeros((2, 1)), mx.nd.zeros(2))], [(mx.nd.zeros((2, 1)), mx.nd.array([9, 10]))]
        assert check_training_data(data[:1] * 2, 2) == data[:1] * 2
        with pytest.raises(ValueError, match='^the test labels are from 9 to 10, but the network has 10 outputs'):
            check_training_data(data, 2)


@pytest.mark.parametrize('n, k', [(10, 3), (2, 3), (7, 1), (256, 4), (23, 5)])
@pytest.mark.parametrize('shuffle', [True, False])
def test_the_shards_of_all_workers_are_the_batches(n, k, shuffle):
    images = numpy.arange(n, dtype='uint8').repeat(4).reshape(n, 2, 2)
    labels = numpy.arange(n)
    whole = BatchIterator(images, labels, 5, 'test', shuffle, seed=1)
    parts = [BatchIterator(images, labels, 5, 'test', shuffle, seed=1, shard=(i, k)) for i in range(k)]
    assert len({part.digest for part in parts}) == 1
    for _ in range(2):  # epochs
        for (X, y), *others in zip(whole, *parts, strict=True):
            assert numpy.concatenate([y_part.asnumpy() for _, y_part in others]).tolist() == y.asnumpy().tolist()
            assert (numpy.concatenate([X_part.asnumpy() for X_part, _ in others]) == X.asnumpy()).all()


def test_the_batch_size_of_all_workers():
    """Every update is divided by it."""
    labels = numpy.arange(10, dtype='int32')
    train_iter = BatchIterator(numpy.zeros((10, 2, 2), 'uint8'), labels, 5, 'test', shard=(1, 3))

    def with_others(rows):
        assert rows == 2  # 2, 2 and 1 of each five
        return [2, rows, 1]

    assert check_training_data((train_iter, []), 5, allgather=with_others)
    with pytest.raises(InputError, match='^batch_size 6, but the training data has batches of 5 rows over all workers'):
        check_training_data((train_iter, []), 6, allgather=with_others)


def test_different_rows_have_different_digests():
    images, labels = numpy.zeros((10, 2, 2), 'uint8'), numpy.zeros(10, 'uint8')

    def digest(images, labels):
        return BatchIterator(images, labels, 5, 'test', shard=(0, 2)).digest
    other = images.copy()
    other[3, 1, 1] = 1
    assert len({digest(images, labels), digest(other, labels), digest(images, labels + 1),
                digest(images[:9], labels[:9]), digest(images.reshape(10, 1, 4), labels),
                digest(images.reshape(10, 4, 1), labels)}) == 6


def test_the_classes_are_on_the_last_axis():
    net = gluon.nn.Dense(7, flatten=False)
    net.initialize()
    assert num_outputs(net, np.zeros((1, 3, 4))) == 7  # (1, 3, 4) -> (1, 3, 7)
