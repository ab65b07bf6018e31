"""Tests of the ONNX export: the model, its comparison with the network, and errors."""
import functools
import importlib.util
import os
import re
from pathlib import Path

import numpy
import onnx
import pytest
from exported import Lambda, random, run_model
from oracle import lenet_params, to_mx

import gluon_mgpu
from gluon_mgpu.base.files import write_atomically
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, gluon, mx, np, npx
from gluon_mgpu.networks.hybridize.block import hybridized
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.outputs.onnx_model.comparison import random_like
from gluon_mgpu.outputs.onnx_model.conversion import CONVERTERS
from gluon_mgpu.outputs.onnx_model.graph import semantics_of
from gluon_mgpu.outputs.onnx_model.writing import check_path
from gluon_mgpu.programs.export import to_onnx
from gluon_mgpu.training.parameters import by_name

nn, rnn = gluon.nn, gluon.rnn
REPO = Path(__file__).parents[3]
mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='needs MXNet 1.9')


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


def test_the_table_of_the_docs_is_up_to_date():
    spec = importlib.util.spec_from_file_location('operators_table', REPO / 'tools/operators_table.py')
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tool.PAGE.read_text()
    assert page == tool.with_table(page), 'an operator has changed: python tools/operators_table.py'
    assert '| detection | boxnms, multiboxprior, roialign |' in page


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
    assert (model.ir_version, model.opset_import[0].version, model.producer_name) == (8, 18, 'gluon_mgpu')
    assert model.producer_version == gluon_mgpu.__version__


@pytest.mark.slow
def test_other_channels_and_classes(capsys):
    net = resnet18(3)
    net.initialize()
    net(np.zeros((1, 2, 40, 40)))
    to_onnx(net, 'a.onnx', np.zeros((1, 2, 40, 40)), input_names=['images'], output_names=['scores'])
    import onnxruntime
    X = numpy.random.default_rng(0).random((2, 2, 40, 40), 'float32')
    found, = onnxruntime.InferenceSession('a.onnx').run(None, {'images': X})
    expected = net(np.array(X)).asnumpy()
    assert found.shape == (2, 3) and abs(found - expected).max() <= 1e-5 * abs(expected).max()
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
    to_onnx(net, 'a.onnx')
    to_onnx(low, 'b.onnx')
    with open('a.onnx', 'rb') as a, open('b.onnx', 'rb') as b:
        assert a.read() == b.read()
    assert capsys.readouterr().out.count('checked in onnxruntime') == 2


@pytest.mark.parametrize('net, words', [
    ([], 'param_names: has 8 names for 0 arrays in lists'),
    ([[]], 'param_names: has 8 names for 0 arrays in lists'),
    ([1, 2, 3], r"\['ndarray', 'int', 'int', 'int'\]: the arguments of a network must be arrays"),
    (lambda: to_mx(lenet_params(numpy.random.default_rng(0)))[:7], 'param_names: has 8 names for 7 arrays in lists'),
    (lambda: to_mx(lenet_params(numpy.random.default_rng(0)))[::-1], 'lenet cannot be traced .*, Shape inconsistent'),
    (lambda: to_mx(lenet_params(numpy.random.default_rng(0), dtype='float64')), 'has parameters in float64: cast them'),
    (lambda: [*to_mx(lenet_params(numpy.random.default_rng(0)))[:7], np.full(10, numpy.nan)], 'scores .* not finite'),
    (None, 'NoneType is not a network: must be a gluon.HybridBlock or a function'),
    (lambda: nn.Sequential(), 'Sequential is not a network: must be a gluon.HybridBlock or a function'),
    (lambda: resnet18(10), 'is on no device: call net.initialize'),
])
def test_unsupported_networks_are_rejected(net, words, tmp_path):
    net = net() if callable(net) else net
    with pytest.raises(ValueError, match=words) as error:
        to_onnx(net, 'a.onnx')
    assert '\n' not in str(error.value) and list(tmp_path.iterdir()) == []


def test_operators_that_cannot_be_converted(tmp_path):
    """The line has the operator, the setting, and the layer before or around it, whose result can be kept."""
    for layer, words in ((Lambda(lambda F, X: F.npx.gamma(X)), 'gamma near 0 .*, which docs/export.md does not list'),
                         (Lambda(lambda F, X: F.np.argmax(X)), 'argmax near 0 .*, no axis'),
                         (Lambda(lambda F, X: F.np.dot(X, X)), 'dot near 0 .*, more than two dimensions'),
                         (Lambda(lambda F, X: F.np.roll(X, 1, axis=0)), 'roll near 0 .*, its sizes depend on the'),
                         (Lambda(lambda F, X: F.np.pad(X, ((0, 0), (0, 0), (1, 1)), mode='maximum')),
                          'pad near 0 .*, mode maximum'),
                         (Lambda(lambda F, X: F.npx.leaky_relu(X.astype('float64'), act_type='gelu')),
                          'LeakyReLU near 0 .*, not for float64 in onnxruntime, .*')):
        net = nn.HybridSequential()
        net.add(nn.Conv1D(4, 1), layer)
        net.initialize()
        with pytest.raises(ValueError, match=f'^no model is written because _?[a-z]*_?{words}') as error:
            to_onnx(net, 'a.onnx', random(2, 4, 4))
        assert '\n' not in str(error.value) and list(tmp_path.iterdir()) == []
        assert re.search(r": cut the network before it, symbol.get_internals\(\)\['\w+'\], as in docs/export.md$",
                         str(error.value))
    with pytest.raises(ValueError, match='gamma at the input .*, which .* does not list: leave it out of the network$'):
        to_onnx(Lambda(lambda F, X: F.npx.gamma(X)), 'a.onnx', random(2, 4))


class Untraced(HybridBlock):
    """A network with a branch on values that differs between the graph and the network."""

    def __init__(self, factor):
        super().__init__()
        self.dense, self._factor = nn.Dense(3), factor

    def forward(self, X):
        return self.dense(X) if isinstance(X, mx.sym.Symbol) else self.dense(X) * self._factor


@mxnet_1
@pytest.mark.parametrize('factor, words', [(1.001, "output in onnxruntime differ from the network's by 1.0e-03 of the"),
                                           (numpy.nan, 'output of random inputs are not finite: check the')])
def test_a_model_with_other_results_is_not_written(factor, words, tmp_path):
    """The old file is kept."""
    (tmp_path / 'a.onnx').write_text('old')
    net = Untraced(factor)
    net.initialize()
    with pytest.raises(ValueError, match=f"^no model is written because (numbers of the model's )?{words}") as error:
        to_onnx(net, 'a.onnx', random(2, 4))
    assert '\n' not in str(error.value) and [path.name for path in tmp_path.iterdir()] == ['a.onnx']
    assert (tmp_path / 'a.onnx').read_text() == 'old'


def test_a_wrong_converter_is_found(monkeypatch, tmp_path):
    monkeypatch.setitem(CONVERTERS, 'square', lambda g, op, X, **_: g.Mul(X, 2.0))
    net = Lambda(lambda F, X: (X, F.np.square(X)))
    net.initialize()
    with pytest.raises(ValueError, match=r"the model's squares in onnxruntime differ from the network's by \d\.\d"):
        to_onnx(net, 'a.onnx', random(2, 4), output_names=['same', 'squares'])
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_output_beside_one_of_zeros(monkeypatch, tmp_path):
    """The differences of an output are relative to its largest number, which may be the integer 0."""
    monkeypatch.setitem(CONVERTERS, 'square', lambda g, op, X, **_: g.Mul(X, 2.0))
    net = Lambda(lambda F, X: ((X * 0).astype('int32'), F.np.square(X)))
    with pytest.raises(ValueError, match="the model's squares in onnxruntime differ from the network's"):
        to_onnx(net, 'a.onnx', random(2, 4), output_names=['zeros', 'squares'])
    assert list(tmp_path.iterdir()) == []
    lines = []
    to_onnx(Lambda(lambda F, X: (X * 0).astype('int32')), 'a.onnx', random(2, 4), log=lines.append)
    assert "output differ from the network's by 0.0e+00 of the largest; " in lines[0]


@pytest.mark.parametrize('code, kind, wrong, values', [
    ('F.np.abs(X)', 'absolute', lambda g, op, X, **_: g.Identity(X), 'zeros, ones, negative, large'),
    ('F.np.where(X > 0, X, 2 * X)', 'where', lambda g, op, mask, A, B, **_: A, 'negative'),
    ("X * (Y == 0).astype('float32')", 'equalscalar', lambda g, op, X, **_: g.Less(X, numpy.array(1, 'int32')),
     'ones, negative'),
    ("Y.astype('float64') % 1009", 'cast', lambda g, op, X, **_: g.cast(
        g.Neg(g.Neg(g.cast(X, 'float32'))), op.output.dtype),  # onnxruntime 1.15 leaves out a cast to float32 alone
     'large'),
    ('F.npx.sequence_mask(X, Y, use_sequence_length=True, axis=1)', 'sequencemask',
     lambda g, op, X, length, **_: g.Where(g.before(X, g.Max(length, numpy.array(1, 'int32')), 1, [1]), X, 0.0),
     'random, zeros'),
])
def test_mistakes_outside_the_range_of_the_example(code, kind, wrong, values, monkeypatch, tmp_path):
    """Positive numbers, and 1 and 2 as lengths or ids, show none of these mistakes."""
    arrays = [np.abs(random(2, 3)), np.array([1, 2], dtype='int32')]
    if 'mask' not in kind:
        arrays[1] = np.array([[1, 2, 1], [2, 2, 1]], dtype='int32')
    net = Lambda(lambda F, *arrays: eval(code, {'F': F, **dict(zip('XY', arrays))}))
    arrays = [array for name, array in zip('XY', arrays) if re.search(rf'\b{name}\b', code)]
    if 'X' not in code:
        net = Lambda(lambda F, Y: eval(code, {'F': F, 'Y': Y}))
    to_onnx(net, 'a.onnx', *arrays, log=lambda line: None)
    monkeypatch.setitem(CONVERTERS, kind, wrong)
    with pytest.raises(ValueError, match=f'of the largest, for inputs that are {values}; rounding explains 1e-03: '):
        to_onnx(net, 'b.onnx', *arrays)
    assert [path.name for path in tmp_path.iterdir()] == ['a.onnx']


@pytest.mark.parametrize('code, values', [
    ('F.np.where(X > 0, X, -X)', 'zeros, ones, negative, large'),
    ('F.npx.topk(X, ret_typ="value")', 'negative'),
    ('F.npx.relu(F.np.log(X))', 'zeros, ones, negative, large'),
    ("F.npx.softmax(X, (X * 0).astype('int32')[:, 0] + 2, use_length=True)", 'zeros, ones'),
    ('F.npx.sequence_mask(X, X[:, 0] * 0 + 1, use_sequence_length=True, axis=1)', 'zeros, ones'),
    ('F.np.maximum(F.np.sqrt(X), 0.1) + F.np.exp(X) / F.np.exp(X)', 'zeros, ones, negative, large'),
])
def test_the_line_says_what_was_compared(code, values):
    """Results of MXNet that are no numbers are not compared; invalid lengths would end the process."""
    lines = []
    net = Lambda(lambda F, X: eval(code, {'F': F, 'X': X}))
    to_onnx(net, 'a.onnx', np.abs(random(2, 3)), log=lines.append)
    assert lines[0].endswith('of the largest; compared for (2, 3) and (4, 3) in the range of the example; other '
                             f'values: {values}')


@pytest.mark.parametrize('hidden', [-numpy.inf, numpy.finfo('float32').min, -1e30])
def test_masks(hidden):
    """An example may have infinite or very low numbers, as in the mask of an attention."""
    mask = np.array([[0, 0, hidden], [0, hidden, hidden]])
    to_onnx(Lambda(lambda F, X, M: F.npx.softmax(X + M, axis=-1)), 'a.onnx', random(2, 3), mask)
    values = random_like(mask, 0).asnumpy()
    assert values.shape == (4, 3) and numpy.isfinite(values).all() and values.min() < values.max()


@pytest.mark.parametrize('example', [np.zeros((0, 3)), np.full((2, 3), numpy.nan)])
def test_examples_without_numbers(example):
    with pytest.raises(ValueError, match=r'^an example of shape \(., 3\) has no finite number: pass realistic'):
        to_onnx(Lambda(lambda F, X: F.npx.relu(X)), 'a.onnx', example)


@pytest.mark.parametrize('settings', [{'input_names': ['X']}, {'output_names': ['Y']}, {'param_names': ['W']},
                                      {'batch_axis': 1}])
def test_names_without_examples(settings):
    with pytest.raises(ValueError, match='^names and batch_axis are for a network with examples: pass an example of'):
        to_onnx(to_mx(lenet_params(numpy.random.default_rng(0))), 'a.onnx', **settings)


def test_an_input_that_is_not_used():
    net = Lambda(lambda F, A, B: A * 2)
    net.initialize()
    with pytest.raises(ValueError, match='^the network does not use its input data1: remove it from the network$'):
        to_onnx(net, 'a.onnx', random(2, 4), random(2, 3))


@mxnet_1
def test_an_overridden_forward_is_found(tmp_path):
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
    net(X)
    net.export('a')
    lost = gluon.SymbolBlock.imports('a-symbol.json', ['data'], 'a-0000.params')
    assert abs(lost(X) - net(X)).max() > 0.1  # MXNet's own export
    to_onnx(net, 'a.onnx', X, log=lambda line: None)
    found = run_model('a.onnx', X)[0]
    assert abs(found - net(X).asnumpy()).max() <= 1e-5 * abs(found).max()


def test_an_example_whose_only_output_is_near_0():
    """Rounding is measured against the outputs of all inputs; against this one alone, it would be too large."""
    X, lines = random(1, 3, 4), []
    C = np.exp(X).sum().item()
    to_onnx(Lambda(lambda F, X: F.np.sum(F.np.exp(X), axis=(1, 2)) - C), 'a.onnx', X, log=lines.append)
    assert lines[0].startswith('model: a.onnx, checked in onnxruntime: ')


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks in the style of mx.nd')
def test_upsampling_of_several_inputs_is_refused():
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, X, Y):
            return F.UpSampling(X, Y, scale=2, sample_type='nearest', num_args=2)

    with semantics_of(mx.nd.ones(1)), pytest.raises(ValueError, match='several inputs'):
        to_onnx(Net(), 'a.onnx', random(1, 2, 4, 4).as_nd_ndarray(), random(1, 2, 8, 8).as_nd_ndarray())


def test_names_and_sizes():
    """Names of inputs, outputs and parameters are the user's; the batch size is free, also on another axis."""
    net = rnn.GRU(5, num_layers=2)
    net.initialize()
    X, state = random(4, 2, 3), random(2, 2, 5)
    to_onnx(net, 'a.onnx', X, [state], input_names=['words', 'state'], output_names=['features', 'new_state'],
            batch_axis=1, log=lambda line: None)
    graph = onnx.load('a.onnx').graph
    sizes = {value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
             for value in (*graph.input, *graph.output)}
    assert sizes == {'words': [4, 'batch', 3], 'state': [2, 'batch', 5], 'features': [4, 'batch', 5],
                     'new_state': [2, 'batch', 5]}
    assert {array.name for array in graph.initializer} == set(by_name(net))
    for settings, words in (({'input_names': ['a']}, r"^input_names \['a'\], output_names .*: must be 2 and 2 names"),
                            ({'output_names': ['a', 'a']}, 'must be 2 and 2 names, different from each other and from'),
                            ({'input_names': [next(iter(by_name(net))), 'b']}, 'and from those of the parameters'),
                            ({'batch_axis': [1]}, r'^batch_axis \[1\]: must be an axis of each of 2 inputs, or None'),
                            ({'batch_axis': [None, None]}, r'^batch_axis .*: must be an axis of each of 2 inputs'),
                            ({'batch_axis': 3}, '^batch_axis 3: must be an axis'),
                            ({'batch_axis': -1}, '^batch_axis -1: must be an axis')):
        with pytest.raises(ValueError, match=words):
            to_onnx(net, 'b.onnx', X, [state], **{'batch_axis': 1, **settings})
    with pytest.raises(ValueError, match=r'^GRU cannot be traced with inputs .*Invalid recurrent state'):
        to_onnx(net, 'b.onnx', X, [state])


@mxnet_1
def test_layers_that_gluon_does_not_know():
    class Net(HybridBlock):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Dense(3, in_units=4)]
            self.layers[0].initialize()

        def forward(self, X):
            return self.layers[0](X)

    net = Net()
    net.initialize()
    with pytest.raises(ValueError, match='^Net cannot be traced with .*, its parameter dense.*_weight is unknown: make '
                                         'each layer an attribute of its block'):
        to_onnx(net, 'a.onnx', random(2, 4))


def test_parameters_of_functions():
    def network(X, params):
        return npx.relu(np.dot(X, params[0]) + params[1])

    X, params = random(2, 3), [random(3, 4), random(4)]
    for names, expected in (((), ['1_0', '1_1']), (['W', 'b'], ['W', 'b'])):
        for given in (params, tuple(params), [array.asnumpy() for array in params]):
            to_onnx(network, 'a.onnx', X, given, param_names=names, log=lambda line: None)
            assert [array.name for array in onnx.load('a.onnx').graph.initializer] == expected
            assert abs(run_model('a.onnx', X)[0] - network(X, params).asnumpy()).max() <= 1e-6
    with pytest.raises(ValueError, match='^param_names: has 1 names for 2 arrays in lists'):
        to_onnx(network, 'b.onnx', X, params, param_names=['W'])
    for examples, kinds in (((X, ['a', 'b']), ['ndarray', 'str', 'str']), (([],), [])):
        with pytest.raises(ValueError, match=re.escape(f'{kinds}: the arguments of a network must be arrays')):
            to_onnx(network, 'b.onnx', *examples)


def test_examples_of_other_dtypes():
    """NumPy's float64 becomes float32, like the parameters."""
    to_onnx(block(nn.Dense(4)), 'a.onnx', numpy.ones((2, 784)))
    assert onnx.load('a.onnx').graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    with pytest.raises(ValueError, match=r'^dtype complex64: MXNet has no such arrays; convert it, for example'):
        to_onnx(block(nn.Dense(4)), 'b.onnx', numpy.ones((2, 784), 'complex64'))


def test_a_function_that_cannot_be_traced():
    """The line has one reason and one advice."""
    def positive(X):
        return X if X.sum() > 0 else -X

    with pytest.raises(ValueError, match=r'^positive cannot be traced with inputs \(2, 3\) or \(4, 3\), [^:]*: pass '
                                         r'examples of its inputs and their batch_axis; MXNet must be able to hybrid'):
        to_onnx(positive, 'a.onnx', random(2, 3))


def test_names_that_operators_of_the_model_have():
    net = block(nn.Dense(4, activation='relu'), nn.Dense(2))
    to_onnx(net, 'a.onnx', X := random(2, 784), log=lambda line: None)
    for name in [node.output[0] for node in onnx.load('a.onnx').graph.node]:
        to_onnx(net, 'b.onnx', X, input_names=[f'{name}_0'], output_names=[name], log=lambda line: None)
        assert abs(run_model('b.onnx', X)[0] - net(X).asnumpy()).max() < 1e-6


def test_a_decorated_function():
    """The model computes what the decorator adds, with `hybridized` around it or not."""
    def network(X):
        return X + 1

    @functools.wraps(network)
    def doubled(X):
        return network(X) * 2

    X = random(2, 3)
    for function, expected in ((doubled, X * 2 + 2), (hybridized(doubled), X * 2 + 2), (hybridized(network), X + 1)):
        to_onnx(function, 'a.onnx', X, log=lambda line: None)
        assert abs(run_model('a.onnx', X)[0] - expected.asnumpy()).max() <= 1e-6


def test_lenets_parameters_as_a_tuple_or_in_numpy(tmp_path):
    arrays = lenet_params(numpy.random.default_rng(0))
    for i, params in enumerate((to_mx(arrays), tuple(to_mx(arrays)), arrays, [arrays])):
        to_onnx(params, f'{i}.onnx', log=lambda line: None)
        assert (tmp_path / f'{i}.onnx').read_bytes() == (tmp_path / '0.onnx').read_bytes()


def test_random_inputs_are_in_the_range_of_the_examples():
    for example, integers in ((np.array([[2, 9], [4, 4]], dtype='int32'), True), (np.array([[2.0, 9], [4, 4]]), True),
                              (np.array([[0.5, 0.7]]), False)):
        values = random_like(example, 0).asnumpy()
        assert values.shape == (2 * len(example), 2) and values.dtype == example.dtype
        low, high = example.asnumpy().min(), example.asnumpy().max()
        assert low <= values.min() < values.max() <= high
        assert (values == values.round()).all() == integers
    assert 0 < random_like(np.zeros((1, 3)), None).asnumpy().max() < 1


def test_random_inputs_differ_from_each_other():
    net = Lambda(lambda F, A, B: A / ((A - B) * (A - B)).sum(axis=1, keepdims=True))
    net.initialize()
    to_onnx(net, 'a.onnx', np.array([[0.2, 0.7]]), np.array([[0.7, 0.2]]))


@pytest.mark.parametrize('W4, b4', [(0, 0), (0, 1e-40), (1e-38, 0)])
def test_scores_that_are_all_zero_or_tiny(W4, b4, capsys):
    *params, W, b = to_mx(lenet_params(numpy.random.default_rng(0), 0.1))
    to_onnx([*params, W * 0 + W4, b * 0 + b4], 'a.onnx')
    assert 'model: a.onnx, checked in onnxruntime: ' in capsys.readouterr().out


def test_scores_that_overflow_are_rejected(tmp_path):
    params = [array * 1e30 for array in to_mx(lenet_params(numpy.random.default_rng(0), 0.1))]
    with pytest.raises(ValueError, match='^no model is written because scores of random inputs are not finite'):
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
    with pytest.raises(ValueError, match=rf'^a.onnx cannot be written because {name} cannot be imported, '
                                         rf'{words}: pip install --force-reinstall {name}$'):
        check_path('a.onnx')


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
    os.mkfifo('fifo.onnx')
    (tmp_path / 'broken.onnx').symlink_to('no/a.onnx')
    (tmp_path / 'link.onnx').symlink_to('new.onnx')
    for path, words in (('model', 'model: must be a file name that ends in .onnx'),
                        ('a.safetensors', 'must be a file name that ends in .onnx'),
                        ('.onnx', 'must be a file name that ends in .onnx'),
                        ('folder.onnx', 'must be a file name that ends in .onnx'),
                        ('no/a.onnx', f'no/a.onnx cannot be written: {tmp_path}/no is not a writable folder'),
                        ('file/a.onnx', f'file/a.onnx cannot be written: {tmp_path}/file is not'),
                        ('broken.onnx', f'broken.onnx cannot be written: {tmp_path}/no is not a writable folder'),
                        ('fifo.onnx', 'fifo.onnx cannot be written: it exists and is not a file'),
                        ('a' * 237 + '.onnx', 'its name must have at most 241 bytes')):
        with pytest.raises(ValueError, match=words):
            check_path(path)
    for path in ('a.onnx', 'link.onnx', 'a' * 236 + '.onnx'):
        check_path(path)
        write_atomically(path, b'')
    check_path('runs/new/a.onnx', 'runs/new')
    check_path(tmp_path / 'runs/new/a.onnx', 'runs/new')
    with pytest.raises(ValueError, match='runs is not a writable folder'):
        check_path('runs/a.onnx', 'runs/new')
    monkeypatch.setattr(os, 'access', lambda path, mode: False)  # root can write everywhere
    with pytest.raises(ValueError, match=f'a.onnx cannot be written: {tmp_path} is not a writable folder'):
        check_path('a.onnx')
