"""Operators of older networks and of detectors give the same results in onnxruntime as in MXNet, for many settings."""
import re

import pytest
from exported import Lambda, random, run_model
from operators import boxes, check_older, check_symbols, mxnet_1, shuffled

from gluon_mgpu.mxnet_setup.compat import gluon, mx, np
from gluon_mgpu.programs.onnx import export


@mxnet_1
@pytest.mark.parametrize('operator', ['MakeLoss', 'make_loss', 'BlockGrad', 'stop_gradient', 'identity'])
def test_operators_that_return_their_input(operator):
    check_older(f'F.{operator}(X * 2)', random(2, 3))


@mxnet_1
@pytest.mark.parametrize('code, words', [
    ('F.topk(X, axis=0, k=0)', 'its sizes depend on the batch'),
    ('F.topk(X, axis=None, k=0)', 'its sizes depend on the batch'),
    ("F.UpSampling(F.expand_dims(X, 1), F.expand_dims(X, 1), scale=2, sample_type='nearest', num_args=2)",
     'several inputs'),
    ('F.argsort(X, axis=0)', 'its sizes depend on the batch'),
    ("F.contrib.box_nms(X, in_format='center')", 'topk=0 or another out_format than in_format'),
    ('F.contrib.box_nms(X, topk=0)', 'topk=0 or another out_format than in_format'),
    ('F.contrib.ROIAlign(F.expand_dims(X, 0), F.zeros((2, 5)), pooled_size=(1, 1), spatial_scale=1, '
     'position_sensitive=True)', 'position_sensitive'),
    ('F.Crop(F.transpose(F.expand_dims(X, 0), axes=(0, 2, 1, 3)), h_w=(1, 2))', 'its sizes depend on the batch'),
    ('F.contrib.AdaptiveAvgPooling2D(F.transpose(F.expand_dims(X, 0)), output_size=2)', 'sizes depend on the batch'),
    ("F.Pooling(X, kernel=(2,), pool_type='sum')", "cannot be converted, 'sum' is not supported: leave it out"),
])
def test_settings_that_are_refused(code, words, tmp_path):
    """In one line, and nothing is written."""
    with pytest.raises(ValueError, match=f'^no model is written because .*{words}') as error:
        check_older(code, shuffled(3, 8, 6))
    assert '\n' not in str(error.value) and list(tmp_path.iterdir()) == []


@mxnet_1
@pytest.mark.parametrize('code', ['F.contrib.box_nms(X)', 'F.contrib.MultiBoxPrior(F.expand_dims(X, 1))',
                                  'F.topk(X)', 'F.SoftmaxActivation(X)', 'F.tile(X, reps=(1, 2, 1, 1))'])
def test_attributes_that_are_no_settings(code):
    with mx.AttrScope(ctx_group='a', lr_mult='2', __init__='zeros'):
        check_older(code, boxes(2, 9))


@pytest.mark.parametrize('operator', [lambda F, A, B: F.np.hypot(A, B), lambda F, A, B: F.npx.gamma(A) * 0 + B])
def test_where_to_cut(operator, capsys):
    """The line for an operator that cannot be converted names what to keep, and this can be exported."""
    one, two = gluon.nn.Dense(3), gluon.nn.Dense(3)
    net = Lambda(lambda F, one, two, X: operator(F, one(X), two(X)), one, two)
    X = random(2, 4)
    net.initialize()
    net.hybridize()
    net(X)
    net.export('net')
    assert export.main(['net-symbol.json', 'net-0000.params', '--shape', '2,4']) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    advice = re.search('which is not in the table of operators: cut the network before it, (.*), as in docs/', line)
    eval(advice[1], {'mx': mx, 'symbol': mx.sym.load('net-symbol.json')}).save('cut-symbol.json')
    assert export.main(['cut-symbol.json', 'net-0000.params', '--shape', '2,4']) == 0
    for found, layer in zip(run_model('cut.onnx', X), (one, two)):
        assert abs(found - layer(X).asnumpy()).max() <= 1e-6


@pytest.mark.parametrize('code', [
    'F.np.repeat(X, 2).reshape(-1, 24)', 'F.np.concatenate([X, X + 1], axis=None)',
    'X + F.np.concatenate([F.np.ones(2), F.np.ones(2)], axis=None)', 'X + F.np.repeat(F.np.ones(()), 4)',
    'F.np.concatenate([X, X + 1])',
    "F.np.pad(X, ((0, 0), (1, 2), (3, 3)), mode='reflect')",
    "F.np.einsum('Bij,BkJ->BijkJ', X, X)", "F.np.einsum('bBi,bCi', X, X)", 'F.np.array_split(X, 2, axis=1)',
    'F.np.array_split(X, 3, axis=2)', 'F.np.hsplit(X, 3)', 'F.np.hsplit(X, (1, 2))', 'F.np.dsplit(X, 2)',
    'F.np.moveaxis(X, 0, -1)',
    'F.np.moveaxis(X, (2, 0), (0, 1))', 'F.np.var(X, axis=1)', 'F.np.std(X, axis=(1, 2), ddof=1, keepdims=True)',
    'F.np.std(X[:, 0], axis=-1)', 'F.np.expm1(X)', 'F.np.log2(F.np.abs(X) + 1)', 'F.np.log10(F.np.abs(X) + 1)',
    'F.np.cumsum(X)', 'F.np.cumsum(X, axis=1)',
    'F.np.tril(X)', 'F.np.tril(X, 1)', 'F.np.tril(X, -1)', 'X * F.np.eye(3, 4, 1)', 'X * F.np.eye(4)[0]',
    "F.npx.gather_nd(X, F.np.ones((2, 3), dtype='int32'))", 'F.np.around(2 * X)', 'F.np.around(X, 1)',
    'F.np.rint(2 * X)', 'F.np.fix(2 * X)', 'F.np.trunc(2 * X)', 'F.np.floor(X * 1e10)',
    'F.np.trunc(X * 1e10)', 'F.np.ceil(X * 1e10)'])
def test_more_operators(code):
    """Halves are rounded in different ways."""
    X = random(2, 3, 4)
    X[0, 0] = np.array([-0.75, -0.25, 0.25, 0.75])
    check_symbols(code, X)


@mxnet_1
@pytest.mark.parametrize('code', [
    'F.round(2 * X)', "F.LeakyReLU(X, act_type='rrelu')[0]",
    "F.LeakyReLU(X, act_type='rrelu', lower_bound=0.3, upper_bound=0.5)[0]",
    'F.linalg.gemm2(X, X, transpose_b=True, alpha=0.5)', 'F.repeat(X, repeats=2).reshape((-1, 24))',
    'F.contrib.BilinearResize2D(F.expand_dims(X, 1), height=1, width=1)',
    'F.contrib.BilinearResize2D(F.expand_dims(X, 1), height=5, width=1, align_corners=False)',
    'F.Convolution_v1(F.expand_dims(X, 1), F.ones((2, 1, 3, 3)), F.ones(2), kernel=(3, 3), num_filter=2, pad=(1, 1))'])
def test_more_operators_of_mx_nd(code):
    X = random(2, 3, 4)
    X[0, 0] = np.array([-0.75, -0.25, 0.25, 0.75])
    check_older(code, X)
