"""Tests of pooling and batch norm in models."""
import numpy
import pytest
from exported import check, random
from operators import check_older, mxnet_1
from slow import slow

from gluon_mgpu.mxnet_setup.compat import gluon, mx
from gluon_mgpu.programs.onnx.graph import semantics_of


@mxnet_1
@pytest.mark.parametrize('pad', [0, 1])
@pytest.mark.parametrize('kind', ["'max'", "'avg'", "'avg', count_include_pad=False"])
@pytest.mark.parametrize('kernel, stride', [(2, 2), (3, 2), (3, 3), (2, 3)])
@pytest.mark.parametrize('size', [slow(6), 7, 8])
def test_pooling_whose_last_window_reaches_over_the_border(size, kernel, stride, kind, pad):
    """Old runtimes divide averages by the whole kernel. In windows of padding only, MXNet has the lowest number."""
    last = -(-(size + 2 * pad - kernel) // stride) * stride - pad  # its first row
    settings = (f'kernel=({kernel}, 2), stride=({stride}, 1), pad=({pad}, 0), pool_type={kind}, '
                'pooling_convention="full"')
    code = f'F.clip(F.Pooling(X, {settings}), -9, 9)'
    if last >= size + ('count' not in kind) * pad and 'avg' in kind:
        with pytest.raises(ValueError, match='^no model is written because Pooling .* an average of padding only'):
            check_older(code, random(2, 3, size, 4))
    else:
        check_older(code, random(2, 3, size, 4))


@mxnet_1
@pytest.mark.parametrize('size', [None, 1, (1, 1), (1, 3), 2, 4, 5, (7, 3), (12, 2), (16, 11)])
def test_adaptive_pooling(size):
    """Also to sizes that are no divisors, and larger than the array."""
    settings = '' if size is None else f', output_size={size}'
    check_older(f'F.contrib.AdaptiveAvgPooling2D(X{settings})', random(2, 3, 12, 8))


@mxnet_1
@pytest.mark.parametrize('fix_gamma', [True, False])
def test_batch_norm_of_mxnet_0(fix_gamma):
    with semantics_of(mx.nd.ones(1)):
        symbol = mx.sym.BatchNorm_v1(mx.sym.var('data'), fix_gamma=fix_gamma, name='bn')
        block, rng = gluon.SymbolBlock(symbol, mx.sym.var('data')), numpy.random.default_rng(0)
        for param in block.collect_params().values():
            param.shape = (3,)
            param._load_init(mx.nd.array(rng.uniform(0.5, 1.5, 3)), mx.cpu())
        check(block, [random(2, 3, 4, 4).as_nd_ndarray()])
