"""Images side by side, as on processors with AMX, equal images one by one; in float32, which all processors have."""
from functools import partial

import numpy
import pytest
from equals_one import equals_one, sequential
from semantics import array, semantics
from trainers import on_each_device, trainable

from gluon_mgpu import concise
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, graph_to_json, init, mx, np, npx
from gluon_mgpu.mxnet_setup.instructions import amx_obstacle
from gluon_mgpu.networks import precision, resnet, side_by_side
from gluon_mgpu.networks.loss import cross_entropy
from gluon_mgpu.networks.static_shapes import StaticSequential
from gluon_mgpu.training.parameters import parameters_by_name

IMAGES = 1, 8, 8  # 4 x 4 in the stage
pytestmark = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='lower precision needs MXNet 1.9')
needs_amx = pytest.mark.skipif(bool(amx_obstacle()), reason='needs a processor with AMX')


@pytest.fixture
def in_float32(monkeypatch):
    monkeypatch.setattr(precision, 'low_precision_type', lambda name: 'float32')


def one_stage(on_amx):
    """Return a small network whose images are laid side by side, or not."""
    module = side_by_side if on_amx else gluon.nn
    block = partial(resnet.Residual, 6, dtype='bfloat16',
                    conv2d=side_by_side.SideBySideConv2D if on_amx else precision.conv2d)
    return sequential(block(use_1x1conv=True, strides=2), block(), module.GlobalAvgPool2D(), gluon.nn.Dense(10),
                      kind=StaticSequential)


def resnet18(on_amx):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, 'amx_obstacle', lambda: '' if on_amx else 'the processor has none')
        return resnet.resnet18(10, 'bfloat16')


def started(net, devices, images=IMAGES):
    npx.random.seed(1)
    net.initialize(init.Xavier(), ctx=devices)
    net.hybridize()
    net(array(numpy.zeros((1, *images), 'float32'), ctx=devices[0]))
    net.hybridize(static_alloc=True, static_shape=True)
    return net


def steps(on_amx, devices, rng, make, sizes, images=IMAGES):
    """Yield the parameters and statistics of a new network on each device after one step, for each size of a batch."""
    for n in sizes:
        net = started(make(on_amx), devices, images)
        X, y = rng.random((n, *images), 'float32'), rng.integers(0, 10, n)
        trainer = on_each_device(trainable(net), 'sgd', {'learning_rate': 1})
        concise.train_batch(X, y, net, cross_entropy, trainer, devices, n)
        yield {name: param.list_data() for name, param in parameters_by_name(net).items()}


def equals_a_usual_network(devices, **options):
    equals_one(lambda _, rng: steps(True, devices, rng, **options), devices,
               one=lambda _, rng: steps(False, devices, rng, **options), tolerance=3e-5)


@pytest.mark.parametrize(('k', 'sizes'), [(1, (8, 12, 6, 3, 1, 130)), (2, (16, 9)), (3, (20, 2))])
def test_it_equals_a_usual_network(k, sizes, device_list, in_float32):
    """Also if the devices have different numbers of rows, or none."""
    equals_a_usual_network(device_list(k), make=one_stage, sizes=sizes)


def test_with_mx_nd(devices, rng, in_float32):
    """As in another thread."""
    with semantics('nd'):
        X = array(rng.random((4, *IMAGES), 'float32'), ctx=devices[0])
        scores = [started(one_stage(on_amx), devices[:1])(X).asnumpy() for on_amx in (True, False)]
    numpy.testing.assert_allclose(*scores, rtol=1e-5)


@pytest.mark.slow
def test_resnet18_equals_a_usual_one(devices, in_float32):
    equals_a_usual_network(devices[:1], make=resnet18, sizes=(8,), images=(1, 28, 28))


@pytest.mark.slow
@needs_amx
@pytest.mark.parametrize('rows', [8, 6, 3])
def test_in_bfloat16(rows, rng):
    X, y, gradients = np.array(rng.random((rows, 1, 28, 28), 'float32')), np.arange(rows), []
    for on_amx in (True, False):
        net = started(resnet18(on_amx), [mx.cpu(0)], (1, 28, 28))
        with autograd.record():
            loss = cross_entropy(net(X), y)
        loss.backward()
        gradients.append({name: param.grad().asnumpy() for name, param in parameters_by_name(net).items()
                          if name.endswith('weight')})
    for name, usual in gradients[1].items():
        assert numpy.linalg.norm(gradients[0][name] - usual) < 0.1 * numpy.linalg.norm(usual), name


def num_transposes(net, rows):
    graph = net._get_graph(np.zeros((rows, *IMAGES)))[1]
    return sum('transpose' in node['op'] for node in graph_to_json(graph)['nodes'])


def test_where_images_are_laid_side_by_side():
    """On processors with AMX, with static shapes, if the number of rows is even."""
    net, usual = resnet18(True), resnet18(False)
    assert not num_transposes(net, 8)
    for network in (net, usual):
        network.hybridize(static_alloc=True, static_shape=True)
    assert [num_transposes(net, rows) for rows in (8, 3, 2)] == [3, 0, 3]
    assert not num_transposes(usual, 8)


def test_a_file_of_gluon_is_for_any_number_of_rows(devices, in_float32, tmp_path):
    net, X = started(one_stage(True), devices[:1]), np.random.uniform(size=(8, *IMAGES), ctx=devices[0])
    expected = net(X).asnumpy()
    net.export(str(tmp_path / 'net'))
    read = gluon.SymbolBlock.imports(str(tmp_path / 'net-symbol.json'), 'data', str(tmp_path / 'net-0000.params'),
                                     ctx=devices[0])
    numpy.testing.assert_allclose(read(X[:3]).asnumpy(), expected[:3], rtol=1e-5)
