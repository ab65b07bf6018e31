"""Networks of many kinds give the same results in onnxruntime as in MXNet, also with another batch size."""
from concurrent.futures import ThreadPoolExecutor

import pytest
from exported import NETWORKS, ZOO, Lambda, check, from_zoo, random, trained
from slow import slow

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, init, mx
from gluon_mgpu.programs.onnx.graph import semantics_of

nn, rnn = gluon.nn, gluon.rnn
QUICK = 'squeezenet1.1', 'mobilenetv2_0.25'
mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='mx.nd in Gluon needs MXNet 1.9')


@pytest.mark.parametrize('name', NETWORKS)
def test_network(name):
    net, examples = NETWORKS[name]()
    check(trained(net, *examples), examples, **({'batch_axis': [0, 1]} if name == 'language_model' else {}))


@pytest.mark.parametrize('name', [name if name in QUICK else slow(name) for name in ZOO])
def test_model_zoo(name):
    with semantics_of(mx.nd.ones(1)):
        net, examples = from_zoo(name)
        check(trained(net, *examples, initializer=init.Xavier()), examples)


@mxnet_1
def test_other_threads_keep_numpy_semantics():
    with ThreadPoolExecutor(1, initializer=mx.util.set_np) as pool:
        with pytest.raises(ZeroDivisionError), semantics_of(mx.nd.ones(1)):
            assert not mx.util.is_np_array() and not mx.util.is_np_shape()
            assert pool.submit(mx.util.is_np_array).result() and pool.submit(mx.util.is_np_shape).result()
            raise ZeroDivisionError
        assert pool.submit(mx.util.is_np_shape).result() and mx.util.is_np_shape() and mx.util.is_np_array()


OPERATORS = """
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
""".strip().splitlines()


@pytest.mark.parametrize('code', OPERATORS)
def test_operator(code):
    net = Lambda(eval(f'lambda F, X: {code}'))
    net.initialize()
    check(net, [random(2, 3, 4)])


@mxnet_1
@pytest.mark.parametrize('code', OLDER)
def test_operator_of_mx_nd(code):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, X):
            return eval(code, {'F': F, 'X': X})

    with semantics_of(mx.nd.ones(1)):
        check(Net(), [random(2, 3, 4).as_nd_ndarray()])
