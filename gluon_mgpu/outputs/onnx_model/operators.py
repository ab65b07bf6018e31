"""MXNet's operators in terms of ONNX operators of set 18. Needs onnx.

A converter gets the model under construction, the operator, its input arrays, and its settings by MXNet's names. It
returns the name of the result, or a list of names. Converters are in the modules of their topic.
"""
from __future__ import annotations

from ...networks.hybridize.graph_operators import Operator
from . import arithmetic, arrays, detection, functions, layers
from .building import Builder, Converters, require

ALIASES = {'syncbatchnorm': 'batchnorm', 'deconvolution': 'convolution', 'logsoftmax': 'softmax', 'batchdot': 'matmul',
           'dot': 'matmul', 'concatenate': 'concat', 'rnnparamconcat': 'concat', 'split': 'slicechannel',
           'splitv2': 'slicechannel', 'hsplit': 'slicechannel', 'std': 'var', 'convolutionv1': 'convolution',
           'batchnormv1': 'batchnorm', 'reverse': 'flip', 'repeats': 'repeat', 'arangelike': 'arange',
           'argmin': 'argmax', 'bilinearresize2d': 'upsampling', 'ampcast': 'cast',
           **dict.fromkeys(functions.REDUCTIONS, 'reduce'),
           **dict.fromkeys(('flatten', 'expanddims', 'squeeze', 'reshapelike'), 'reshape'),
           **dict.fromkeys(('broadcastlike', 'broadcastaxis'), 'broadcastto'),
           **dict.fromkeys(('zeros', 'ones', 'zeroslike', 'oneslike', 'full'), 'fulllike')}

CONVERTERS: Converters = {
    **arithmetic.CONVERTERS, **functions.CONVERTERS, **layers.CONVERTERS, **arrays.CONVERTERS, **detection.CONVERTERS}


def convert(g: Builder, op: Operator) -> list[str]:
    """Append an operator; return the names of its results. Raises NotImplementedError with the reason in words."""
    converter = CONVERTERS.get(ALIASES.get(op.kind, op.kind))
    if not converter:
        raise NotImplementedError('which docs/export.md does not list')
    g.float_dtype = 'float64' if op.output.dtype == 'float64' else 'float32'
    results = converter(g, op, *op.inputs, **op.settings)
    results = results if isinstance(results, list) else [results]
    require(max(op.outputs) < len(results), f'output {max(op.outputs)}')
    return [g.name(Y) for Y in results]
