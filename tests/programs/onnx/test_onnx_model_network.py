"""Tests of the networks that can be exported, and of their inputs, outputs and parameters."""
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import onnx
import pytest
from equals_one import sequential
from exported import Lambda, random, run_model
from operators import check_older, mxnet_1
from refused import refused
from small_models import block, lenet

from gluon_mgpu.mxnet_setup.compat import HybridBlock, gluon, mx, np, npx
from gluon_mgpu.networks.hybridized import hybridized
from gluon_mgpu.networks.precision import Cast
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.programs.onnx.writing import to_onnx
from gluon_mgpu.training.parameters import parameters_by_name

nn, rnn = gluon.nn, gluon.rnn


@pytest.mark.parametrize('wrap', [lambda net: net, SyncBatchNorm])
def test_an_attribute_named_block_is_an_attribute(wrap, capsys):
    net = block(nn.Conv2D(3, 3), nn.GlobalAvgPool2D(), nn.Dense(10))
    net.block = 4
    to_onnx(wrap(net), 'a.onnx')
    assert 'checked in onnxruntime' in capsys.readouterr().out


@pytest.mark.slow
@mxnet_1
def test_a_network_in_lower_precision(capsys):
    """The model equals that of the same parameters in float32, and is checked in float32 on any processor."""
    net = resnet18(3)
    net.initialize()
    net(np.zeros((1, 1, 28, 28)))
    low = resnet18(3, 'bfloat16')
    low.initialize()
    pairs = list(zip(net._collect_params_with_prefix().values(), low._collect_params_with_prefix().values()))
    for param, other in pairs:
        other.shape = param.shape
        other._finish_deferred_init()
        other.set_data(param.data())
    assert len(pairs) == 110  # 20 convolutions and a dense layer of two arrays each, 17 batch norms of four
    X = np.zeros((1, 1, 28, 28))
    for case, arrays in ((low, []), (low, [X]), (SyncBatchNorm(low), [X])):
        to_onnx(net, 'a.onnx', *arrays)
        to_onnx(case, 'b.onnx', *arrays)
        assert Path('a.onnx').read_bytes() == Path('b.onnx').read_bytes()
    assert capsys.readouterr().out.count('checked in onnxruntime') == 6


@mxnet_1
def test_bfloat16_that_cannot_be_exported():
    low = resnet18(3, 'bfloat16')
    for _ in range(2):
        with pytest.raises(RuntimeError, match='has not been initialized'):  # before its first batch, it has no arrays
            to_onnx(low, 'a.onnx', np.zeros((1, 1, 28, 28)))
        low.initialize()
    net = sequential(nn.Dense(2), sequential(Cast('bfloat16'), Cast('float32')))
    net.initialize()
    assert refused(to_onnx, net, 'a.onnx', random(2, 3)).startswith(
        'no model is written because amp_cast near 0 cannot be converted, bfloat16 instead of float32: ')


@pytest.mark.parametrize('net, words', [
    ([], 'param_names: has 8 names for 0 arrays in lists'),
    (lambda: lenet()[::-1], 'Shape inconsistent'),
    (lambda: lenet(dtype='float64'), 'has parameters in float64: cast them'),
    (lambda: [*lenet()[:7], np.full(10, numpy.nan)], 'numbers of scores for random inputs are not finite'),
    (lambda: [array * 1e30 for array in lenet()], 'numbers of scores for random inputs are not finite'),
    (None, 'NoneType cannot be traced: must be a gluon.HybridBlock or a function'),
    (lambda: nn.Sequential(), 'Sequential cannot be traced: must be a gluon.HybridBlock or a function')])
def test_unsupported_networks_are_rejected(net, words):
    assert words in refused(to_onnx, net() if callable(net) else net, 'a.onnx')
    assert not os.listdir()


def test_inputs_and_layers_that_are_not_used():
    """The layer has no shape yet."""
    class Net(HybridBlock):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Dense(3, in_units=4), nn.Dense(2)

        def forward(self, X, Y):
            return self.used(X)

    net = Net()
    net.initialize()
    to_onnx(net, 'a.onnx', X := random(2, 4), Y := random(2, 3))
    assert {array.name for array in onnx.load('a.onnx').graph.initializer} == {'used.weight', 'used.bias'}
    assert abs(run_model('a.onnx', X, Y)[0] - net(X, Y).asnumpy()).max() <= 1e-6


def test_names_and_sizes():
    """Names of inputs, outputs and parameters are the user's; the batch size is free, also on another axis."""
    net = rnn.GRU(5, num_layers=2)
    net.initialize()
    X, state = random(4, 2, 3), random(2, 2, 5)
    to_onnx(net, 'a.onnx', X, [state], input_names=['words', 'state'], output_names=['features', 'new_state'],
            batch_axis=1)
    graph = onnx.load('a.onnx').graph
    sizes = {value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
             for value in (*graph.input, *graph.output)}
    assert sizes == {'words': [4, 'batch', 3], 'state': [2, 'batch', 5], 'features': [4, 'batch', 5],
                     'new_state': [2, 'batch', 5]}
    assert {array.name for array in graph.initializer} == set(parameters_by_name(net))
    for axis in ([1], [None, None], 3, 'x'):
        assert refused(to_onnx, net, 'b.onnx', X, [state], batch_axis=axis).startswith(
            f'batch_axis {axis}: must be an axis of each of 2 inputs, or None')
    for settings in ({'input_names': ['a']}, {'output_names': ['a', 'a']},
                     {'input_names': [min(parameters_by_name(net)), 'b']}):
        assert refused(to_onnx, net, 'b.onnx', X, [state], batch_axis=1, **settings).endswith(
            ': must be 2 and 2 names, different from each other and from those of the parameters; in a command, set '
            '--output-names')
    assert ' (8, 2, 3), (4, 2, 5), ' in refused(to_onnx, net, 'b.onnx', X, [state])


def test_examples_of_other_dtypes():
    """NumPy's float64 becomes float32, like the parameters."""
    to_onnx(block(nn.Dense(4)), 'a.onnx', numpy.ones((2, 784)))
    assert onnx.load('a.onnx').graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert refused(to_onnx, block(nn.Dense(4)), 'b.onnx', numpy.ones((2, 784), 'complex64')).startswith(
        'dtype complex64: MXNet has no such arrays; convert it, for example')


def test_lenets_parameters_as_a_tuple_or_in_numpy():
    for i, params in enumerate((lenet(), tuple(lenet()), [[array.asnumpy() for array in lenet()]])):
        to_onnx(params, f'{i}.onnx')
        assert Path(f'{i}.onnx').read_bytes() == Path('0.onnx').read_bytes()


@mxnet_1
def test_arrays_of_the_other_kind():
    net = nn.Dense(3, in_units=4)
    net.initialize()
    assert refused(to_onnx, net, 'a.onnx', mx.nd.ones((2, 4))).endswith(
        ': pass arrays of mx.nd to a network of mx.nd, and arrays of mx.np to others')


@mxnet_1
@pytest.mark.parametrize('code, shapes', [
    ('F.reshape(X, shape=(-1, 10, 1000))', [(10, 1000)]),
    ('F.broadcast_add(F.reshape(X, shape=(-1, 3, 4)), F.expand_dims(Y, 1))', [(6, 4), (2, 4)])])
def test_rows_that_are_multiples(code, shapes):
    """The batch that is compared has twice as many; with others, MXNet's reshape would read beyond its array."""
    check_older(code, *(random(*shape) for shape in shapes))


@mxnet_1
def test_regions_of_interest_that_are_an_input():
    """Their first column is the number of an image, beyond which MXNet would read, and end."""
    code = ('from gluon_mgpu.mxnet_setup.compat import gluon, mx\n'
            'from gluon_mgpu.programs.onnx.writing import to_onnx\n'
            'mx.npx.reset_np()\n'
            'class Head(gluon.HybridBlock):\n'
            '    def hybrid_forward(self, F, X, rois):\n'
            '        return F.contrib.ROIAlign(X, rois, pooled_size=(2, 2), spatial_scale=1/16, sample_ratio=2)\n'
            'rois = mx.nd.array([[0, 0, 0, 400, 400], [1, 100, 100, 799, 799]])\n'
            'to_onnx(Head(), "a.onnx", mx.nd.random.normal(shape=(2, 3, 50, 50)), rois, batch_axis=[None, 0])')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and 'checked in onnxruntime' in done.stdout, done.stderr


@mxnet_1
def test_an_overridden_forward_is_found():
    """MXNet traces `hybrid_forward` of a hybridized block and loses what its `forward` adds."""
    class Scaled(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(3)

        def forward(self, X):
            return super().forward(X * 4)

        def hybrid_forward(self, F, X):
            return self.dense(X)

    net, X = Scaled(), random(2, 4)
    net.initialize()
    net.hybridize()
    to_onnx(net, 'a.onnx', X)
    found = run_model('a.onnx', X)[0]
    assert abs(found - net(X).asnumpy()).max() <= 1e-5 * abs(found).max()


@mxnet_1
def test_layers_that_gluon_does_not_know():
    layers = [nn.Dense(3, in_units=4)]
    layers[0].initialize()
    assert '_weight is unknown: make each layer an attribute of its block: ' in refused(
        to_onnx, Lambda(lambda F, X: layers[0](X)), 'a.onnx', random(2, 4))


def test_parameters_of_functions():
    def network(X, params):
        return npx.relu(np.dot(X, params[0]) + params[1])

    X, params = random(2, 3), [random(3, 4), random(4)]
    for names, given in ((['1_0', '1_1'], params), (['W', 'b'], [array.asnumpy() for array in params])):
        to_onnx(network, 'a.onnx', X, given, param_names=names if 'W' in names else ())
        assert [array.name for array in onnx.load('a.onnx').graph.initializer] == names
        assert abs(run_model('a.onnx', X)[0] - network(X, params).asnumpy()).max() <= 1e-6


def test_a_function_that_cannot_be_traced():
    """The line has one reason and one advice."""
    def positive(X):
        return X if X.sum() > 0 else -X

    line = refused(to_onnx, positive, 'a.onnx', random(2, 3))
    assert re.match(r'the network cannot be traced with inputs \(2, 3\) or \(4, 3\), [^:]*: pass examples of its '
                    'inputs and their batch_axis; MXNet must be able to hybridize it$', line)


def test_a_decorated_function():
    """The model computes what the decorator adds, with `hybridized` around it or not."""
    def network(X):
        return X + 1

    @functools.wraps(network)
    def doubled(X):
        return network(X) * 2

    X = random(2, 3)
    for function, expected in ((doubled, X * 2 + 2), (hybridized(doubled), X * 2 + 2), (hybridized(network), X + 1)):
        to_onnx(function, 'a.onnx', X)
        assert abs(run_model('a.onnx', X)[0] - expected.asnumpy()).max() <= 1e-6
