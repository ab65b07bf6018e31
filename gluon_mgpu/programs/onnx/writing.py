"""Writing a network as an ONNX model, after comparing its results in onnxruntime with the network's."""
from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...base.files import check_writable, write_atomically
from ...base.program import reason
from ...mxnet_setup.compat import mx, npx
from .comparison import Example, compare, random_like, session, special_examples
from .graph import Graph
from .network import Network
from .parts import in_columns, parts_of, sorting
from .rounding import of_coordinates

ADVICE = 'MXNet may not trace some of its code, such as a branch on values or an overridden forward'
FILE_ADVICE = 'export a part of the network to find the operator, as in docs/export.md'


def check_path(path: str | os.PathLike) -> None:
    """Raise ValueError if no model can be written to `path`; see `check_writable`. Writes nothing."""
    if Path(path).suffix != '.onnx' or Path(path).is_dir():
        raise ValueError(f'{path}: must be a file name that ends in .onnx')
    if not importlib.util.find_spec('onnx'):
        raise ValueError(f'{path} cannot be written without onnx: pip install onnx onnxruntime')
    for name in filter(importlib.util.find_spec, ('onnx', 'onnxruntime')):
        try:
            importlib.import_module(name)
        except Exception as error:  # also TypeError and AttributeError, from an incompatible protobuf or NumPy
            raise ValueError(f'{path} cannot be written because {name} cannot be imported, {reason(error)}: '
                             f'pip install --force-reinstall {name}') from error
    check_writable(path)


def _batch_axes(batch_axis: int | Sequence[int | None], inputs: Sequence) -> tuple[list, int]:
    """Return the axis of the batch of each input, None without a batch, and the number of the first input with one."""
    axes: list[Any] = [*batch_axis] if isinstance(batch_axis, (list, tuple)) else [batch_axis] * len(inputs)
    first = next((number for number, axis in enumerate(axes) if axis is not None), -1)
    if first < 0 or len(axes) != len(inputs) or not all(
            axis is None or axis in range(array.ndim) for axis, array in zip(axes, inputs)):
        raise ValueError(f'batch_axis {batch_axis}: must be an axis of each of {len(inputs)} inputs, or None for some '
                         'of them')
    return axes, first


def write_model(net: Any, path: str | os.PathLike, *examples: Any, input_names: Sequence[str] = (),
                output_names: Sequence[str] = (), param_names: Sequence[str] = (),
                batch_axis: int | Sequence[int | None] = 0, log: Callable[[str], None] = print) -> None:
    """Write a network as an ONNX model, see `export.to_onnx`; blocks."""
    check_path(path)
    from .conversion import onnx_model
    # 1. The network and its inputs: the examples, and random ones with another batch size
    npx.waitall()  # under MXNet's hybridize(static_shape=True), reading running statistics does not wait for them
    network = Network(net, examples, param_names)
    axes, first = _batch_axes(batch_axis, network.inputs)
    batches = [network.inputs, [random_like(*each, seed) for seed, each in enumerate(zip(network.inputs, axes))]]
    # 2. Its graph, in which the sizes that differ between the two depend on the batch
    results, graph = network.evaluate(batches, [batch[first].shape[axes[first]] for batch in batches])
    if any(op.kind == 'dropout' and op.settings.get('mode') == 'always' for op in graph.operators):
        raise ValueError("no model is written because Dropout(mode='always') makes results random: use mode='training'")
    if unused := [name for name in network.variables if name not in graph.variables]:
        raise ValueError(f'the network does not use its input {unused[0]}: remove it from the network')
    # 3. The names in the model
    params, number = {key: (name, array.asnumpy()) for key, (name, array) in network.params.items()}, len(results[0])
    inputs = [*(input_names or network.variables)]
    outputs = [*output_names] or ([f'output{i}' for i in range(number)] if number > 1 else ['output'])
    names = [*inputs, *outputs, *(name for name, _ in params.values())]
    if len(inputs) != len(axes) or len(outputs) != number or len(set(names)) != len(names):
        raise ValueError(f'input_names {inputs}, output_names {outputs}: must be {len(axes)} and {number} names, '
                         'different from each other and from those of the parameters; in a command, set --output-names')
    # 4. The model, which is compared before it is written
    settings = dict(zip(network.variables, inputs)), params, outputs, (network.variables[first], axes[first])
    model, explain = onnx_model(graph, *settings)
    content = model.SerializeToString()
    result = 'not checked because onnxruntime is not installed: pip install onnxruntime'
    if importlib.util.find_spec('onnxruntime'):
        compared = [Example(*each) for each in zip(batches, results)]
        compared += special_examples(network.results, network.inputs, graph.operators)
        try:
            run = session(content, inputs)
            found = [run(example.inputs) for example in compared]
        except Exception as error:
            raise explain(error) from error
        result = _compare(graph, network, compared, found, settings)
    write_atomically(path, content)
    log(f'model: {path}, {result}')


def _compare(graph: Graph, network: Network, examples: Sequence[Example], found: list, settings: tuple) -> str:
    """Compare the results of a model, or of its parts if the network sorts; `settings` are for `onnx_model`."""
    limits = of_coordinates(graph.operators), FILE_ADVICE if network.is_graph else ADVICE
    try:
        return compare(settings[2], examples, found, *limits)
    except ValueError as error:
        if not sorting(graph.operators):
            raise
        try:
            return _compare_parts(graph, network, examples, settings, limits)
        except mx.MXNetError:
            raise error from None


def _compare_parts(graph: Graph, network: Network, examples: Sequence[Example], settings: tuple, limits: tuple) -> str:
    from .conversion import onnx_model
    inputs, params, outputs, batch = settings
    ops, lines = sorting(graph.operators), []
    outputs_of_parts = [[*outputs, *(f'{op.node["name"]}_input' for op in ops)],
                        *([array.name for array in op.outputs.values()] for op in ops)]
    for (part, tried), names in zip(parts_of(graph, network, examples), outputs_of_parts):
        more = {name: name for name in part.variables if name not in graph.variables}
        model, _ = onnx_model(part, {**inputs, **more}, params, names, batch)
        run = session(model.SerializeToString(), [*inputs.values(), *more])
        found = in_columns(part, ops, *(run(example.inputs) for example in tried))
        tried = [example._replace(results=in_columns(part, ops, example.results)[0]) for example in tried]
        lines.append(compare(in_columns(part, ops, names)[0], tried, found, *limits))
    kinds = ', '.join(dict.fromkeys(op.node['op'] for op in ops))
    return f'{lines[0]}; {kinds} compared alone, because of numbers that are equal but for rounding'
