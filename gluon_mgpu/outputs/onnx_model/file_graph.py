"""The graph in NAME-symbol.json: changes for the export, random examples of its inputs, names of its outputs."""
from __future__ import annotations

from typing import Any

import numpy

from ...networks.graph_operators import Operator

SEED = 0  # of the examples
SAME_NUMBERS = {'cast', 'copy', 'reshape', 'transpose', 'swapaxis', 'flatten', 'expanddims', 'squeeze', 'slice',
                'sliceaxis', 'slicechannel', 'split'}


def without_label(node: dict) -> dict:
    """Return an operator, if it is the loss at the end of an older network, as one that needs no label."""
    if node['op'] in ('SoftmaxOutput', 'Softmax'):  # Softmax: its name in MXNet 0.x
        return {**node, 'inputs': node['inputs'][:1] * 2}  # any label of this shape has the same predictions
    operator = {'LinearRegressionOutput': '_copy', 'MAERegressionOutput': '_copy', 'SVMOutput': '_copy',
                'LogisticRegressionOutput': 'sigmoid'}.get(node['op'])
    return {'op': operator, 'name': node['name'], 'inputs': node['inputs'][:1]} if operator else node


def in_float32(node: dict) -> dict:
    """Return an operator or variable with float32 in place of float16 and float64."""
    new = {('dtype', 'float16'): 'float32', ('dtype', 'float64'): 'float32', ('__dtype__', '1'): '0',
           ('__dtype__', '2'): '0'}
    return {**node, **{place: {name: new.get((name, value), value) for name, value in node[place].items()}
                       for place in ('param', 'attr', 'attrs') if place in node}}


def example(operators: list[Operator], params: dict[str, Any], name: str, shape: tuple, dtype: str,
            rng: numpy.random.Generator) -> tuple[numpy.ndarray, str]:
    """Return random values for an input, with a description: integers if they are indices or `dtype` has only these."""
    limit = _limit(operators, params, name) or {'uint8': 256, 'int32': 2, 'int64': 2}.get(dtype)
    values = rng.integers(limit, size=shape) if limit else rng.random(shape)
    words = f'integers from 0 to {limit - 1}' if limit else 'numbers from 0 to 1'
    return values.astype(dtype), f'{name} {shape}, {dtype}, random {words}'


def _limit(operators: list[Operator], params: dict[str, Any], name: str) -> int | None:
    """Return the number of possible indices if an input is used as indices, such as those of words."""
    same, limits = {name}, []  # the arrays that have the numbers of the input
    for operator in operators:
        kind, settings = operator.kind, operator.settings
        used = [place for place, array in enumerate(operator.inputs) if array in same]
        if used and kind in SAME_NUMBERS:
            same.update(operator.outputs.values())
        elif 0 in used and kind in ('embedding', 'sparseembedding', 'onehot'):
            limits.append(settings['depth' if kind == 'onehot' else 'input_dim'])
        elif 1 in used and kind == 'take' and operator.inputs[0] in params:
            limits.append(params[operator.inputs[0]].shape[settings.get('axis', 0)])
    return min(limits, default=None)


def output_names(operators: list[Operator], outputs: list[str]) -> list[str]:
    """Return the names of the layers whose results are outputs, with numbers for several results of a layer."""
    layers = {array: (operator.node['name'], number)
              for operator in operators for number, array in operator.outputs.items()}
    found = [layers.get(array, (f'{array}_output', 0)) for array in outputs]
    names = [name for name, _ in found]
    return [name if names.count(name) == 1 else f'{name}{number}' for name, number in found]
