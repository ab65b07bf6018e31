"""Tests of the comparison of a model with its network."""
import os
from pathlib import Path

import numpy
import pytest
from exported import Lambda, random
from operators import check_symbols, mxnet_1
from refused import refused

from gluon_mgpu.mxnet_setup.compat import HybridBlock, gluon, mx, np
from gluon_mgpu.programs.onnx.conversion import CONVERTERS
from gluon_mgpu.programs.onnx.examples import random_like
from gluon_mgpu.programs.onnx.writing import to_onnx


class Untraced(HybridBlock):
    """A network with a branch on values that differs between the graph and the network."""

    def __init__(self, factor):
        super().__init__()
        self.dense, self._factor = gluon.nn.Dense(3), factor

    def forward(self, X):
        return self.dense(X) if isinstance(X, mx.sym.Symbol) else self.dense(X) * self._factor


@mxnet_1
@pytest.mark.parametrize('factor, words', [(1.001, "numbers of the model's output in onnxruntime differ "),
                                           (numpy.nan, 'numbers of output for random inputs are not finite: ')])
def test_a_model_with_other_results_is_not_written(factor, words):
    """The old file is kept."""
    Path('a.onnx').write_text('old')
    net = Untraced(factor)
    net.initialize()
    assert f'no model is written because {words}' in refused(to_onnx, net, 'a.onnx', random(2, 4))
    assert os.listdir() == ['a.onnx'] and Path('a.onnx').read_text() == 'old'


def test_a_wrong_output_beside_one_of_zeros(monkeypatch, capsys):
    """The differences of an output are relative to its largest number, which may be the integer 0."""
    monkeypatch.setitem(CONVERTERS, 'square', lambda g, op, X: g.Mul(g.Mul(X, X), 1.00002))
    net = Lambda(lambda F, X: ((X * 0).astype('int32'), F.np.square(X)))
    line = refused(to_onnx, net, 'a.onnx', random(2, 4), output_names=['zeros', 'squares'])
    assert "the model's squares in onnxruntime" in line and 'rounding explains 1.0e-05: ' in line
    to_onnx(Lambda(lambda F, X: (X * 0).astype('int32')), 'a.onnx', random(2, 4))
    assert "output equals the network's up to 0.0e+00 of its largest number; " in capsys.readouterr().out


def of_squares(g, op, X, *_):
    """Divide by the square root of E[x^2] - E[x]^2, as onnxruntime before 1.24 does."""
    mean, squares = g.ReduceMean(X, [-1]), g.ReduceMean(g.Mul(X, X), [-1])
    return g.Div(g.Sub(X, mean), g.Sqrt(g.Add(g.Sub(squares, g.Mul(mean, mean)), 1e-5)))


@pytest.mark.parametrize('code, kind, wrong, values', [
    ('F.np.abs(X)', 'absolute', lambda g, op, X: g.Identity(X), 'negative'),
    ('F.np.where(X > 0, X, 2 * X)', 'where', lambda g, op, mask, A, B: A, 'negative'),
    ("X * (Y == 0).astype('float32')", 'equalscalar', lambda g, op, X: g.Less(X, numpy.array(1, 'int32')),
     'ones, negative'),
    ("X.astype('float64') % 1009", 'cast', lambda g, op, X: g.cast(
        g.Neg(g.Neg(g.cast(X, 'float32'))), op.dtype),  # onnxruntime 1.15 leaves out a cast to float32 alone
     'large'),
    ('F.npx.sequence_mask(X, Y, use_sequence_length=True, axis=1)', 'sequencemask',
     lambda g, op, X, length: g.Where(g.before(X, g.Max(length, numpy.array(1, 'int32')), 1, [1]), X, 0.0),
     'random, zeros'),
    ('F.npx.layer_norm(X, F.np.ones(768), F.np.zeros(768)) / 2', 'layernorm', of_squares, 'shifted')])
def test_mistakes_outside_the_range_of_the_example(code, kind, wrong, values, monkeypatch):
    """Positive numbers, and 1 and 2 as lengths or ids, show none of these mistakes."""
    arrays = [random(20, 768) if kind == 'layernorm' else np.abs(random(2, 3))]
    if 'Y' in code:
        arrays.append(np.array([1, 2] if 'mask' in kind else [[1, 2, 1], [2, 2, 1]], dtype='int32'))
    if kind == 'cast':
        arrays = [np.array([[1, 2, 1], [2, 2, 1]], dtype='int32')]
    net = Lambda(lambda F, *arrays: eval(code, {'F': F, **dict(zip('XY', arrays))}))
    to_onnx(net, 'a.onnx', *arrays)
    monkeypatch.setitem(CONVERTERS, kind, wrong)
    line = refused(to_onnx, net, 'b.onnx', *arrays)
    assert f' of the largest, for inputs that are {values}; rounding explains ' in line
    assert os.listdir() == ['a.onnx']


@pytest.mark.parametrize('code, values', [
    ('F.np.where(X > 0, X, -X)', 'zeros, ones, negative, large, shifted'),
    ('F.npx.topk(X, ret_typ="value")', 'negative'),
    ("F.npx.activation(F.np.log(X), act_type='relu')", 'zeros, ones, negative, large, shifted'),
    ("F.npx.softmax(X, (X * 0).astype('int32')[:, 0] + 2, use_length=True)", 'zeros, ones'),
    ('F.np.maximum(F.np.sqrt(X), 0.1) + F.np.exp(X) / F.np.exp(X)', 'zeros, ones, negative, large, shifted')])
def test_the_line_says_what_was_compared(code, values, capsys):
    """The model may keep NaN of which MXNet makes numbers; invalid lengths would end the process."""
    to_onnx(Lambda(lambda F, X: eval(code)), 'a.onnx', np.abs(random(2, 3)))
    assert capsys.readouterr().out.endswith('of its largest number; compared for (2, 3) and (4, 3) in the range of the '
                                            f'example; other values: {values}\n')


@pytest.mark.parametrize('hidden', [-numpy.inf, numpy.finfo('float32').min, -1e30])
def test_masks(hidden):
    """An example may have infinite or very low numbers, as in the mask of an attention."""
    mask = np.array([[0, 0, hidden], [0, hidden, hidden]])
    check_symbols('F.npx.softmax(X + Y, axis=-1)', random(2, 3), mask)
    assert numpy.isfinite(random_like(mask, 0, 0).asnumpy()).all()


@pytest.mark.parametrize('example', [np.zeros((0, 3)), np.full((2, 3), numpy.nan)])
def test_examples_without_numbers(example):
    assert refused(check_symbols, 'F.npx.relu(X)', example) == (
        f'an example of shape {example.shape} has no finite number: pass realistic values')


def test_an_example_whose_only_output_is_near_0():
    """Rounding is measured against the outputs of all inputs; against this one alone, it would be too large."""
    X = random(1, 3, 4)
    C = np.exp(X).sum().item()
    to_onnx(Lambda(lambda F, X: F.np.sum(F.np.exp(X), axis=(1, 2)) - C), 'a.onnx', X)


def test_random_inputs():
    """They are like the examples, of which integers are only repeated, and differ from each other."""
    for example in (np.array([[2, 9], [4, 4]], dtype='int32'), np.array([[2.0, 9], [4, 4]])):
        values = random_like(example, 0, 0)
        assert values.shape == (4, 2) and values.dtype == example.dtype
        assert {*values.asnumpy().ravel()} <= {2, 4, 9}
    values = random_like(np.array([[0.5, 0.7]]), 0, 0).asnumpy()
    assert 0.5 <= values.min() < values.max() <= 0.7 and len({*values.ravel()}) == 4
    code = 'X / ((X - Y) * (X - Y)).sum(axis=1, keepdims=True)'  # NaN, refused, if they are equal
    check_symbols(code, np.array([[0.2, 0.7]]), np.array([[0.7, 0.2]]))


@pytest.mark.parametrize('code', ['F.np.argsort(F.np.around(X))', "F.npx.topk(F.np.around(X), k=3, ret_typ='both')"])
def test_equal_numbers_are_sorted_in_another_order(code):
    assert refused(check_symbols, code, random(3, 100)).endswith(
        ': MXNet and onnxruntime may sort numbers that are equal but for rounding in different orders; cut the network '
        'before that, as in docs/export.md')
