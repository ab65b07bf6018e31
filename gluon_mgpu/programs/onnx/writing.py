"""Writing a network as an ONNX model, after comparing its results in onnxruntime with the network's."""
from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy

from ...base.files import write_atomically
from ...mxnet_setup.compat import npx
from ...settings.chapters import chapter_of
from ..load_run import module_of
from .examples import SORTING, random_like, special_inputs
from .network import Network, batch_axes
from .results import Example, compare, run_model

ADVICE = 'MXNet may not trace some of its code, such as a branch on values or an overridden forward'
FILE_ADVICE = 'export a part of the network to find the operator, as in docs/export.md'
SORTING_ADVICE = ('MXNet and onnxruntime may sort numbers that are equal but for rounding in different orders; cut the '
                  'network before that, as in docs/export.md')


def to_onnx(net: Any, path: str | os.PathLike, *examples: Any, input_names: Sequence[str] = (),
            output_names: Sequence[str] = (), param_names: Sequence[str] = (),
            batch_axis: int | Sequence[int | None] = 0, log: Callable[[str], None] = print) -> None:
    """Write a network as an ONNX model for batches of any size; blocks. Needs onnx.

    Before the file is written, onnxruntime, if installed, computes the examples, random inputs with another batch size,
    and values such as 0. If a result differs from the network's by more than 1e-5 of the largest number in that output,
    or if an operator cannot be converted, nothing is written, and ValueError says why.

    Parameters
    ----------
    net : gluon.HybridBlock, function or list
        An initialized network, possibly hybridized, a ``SymbolBlock``, or a function that `hybridized` accepts. Without
        `examples`: a network for images (n, 1, 28, 28), or LeNet's parameters from `scratch.get_params`, possibly a
        list of these for each device. If devices differ, as running statistics do, the first one counts.
    path : str or path-like
        Ends in ``.onnx``; an existing file is replaced when the new one is complete.
    examples : arrays and lists of arrays
        Arguments of `net` with realistic values, for example valid indices of words: random inputs are in the same
        range. Lists in the arguments of a function are its parameters. Networks of ``mx.nd`` need arrays of ``mx.nd``.
    input_names, output_names, param_names : sequence of str, optional
        Names in the model, by default those of the network, such as ``'3.0.conv1.weight'``; `param_names` for lists.
    batch_axis : int or sequence, optional
        The axis whose size stays free: of all inputs, or one for each, None for an input without batch.
    log : callable
        Gets a line with the path and the result of the comparison.
    """
    if Path(path).suffix != '.onnx':
        raise ValueError(f'{path}: must be a file name that ends in .onnx')
    if not importlib.util.find_spec('onnx'):
        raise ValueError(f'{path} cannot be written without onnx: pip install onnx onnxruntime')
    from .conversion import onnx_model
    if not examples:
        net, examples, param_names = _of_chapter(net)
        input_names, output_names = input_names or ['images'], output_names or ['scores']
    # 1. The network and its inputs: the examples, and random ones with another batch size
    npx.waitall()  # under MXNet's hybridize(static_shape=True), reading running statistics does not wait for them
    network = Network(net, examples, param_names)
    axes, first = batch_axes(batch_axis, network.inputs)
    batches = [network.inputs, [random_like(*each, seed) for seed, each in enumerate(zip(network.inputs, axes))]]
    # 2. Its graph, in which the sizes that differ between the two depend on the batch
    results, graph = network.evaluate(batches, [batch[first].shape[axes[first]] for batch in batches])
    # 3. The names in the model
    number = len(results[0])
    inputs = [*(input_names or network.variables)]
    outputs = [*output_names] or ([f'output{i}' for i in range(number)] if number > 1 else ['output'])
    names = [*inputs, *outputs, *network.names.values()]
    if len(inputs) != len(axes) or len(outputs) != number or len(set(names)) != len(names):
        raise ValueError(f'input_names {inputs}, output_names {outputs}: must be {len(axes)} and {number} names, '
                         'different from each other and from those of the parameters; in a command, set --output-names')
    # 4. The model, which is compared before it is written
    content = onnx_model(graph, dict(zip(network.variables, inputs)), network.names, network.params, outputs,
                         network.variables[first], axes[first]).SerializeToString()
    line = 'not checked because onnxruntime is not installed: pip install onnxruntime'
    if importlib.util.find_spec('onnxruntime'):
        compared = [*map(Example, batches, results)]
        for words, batch in special_inputs(network.inputs, graph).items():
            if expected := network.results(batch):
                compared.append(Example(batch, expected, words))
        found = run_model(content, inputs, [example.inputs for example in compared])
        sorts = any(op.kind in SORTING for op in graph.operators)
        advice = SORTING_ADVICE if sorts else FILE_ADVICE if network.is_graph else ADVICE
        line = compare(outputs, compared, found, lambda batch: graph.has_nan(network.arrays(batch)), advice)
    write_atomically(path, content)
    log(f'model: {path}, {line}')


def _of_chapter(net: Any) -> tuple[Any, tuple, Sequence[str]]:
    """Return a network of a chapter, its arguments, and names of those that are parameters."""
    chapter, images = chapter_of(net), numpy.zeros((1, 1, 28, 28), 'float32')
    if not chapter.forward:
        return net, (images,), ()
    params = net[0] if net and isinstance(net[0], (list, tuple)) else net  # of the first device
    return getattr(module_of(chapter), chapter.forward), (images, params), chapter.param_names
