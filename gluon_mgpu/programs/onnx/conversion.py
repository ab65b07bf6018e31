"""Conversion of a network's graph to an ONNX model of operator set 18 and IR version 8, of 2022. Needs onnx.

A converter gets the model under construction, the operator if it names that, the input arrays, and the settings that it
names as MXNet does. It returns the name of the result, or a list of names. Converters are in modules by topic.
"""
import numpy
from onnx import ModelProto, NodeProto, checker, helper, numpy_helper, shape_inference

from ...base.machine import versions
from ...base.program import reason
from ...networks.graph_operators import NUMPY, Operator, build
from . import arithmetic, arrays, detection, functions, layers
from .building import Builder, Converters, as_list, call, require
from .graph import Array, Graph

OPSET, IR_VERSION = 18, 8
ALIASES = {'syncbatchnorm': 'batchnorm', 'deconvolution': 'convolution', 'logsoftmax': 'softmax', 'batchdot': 'matmul',
           'dot': 'matmul', 'concatenate': 'concat', 'rnnparamconcat': 'concat', 'std': 'var', 'ampcast': 'cast',
           'ampmulticast': 'cast', 'convolutionv1': 'convolution', 'batchnormv1': 'batchnorm', 'reverse': 'flip',
           'repeats': 'repeat', 'argmin': 'argmax', **dict.fromkeys(functions.REDUCTIONS, 'reduce'),
           **dict.fromkeys(('split', 'splitv2', 'hsplit', 'dsplit'), 'slicechannel'),
           **dict.fromkeys(('flatten', 'expanddims', 'squeeze', 'reshapelike'), 'reshape'),
           **dict.fromkeys(('broadcastlike', 'broadcastaxis'), 'broadcastto'),
           **dict.fromkeys(('zeros', 'ones', 'zeroslike', 'oneslike', 'full'), 'fulllike')}

CONVERTERS: Converters = {
    **arithmetic.CONVERTERS, **functions.CONVERTERS, **layers.CONVERTERS, **arrays.CONVERTERS, **detection.CONVERTERS}


def onnx_model(graph: Graph, inputs: dict[str, str], params: dict[str, tuple[str, numpy.ndarray]], outputs: list[str],
               batch: tuple[str, int]) -> ModelProto:
    """Convert a network. `inputs` maps names in the graph to those in the model, `params` to these and values.

    `outputs` are names in the model. `batch` is an input in the graph and the axis of its batch.
    """
    first, batch_axis = graph.variables[batch[0]], batch[1]
    g = Builder(first._replace(name=inputs[first.name]), batch_axis)
    _convert_all(g, graph, inputs, {key: name for key, (name, _) in params.items()}, outputs)
    nodes, read = _read(g.nodes, outputs)

    def info(array: Array, name: str):
        sizes = [size if size == other else 'batch' if size == first.shape[batch_axis] else None
                 for size, other in zip(array.shape, array.other)]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(numpy.dtype(array.dtype)), sizes)

    model = helper.make_model(helper.make_graph(
        nodes, 'network', [info(graph.variables[variable], name) for variable, name in inputs.items()],
        [info(array, name) for array, name in zip(graph.outputs, outputs)],
        [numpy_helper.from_array(value, name) for name, value in params.values() if name in read]),
        producer_name='gluon_mgpu', producer_version=versions()['gluon_mgpu'],
        opset_imports=[helper.make_opsetid('', OPSET)], ir_version=IR_VERSION)
    try:
        checker.check_model(model, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        raise ValueError(f'no model is written because it would be invalid, {reason(error)}') from error
    return model


def _convert_all(g: Builder, graph: Graph, inputs: dict[str, str], params: dict[str, str], outputs: list[str]) -> None:
    """Append all operators; `inputs`, `params` and `outputs` are names in the model."""
    names = {**inputs, **params}
    for op in graph.operators:
        for name in [params[array.name] for array in op.inputs if array.name in params]:
            g.place = name.rpartition('.')[0] or name
        try:
            renamed = [array._replace(name=names[array.name]) for array in op.inputs]
            results = convert(g, op._replace(inputs=renamed))
        except (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError) as error:
            why = f'{error} is not supported' if isinstance(error, KeyError) else reason(error)
            raise ValueError(f'no model is written because {op.node["op"]} near {g.place} cannot be converted, '
                             f'{why}: {_advice(graph, op)}') from error
        names.update({array.name: results[number] for number, array in op.outputs.items()})
    for array, name in zip(graph.outputs, outputs):
        g.nodes.append(helper.make_node('Identity', [names[array.name]], [name], name))


def convert(g: Builder, op: Operator) -> list[str]:
    """Append an operator; return the names of its results. Raises NotImplementedError with the reason in words."""
    g.float_dtype = 'float64' if op.dtype == 'float64' else 'float32'
    if all(array.value is not None for array in op.outputs.values()):
        return [g.name(op.outputs[i].value) if i in op.outputs else '' for i in range(max(op.outputs) + 1)]
    if not (converter := CONVERTERS.get(ALIASES.get(op.kind, op.kind))):
        raise NotImplementedError('which is not in the table of operators')
    require(op.dtype != 'void16', 'bfloat16 instead of float32')
    results = as_list(call(converter, g, op, op.inputs))
    require(max(op.outputs) < len(results), f'output {max(op.outputs)}')
    return [g.name(Y) for Y in results]


def _read(nodes: list[NodeProto], outputs: list[str]) -> tuple[list[NodeProto], set[str]]:
    """Return the nodes whose results are read, and all names that are: others confuse onnxruntime 1.15 to 1.18."""
    kept, read = [], {*outputs}
    for node in reversed(nodes):
        if read & {*node.output}:
            kept.append(node)
            read.update(node.input)
    return kept[::-1], read


def _advice(graph: Graph, op: Operator) -> str:
    names = [*dict.fromkeys(array.name for array in op.inputs if array.name not in graph.variables)]
    if not names:
        return 'leave it out of the network'
    before = build(graph.by_name, names, NUMPY).list_outputs()
    outputs = f'symbol.get_internals()[{before[0]!r}]' if len(before) == 1 else (
        f'mx.sym.Group([symbol.get_internals()[name] for name in {before}])')
    return f'cut the network before it, {outputs}, as in docs/export.md'
