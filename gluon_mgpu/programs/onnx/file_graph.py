"""The graph in NAME-symbol.json: changes for the export, random examples of its inputs, names of its outputs."""
from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy

from ...base.arguments import is_count
from ...mxnet_setup.compat import graph_from_json
from ...networks.graph_operators import Operator

SEED = 0  # of the examples
# Operators with which MXNet reads an address from the file, reads other files, or crashes while it loads the file
UNSAFE = re.compile('_(Native|NDArray|CustomFunction|CachedOp|foreach|while_loop|cond|cv|image_|npx__image_|backward_|'
                    'broadcast_backward|sg_|CrossDevice|NoGradient)')
SAME_NUMBERS = {'cast', 'copy', 'reshape', 'transpose', 'swapaxis', 'flatten', 'expanddims', 'squeeze', 'slice',
                'sliceaxis', 'slicechannel', 'split'}


def safe(graph: dict) -> dict:
    """Return the parts of a graph that MXNet needs, without anything with which it would crash instead of an error.

    Raises NotImplementedError for an operator that is unsafe or has graphs of its own, others for what is no graph.
    """
    nodes = graph['nodes']
    for node in nodes:
        label = node['op'] + ' ' + node['name']  # TypeError unless both are text
        if UNSAFE.match(label) or 'subgraphs' in node:
            raise NotImplementedError(f'{label} cannot be exported: cut the file before it, as in docs/export.md')
    # Each operator comes after its inputs, so that there are no cycles
    sources = [(source, number) for number, node in enumerate(nodes)
               for source in [*node['inputs'], *([other, 0] for other in node.get('control_deps', ()))]]
    sources += [(head, len(nodes)) for head in graph['heads']]
    if not all(2 <= len(source) <= 3 and all(map(is_count, source)) and source[0] < limit for source, limit in sources):
        raise ValueError('its operators have impossible inputs')
    variables = [number for number, node in enumerate(nodes) if node['op'] == 'null']
    attrs = {name: value for name, value in graph.get('attrs', {}).items() if name in ('mxnet_version', 'is_np_shape')}
    found = {'nodes': nodes, 'arg_nodes': variables, 'heads': graph['heads'], 'attrs': attrs}
    # MXNet would read beyond its memory if an operator has fewer outputs. The same graph with first outputs only, and
    # numbers as names, shows how many it has
    numbered = [{**node, 'name': str(number), 'inputs': [[other, 0, 0] for other, *_ in node['inputs']]}
                for number, node in enumerate(nodes)]
    symbol = graph_from_json({**found, 'nodes': numbered, 'heads': [[number, 0, 0] for number in range(len(nodes))]})
    outputs = Counter(name.partition('_')[0] for name in symbol.get_internals().list_outputs())
    if any(output >= outputs[str(number)] for (number, output, *_), _ in sources):
        raise ValueError('an operator has fewer outputs')
    return found


def without_label(node: dict) -> dict:
    """Return an operator, if it is the loss at the end of an older network, as one that needs no label."""
    if node['op'] in ('SoftmaxOutput', 'Softmax'):  # Softmax: its name in MXNet 0.x
        return {**node, 'inputs': node['inputs'][:1] * 2}  # any label of this shape has the same predictions
    operator = {'LinearRegressionOutput': '_copy', 'MAERegressionOutput': '_copy', 'SVMOutput': '_copy',
                'LogisticRegressionOutput': 'sigmoid'}.get(node['op'])
    return {'op': operator, 'name': node['name'], 'inputs': node['inputs'][:1]} if operator else node


def in_float32(settings: dict) -> dict:
    """Return the settings of an operator or variable with float32 in place of float16, bfloat16 and float64."""
    new = {'float16': 'float32', 'bfloat16': 'float32', 'float64': 'float32', '1': '0', '2': '0', '12': '0'}
    return {name: new.get(value, value) if name in ('dtype', '__dtype__') else value
            for name, value in settings.items()}


def example(operators: list[Operator], params: dict[str, Any], name: str, shape: tuple, dtype: str,
            rng: numpy.random.Generator) -> tuple[numpy.ndarray, str]:
    """Return random values for an input, with a description: integers if they are indices or `dtype` has only these."""
    words = f'{name} {shape}, {dtype}, random'
    limit = _limit(operators, params, name)
    if limit is None and dtype.startswith('float'):
        return rng.random(shape).astype(dtype), f'{words} numbers from 0 to 1'
    # No other integer is 0, because something may be divided by it
    low, high = (0, limit) if limit else (1, 256 if dtype == 'uint8' else 3)
    return rng.integers(low, high, shape).astype(dtype), f'{words} integers from {low} to {high - 1}'


def _limit(operators: list[Operator], params: dict[str, Any], name: str) -> int | None:
    """Return the number of possible indices if an input is used as indices, such as those of words."""
    limits: list[Any] = []
    same = {name}  # the arrays that have the numbers of the input
    for op in operators:
        used = [place for place, array in enumerate(op.inputs) if array in same]
        if used and op.kind in SAME_NUMBERS:
            same.update(op.outputs.values())
        elif 0 in used:
            limits.append(op.settings.get({'embedding': 'input_dim', 'onehot': 'depth'}.get(op.kind, '')))
        elif 1 in used and op.kind == 'take' and op.inputs[0] in params:
            shape, axis = params[op.inputs[0]].shape, op.settings.get('axis', 0)
            limits += [shape[axis]] if axis in range(-len(shape), len(shape)) else []
    return min(filter(is_count, limits), default=None)


def output_names(operators: list[Operator], outputs: list[str]) -> list[str]:
    """Return the names of the layers whose results are outputs, with their places if a layer has several."""
    layers = {array: op.node['name'] for op in operators for array in op.outputs.values()}
    names = [layers.get(array, f'{array}_output') for array in outputs]
    return [name if names.count(name) == 1 else f'{name}{place}' for place, name in enumerate(names)]
