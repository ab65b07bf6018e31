"""Operators give the same results in onnxruntime as in MXNet, for many settings, or are refused."""
import os
import re

import pytest
from equals_one import sequential
from exported import Lambda, random, run_model
from model_files import FILES
from operators import boxes, check_older, check_symbols, mxnet_1, shuffled
from refused import refused

from gluon_mgpu.mxnet_setup.compat import gluon, mx, np
from gluon_mgpu.programs.onnx.writing import to_onnx

nn = gluon.nn
NEWER = """
F.np.log(F.np.abs(X) + 1) / F.np.sqrt(F.np.square(X) + 0.1) - 2 / (5 + X) ** 2
F.np.maximum(X, 0) + F.np.maximum(X, 2 * X) - F.np.minimum(0.5, X) * F.np.exp(-X)
F.np.clip(X, -0.5, 0.5) + F.np.sin(X) * F.np.cos(X) + F.np.tanh(X) + F.np.floor(X) + F.np.log1p(F.np.abs(X))
F.npx.relu(X) + F.npx.sigmoid(X) + F.npx.erf(X) + F.npx.activation(X, act_type='softsign')
F.npx.leaky_relu(X, act_type='gelu') + F.npx.leaky_relu(X, act_type='elu', slope=0.5)
F.npx.activation(X, act_type='softrelu') + F.npx.leaky_relu(X, act_type='selu')
F.np.where(X > 0, X, X * 0.1) + (X >= 0.5) * X + (X < 0) * 2.0 + (X == X)
F.np.sum(X) + F.np.sum(X, axis=(0, 1), keepdims=True) - X
F.np.mean(X, axis=-1) - F.np.max(X, axis=2) + F.np.min(X, axis=2) * F.np.prod(X, axis=2)
F.np.argmax(X, axis=1)
F.np.concatenate([X, X], axis=2)
F.np.stack([X, 2 * X], axis=-1)
F.np.split(X, 3, axis=1)
F.np.split(X, (1, 3), axis=2)
F.np.squeeze(F.np.expand_dims(X, 1))
F.np.transpose(X)
F.np.transpose(X, axes=(0, 2, 1))
F.np.swapaxes(X, 1, 2)
F.npx.reshape(X, (-2, -1))
X.reshape(-1, 6)
F.np.tile(X, (1, 2, 1))
F.np.tile(X, 2)
F.np.repeat(X, 3, axis=1)
F.np.flip(X, axis=2)
F.np.flip(X, axis=(1, 2))
F.np.pad(X, ((0, 0), (1, 2), (0, 1)))
X[:, 1]
X[:, 1:, ::2]
X[:, 0:2, 1]
F.np.matmul(F.np.dot(X, F.np.ones((4, 5))), F.np.ones((5, 2)))
F.npx.batch_dot(X, X, transpose_b=True)
F.npx.batch_dot(X, X, transpose_a=True)
F.np.einsum('nij,nkj->nik', X, X)
F.npx.softmax(X, axis=1) + F.npx.softmax(X, axis=-1, temperature=2.0) + F.npx.log_softmax(X)
F.npx.softmax(X, F.np.argmax(X, axis=2).astype('int32')[:, 0:3] + 1, use_length=True, axis=2)
F.np.zeros_like(X) + F.np.ones_like(X) * X + F.np.full_like(X, 3) * X + F.np.arange(4)
F.npx.arange_like(X, axis=2) * X
F.npx.one_hot(F.np.argmax(X, axis=1), 3)
F.npx.one_hot(F.np.argmax(X, axis=1) - 1, 3)
F.npx.pick(X, F.np.argmax(X, axis=2))
F.npx.pick(X, F.np.argmax(X, axis=2) * 3 - 4, mode='wrap')
F.np.take(X, F.np.argmax(X[0:1], axis=1) * 3 - 2, axis=1, mode='wrap')
F.np.take(X, F.np.argmax(X[0:1], axis=1) - 1, axis=1, mode='clip')
F.npx.layer_norm(X, F.np.ones(3) * 2, F.np.ones(3), axis=1)
F.np.repeat(X, 2).reshape(-1, 24)
F.np.concatenate([X, X + 1], axis=None)
X + F.np.concatenate([F.np.ones(2), F.np.ones(2)], axis=None)
F.npx.softmax(F.np.where(F.np.abs(X - X[:, :, 0:1]) < 1, X, -inf))
X > -inf
(X < inf) * X + (X == -inf)
F.np.clip(X, 0, inf)
F.np.maximum(X, -inf)
F.np.where(X > 0, X, 0.5)
F.np.where(X > 0, 0.5, X)
F.np.where(X > 0, 1, 0.5)
F.np.where(X > 0, X, X * 0)
F.np.where(X > 0, X, 0)
F.np.sign(X)
X + F.np.repeat(F.np.ones(()), 4)
F.np.concatenate([X, X + 1])
F.np.pad(X, ((0, 0), (1, 2), (3, 3)), mode='reflect')
F.np.einsum('Bij,BkJ->BijkJ', X, X)
F.np.einsum('bBi,bCi', X, X)
F.np.array_split(X, 2, axis=1)
F.np.array_split(X, 3, axis=2)
F.np.hsplit(X, 3)
F.np.hsplit(X, (1, 2))
F.np.dsplit(X, 2)
F.np.moveaxis(X, 0, -1)
F.np.moveaxis(X, (2, 0), (0, 1))
F.np.var(X, axis=1)
F.np.std(X, axis=(1, 2), ddof=1, keepdims=True)
F.np.std(X[:, 0], axis=-1)
F.np.expm1(X)
F.np.log2(F.np.abs(X) + 1)
F.np.log10(F.np.abs(X) + 1)
F.np.cumsum(X)
F.np.cumsum(X, axis=1)
F.np.roll(X, (1, -2), axis=(1, 2))
F.np.roll(X, -7, axis=-1)
F.np.tril(X)
F.np.tril(X, 1)
F.np.tril(X, -1)
X * F.np.eye(3, 4, 1)
X * F.np.eye(4)[0]
F.npx.gather_nd(X, F.np.ones((2, 3), dtype='int32'))
F.np.around(2 * X)
F.np.around(X, 1)
F.np.rint(2 * X)
F.np.fix(2 * X)
F.np.trunc(2 * X)
F.np.floor(X * 1e10)
F.np.trunc(X * 1e10)
F.np.ceil(X * 1e10)
""".strip().splitlines()
OLDER = """
F.hard_sigmoid(X) + F.L2Normalization(X) - F.L2Normalization(X, mode='channel') * F.rsqrt(F.abs(X) + 1)
F.slice_axis(X, axis=1, begin=1, end=None)
F.slice_axis(X, axis=2, begin=-2, end=-1)
F.slice_like(X, F.slice_axis(X, axis=2, begin=0, end=2))
F.slice(X, begin=(None, 2), end=(None, 0), step=(None, -1))
F.split(X, num_outputs=3, axis=1)
F.split(X, num_outputs=3, axis=1, squeeze_axis=True)
F.Concat(X, X, dim=2)
F.stack(X, X, axis=1)
F.broadcast_add(X, F.mean(X, axis=1, keepdims=True))
F.broadcast_div(X, 9 + F.sum(X, axis=1, keepdims=True, exclude=True))
F.sum(X)
F.batch_dot(X, X, transpose_b=True)
F.dot(X, F.ones((4, 5)))
F.where(X > 0, X, -X) + F.broadcast_greater(X, F.mean(X, axis=1, keepdims=True)) * X
F.reshape(X, shape=(-3, 0))
F.reshape(X, shape=(0, 0, -4, 2, 2))
F.repeat(F.tile(X, reps=(1, 2, 1)), repeats=2, axis=2)
F.reverse(X, axis=1)
F.pad(F.expand_dims(X, 1), mode='edge', pad_width=(0, 0, 0, 0, 1, 1, 2, 0))
F.pad(F.expand_dims(X, 1), mode='constant', pad_width=(0, 0, 0, 0, 1, 1, 2, 0), constant_value=3)
F.UpSampling(F.expand_dims(X, 1), scale=2, sample_type='nearest')
F.contrib.BilinearResize2D(F.expand_dims(X, 1), height=5, width=9)
F.LRN(F.expand_dims(X, 1), nsize=3, alpha=0.1)
F.InstanceNorm(F.expand_dims(X, 1), F.ones(1) * 2, F.ones(1))
F.GroupNorm(F.swapaxes(X, 1, 2), F.ones(2) * 2, F.ones(2), num_groups=2)
F.broadcast_add(F.contrib.div_sqrt_dim(X), F.norm(X, axis=2, keepdims=True)) + F.add_n(X, X, X) + F.BlockGrad(X)
F.argmax(X, axis=1)
F.argmin(X, axis=1)
F.one_hot(F.argmax(X, axis=1) - 1, 3, on_value=0.9, off_value=0.1)
F.broadcast_add(X, F.arange(4))
F.broadcast_add(X, F.arange(2, 10, step=2))
F.pick(X, F.argmax(X, axis=2))
F.Embedding(F.argmax(X, axis=1) * 9 - 2, F.ones((5, 3)), input_dim=5, output_dim=3)
F.SequenceMask(X, F.mean(F.abs(X), axis=(1, 2)) * 2, use_sequence_length=True, value=-1, axis=1)
F.softmax(X, F.cast(F.argmax(X, axis=2) + 1, dtype='int32'), axis=2, use_length=True)
F.broadcast_like(F.mean(X, axis=1, keepdims=True), X)
F.broadcast_axis(F.mean(X, axis=1, keepdims=True), axis=1, size=3)
F.contrib.arange_like(X, axis=1)
F.Cast(X * 9, dtype='int32')
F.round(2 * X)
F.sign(X)
F.sign(F.floor(X))
F.LeakyReLU(X, act_type='rrelu')[0]
F.LeakyReLU(X, act_type='rrelu', lower_bound=0.3, upper_bound=0.5)[0]
F.linalg.gemm2(X, X, transpose_b=True, alpha=0.5)
F.repeat(X, repeats=2).reshape((-1, 24))
F.contrib.BilinearResize2D(F.expand_dims(X, 1), height=1, width=1)
F.contrib.BilinearResize2D(F.expand_dims(X, 1), height=5, width=1, align_corners=False)
F.Convolution_v1(F.expand_dims(X, 1), F.ones((2, 1, 3, 3)), F.ones(2), kernel=(3, 3), num_filter=2, pad=(1, 1))
F.MakeLoss(X * 2)
F.make_loss(X * 2)
F.BlockGrad(X * 2)
F.stop_gradient(X * 2)
F.identity(X * 2)
""".strip().splitlines()


def halves():
    """Return numbers of which some, times 2, are rounded in different ways."""
    X = random(2, 3, 4)
    X[0, 0] = np.array([-0.75, -0.25, 0.25, 0.75])
    return X


@pytest.mark.parametrize('code', NEWER)
def test_operator(code):
    check_symbols(code, halves())


@mxnet_1
@pytest.mark.parametrize('code', OLDER)
def test_operator_of_mx_nd(code):
    check_older(code, halves())


@pytest.mark.parametrize('code, words', [
    ('F.npx.gamma(X)', 'gamma near 0 cannot be converted, which is not in the table of operators'),
    ('F.np.argmax(X)', 'argmax near 0 cannot be converted, no axis'),
    ('F.np.dot(X, X)', 'dot near 0 cannot be converted, more than two dimensions'),
    ('F.npx.topk(X, k=0, axis=0)', 'topk near 0 cannot be converted, its sizes depend on the batch'),
    ("F.np.pad(X, ((0, 0), (0, 0), (1, 1)), mode='maximum')", 'pad near 0 cannot be converted, mode maximum')])
def test_operators_that_cannot_be_converted(code, words):
    """The line has the operator, the setting, and the layer before it, whose result can be kept."""
    net = sequential(nn.Conv1D(4, 1), Lambda(lambda F, X: eval(code)))
    net.initialize()
    line = refused(to_onnx, net, 'a.onnx', random(2, 4, 4))
    assert re.match(rf"no model is written because \w*{words}: cut the network before it, "
                    r"symbol.get_internals\(\)\['\w+'\], as in docs/export.md$", line)
    assert not os.listdir()


def test_operators_without_a_layer_before():
    assert refused(check_symbols, 'F.npx.gamma(X)', random(2, 4)) == (
        'no model is written because gamma near input cannot be converted, which is not in the table of '
        'operators: leave it out of the network')
    assert 'onnxruntime cannot run it, ' in refused(
        check_symbols, "F.npx.leaky_relu(X.astype('float64'), act_type='gelu')", random(2, 4))


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
    ("F.Pooling(X, kernel=(2,), pool_type='sum')", "'sum' is not supported: leave it out"),
])
def test_settings_that_are_refused(code, words):
    assert words in refused(check_older, code, shuffled(3, 8, 6))


@mxnet_1
@pytest.mark.parametrize('code', ['F.contrib.box_nms(X)', 'F.contrib.MultiBoxPrior(F.expand_dims(X, 1))',
                                  'F.topk(X)', 'F.SoftmaxActivation(X)', 'F.tile(X, reps=(1, 2, 1, 1))'])
def test_attributes_that_are_no_settings(code):
    with mx.AttrScope(ctx_group='a', lr_mult='2', __init__='zeros'):
        check_older(code, boxes(2, 9))


@pytest.mark.parametrize('operator', [lambda F, A, B: F.np.hypot(A, B), lambda F, A, B: F.npx.gamma(A) * 0 + B])
def test_where_to_cut(operator, run):
    """The line for an operator that cannot be converted names what to keep, and this can be exported."""
    one, two = nn.Dense(3), nn.Dense(3)
    net = Lambda(lambda F, one, two, X: operator(F, one(X), two(X)), one, two)
    X = random(2, 4)
    net.initialize()
    net.hybridize()
    net(X)
    net.export('net')
    line = run(*FILES, '--shape', '2,4', status=2)
    advice = re.search('which is not in the table of operators: cut the network before it, (.*), as in docs/', line)
    eval(advice[1], {'mx': mx, 'symbol': mx.sym.load('net-symbol.json')}).save('cut-symbol.json')
    run('cut-symbol.json', 'net-0000.params', '--shape', '2,4')
    for found, layer in zip(run_model('cut.onnx', X), (one, two)):
        assert abs(found - layer(X).asnumpy()).max() <= 1e-6
