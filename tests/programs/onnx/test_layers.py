"""Tests of pooling and batch norm in models."""
import numpy
import pytest
from exported import check, compare, random
from operators import Net, check_older, mxnet_1
from refused import refused
from semantics import semantics
from slow import slow

from gluon_mgpu.mxnet_setup.compat import gluon, mx
from gluon_mgpu.programs.onnx.writing import to_onnx


@mxnet_1
@pytest.mark.parametrize('pad', [0, 1])
@pytest.mark.parametrize('kind', ["'max'", "'avg'", "'avg', count_include_pad=False"])
@pytest.mark.parametrize('kernel, stride', [(2, 2), (3, 2), (3, 3), (2, 3)])
@pytest.mark.parametrize('size', [slow(6), 7, 8])
def test_pooling_whose_last_window_reaches_over_the_border(size, kernel, stride, kind, pad):
    """Old runtimes divide averages by the whole kernel. In windows of padding only, MXNet has the lowest number."""
    last = -(-(size + 2 * pad - kernel) // stride) * stride - pad  # its first row
    is_counted = kind == "'avg'"
    settings = (f'kernel=({kernel}, 2), stride=({stride}, 1), pad=({pad}, 0), pool_type={kind}, '
                'pooling_convention="full"')
    if last >= size + is_counted * pad:
        assert ' cannot be converted, a window of padding only: ' in refused(
            check_older, f'F.Pooling(X, {settings})', random(2, 3, size, 4))
    else:
        check_older(f'F.Pooling(X, {settings})', random(2, 3, size, 4))


def exact(X, axis):
    """Return numbers with mean 0 and variance 1, computed in float64."""
    X = X.asnumpy().astype('float64')
    return ((X - X.mean(axis, keepdims=True)) / numpy.sqrt(X.var(axis, keepdims=True) + 1e-5)).astype('float32')


@mxnet_1
@pytest.mark.parametrize('code, axis, mean', [
    ('F.LayerNorm(X, F.ones(768), F.zeros(768))', -1, 1000), ('F.LayerNorm(X, F.ones(6), F.zeros(6), axis=1)', 1, 1000),
    ('F.InstanceNorm(X, F.ones(6), F.zeros(6), eps=1e-5)', 2, 30),
    ('F.reshape(F.GroupNorm(F.reshape(X, shape=(0, 6, 2, -1)), F.ones(6), F.zeros(6), num_groups=6), shape=(0, 6, -1))',
     2, 30)])
@pytest.mark.parametrize('is_known', [False, True])
def test_norms_of_numbers_with_a_large_mean(code, axis, mean, is_known):
    """MXNet's own sums are less exact, so an example with such numbers may differ more."""
    with semantics('nd'):
        to_onnx(Net(code), 'a.onnx', (random(2, 6, 768) / 4 + mean * is_known).as_nd_ndarray(), log=lambda line: None)
    X = random(5, 6, 768) / 4 + mean
    compare('a.onnx', [X], [exact(X, axis)])


@mxnet_1
@pytest.mark.parametrize('size', [None, 1, (1, 1), (1, 3), 2, 4, 5, (7, 3), (12, 2), (16, 11)])
def test_adaptive_pooling(size):
    """Also to sizes that are no divisors, and larger than the array."""
    settings = '' if size is None else f', output_size={size}'
    check_older(f'F.contrib.AdaptiveAvgPooling2D(X{settings})', random(2, 3, 12, 8))


@mxnet_1
@pytest.mark.parametrize('fix_gamma', [True, False])
def test_batch_norm_of_mxnet_0(fix_gamma):
    with semantics('nd'):
        symbol = mx.sym.BatchNorm_v1(mx.sym.var('data'), fix_gamma=fix_gamma, name='bn')
        block, rng = gluon.SymbolBlock(symbol, mx.sym.var('data')), numpy.random.default_rng(0)
        for param in block.collect_params().values():
            param.shape = (3,)
            param._load_init(mx.nd.array(rng.uniform(0.5, 1.5, 3)), mx.cpu())
        check(block, [random(2, 3, 4, 4).as_nd_ndarray()])


@mxnet_1
@pytest.mark.parametrize('corners', [True, False])
def test_bilinear_resizing(corners):
    """At the same coordinates, although float32 rounds them."""
    for old, new in ((240, 500), (480, 33)):
        check_older(f'F.contrib.BilinearResize2D(X, height={new}, width=9, align_corners={corners})',
                    random(1, 1, old, 240))
