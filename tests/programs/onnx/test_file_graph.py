"""Tests of the graph of a file: its outputs, examples and precision."""
import numpy
import onnx
import pytest
from exported import run_model
from model_files import FILES, save
from operators import mxnet_1

from gluon_mgpu.mxnet_setup.compat import low_precision_type, mx


def half_precision(casts, dtype):
    """Write a network with parameters in float16 or bfloat16, and casts in its graph if `casts`."""
    low = low_precision_type(dtype)
    data, dense = mx.sym.var('data'), {'num_hidden': 3, 'name': 'fc'}
    if casts:
        cast = mx.sym.Cast if dtype == 'float16' else mx.sym.amp_cast
        scores = cast(mx.sym.FullyConnected(cast(data, dtype=low), **dense), dtype='float32')
    else:
        scores = mx.sym.FullyConnected(data, **dense)
    save(scores)
    rng = numpy.random.default_rng(0)
    weight, bias = (mx.nd.amp_cast(mx.nd.array(rng.random(shape)), dtype=low) for shape in ((3, 5), 3))
    mx.nd.save('net-0000.params', {'arg:fc_weight': weight, 'arg:fc_bias': bias})
    return [array.astype('float32').asnumpy() for array in (weight, bias)]


@pytest.mark.parametrize('casts', [False, True])
@pytest.mark.parametrize('dtype', ['float16', pytest.param('bfloat16', marks=mxnet_1)])
def test_lower_precision(casts, dtype, run):
    weight, bias = half_precision(casts, dtype)
    assert run(*FILES, '--shape', '2,5', status=2) == (
        f'net-0000.params: fc_weight is {dtype}: add --float32 for a model in float32')
    run(*FILES, '--shape', '2,5', '--float32')
    X = numpy.random.default_rng(1).random((4, 5), 'float32')
    assert abs(run_model('net.onnx', X)[0] - (X @ weight.T + bias)).max() < 1e-5
    model = onnx.load('net.onnx')
    assert {array.data_type for array in model.graph.initializer} == {onnx.TensorProto.FLOAT}


def test_the_outputs_have_the_names_of_the_layers(run):
    data = mx.sym.var('data')
    pair = mx.sym.SliceChannel(data, num_outputs=2, name='halves')
    save(mx.sym.Group([data, mx.sym.exp(data, name='large'), pair[0], pair[1]]))
    for flags, names in (([], ['data_output', 'large', 'halves2', 'halves3']), (['--output-names', 'a,b,c,d'], 'abcd')):
        run(*FILES, '--shape', '3,4', *flags)
        assert [value.name for value in onnx.load('net.onnx').graph.output] == [*names]


@pytest.mark.parametrize('dtype', ['float32', 'int32'])
@pytest.mark.parametrize('network, size', [
    (lambda words: mx.sym.Embedding(mx.sym.Cast(mx.sym.transpose(words), dtype='int32'), input_dim=50, output_dim=2,
                                    name='table'), 50),
    (lambda words: mx.sym.take(mx.sym.var('table_weight'), words), 50),
    (lambda words: mx.sym.one_hot(words, depth=6), 6)])
def test_indices_are_valid_integers(network, size, dtype, run):
    save(network(mx.sym.var('words')), table_weight=numpy.random.default_rng(0).random((50, 2)))
    assert run(*FILES, '--shape', f'2,7,{dtype}').startswith(
        f'example: words (2, 7), {dtype}, random integers from 0 to {size - 1}; seed 0\n')


def test_other_integers(run):
    """Not 0, by which something may be divided."""
    save(mx.sym.Cast(mx.sym.var('pixels'), dtype='float32'))
    for dtype, high in (('uint8', 255), ('int64', 2)):
        assert run(*FILES, '--shape', f'2,7,{dtype}').startswith(
            f'example: pixels (2, 7), {dtype}, random integers from 1 to {high}; seed 0\n')


def test_casts_of_mixed_precision(run):
    """The model rounds where the network does."""
    # Transposed, because onnxruntime 1.15 leaves out a cast to float16 and back
    low = mx.sym.transpose(mx.sym.amp_cast(mx.sym.var('data'), dtype='float16'))
    save(mx.sym.exp(mx.sym.amp_cast(low, dtype='float32')))
    run(*FILES, '--shape', '2,7')
    assert 'Cast' in [node.op_type for node in onnx.load('net.onnx').graph.node]
