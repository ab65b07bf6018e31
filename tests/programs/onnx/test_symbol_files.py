"""Tests of networks in MXNet's files: names, inputs, settings, and files that others have forged."""
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import new_process
import numpy
import onnx
import pytest
from equals_one import sequential
from exported import Lambda, random, run_model, trained
from model_files import FILES, changed_graph, save
from semantics import semantics

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, mx
from gluon_mgpu.programs.onnx import export

nn = gluon.nn
mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 names parameters differently')


def exported(net, *examples):
    """Write the files of ``net.export`` and return the network."""
    trained(net, *examples)
    net.hybridize()
    net(*examples)
    net.export('net')
    return net


@pytest.fixture
def net():
    """A network whose files are net-symbol.json and net-0000.params."""
    return exported(sequential(nn.Conv2D(4, 3, activation='relu'), nn.BatchNorm(), nn.Dense(3)), random(1, 2, 8, 8))


IMAGE = ['--shape', '1,2,8,8']
FITTING = ': check the sizes, the order and the batch axis of its inputs, and its parameters'


@pytest.mark.parametrize('args, words', [
    (['net-symbol.json'], 'net-symbol.json: give both files, NAME-symbol.json and NAME-0000.params, and --shape'),
    (['run', 'a.onnx'], 'run: give both files, NAME-symbol.json and NAME-0000.params, and --shape; name the model '),
    (FILES[::-1], 'net-0000.params: the first file must be NAME-symbol.json of net.export, Module or '),
    (['net-symbol.json'] * 2, 'net-symbol.json: the second file must be NAME-0000.params, the parameters that '),
    (['net-symbol.json', 'list.params'], 'list.params: the second file must be NAME-0000.params'),
    (['net-symbol.json', 'missing', *IMAGE], 'missing: No such file or directory'),
    (['deep.json', 'net-0000.params', *IMAGE], 'deep.json: the first file must be NAME-symbol.json of net.export'),
    (FILES, '--shape: must be given once for each input of the network, which are those that net-0000.params does not '
            'have: data'),
    ([*FILES, '--shape', '1,2'], 'the network cannot be traced with inputs (1, 2) or (2, 2), '),
    *(([*FILES, *IMAGE, f'--batch-axis={axis}'.lower()], f'batch_axis {axis}: must be an axis of each of 1 inputs')
      for axis in (4, -1, None)),
    ([*FILES, '--shape', '1,0'], 'an example of shape (1, 0) has no finite number'),
    ([*FILES, '--shape', '1,0,int32'], 'an example of shape (1, 0) has no finite number'),
    ([*FILES, '--shape=-1'], 'negative dimensions are not allowed'),
    ([*FILES, '--shape', 'int32'], 'batch_axis 0: must be an axis of each of 1 inputs'),
    ([*FILES, *IMAGE, '--output-names', 'a,b'], "input_names ['data'], output_names ['a', 'b']: must be 1 and 1 names"),
    ([*FILES, *IMAGE, '--out', 'a.bin'], 'a.bin: must be a file name that ends in .onnx'),
    (['folder', '--float32'], 'folder: --shape, --batch-axis, --output-names and --float32 are for two files of '),
])
def test_wrong_arguments(args, words, net, run):
    Path('deep.json').write_text('[' * 10**5)
    mx.nd.save('list.params', [mx.nd.ones(1)])
    Path('folder').mkdir()
    before = sorted(Path().iterdir())
    assert run(*args, status=2).startswith(words)
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize('flag, value', [
    *(('shape', value) for value in ('', '1.5', '1,int8', '²')), ('batch_axis', ''), ('batch_axis', '0,x')])
def test_wrong_values(flag, value, capsys):
    name = f'--{flag.replace("_", "-")}'
    with pytest.raises(SystemExit, match='2'):
        export.main([*FILES, f'{name}={value}'])
    assert capsys.readouterr().err == (
        f'export: argument {name}: invalid {flag} value: {value!r}; --help shows all flags\n')


def test_parameters_that_do_not_fit(net, run):
    params = mx.nd.load('net-0000.params')
    missing = next(name for name in params if name.endswith('running_var'))
    mx.nd.save('less.params', {name: array for name, array in params.items() if name != missing})
    mx.nd.save('other.params', {name: mx.nd.ones([7] * array.ndim) for name, array in params.items()})
    assert run('net-symbol.json', 'less.params', *IMAGE, status=2).endswith(
        f'less.params does not have: data, {missing[4:]}')
    line = run('net-symbol.json', 'other.params', *IMAGE, status=2)
    assert line.startswith('the network cannot be traced') and line.endswith(FITTING)


@mxnet_1
def test_a_file_of_save_parameters(net, run):
    """MXNet 2 gives parameters the same names there."""
    net.save_parameters('own.params')
    assert run('net-symbol.json', 'own.params', *IMAGE, status=2) == (
        'own.params: has 0.weight and other parameters, but none of this network: pass NAME-0000.params of net.export; '
        'a file of save_parameters must be loaded into the code of the network before net.export')


@mxnet_1
@pytest.mark.parametrize('prefix', ['mine_', None])
def test_sym_save_with_parameters_of_other_formats(prefix, run):
    """The names have no prefix arg:, or not the network's prefix."""
    net, X = nn.HybridSequential(prefix=prefix), random(4, 3, 5).as_nd_ndarray()
    with semantics('nd'):
        with net.name_scope():
            net.add(nn.Dense(4, flatten=False), nn.BatchNorm(axis=-1), gluon.rnn.LSTM(5, 2, layout='NTC'))
        expected = trained(net, X)(X).asnumpy()
        net(mx.sym.var('data')).save('net-symbol.json')
    net.collect_params().save('full.params')
    with pytest.warns(UserWarning, match='save_params is deprecated'):
        net.save_params('stripped.params')
    for name in ('full', 'stripped'):
        run('net-symbol.json', f'{name}.params', '--shape', '2,3,5', '--out', f'{name}.onnx')
        assert abs(run_model(f'{name}.onnx', X)[0] - expected).max() <= 1e-5 * abs(expected).max()
        assert {array.name for array in onnx.load(f'{name}.onnx').graph.initializer} == {*net.collect_params()}


@pytest.mark.slow
@pytest.mark.parametrize('expression, shapes, status', [
    ('F.broadcast_div(X, Y)', ['2,3,int32', '2,3,int32'], 0),  # an integer divided by 0
    ('F.reshape(X, shape=(-1, 10, 1000)) + 0 * F.sum(Y)', ['14,1000', '14,3'], 2),  # of sizes that do not divide
    ('F.dot(X, Y)', ['3,4', '2,3'], 2)])
def test_what_would_end_the_process(expression, shapes, status):
    save(eval(expression, {'F': mx.sym, 'X': mx.sym.var('X'), 'Y': mx.sym.var('Y')}))
    done = subprocess.run([sys.executable, '-m', 'gluon_mgpu', 'export', *FILES, '--shape', shapes[0], '--shape',
                           shapes[1]], capture_output=True, text=True, timeout=120)
    assert done.returncode == status and (not status or FITTING in done.stderr), done.stderr
    assert len(new_process.errors(done.stderr)) == bool(status)


def test_recurrent_networks(run):
    """Time-major, with states as inputs."""
    lstm = gluon.rnn.LSTM(5, 2)
    examples = [random(4, 2, 3), [random(2, 2, 5), random(2, 2, 5)]]
    exported(lstm, *examples)
    shapes = ['--shape', '4,2,3', '--shape', '2,2,5', '--shape', '2,2,5']
    run(*FILES, *shapes, '--batch-axis', '1', '--output-names', 'Y,h,c')
    assert [value.name for value in onnx.load('net.onnx').graph.output] == ['Y', 'h', 'c']
    X, states = random(4, 6, 3), [random(2, 6, 5), random(2, 6, 5)]
    Y, (h, c) = lstm(X, states)
    for found, expected in zip(run_model('net.onnx', X, *states), (Y, h, c)):
        assert abs(found - expected.asnumpy()).max() < 1e-5
    assert run(*FILES, *shapes, status=2).endswith(FITTING)


def test_a_first_input_without_batch(run):
    """The sizes of the model follow the batch of the second input, also where they are computed."""
    save(mx.sym.broadcast_add(mx.sym.reshape(mx.sym.var('table'), shape=(1, 1, 3)), mx.sym.broadcast_axis(
        mx.sym.reshape(mx.sym.var('X'), shape=(0, -4, 1, -1)), axis=1, size=2)))
    table, X = numpy.arange(3, dtype='float32').reshape(1, 3), numpy.ones((4, 3), 'float32')
    run(*FILES, '--shape', '1,3', '--shape', '2,3', '--batch-axis', 'none,0')
    found = onnx.load('net.onnx').graph
    assert [[axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
            for value in (*found.input, *found.output)] == [[1, 3], ['batch', 3], ['batch', 2, 3]]
    assert (run_model('net.onnx', table, X)[0] == table + numpy.ones((4, 2, 3))).all()


def test_names_that_are_given_twice(run):
    X = mx.sym.var('data')
    save(mx.sym.Group([mx.sym.exp(X, name='exp')] * 2))
    run(*FILES, '--shape', '2,5')
    assert [value.name for value in onnx.load('net.onnx').graph.output] == ['exp0', 'exp1']
    save(mx.sym.exp(X, name='data'))
    assert run(*FILES, '--shape', '2,5', status=2).endswith(
        'those of the parameters; in a command, set --output-names')
    run(*FILES, '--shape', '2,5', '--output-names', 'a')


def test_names_that_are_not_ascii(run):
    """Files, layers and inputs."""
    symbol = mx.sym.FullyConnected(mx.sym.var('данные'), mx.sym.var('重み'), num_hidden=3, no_bias=True, name='выход')
    symbol.save('größe-symbol.json')
    mx.nd.save('größe-0000.params', {'arg:重み': mx.nd.ones((3, 5))})
    run('größe-symbol.json', 'größe-0000.params', '--shape', '2,5')
    found = onnx.load('größe.onnx').graph
    assert [value.name for value in (*found.input, *found.initializer, *found.output)] == ['данные', '重み', 'выход']


def test_the_order_of_several_inputs(run):
    net = Lambda(lambda F, first, second, X, Y: second(Y) + first(X), nn.Dense(2), nn.Dense(2))
    exported(net, random(2, 3), random(2, 5))
    assert run(*FILES, '--shape', '2,3', status=2).endswith(': data1, data0')
    assert run(*FILES, '--shape', '2,3', '--shape', '2,5', status=2).endswith(FITTING)
    assert run(*FILES, '--shape', '2,5', '--shape', '2,3').startswith('example: data1 (2, 5), ')


@pytest.mark.parametrize('change', [str, str.lower])
def test_settings_in_lower_case(change, run):
    """MXNet.jl and the Scala front end write false."""
    save(mx.sym.sum(mx.sym.var('data'), axis=1, keepdims=False, exclude=True))
    with changed_graph() as graph:
        attrs = graph['nodes'][1]['attrs']
        attrs.update({name: change(attrs[name]) for name in ('keepdims', 'exclude')})
    run(*FILES, '--shape', '2,3,8')
    X = numpy.random.default_rng(0).random((2, 3, 8), 'float32')
    assert abs(run_model('net.onnx', X)[0] - X.sum(axis=(0, 2))).max() < 1e-4


def test_a_custom_operator(run):
    """Without the module that registers it, MXNet cannot read the graph. The recipe of the page cuts it."""
    save(mx.sym.exp(mx.sym.FullyConnected(mx.sym.var('data'), num_hidden=3, name='relu5')),
         relu5_weight=numpy.ones((3, 5)), relu5_bias=numpy.ones(3))
    with changed_graph() as graph:
        graph['nodes'][-1].update(op='Custom', name='mine', attrs={'op_type': 'unknown'})
    assert run(*FILES, '--shape', '2,5', status=2).startswith(
        f'net-symbol.json: MXNet {mx.__version__} cannot read this graph, ')
    page = (Path(__file__).parents[3] / 'docs/export.md').read_text()
    recipe, = (block for block in re.findall(r'(?:^(?:    .*)?\n)+', page, re.MULTILINE) if 'arg_nodes' in block)
    exec(textwrap.dedent(recipe), {})
    run('cut-symbol.json', 'net-0000.params', '--shape', '2,5')
    assert (run_model('cut.onnx', numpy.ones((4, 5), 'float32'))[0] == 6).all()


DATA = {'op': 'null', 'name': 'data', 'inputs': []}


def forged(*nodes, heads=None, **more):
    """Write a symbol file with an input and these nodes."""
    nodes = [DATA, *({'name': f'node{number}', 'inputs': [[0, 0, 0]], **node} for number, node in enumerate(nodes, 1))]
    Path('net-symbol.json').write_text(json.dumps({
        'nodes': nodes, 'arg_nodes': [0], 'heads': heads or [[len(nodes) - 1, 0, 0]], **more}))
    mx.nd.save('net-0000.params', {'arg:table': mx.nd.ones((3, 3))})


@pytest.mark.parametrize('node', [
    *[{'op': op} for op in ('_Native', '_NDArray', '_CachedOp', '_sg_mkldnn_fully_connected', '_backward_BatchNorm',
                            '_image_flip_left_right', '_cvimread')],
    *[{'op': op, 'attrs': {'num_args': '2', 'num_outputs': '1', 'in_data_locs': '(99,)'}, 'subgraphs': [{
        'nodes': [DATA, {'op': '_Native', 'name': 'a', 'attrs': {'info': '0x1234'}, 'inputs': [[0, 0, 0]]}],
        'arg_nodes': [0], 'heads': [[1, 0, 0]]}]} for op in ('_foreach', 'exp')]],
    ids=lambda node: node['op'])
def test_operators_with_which_mxnet_reads_foreign_memory(node, run, monkeypatch):
    """They are refused before MXNet gets the graph, also those of graphs within it."""
    reader = 'load_json' if MXNET_MAJOR < 2 else 'fromjson'
    monkeypatch.setattr(mx.sym, reader, lambda text: pytest.fail('MXNet got the graph'))
    forged({'op': 'exp'}, node)
    assert run(*FILES, '--shape', '2,3', status=2) == (
        f'net-symbol.json: {node["op"]} node2 cannot be exported: cut the file before it, as in docs/export.md')


@pytest.mark.parametrize('nodes, heads', [
    *[([{'op': 'exp'}], heads) for heads in ([[2, 0, 0]], [[-1, 0, 0]], [[1, 1, 0]], [[0, 3, 0]], [[1]], 1)],
    *[([{'op': 'exp', 'inputs': inputs}], None) for inputs in (
        [[1, 0, 0]], [[0, 10**6, 0]], [[-1, 0, 0]], [[0.0, 0, 0]], [[]], 1)],
    *[([{'op': 'exp', **more}], None) for more in ({'name': 5}, {'op': 5}, {'control_deps': [999]})],
    ([{'op': 'SliceChannel', 'attrs': {'num_outputs': '2'}}, {'op': 'exp', 'inputs': [[1, 2, 0]]}], None)])
def test_a_graph_with_impossible_places(nodes, heads, run):
    """MXNet would read beyond its memory."""
    forged(*nodes, heads=heads)
    assert run(*FILES, '--shape', '2,4', status=2) == (
        'net-symbol.json: the first file must be NAME-symbol.json of net.export, Module or sym.save, and the second '
        'one NAME-0000.params')


def test_the_outputs_that_an_operator_has_are_accepted(run):
    """Also with what MXNet does not need: other attributes of the file."""
    split = {'op': 'SliceChannel', 'attrs': {'num_outputs': '2'}}
    forged(split, {'op': 'exp', 'inputs': [[1, 1, 0]]}, heads=[[2, 0, 0], [1, 0, 0]], attrs={'odd': ['odd', 1]},
           node_row_ptr=['x'])
    run(*FILES, '--shape', '2,4')


def test_an_axis_that_is_not_there(run):
    """No traceback."""
    save(mx.sym.take(mx.sym.var('table'), mx.sym.var('data'), axis=-1), table=numpy.ones((3, 3)))
    for axis, status in (('7', 2), ('-9', 2), ('x', 2), ('-1', 0)):
        with changed_graph() as graph:
            graph['nodes'][-1]['attrs']['axis'] = axis
        run(*FILES, '--shape', '2,4', status=status)
