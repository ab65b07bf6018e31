"""The graph in NAME-symbol.json: changes for the export, random examples of its inputs, names of its outputs."""
from __future__ import annotations

from typing import Any

import numpy

from ..networks.graph_operators import kind_of

SEED = 0  # of the examples
SAME_NUMBERS = {'cast', 'copy', 'reshape', 'transpose', 'swapaxis', 'flatten', 'expanddims', 'squeeze', 'slice',
                'sliceaxis', 'slicechannel', 'split'}


def settings_of(node: dict) -> dict[str, str]:
    """Return the settings of an operator, which are elsewhere in files of older versions."""
    return {**node.get('param', {}), **node.get('attr', {}), **node.get('attrs', {})}


def without_label(node: dict) -> dict:
    """Return an operator, if it is the loss at the end of an older network, as one that needs no label."""
    operator = {'LinearRegressionOutput': '_copy', 'MAERegressionOutput': '_copy', 'SVMOutput': '_copy',
                'LogisticRegressionOutput': 'sigmoid', 'SoftmaxOutput': 'softmax',
                'Softmax': 'softmax'}.get(node['op'])  # Softmax: SoftmaxOutput in MXNet 0.x
    if not operator:
        return node
    true = {name for name, value in settings_of(node).items() if value in ('True', 'true', '1')}
    if operator == 'softmax' and not true & {'multi_output', 'preserve_shape'}:
        return {**node, 'inputs': node['inputs'][:1] * 2}  # over all but the first axis, which only SoftmaxOutput can
    attrs = {'axis': '1' if 'multi_output' in true else '-1'} if operator == 'softmax' else {}
    return {'op': operator, 'name': node['name'], 'attrs': attrs, 'inputs': node['inputs'][:1]}


def in_float32(node: dict) -> dict:
    """Return an operator or variable with float32 in place of float16 and float64."""
    new = {('dtype', 'float16'): 'float32', ('dtype', 'float64'): 'float32', ('__dtype__', '1'): '0',
           ('__dtype__', '2'): '0'}
    return {**node, **{place: {name: new.get((name, value), value) for name, value in node[place].items()}
                       for place in ('param', 'attr', 'attrs') if place in node}}


def example(graph: dict, params: dict[str, Any], name: str, shape: tuple, dtype: str,
            rng: numpy.random.Generator) -> tuple[numpy.ndarray, str]:
    """Return random values for an input, with a description: integers if they are indices or `dtype` has only these."""
    limit = _limit(graph, params, name) or {'uint8': 256, 'int32': 2, 'int64': 2}.get(dtype)
    values = rng.integers(limit, size=shape) if limit else rng.random(shape)
    words = f'integers from 0 to {limit - 1}' if limit else 'numbers from 0 to 1'
    return values.astype(dtype), f'{name} {shape}, {dtype}, random {words}'


def _limit(graph: dict, params: dict[str, Any], name: str) -> int | None:
    """Return the number of possible indices if an input is used as indices, such as those of words."""
    nodes, limits = graph['nodes'], []
    sources = {number for number, node in enumerate(nodes) if node['name'] == name and node['op'] == 'null'}
    for number, node in enumerate(nodes):
        used = [place for place, (source, *_) in enumerate(node['inputs']) if source in sources]
        kind, settings = kind_of(node['op']), settings_of(node)
        if used and kind in SAME_NUMBERS:
            sources.add(number)
        elif 0 in used and kind in ('embedding', 'sparseembedding', 'onehot'):
            limits.append(int(settings['depth' if kind == 'onehot' else 'input_dim']))
        elif 1 in used and kind == 'take' and (rows := params.get(nodes[node['inputs'][0][0]]['name'])) is not None:
            limits.append(rows.shape[int(settings.get('axis', 0))])
    return min(limits, default=None)


def output_names(graph: dict) -> list[str]:
    """Return the names of the layers whose results are outputs, with numbers for several results of a layer."""
    heads = [(graph['nodes'][number], output) for number, output, *_ in graph['heads']]
    names = [f"{node['name']}_output" if node['op'] == 'null' else node['name'] for node, _ in heads]
    return [name if names.count(name) == 1 else f'{name}{output}' for name, (_, output) in zip(names, heads)]
