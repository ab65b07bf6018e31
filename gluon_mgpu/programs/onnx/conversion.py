"""Conversion of a network's graph to an ONNX model of operator set 18 and IR version 8, of 2022. Needs onnx.

A converter gets the model under construction, the operator, its input arrays, and its settings by MXNet's names. It
returns the name of the result, or a list of names. Converters are in the modules of their topic.
"""
import re
from collections.abc import Callable

import numpy
from onnx import ModelProto, checker, helper, numpy_helper, shape_inference

from ...base.machine import versions
from ...base.program import reason
from ...networks.graph_operators import Operator
from . import arithmetic, arrays, detection, functions, layers
from .building import Builder, Converters, as_list, require
from .graph import Array, Graph

OPSET, IR_VERSION = 18, 8
ALIASES = {'syncbatchnorm': 'batchnorm', 'deconvolution': 'convolution', 'logsoftmax': 'softmax', 'batchdot': 'matmul',
           'dot': 'matmul', 'concatenate': 'concat', 'rnnparamconcat': 'concat', 'std': 'var', 'ampcast': 'cast',
           'convolutionv1': 'convolution', 'batchnormv1': 'batchnorm', 'reverse': 'flip', 'repeats': 'repeat',
           'arangelike': 'arange', 'argmin': 'argmax', 'bilinearresize2d': 'upsampling',
           **dict.fromkeys(functions.REDUCTIONS, 'reduce'),
           **dict.fromkeys(('split', 'splitv2', 'hsplit', 'dsplit'), 'slicechannel'),
           **dict.fromkeys(('flatten', 'expanddims', 'squeeze', 'reshapelike'), 'reshape'),
           **dict.fromkeys(('broadcastlike', 'broadcastaxis'), 'broadcastto'),
           **dict.fromkeys(('zeros', 'ones', 'zeroslike', 'oneslike', 'full'), 'fulllike')}

CONVERTERS: Converters = {
    **arithmetic.CONVERTERS, **functions.CONVERTERS, **layers.CONVERTERS, **arrays.CONVERTERS, **detection.CONVERTERS}


def onnx_model(graph: Graph, inputs: dict[str, str], params: dict[str, tuple[str, numpy.ndarray]], outputs: list[str],
               batch: tuple[str, int]) -> tuple[ModelProto, Callable[[Exception], ValueError]]:
    """Convert a network; return the model, and a function that explains an error of onnxruntime about it.

    `inputs` maps names in the graph to those in the model, `params` to these and values; `outputs` are names in the
    model. `batch` is an input in the graph and the axis of its batch.
    """
    first, batch_axis, used = graph.variables[batch[0]], batch[1], {key: name for key, (name, _) in params.items()}
    model = Builder(first._replace(name=inputs[first.name]), batch_axis, {*inputs.values(), *used.values(), *outputs})
    origins = _convert_all(model, graph, {**inputs, **used}, used, outputs)

    def info(array: Array, name: str):
        sizes = [size if size == other else 'batch' if size == first.shape[batch_axis] else None
                 for size, other in zip(array.shape, array.other)]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(numpy.dtype(array.dtype)), sizes)

    read = {name for node in model.nodes for name in node.input}
    made = helper.make_model(helper.make_graph(
        model.nodes, 'network', [info(graph.variables[variable], name) for variable, name in inputs.items()],
        [info(array, name) for array, name in zip(graph.outputs, outputs)],
        [numpy_helper.from_array(value, name) for name, value in params.values() if name in read]),
        producer_name='gluon_mgpu', producer_version=versions()['gluon_mgpu'],
        opset_imports=[helper.make_opsetid('', OPSET)], ir_version=IR_VERSION)

    def explain(error: Exception) -> ValueError:
        """Name the operator of the network from which the node in a message was made."""
        if not (found := [origins[name] for name in re.findall(r'\w+', str(error)) if name in origins]):
            return ValueError(f'no model is written because onnxruntime cannot run it: {reason(error)}')
        dtypes = ', '.join(dict.fromkeys(array.dtype for array in found[0][0].inputs))
        return _refusal(graph, *found[0], f'not for {dtypes} in onnxruntime, {reason(error)}')

    try:
        checker.check_model(made, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        raise explain(error) from error
    return made, explain


def _convert_all(g: Builder, graph: Graph, names: dict[str, str], params: dict[str, str], outputs: list[str]
                 ) -> dict[str, tuple[Operator, str]]:
    """Append all operators, with `names` of inputs and parameters; return {node: (its operator, where that is)}."""
    origins: dict[str, tuple[Operator, str]] = {}
    place = 'at the input'
    for operator in graph.operators:
        for name in [params[array.name] for array in operator.inputs if array.name in params]:
            place = f"near {name.rpartition('.')[0] or name}"
        try:
            renamed = [array._replace(name=names[array.name]) for array in operator.inputs]
            results = convert(g, operator._replace(inputs=renamed))
        except (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError) as error:
            why = f'{error} is not supported' if isinstance(error, KeyError) else reason(error)
            raise _refusal(graph, operator, place, why) from error
        origins.update({node.name: (operator, place) for node in g.nodes[len(origins):]})
        names.update({array.name: results[output] for output, array in operator.outputs.items()})
    for array, name in zip(graph.outputs, outputs):
        g.nodes.append(helper.make_node('Identity', [names[array.name]], [name], name))
    return origins


def convert(g: Builder, op: Operator) -> list[str]:
    """Append an operator; return the names of its results. Raises NotImplementedError with the reason in words."""
    if not (converter := CONVERTERS.get(ALIASES.get(op.kind, op.kind))):
        raise NotImplementedError('which docs/export.md does not list')
    g.float_dtype = 'float64' if op.output.dtype == 'float64' else 'float32'
    results = as_list(converter(g, op, *op.inputs, **op.settings))
    require(max(op.outputs) < len(results), f'output {max(op.outputs)}')
    return [g.name(Y) for Y in results]


def _refusal(graph: Graph, operator: Operator, place: str, why: str) -> ValueError:
    before = [*dict.fromkeys(array.internal for array in operator.inputs if array.name not in graph.variables)]
    outputs = f'symbol.get_internals()[{before[0]!r}]' if len(before) == 1 else (
        f'mx.sym.Group([symbol.get_internals()[name] for name in {before}])')
    advice = f'cut the network before it, {outputs}, as in docs/export.md' if before else 'leave it out of the network'
    return ValueError(f'no model is written because {operator.node["op"]} {place} cannot be converted, {why}: {advice}')
