"""Conversion of a network's graph to an ONNX model of operator set 18 and IR version 8, of 2022. Needs onnx.

A converter gets the model under construction, the operator if it names that, the input arrays, and the settings that it
names as MXNet does. It returns the name of the result, or a list of names. Converters are in modules by topic.
"""
from typing import Any

import numpy
from onnx import ModelProto, NodeProto, checker, helper, numpy_helper

from ...base.machine import versions
from ...base.program import reason
from ...networks.graph_operators import NUMPY, Operator, build
from . import arithmetic, arrays, detection, functions, layers
from .building import Builder, as_list, call, require
from .graph import Graph

OPSET, IR_VERSION = 18, 8
OTHER_NAMES = {  # of what one converter does
    'batchnorm': 'syncbatchnorm batchnormv1', 'convolution': 'deconvolution convolutionv1', 'softmax': 'logsoftmax',
    'matmul': 'dot batchdot linalggemm2', 'concat': 'concatenate rnnparamconcat', 'cast': 'ampcast ampmulticast',
    'var': 'std', 'argmax': 'argmin', 'reduce': 'sum mean max min prod norm', 'flip': 'reverse', 'trunc': 'fix',
    'slicechannel': 'split splitv2 hsplit dsplit', 'reshape': 'flatten expanddims squeeze reshapelike',
    'repeat': 'repeats', 'broadcastto': 'broadcastlike broadcastaxis',
    'fulllike': 'full zeros ones zeroslike oneslike', 'identity': 'copy dropout blockgrad stopgradient makeloss',
    'where': 'wherelscalar whererscalar wherescalar2'}
ALIASES = {name: kind for kind, names in OTHER_NAMES.items() for name in names.split()}

CONVERTERS: dict[str, Any] = {
    **arithmetic.CONVERTERS, **functions.CONVERTERS, **layers.CONVERTERS, **arrays.CONVERTERS, **detection.CONVERTERS}


def onnx_model(graph: Graph, inputs: dict[str, str], params: dict[str, str], values: dict[str, Any], outputs: list[str],
               batch: str, batch_axis: int) -> ModelProto:
    """Convert a network. `inputs` and `params` map names in the graph to those in the model.

    `values` are MXNet's arrays of the parameters by their names in the graph. `outputs` are names in the model. `batch`
    is an input in the graph, and `batch_axis` the axis of its batch.
    """
    first = graph.arrays[batch]
    g = Builder(first._replace(name=inputs[batch]), batch_axis)
    names = _convert_all(g, graph, inputs, params)
    for array, name in zip(graph.outputs, outputs):
        g.nodes.append(helper.make_node('Identity', [names[array]], [name], name))
    nodes, read = _read(g.nodes, outputs)

    def info(place: str, name: str):
        array = graph.arrays[place]
        sizes = [size if size == other else 'batch' if size == first.shape[batch_axis] else None
                 for size, other in zip(array.shape, array.other)]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(numpy.dtype(array.dtype)), sizes)

    model = helper.make_model(helper.make_graph(
        nodes, 'network', [*map(info, inputs, inputs.values())], [*map(info, graph.outputs, outputs)],
        [numpy_helper.from_array(values[key].asnumpy(), name) for key, name in params.items() if name in read]),
        producer_name='gluon_mgpu', producer_version=versions()['gluon_mgpu'],
        opset_imports=[helper.make_opsetid('', OPSET)], ir_version=IR_VERSION)
    checker.check_model(model, full_check=True)
    return model


def _convert_all(g: Builder, graph: Graph, inputs: dict[str, str], params: dict[str, str]) -> dict[str, str]:
    """Append all operators; return the names of all arrays in the model, by those in the graph."""
    names = {**inputs, **params}
    for op in graph.operators:
        for name in op.inputs:
            if name in params:
                g.place = params[name].rpartition('.')[0] or params[name]
        outputs = {number: graph.arrays[name] for number, name in sorted(op.outputs.items())}
        try:
            arrays = [graph.arrays[name]._replace(name=names[name]) for name in op.inputs]
            results = convert(g, Operator(op.node, arrays, outputs))
        except (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError) as error:
            why = f'{error} is not supported' if isinstance(error, KeyError) else reason(error)
            computed = [*dict.fromkeys(name for name in op.inputs if name not in {**inputs, **params})]
            raise ValueError(f'no model is written because {op.node["op"]} near {g.place} cannot be converted, '
                             f'{why}: {_advice(graph.operators, computed)}') from error
        names.update((array.name, result) for array, result in zip(outputs.values(), results))
    return names


def convert(g: Builder, op: Operator) -> list[str]:
    """Append an operator; return the names of its results. Raises NotImplementedError with the reason in words."""
    g.float_dtype = 'float64' if op.dtype == 'float64' else 'float32'
    values = [array.value for array in op.outputs.values()]
    if all(value is not None for value in values):
        return [*map(g.name, values)]
    if not (converter := CONVERTERS.get(ALIASES.get(op.kind, op.kind))):
        raise NotImplementedError('which is not in the table of operators')
    require(op.dtype != 'void16', 'bfloat16 instead of float32')
    results = as_list(call(converter, g, op))
    return [g.name(results[number]) for number in op.outputs]


def _read(nodes: list[NodeProto], outputs: list[str]) -> tuple[list[NodeProto], set[str]]:
    """Return the nodes whose results are read, and all names that are: others confuse onnxruntime 1.15 to 1.18."""
    kept, read = [], {*outputs}
    for node in reversed(nodes):
        if read & {*node.output}:
            kept.append(node)
            read.update(node.input)
    return kept[::-1], read


def _advice(operators: list[Operator], names: list[str]) -> str:
    """Return where to end a network that cannot be converted beyond some arrays."""
    if not names:
        return 'leave it out of the network'
    before = build(operators, names, NUMPY).list_outputs()
    outputs = f'symbol.get_internals()[{before[0]!r}]' if len(before) == 1 else (
        f'mx.sym.Group([symbol.get_internals()[name] for name in {before}])')
    return f'cut the network before it, {outputs}, as in docs/export.md'
