"""Checks of one operator in a model, and the arrays for it."""
from math import inf

import numpy
import pytest
from exported import Lambda, check
from semantics import semantics

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, np

mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='mx.nd in Gluon needs MXNet 1.9')


def whole(*shape, low=-3, high=4, dtype='float32'):
    """Return random whole numbers, of which some are equal."""
    return np.array(numpy.random.default_rng(0).integers(low, high, shape), dtype=dtype)


def shuffled(*shape):
    """Return numbers that all differ, and are not whole: random inputs like them have no equal ones either."""
    return np.array(numpy.random.default_rng(0).permutation(numpy.prod(shape)).reshape(shape) - 9.5, dtype='float32')


class Net(gluon.HybridBlock):
    """A function of ``F``, ``mx.nd`` or ``mx.sym``, and of inputs `X` and `Y`."""

    def __init__(self, code):
        super().__init__()
        self._code = code

    def hybrid_forward(self, F, X, *more):
        return value(self._code, F, X, *more)


def value(code, F, *arrays):
    """Return the value of an expression of arrays `X` and `Y`."""
    return eval(code, {'F': F, 'inf': inf, **dict(zip('XY', arrays))})


def check_older(code, *arrays, **settings):
    """Compare an operator of ``mx.nd``; on MXNet 2, the same one of ``npx``. It may use the first array only."""
    arrays = arrays[:1 + ('Y' in code)]
    if MXNET_MAJOR >= 2:
        code = code.replace('F.contrib.', 'F.').replace('SequenceReverse', 'sequence_reverse')
        check(Lambda(lambda F, *inputs: value(code, F.npx, *inputs)), arrays, **settings)
        return
    with semantics('nd'):
        check(Net(code), [array.as_nd_ndarray() for array in arrays], **settings)


def check_symbols(code, *arrays):
    """Compare an expression of arrays of ``mx.np``, possibly of the first one only."""
    check(Lambda(lambda F, *inputs: value(code, F, *inputs)), arrays[:1 + ('Y' in code)])


def check_both(code, *arrays, **settings):
    """Compare an operator that ``npx`` and, on MXNet 1.9, ``mx.nd`` have under the same name."""
    check(Lambda(lambda F, X: value(code, F.npx, X)), arrays, **settings)
    if MXNET_MAJOR < 2:
        check_older(code, *arrays, **settings)


def boxes(rows, number, ids=0, scale=1.0, center=False):
    """Return overlapping boxes, each [id, score, left, top, right, bottom] or with its center and size."""
    rng = numpy.random.default_rng(rows)
    middle, size = rng.uniform(0.2, 0.8, (rows, number, 2)), rng.uniform(0.1, 0.5, (rows, number, 2))
    corners = [middle, size] if center else [middle - size / 2, middle + size / 2]
    label = rng.integers(0, ids + 1, (rows, number, 1))
    score = rng.permutation(rows * number).reshape(rows, number, 1) / (rows * number)
    return np.array(numpy.concatenate([label, score, *(part * scale for part in corners)], axis=2), dtype='float32')
