"""Tests of the comparison of a model with its network."""
import re

import numpy
import pytest
from exported import Lambda, random

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, gluon, mx, np
from gluon_mgpu.programs.onnx.comparison import random_like
from gluon_mgpu.programs.onnx.conversion import CONVERTERS
from gluon_mgpu.programs.onnx.export import to_onnx

nn, rnn = gluon.nn, gluon.rnn
mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='needs MXNet 1.9')


class Untraced(HybridBlock):
    """A network with a branch on values that differs between the graph and the network."""

    def __init__(self, factor):
        super().__init__()
        self.dense, self._factor = nn.Dense(3), factor

    def forward(self, X):
        return self.dense(X) if isinstance(X, mx.sym.Symbol) else self.dense(X) * self._factor


@mxnet_1
@pytest.mark.parametrize('factor, words', [(1.001, "output in onnxruntime differ from the network's by 1.0e-03 of the"),
                                           (numpy.nan, 'numbers of output for random inputs are not finite: ')])
def test_a_model_with_other_results_is_not_written(factor, words, tmp_path):
    """The old file is kept."""
    (tmp_path / 'a.onnx').write_text('old')
    net = Untraced(factor)
    net.initialize()
    with pytest.raises(ValueError, match=f"^no model is written because (numbers of the model's )?{words}") as error:
        to_onnx(net, 'a.onnx', random(2, 4))
    assert '\n' not in str(error.value) and [path.name for path in tmp_path.iterdir()] == ['a.onnx']
    assert (tmp_path / 'a.onnx').read_text() == 'old'


def test_a_wrong_converter_is_found(monkeypatch, tmp_path):
    monkeypatch.setitem(CONVERTERS, 'square', lambda g, op, X, **_: g.Mul(X, 2.0))
    net = Lambda(lambda F, X: (X, F.np.square(X)))
    net.initialize()
    with pytest.raises(ValueError, match=r"the model's squares in onnxruntime differ from the network's by \d\.\d"):
        to_onnx(net, 'a.onnx', random(2, 4), output_names=['same', 'squares'])
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_output_beside_one_of_zeros(monkeypatch, tmp_path):
    """The differences of an output are relative to its largest number, which may be the integer 0."""
    monkeypatch.setitem(CONVERTERS, 'square', lambda g, op, X, **_: g.Mul(X, 2.0))
    net = Lambda(lambda F, X: ((X * 0).astype('int32'), F.np.square(X)))
    with pytest.raises(ValueError, match="the model's squares in onnxruntime differ from the network's"):
        to_onnx(net, 'a.onnx', random(2, 4), output_names=['zeros', 'squares'])
    assert list(tmp_path.iterdir()) == []
    lines = []
    to_onnx(Lambda(lambda F, X: (X * 0).astype('int32')), 'a.onnx', random(2, 4), log=lines.append)
    assert "output equals the network's up to 0.0e+00 of its largest number; " in lines[0]


@pytest.mark.parametrize('code, kind, wrong, values', [
    ('F.np.abs(X)', 'absolute', lambda g, op, X, **_: g.Identity(X), 'zeros, ones, negative, large'),
    ('F.np.where(X > 0, X, 2 * X)', 'where', lambda g, op, mask, A, B, **_: A, 'negative'),
    ("X * (Y == 0).astype('float32')", 'equalscalar', lambda g, op, X, **_: g.Less(X, numpy.array(1, 'int32')),
     'ones, negative'),
    ("Y.astype('float64') % 1009", 'cast', lambda g, op, X, **_: g.cast(
        g.Neg(g.Neg(g.cast(X, 'float32'))), op.output.dtype),  # onnxruntime 1.15 leaves out a cast to float32 alone
     'large'),
    ('F.npx.sequence_mask(X, Y, use_sequence_length=True, axis=1)', 'sequencemask',
     lambda g, op, X, length, **_: g.Where(g.before(X, g.Max(length, numpy.array(1, 'int32')), 1, [1]), X, 0.0),
     'random, zeros'),
])
def test_mistakes_outside_the_range_of_the_example(code, kind, wrong, values, monkeypatch, tmp_path):
    """Positive numbers, and 1 and 2 as lengths or ids, show none of these mistakes."""
    arrays = [np.abs(random(2, 3)), np.array([1, 2], dtype='int32')]
    if 'mask' not in kind:
        arrays[1] = np.array([[1, 2, 1], [2, 2, 1]], dtype='int32')
    net = Lambda(lambda F, *arrays: eval(code, {'F': F, **dict(zip('XY', arrays))}))
    arrays = [array for name, array in zip('XY', arrays) if re.search(rf'\b{name}\b', code)]
    if 'X' not in code:
        net = Lambda(lambda F, Y: eval(code, {'F': F, 'Y': Y}))
    to_onnx(net, 'a.onnx', *arrays, log=lambda line: None)
    monkeypatch.setitem(CONVERTERS, kind, wrong)
    with pytest.raises(ValueError, match=f'of the largest, for inputs that are {values}; rounding explains 1.0e-03: '):
        to_onnx(net, 'b.onnx', *arrays)
    assert [path.name for path in tmp_path.iterdir()] == ['a.onnx']


@pytest.mark.parametrize('code, values', [
    ('F.np.where(X > 0, X, -X)', 'zeros, ones, negative, large'),
    ('F.npx.topk(X, ret_typ="value")', 'negative'),
    ('F.npx.relu(F.np.log(X))', 'zeros, ones, negative, large'),
    ("F.npx.softmax(X, (X * 0).astype('int32')[:, 0] + 2, use_length=True)", 'zeros, ones'),
    ('F.npx.sequence_mask(X, X[:, 0] * 0 + 1, use_sequence_length=True, axis=1)', 'zeros, ones'),
    ('F.np.maximum(F.np.sqrt(X), 0.1) + F.np.exp(X) / F.np.exp(X)', 'zeros, ones, negative, large'),
])
def test_the_line_says_what_was_compared(code, values):
    """Results of MXNet that are no numbers are not compared; invalid lengths would end the process."""
    lines = []
    net = Lambda(lambda F, X: eval(code, {'F': F, 'X': X}))
    to_onnx(net, 'a.onnx', np.abs(random(2, 3)), log=lines.append)
    assert lines[0].endswith('of its largest number; compared for (2, 3) and (4, 3) in the range of the example; other '
                             f'values: {values}')


@pytest.mark.parametrize('hidden', [-numpy.inf, numpy.finfo('float32').min, -1e30])
def test_masks(hidden):
    """An example may have infinite or very low numbers, as in the mask of an attention."""
    mask = np.array([[0, 0, hidden], [0, hidden, hidden]])
    to_onnx(Lambda(lambda F, X, M: F.npx.softmax(X + M, axis=-1)), 'a.onnx', random(2, 3), mask)
    values = random_like(mask, 0).asnumpy()
    assert values.shape == (4, 3) and numpy.isfinite(values).all() and values.min() < values.max()


@pytest.mark.parametrize('example', [np.zeros((0, 3)), np.full((2, 3), numpy.nan)])
def test_examples_without_numbers(example):
    with pytest.raises(ValueError, match=r'^an example of shape \(., 3\) has no finite number: pass realistic'):
        to_onnx(Lambda(lambda F, X: F.npx.relu(X)), 'a.onnx', example)


def test_an_example_whose_only_output_is_near_0():
    """Rounding is measured against the outputs of all inputs; against this one alone, it would be too large."""
    X, lines = random(1, 3, 4), []
    C = np.exp(X).sum().item()
    to_onnx(Lambda(lambda F, X: F.np.sum(F.np.exp(X), axis=(1, 2)) - C), 'a.onnx', X, log=lines.append)
    assert lines[0].startswith('model: a.onnx, checked in onnxruntime: ')


def test_random_inputs_are_in_the_range_of_the_examples():
    for example, integers in ((np.array([[2, 9], [4, 4]], dtype='int32'), True), (np.array([[2.0, 9], [4, 4]]), True),
                              (np.array([[0.5, 0.7]]), False)):
        values = random_like(example, 0).asnumpy()
        assert values.shape == (2 * len(example), 2) and values.dtype == example.dtype
        low, high = example.asnumpy().min(), example.asnumpy().max()
        assert low <= values.min() < values.max() <= high
        assert (values == values.round()).all() == integers
    assert 0 < random_like(np.zeros((1, 3)), None).asnumpy().max() < 1


def test_random_inputs_differ_from_each_other():
    net = Lambda(lambda F, A, B: A / ((A - B) * (A - B)).sum(axis=1, keepdims=True))  # NaN, refused, if they are equal
    net.initialize()
    to_onnx(net, 'a.onnx', np.array([[0.2, 0.7]]), np.array([[0.7, 0.2]]))
