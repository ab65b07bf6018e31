"""bfloat16: the devices that support it, the parts that stay float32, and the error."""
import numpy
import pytest
from bfloat16 import needs_bfloat16
from refused import refused

from gluon_mgpu.mxnet_setup import instructions
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, init, mx, np, npx
from gluon_mgpu.networks import precision
from gluon_mgpu.networks.precision import check_dtype, conv2d
from gluon_mgpu.networks.resnet import resnet18


@pytest.mark.parametrize(('dtype', 'devices', 'message'), [
    ('float64', [mx.cpu(0)], "dtype 'float64': must be one of float32, bfloat16, float16"),
    ('float16', [mx.gpu(0), mx.cpu(0)], r'dtype float16 on cpu\(0\): works on GPUs only; use float32 or bfloat16'),
    ('bfloat16', [mx.gpu(0)], r'dtype bfloat16 on gpu\(0\): works on CPUs only; use float32 or float16'),
    ('bfloat16', [mx.cpu(0)], 'this CPU has no avx512_bf16'),
])
def test_unsupported(dtype, devices, message, monkeypatch):
    monkeypatch.setattr(precision, 'MXNET_MAJOR', 1)
    monkeypatch.setattr(instructions, 'processor_flags', lambda: ['avx2'])
    with pytest.raises(ValueError, match=message):
        check_dtype(dtype, devices)


def test_mxnet_2_supports_float32_only(monkeypatch):
    monkeypatch.setattr(precision, 'MXNET_MAJOR', 2)
    check_dtype('float32', [mx.cpu(0)])
    assert 'needs MXNet 1.9, this is MXNet 2; use float32' in refused(check_dtype, 'bfloat16', [mx.cpu(0)])


def test_supported(monkeypatch):
    monkeypatch.setattr(precision, 'MXNET_MAJOR', 1)
    monkeypatch.setattr(instructions, 'processor_flags', lambda: ['avx512_bf16'])
    monkeypatch.delenv('DNNL_MAX_CPU_ISA', raising=False)
    assert check_dtype('bfloat16', [mx.cpu(0), mx.cpu(1)]) is None
    assert check_dtype('float16', [mx.gpu(0)]) is None


def test_float32_is_gluons_own_layer():
    assert type(conv2d(4, kernel_size=3)) is gluon.nn.Conv2D


def train(dtype, X, y, steps=5):
    """Train; return the loss of each step and the network."""
    npx.random.seed(1)
    net = resnet18(10, dtype)
    net.initialize(init=init.Xavier())
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.01})
    net.hybridize()
    losses = []
    for _ in range(steps):
        with autograd.record():
            l = loss(net(X), y)
        l.backward()
        trainer.step(len(y))
        losses.append(float(l.mean()))
    return losses, net


@needs_bfloat16
def test_bfloat16_trains_as_float32_does():
    X = np.random.uniform(size=(16, 3, 12, 12))
    y = np.arange(16) % 10
    losses, net = train('bfloat16', X, y)
    expected, float32_net = train('float32', X, y)
    assert losses != expected  # the computation differs
    # bfloat16 keeps 8 bits: each of about twenty layers has an error of up to 2 ** -9 of its values
    assert losses[0] == pytest.approx(expected[0], rel=0.02)
    assert expected[-1] < 0.9 * expected[0]
    assert losses[-1] == pytest.approx(expected[-1], rel=0.05)
    assert net(X).dtype == np.float32
    assert {numpy.dtype(p.dtype).name for p in net.collect_params().values()} == {'float32'}
    assert {p.shape for p in net.collect_params().values()} == {
        p.shape for p in float32_net.collect_params().values()}


@needs_bfloat16
def test_convolutions_without_bias():
    conv = gluon.nn.HybridSequential()
    conv.add(precision.Cast('bfloat16'), precision.conv2d(2, kernel_size=1, use_bias=False, dtype='bfloat16'),
             precision.Cast('float32'))
    conv.initialize(init=mx.init.One())
    conv.hybridize()
    assert (conv(np.ones((1, 3, 2, 2))).asnumpy() == 3).all()
