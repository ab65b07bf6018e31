"""Tests of arithmetic, comparisons and conditions in models, for numbers of any kind."""
import pytest
from exported import random
from operators import check_older, check_symbols, mxnet_1, whole
from refused import refused
from slow import slow

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, np

COMPARISONS = ['==', '!=', '<', '<=', '>', '>=']
NAMES = ['equal', 'not_equal', 'lesser', 'lesser_equal', 'greater', 'greater_equal', 'logical_and', 'logical_or',
         'logical_xor']


@pytest.mark.parametrize('operator, dtype', [
    *((operator, 'float32') for operator in COMPARISONS), ('<', 'int64'), ('!=', 'int64'),
    *(slow(operator, dtype) for operator in COMPARISONS for dtype in ('int32', 'int64')
      if (operator, dtype) not in (('<', 'int64'), ('!=', 'int64')))])
def test_comparisons(operator, dtype):
    """With equal numbers, scalars on both sides, and arrays that are broadcast."""
    X, Y = whole(4, 3, 5, dtype=dtype), whole(4, 1, 5, low=-1, dtype=dtype)
    for code in (f'X {operator} 1', f'-1 {operator} X', f'X {operator} Y',
                 f'(X {operator} 0) {operator} (Y {operator} 0)'):
        check_symbols(code, X, Y)
        if MXNET_MAJOR < 2:
            check_older(code.replace('Y', 'F.broadcast_like(Y, X)'), X, Y)


@mxnet_1
@pytest.mark.parametrize('dtype', ['float32', 'int32'])
@pytest.mark.parametrize('name', NAMES)
def test_broadcast_comparisons(name, dtype):
    check_older(f'F.broadcast_{name}(X, Y)', whole(4, 3, 5, dtype=dtype), whole(4, 1, 5, low=-1, dtype=dtype))
    check_older('F.logical_not(X)', whole(4, 3, dtype=dtype))


@pytest.mark.skipif(MXNET_MAJOR < 2, reason='MXNet 1.9 has no symbols for these functions')
@pytest.mark.parametrize('name', ['logical_and', 'logical_or', 'logical_xor'])
def test_logical_functions(name):
    for other in ('Y', '1'):
        check_symbols(f'F.np.{name}(X, {other})', whole(4, 3, 5), whole(4, 1, 5, low=-1))


@pytest.mark.parametrize('number', ['1.5', '-inf'])
def test_integers_compared_with_fractions_are_refused(number):
    """MXNet rounds 1.5 to 1 in some calls."""
    assert f'_scalar near input cannot be converted, integers and {number}: ' in refused(
        check_symbols, f'{number} > X', whole(4, 3, dtype='int32'))


@pytest.mark.parametrize('code', ['X % 3', 'X % -3', 'X % 2.5', 'X % -0.7', '7 % X', '-7.5 % X', 'X % Y', 'Y % X'])
def test_remainders(code):
    """The sign is that of the divisor, and x % 0 is 0."""
    for arrays in ((whole(4, 3), whole(4, 3, high=3)), (random(4, 3), random(4, 3) - 1)):
        check_symbols(code, *arrays)
        if MXNET_MAJOR < 2:
            check_older(code, *arrays)


@pytest.mark.parametrize('code', ['X % 3', 'X % -3', '7 % X', '-7 % X', 'X % Y'])
def test_remainders_of_integers(code):
    arrays = whole(4, 3, dtype='int32'), whole(4, 3, high=3, dtype='int32')
    if '% X' not in code:  # for which MXNet infers another dtype than it computes
        check_symbols(code, *arrays)
    if MXNET_MAJOR < 2:
        check_older(code, *arrays)


@mxnet_1
def test_broadcast_remainders():
    check_older('F.broadcast_mod(X, Y)', whole(4, 3, 5), whole(4, 1, 5))


@mxnet_1
@pytest.mark.parametrize('shape', [(4, 3, 2), (4, 4), (4,)])
def test_where_with_a_condition_for_each_row(shape):
    """Also if there are as many rows as columns."""
    check_older('F.where(X > 0, Y, -2 * Y)', whole(4), random(*shape))
    check_older('F.where(X > 0, F.tanh(X), X)', random(*shape))


@pytest.mark.parametrize('code', [
    "X.astype('float64') % 1009", "(X.astype('float64') - Y.astype('float64')).astype('float32')",
    "F.np.sqrt(X.astype('float64') * 0.5 + 1.5)", "F.np.mean(X.astype('float64'), axis=1)",
    "F.np.where(X.astype('float64') > 2**30, 0.5, X.astype('float64'))",
    "F.npx.softmax(X.astype('float64') * 1e-9)", "(X < Y) * 2.0 + F.np.sin(X.astype('float32') / 2.0**31)"])
def test_float64_inside_a_network(code):
    """Hashed ids above 2^24 and differences of time stamps need it; for bool * 2.0, MXNet infers it without need."""
    X = whole(4, 3, low=2**25, high=2**31 - 1, dtype='int32')
    check_symbols(code, X, X[::-1] + 1)


@mxnet_1
@pytest.mark.parametrize('dtype', ['int32', 'int64'])
@pytest.mark.parametrize('code', [
    'F.exp(X)', 'F.log(F.abs(X) + 1)', 'F.log1p(F.abs(X))', 'F.square(X)', 'F.rsqrt(F.abs(X) + 1)',
    'F.reciprocal(F.abs(X) + 1)', 'F.floor(X)', 'X ** 2', 'F.relu(X)', 'F.add_n(X, X)',
    'F.abs(X)', 'F.sign(X)', 'F.negative(X)', 'F.clip(X, -1, 2)', 'F.max(X, axis=1)', 'F.sum(X, axis=1)',
    'F.add_n(X, X, X)', 'F.SequenceMask(X, F.cast(F.slice_axis(F.abs(X), axis=1, begin=0, end=1).reshape((-1,)), '
    'dtype="float32") % 4, use_sequence_length=True, axis=1, value=-1)'])
def test_functions_of_integers(code, dtype):
    """MXNet computes them in float32 and cuts off the fraction; ONNX has no such functions."""
    check_older(code, whole(4, 3, dtype=dtype))


@pytest.mark.parametrize('code', [
    '(X > 0) + (Y > 0)', '(X > 0) * (Y > 0)', 'F.np.max(X > 0, axis=1)', 'F.np.min(X > -1, axis=1)',
    'F.np.sum(X > 0, axis=1)', 'F.np.where(X > 0, X > 1, Y > 1)', 'F.np.logical_not(X > 0)', 'F.np.sign(X)'])
def test_boolean_arrays_and_signs(code):
    X = whole(4, 3)
    check_symbols(code, X, X[::-1])


@pytest.mark.parametrize('code', ['X + 100', 'X * 3', '300 - X', 'X - Y', 'F.np.maximum(X, Y)'])
def test_bytes(code):
    """They overflow in the same way; onnxruntime before 1.18 does not add them."""
    X = whole(4, 3, low=0, high=256, dtype='uint8')
    check_symbols(code, X, X[::-1])


@mxnet_1
@pytest.mark.parametrize('code', ['F.broadcast_div(X, Y)', 'X + 100 / Y', 'X / 2 + Y', 'F.broadcast_mod(X, Y)'])
def test_division_of_integers(code):
    """A 0 that the example does not have would end MXNet's process."""
    X, Y = whole(4, 3, dtype='int32'), np.array([[-3, 1, 2]] * 4, dtype='int32')
    check_older(code, X, Y)


@pytest.mark.parametrize('high', [2, 2**30])
def test_sums_of_integers(high):
    """Those that are tried do not overflow, as sums of a mask do not."""
    check_symbols('X.sum(axis=1)', np.array([[0, 1, high - 1] * 2] * 3, dtype='int64'))
