"""Converters of operators that compute each element by itself: arithmetic, comparisons, and functions of one array."""
import functools
from collections.abc import Callable
from math import log

import numpy

from .building import Converters, call, require

SAME = {**{name.lower(): name for name in ('Relu', 'Sigmoid', 'Tanh', 'Softsign', 'Exp', 'Log', 'Sqrt', 'Abs', 'Erf',
                                           'Ceil', 'Sin', 'Cos', 'Sign', 'Reciprocal', 'Identity')},
        'softrelu': 'Softplus', 'absolute': 'Abs', 'negative': 'Neg'}
ARITHMETIC = {'add': 'Add', 'plus': 'Add', 'sub': 'Sub', 'subtract': 'Sub', 'minus': 'Sub', 'mul': 'Mul',
              'multiply': 'Mul', 'div': 'Div', 'truedivide': 'Div', 'power': 'Pow', 'maximum': 'Max', 'minimum': 'Min',
              'mod': 'Mod'}
COMPARISONS = {'equal': 'Equal', 'notequal': 'NotEqual', 'greater': 'Greater', 'greaterequal': 'GreaterOrEqual',
               'lesser': 'Less', 'less': 'Less', 'lesserequal': 'LessOrEqual', 'lessequal': 'LessOrEqual',
               'logicaland': 'And', 'logicalor': 'Or', 'logicalxor': 'Xor'}
NAMES = '{}', 'broadcast{}', 'elemwise{}', '{}scalar', 'r{}scalar'  # of one kind of arithmetic or comparison


def _operands(g, op, dtype, A, B, scalar):
    operands = [g.cast(A, dtype), g.cast(B, dtype) if B else numpy.array(scalar, dtype)]
    return operands[::-1] if op.kind.startswith('r') else operands


def _arithmetic(operator: str) -> Callable:
    def converter(g, op, A, B=None, scalar=None):
        dtype = {'uint8': 'int32', 'int8': 'int32'}.get(op.dtype, op.dtype)  # onnxruntime 1.15 has few
        operands = _operands(g, op, dtype, A, B, scalar)
        if dtype == 'bool':
            return g.add({'Add': 'Or', 'Mul': 'And'}[operator], *operands)
        Y = _mod(g, dtype, *operands) if operator == 'Mod' else g.add(operator, *operands)
        return g.cast(Y, op.dtype, dtype)
    return in_floats(converter) if operator == 'Pow' else converter


def in_floats(converter: Callable) -> Callable:
    """Return a converter that computes in floating point, as MXNet does for integers, which ONNX does not accept."""
    def converted(g, op, *X):
        if op.kind in ('floor', 'ceil', 'around', 'rint', 'round', 'fix', 'trunc') and 'int' in op.dtype:
            return g.Identity(*X)
        dtype = op.dtype if op.dtype.startswith('float') else 'float32'
        arrays = [array._replace(name=g.name(g.cast(array, dtype)), dtype=dtype) for array in X]
        changed = op._replace(inputs=arrays, outputs={0: op.output._replace(dtype=dtype)})
        return g.cast(call(converter, g, changed), op.dtype, dtype)
    return converted


def _floor(g, X):
    """Return the floor; Floor of onnxruntime 1.15 is wrong for numbers beyond 2^31, Ceil is not."""
    return g.Neg(g.Ceil(g.Neg(X)))


def _mod(g, dtype, A, B):
    """Return the remainder with the sign of B, 0 if B is 0."""
    zero, one = numpy.array([0, 1], dtype)
    is_zero = g.Equal(B, zero)
    Y = g.Mod(A, g.Where(is_zero, one, B), fmod=1)  # has the sign of A
    Y = g.Where(g.Less(g.Mul(g.Sign(Y), g.Sign(B)), zero), g.Add(Y, B), Y)
    return g.Where(is_zero, zero, Y)


def _comparison(operator: str) -> Callable:
    def converter(g, op, A, B=None, scalar=None):
        dtypes = {A.dtype, (B or A).dtype}
        if operator in ('And', 'Or', 'Xor'):
            dtype = 'bool'
        else:
            dtype = 'float64' if 'float64' in dtypes else max(dtypes) if dtypes <= {'int32', 'int64'} else 'float32'
            require(B or A.dtype.startswith('float') or float(scalar).is_integer(), f'integers and {scalar}')
        operands = _operands(g, op, dtype, A, B, scalar)
        result = g.Not(g.Equal(*operands)) if operator == 'NotEqual' else g.add(operator, *operands)
        return g.cast(result, op.dtype)
    return converter


def _where(g, op, condition, *arrays, scalar=None, x=None, y=None):
    dtype = op.dtype if op.dtype != 'bool' else 'uint8'  # onnxruntime has no Where for bool
    values = {'wherelscalar': (scalar, *arrays), 'whererscalar': (*arrays, scalar), 'wherescalar2': (x, y)}.get(
        op.kind, arrays)
    A, B = (numpy.array(X, dtype) if isinstance(X, (int, float)) else g.cast(X, dtype) for X in values)
    mask = g.cast(condition, 'bool')
    if op.node['op'] == 'where' and condition.rank == 1:  # mx.nd selects rows
        mask = g.Reshape(mask, [-1] + [1] * (op.output.rank - 1))
    return g.cast(g.Where(mask, A, B), op.dtype, dtype)


def _leakyrelu(g, X, gamma=None, act_type='leaky', slope=0.25, lower_bound=0.125, upper_bound=0.334):
    if act_type == 'prelu':
        return g.PRelu(X, g.Reshape(gamma, [-1, *[1] * (X.rank - 2)]))
    if act_type in ('gelu', 'gelu_erf'):  # X / 2 * (1 + erf(X / sqrt(2)))
        return g.Mul(g.Mul(X, 0.5), g.Add(g.Erf(g.Mul(X, 0.5 ** 0.5)), 1.0))
    if act_type == 'selu':
        return g.Selu(X)
    slope = (lower_bound + upper_bound) / 2 if act_type == 'rrelu' else slope  # in prediction
    return g.add({'leaky': 'LeakyRelu', 'rrelu': 'LeakyRelu', 'elu': 'Elu'}[act_type], X, alpha=float(slope))


FUNCTIONS: Converters = {
    **{kind: lambda g, X, operator=operator: g.add(operator, X) for kind, operator in SAME.items()},
    'activation': lambda g, X, act_type: g.add(SAME[act_type], X),
    'leakyrelu': _leakyrelu,
    'rsqrt': lambda g, X: g.Reciprocal(g.Sqrt(X)),
    'log1p': lambda g, X: g.Log(g.Add(X, 1.0)),
    'log2': lambda g, X: g.Div(g.Log(X), log(2)),
    'log10': lambda g, X: g.Div(g.Log(X), log(10)),
    'expm1': lambda g, X: g.Sub(g.Exp(X), 1.0),
    'square': lambda g, X: g.Mul(X, X),
    'hardsigmoid': lambda g, X, alpha=0.2, beta=0.5: g.HardSigmoid(X, alpha=float(alpha), beta=float(beta)),
    'around': lambda g, X, decimals=0: g.Div(g.Round(g.Mul(X, 10.0 ** decimals)), 10.0 ** decimals),
    'rint': lambda g, X: g.Ceil(g.Sub(X, 0.5)),  # a half becomes the lower number
    'round': lambda g, X: g.Mul(g.Sign(X), _floor(g, g.Add(g.Abs(X), 0.5))),  # a half becomes the larger one
    'trunc': lambda g, X: g.Mul(g.Sign(X), _floor(g, g.Abs(X))),
    'floor': _floor,
}
EXACT = {kind for kind, operator in SAME.items() if operator in ('Abs', 'Sign', 'Neg', 'Identity')}
CONVERTERS = {
    **{kind: function if kind in EXACT else in_floats(function) for kind, function in FUNCTIONS.items()},
    'relu': lambda g, X: g.Relu(X) if X.dtype.startswith('float') else g.Max(X, numpy.array(0, X.dtype)),
    'addn': lambda g, *X: functools.reduce(g.Add, X),
    'divsqrtdim': lambda g, X: g.Div(X, X.shape[-1] ** 0.5),
    'clip': lambda g, X, a_min, a_max: g.Clip(X, *numpy.array([a_min, a_max], X.dtype)),
    'cast': lambda g, op, *X: [g.cast(each, op.dtype) for each in X],
    'where': _where,
    'logicalnot': lambda g, op, X: g.cast(g.Not(g.cast(X, 'bool')), op.dtype),
    **{name.format(kind): _arithmetic(operator) for kind, operator in ARITHMETIC.items() for name in NAMES},
    **{name.format(kind): _comparison(operator) for kind, operator in COMPARISONS.items() for name in NAMES},
}
