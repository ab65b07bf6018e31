"""Tests of the ONNX export: the model, its comparison with the network, and errors."""
import importlib.util
import os

import numpy
import onnx
import pytest
from oracle import lenet_params, to_mx

from gluon_mgpu.export import to_onnx
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, np
from gluon_mgpu.networks.hybridize import hybridized
from gluon_mgpu.networks.precision import Cast
from gluon_mgpu.networks.resnet import Residual, resnet18
from gluon_mgpu.onnx_model import conversion, file
from gluon_mgpu.scratch import init_params, lenet

nn = gluon.nn
mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='lower precision needs MXNet 1.9')


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def block(*layers):
    """Return an initialized network of these layers."""
    net = nn.HybridSequential()
    net.add(*layers)
    net.initialize()
    net(np.zeros((2, 1, 28, 28)))
    return net


def missing(*names):
    """Return a `find_spec` for a machine without these modules."""
    find_spec = importlib.util.find_spec
    return lambda name, *args: None if name in names else find_spec(name, *args)


def test_the_shapes_of_lenet_are_those_of_the_chapter():
    assert list(conversion.LENET.values()) == [param.shape for param in init_params()]


def test_contents_of_the_file():
    arrays = lenet_params(numpy.random.default_rng(0))
    to_onnx(to_mx(arrays), 'a.onnx', log=lambda line: None)
    model = onnx.load('a.onnx')
    assert [array.name for array in model.graph.initializer] == ['W1', 'b1', 'W2', 'b2', 'W3', 'b3', 'W4', 'b4']
    for expected, array in zip(arrays, model.graph.initializer):
        assert (onnx.numpy_helper.to_array(array) == expected).all()
    for value, name, shape in ((model.graph.input[0], 'images', ['batch', 1, 28, 28]),
                               (model.graph.output[0], 'scores', ['batch', 10])):
        tensor = value.type.tensor_type
        assert (value.name, tensor.elem_type) == (name, onnx.TensorProto.FLOAT)
        assert [axis.dim_param or axis.dim_value for axis in tensor.shape.dim] == shape
    assert (model.ir_version, model.opset_import[0].version, model.producer_name) == (8, 13, 'gluon_mgpu')


@pytest.mark.slow
def test_other_channels_and_classes(capsys):
    net = resnet18(3)
    net.initialize()
    net(np.zeros((1, 2, 40, 40)))
    to_onnx(net, 'a.onnx')
    import onnxruntime
    X = numpy.random.default_rng(0).random((2, 2, 40, 40), 'float32')
    found, = onnxruntime.InferenceSession('a.onnx').run(None, {'images': X})
    expected = net(np.array(X)).asnumpy()
    assert found.shape == (2, 3) and abs(found - expected).max() <= file.TOLERANCE * abs(expected).max()
    assert 'model: a.onnx, checked in onnxruntime: ' in capsys.readouterr().out


@pytest.mark.parametrize('wrap', [lambda net: net, hybridized])
def test_an_attribute_named_block_is_an_attribute(wrap, capsys):
    net = block(nn.Conv2D(3, 3), nn.GlobalAvgPool2D(), nn.Dense(10))
    net.block = 4
    to_onnx(wrap(net), 'a.onnx')
    assert 'checked in onnxruntime' in capsys.readouterr().out


@pytest.mark.slow
@mxnet_1
def test_a_network_in_lower_precision(capsys):
    """The model equals that of the same parameters in float32, and is checked in float32 on any processor."""
    net = resnet18(10)
    net.initialize()
    net(np.zeros((1, 1, 28, 28)))
    low = resnet18(10, 'bfloat16')
    low.initialize()
    pairs = list(zip(net._collect_params_with_prefix().values(), low._collect_params_with_prefix().values()))
    for param, other in pairs:
        other.shape = param.shape
        other._finish_deferred_init()
        other.set_data(param.data())
    assert len(pairs) == 110  # 20 convolutions and a dense layer of two arrays each, 17 batch norms of four
    to_onnx(net, 'a.onnx')
    to_onnx(low, 'b.onnx')
    with open('a.onnx', 'rb') as a, open('b.onnx', 'rb') as b:
        assert a.read() == b.read()
    assert capsys.readouterr().out.count('checked in onnxruntime') == 2


@pytest.mark.parametrize('net, words', [
    ([], "a list of 0 arrays without the shapes of LeNet; only LeNet's"),
    ([[]], 'a list of 0 arrays without the shapes of LeNet'),
    ([1, 2, 3], 'a list of 3 arrays without the shapes of LeNet'),
    (lambda: to_mx(lenet_params(numpy.random.default_rng(0)))[:7], 'a list of 7 arrays without the shapes of LeNet'),
    (lambda: to_mx(lenet_params(numpy.random.default_rng(0)))[::-1], 'a list of 8 arrays without the shapes of LeNet'),
    (lambda: to_mx(lenet_params(numpy.random.default_rng(0), dtype='float64')), 'W1 is float64; only finite float32'),
    (lambda: [*to_mx(lenet_params(numpy.random.default_rng(0)))[:7], np.full(10, numpy.nan)], 'b4 contains NaN or inf'),
    (None, "NoneType is not a network; only LeNet's list of parameters and resnet18"),
    (lenet, 'function is not a network; only LeNet'),
    (lambda: resnet18(10), 'the network has no parameters yet: call net.initialize'),
    (lambda: block(), 'the network is not a chain of convolutions followed by global average pooling and a Dense'),
    (lambda: block(nn.Dense(10)), 'the network is not a chain of convolutions'),
    (lambda: block(nn.BatchNorm(), nn.GlobalAvgPool2D(), nn.Dense(10)), 'the network is not a chain of convolutions'),
    (lambda: block(nn.Conv2D(3, 3)), 'the network is not a chain of convolutions'),
    (lambda: block(nn.Conv2D(3, 3), nn.GlobalAvgPool2D(), nn.Dense(9), nn.Dense(9)), 'the network is not a chain of'),
    (lambda: block(nn.Conv2D(3, 3), nn.MaxPool2D(), nn.Dense(10)), 'MaxPool2D is not supported; only'),
    (lambda: block(nn.Conv2D(3, 3), nn.Dropout(0.5)), 'Dropout is not supported'),
    (lambda: block(nn.Conv2DTranspose(3, 3)), 'Conv2DTranspose is not supported'),
    (lambda: block(nn.Conv2D(3, 3, activation='relu')), 'only Conv2D layers with one group and without activation'),
    (lambda: block(nn.Conv2D(4, 3), nn.Conv2D(4, 3, groups=2)), 'only Conv2D layers with one group'),
    (lambda: block(nn.Conv2D(3, 3), nn.Activation('tanh')), 'only Activation layers with relu can'),
    (lambda: block(nn.Conv2D(3, 3), nn.BatchNorm(scale=False)), 'only BatchNorm layers over axis 1 with a trained'),
    (lambda: block(nn.Conv2D(3, 3), nn.BatchNorm(axis=2)), 'only BatchNorm layers over axis 1 with a trained'),
    (lambda: block(nn.Conv2D(3, 3), nn.GlobalAvgPool2D(), nn.Dense(10, activation='relu')), 'only Dense layers'),
    (lambda: block(nn.Conv2D(3, 3), nn.GlobalAvgPool2D(), nn.Dense(10, flatten=False)), 'only Dense layers with'),
])
def test_unsupported_networks_are_rejected(net, words, tmp_path):
    with pytest.raises(ValueError, match=words) as error:
        to_onnx(net() if callable(net) and net is not lenet else net, 'a.onnx')
    assert '\n' not in str(error.value) and list(tmp_path.iterdir()) == []


@mxnet_1
def test_unsupported_networks_in_lower_precision_are_rejected():
    net = block(Cast('float32'), nn.Conv2D(3, 3), nn.GlobalAvgPool2D(), nn.Dense(10))
    with pytest.raises(ValueError, match=r'in lower precision, only resnet18\(num_classes, dtype\) can'):
        to_onnx(net, 'a.onnx')


def test_layers_without_bias_and_other_strides():
    lines = []
    net = block(nn.Conv2D(3, (3, 5), strides=(2, 1), padding=(0, 2), dilation=(2, 1), use_bias=False),
                Residual(4, use_1x1conv=True, strides=3), nn.GlobalAvgPool2D(), nn.Dense(5, use_bias=False))
    to_onnx(net, 'a.onnx', log=lines.append)
    assert "checked in onnxruntime: scores differ from the network's by" in lines[-1]


def test_a_model_with_other_scores_is_not_written(tmp_path):
    """Simulates an operator with another result in onnxruntime. The old file is kept."""
    params = to_mx(lenet_params(numpy.random.default_rng(0), 0.1))
    (tmp_path / 'a.onnx').write_text('old')
    for wrong, words in ((lambda X, params: lenet(X, params) * 1.001, r'1.0e-03 of the largest'),
                         (lambda X, params: lenet(X, params) + 1e-4, r'\d.\de[+-]\d\d of the largest')):
        with pytest.raises(ValueError, match=f"model's scores in onnxruntime differ from the network's by {words}"):
            file.write(params, 'a.onnx', wrong)
    with pytest.raises(ValueError, match='^no model is written because scores of random images are not finite'):
        file.write(params, 'a.onnx', lambda X, params: lenet(X, params) * numpy.nan)
    assert [path.name for path in tmp_path.iterdir()] == ['a.onnx']
    assert (tmp_path / 'a.onnx').read_text() == 'old'


@pytest.mark.parametrize('W4, b4', [(0, 0), (0, 1e-40), (1e-38, 0)])
def test_scores_that_are_all_zero_or_tiny(W4, b4, capsys):
    *params, W, b = to_mx(lenet_params(numpy.random.default_rng(0), 0.1))
    to_onnx([*params, W * 0 + W4, b * 0 + b4], 'a.onnx')
    assert 'model: a.onnx, checked in onnxruntime: ' in capsys.readouterr().out


def test_scores_that_overflow_are_rejected(tmp_path):
    params = [array * 1e30 for array in to_mx(lenet_params(numpy.random.default_rng(0), 0.1))]
    with pytest.raises(ValueError, match='^no model is written because scores of random images are not finite'):
        to_onnx(params, 'a.onnx')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('name', ['onnx', 'onnxruntime'])
@pytest.mark.parametrize('error', [ImportError('libx.so: cannot\nopen'), TypeError('Descriptors cannot be created')])
def test_a_module_that_cannot_be_imported(name, error, monkeypatch):
    """`check_path` reports it before training."""
    import_module = importlib.import_module

    def broken(module, *more):
        if module == name:
            raise error
        return import_module(module, *more)

    monkeypatch.setattr(importlib, 'import_module', broken)
    words = ' '.join(str(error).split())
    with pytest.raises(ValueError, match=rf'^a.onnx cannot be written because {name} cannot be imported '
                                         rf'\({words}\): pip install --force-reinstall {name}$'):
        file.check_path('a.onnx')


def test_a_full_disk_keeps_the_old_file(tmp_path, full_disk):
    params = to_mx(lenet_params(numpy.random.default_rng(0)))
    (tmp_path / 'a.onnx').write_text('old')
    with full_disk(), pytest.raises(OSError, match='No space left'):
        to_onnx(params, 'a.onnx')
    assert [path.name for path in tmp_path.iterdir()] == ['a.onnx']
    assert (tmp_path / 'a.onnx').read_text() == 'old'


def test_without_onnxruntime_the_model_is_written_unchecked(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, 'find_spec', missing('onnxruntime'))
    to_onnx(to_mx(lenet_params(numpy.random.default_rng(0))), 'a.onnx')
    assert capsys.readouterr().out == ('model: a.onnx, not checked because onnxruntime is not installed: '
                                       'pip install onnxruntime\n')
    onnx.checker.check_model('a.onnx')


def test_without_onnx(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, 'find_spec', missing('onnx'))
    with pytest.raises(ValueError, match='a.onnx cannot be written without onnx: pip install onnx onnxruntime'):
        to_onnx(to_mx(lenet_params(numpy.random.default_rng(0))), 'a.onnx')
    assert list(tmp_path.iterdir()) == []


def test_paths(tmp_path, monkeypatch):
    (tmp_path / 'folder.onnx').mkdir()
    (tmp_path / 'file').write_text('')
    for path, words in (('model', 'model: must be a file name that ends in .onnx'),
                        ('a.safetensors', 'must be a file name that ends in .onnx'),
                        ('.onnx', 'must be a file name that ends in .onnx'),
                        ('folder.onnx', 'must be a file name that ends in .onnx'),
                        ('no/a.onnx', f'no/a.onnx cannot be written: {tmp_path}/no is not a writable folder'),
                        ('file/a.onnx', f'file/a.onnx cannot be written: {tmp_path}/file is not')):
        with pytest.raises(ValueError, match=words):
            file.check_path(path)
    file.check_path('a.onnx')
    file.check_path('runs/new/a.onnx', 'runs/new')
    file.check_path(tmp_path / 'runs/new/a.onnx', 'runs/new')
    with pytest.raises(ValueError, match='runs is not a writable folder'):
        file.check_path('runs/a.onnx', 'runs/new')
    monkeypatch.setattr(os, 'access', lambda path, mode: False)  # root can write everywhere
    with pytest.raises(ValueError, match=f'a.onnx cannot be written: {tmp_path} is not a writable folder'):
        file.check_path('a.onnx')
