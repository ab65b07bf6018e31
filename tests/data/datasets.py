"""Datasets for the tests, and checks of what was loaded."""
import numpy
from idx_files import dataset
from refused import refused

from gluon_mgpu.data import load_data
from gluon_mgpu.data.folders import FILES

ARRAYS = {name: dataset(seed=i) for i, name in enumerate(('fashion-mnist', 'mnist'))}


def fail(*args):
    raise AssertionError(f'called with {args}')


def rows(data_iter) -> tuple:
    """Return all rows of one epoch as NumPy arrays."""
    X, y = zip(*data_iter)
    return numpy.concatenate([x.asnumpy() for x in X]), numpy.concatenate([x.asnumpy() for x in y])


def assert_holds(iters, arrays, dataset):
    """Check that the test rows are those of `arrays` in order, and the training rows in any order."""
    train_iter, test_iter = iters
    assert train_iter.dataset == test_iter.dataset == dataset
    X, y = rows(test_iter)
    numpy.testing.assert_array_equal(numpy.rint(X[:, 0] * 255), arrays[FILES[2]])
    numpy.testing.assert_array_equal(y, arrays[FILES[3]])
    X, y = rows(train_iter)
    assert sorted(zip(X.sum((1, 2, 3)).round(2), y)) == sorted(zip(
        (arrays[FILES[0]] / 255).sum((1, 2)).round(2).astype('float32'), arrays[FILES[1]]))


def error_of(*args, **kwargs) -> str:
    """Return the error message of `load_data`: one line."""
    return refused(load_data, *args, log=fail, **kwargs)


def labels(data_iter) -> list:
    return rows(data_iter)[1].tolist()
