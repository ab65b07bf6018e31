"""Conversion of a network's graph to an ONNX model. Needs onnx.

Operator set 18 and IR version 8, of 2022. The initializers of the model are the network's parameters.
"""
from __future__ import annotations

import numpy
from onnx import ModelProto, checker, helper, numpy_helper, shape_inference

from ...base.machine import versions
from ...base.program import reason
from .building import Builder
from .graph import Array, Graph
from .operators import convert

OPSET, IR_VERSION = 18, 8


def onnx_model(graph: Graph, inputs: dict[str, str], params: dict[str, tuple[str, numpy.ndarray]], outputs: list[str],
               batch_axis: int) -> ModelProto:
    """Convert a network.

    `inputs` maps the names of inputs in the graph to those in the model, `params` those of parameters to names in the
    model and values. `outputs` are names in the model.
    """
    names = {**inputs, **{variable: name for variable, (name, _) in params.items()}}
    first = graph.variables[next(iter(inputs))]
    model = Builder(first._replace(name=names[first.name]), batch_axis, {*names.values(), *outputs})
    place = 'at the input'
    for operator in graph.operators:
        for array in operator.inputs:
            if array.name in params:
                place = f"near {params[array.name][0].rpartition('.')[0] or params[array.name][0]}"
        try:
            renamed = [array._replace(name=names[array.name]) for array in operator.inputs]
            results = convert(model, operator._replace(inputs=renamed))
        except (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError) as error:
            why = f'{error} is not supported' if isinstance(error, KeyError) else reason(error)
            before = [array.internal for array in operator.inputs if array.name not in graph.variables]
            raise ValueError(f'no model is written because {operator.node["op"]} {place} cannot be converted, '
                             f'{why}: {_where_to_cut([*dict.fromkeys(before)])}') from error
        names.update({array.name: results[output] for output, array in operator.outputs.items()})
    for array, name in zip(graph.outputs, outputs):
        model.nodes.append(helper.make_node('Identity', [names[array.name]], [name], name))

    def info(array: Array, name: str):
        sizes = [size if size == other else 'batch' if size == first.shape[batch_axis] else None
                 for size, other in zip(array.shape, array.other)]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(numpy.dtype(array.dtype)), sizes)

    used = {name for node in model.nodes for name in node.input}
    onnx_graph = helper.make_graph(
        model.nodes, 'network', [info(graph.variables[variable], name) for variable, name in inputs.items()],
        [info(array, name) for array, name in zip(graph.outputs, outputs)],
        [numpy_helper.from_array(value, name) for name, value in params.values() if name in used])
    made = helper.make_model(onnx_graph, producer_name='gluon_mgpu', producer_version=versions()['gluon_mgpu'],
                             opset_imports=[helper.make_opsetid('', OPSET)], ir_version=IR_VERSION)
    try:
        checker.check_model(made, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        raise ValueError(f'no model is written because it would be invalid, {reason(error)}: please report this'
                         ) from error
    return made


def _where_to_cut(names: list[str]) -> str:
    """Return advice for an operator that is computed from these arrays."""
    if not names:
        return 'leave it out of the network'
    outputs = f'symbol.get_internals()[{names[0]!r}]' if len(names) == 1 else (
        f'mx.sym.Group([symbol.get_internals()[name] for name in {names}])')
    return f'cut the network before it, {outputs}, as in docs/export.md'
