"""Writing a network as an ONNX model, after comparing its results in onnxruntime with the network's."""
from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy

from ..base.files import check_writable, write_atomically
from ..base.program import reason
from ..mxnet_setup.compat import mx, np, npx
from ..networks.hybridize import unwrapped
from ..networks.precision import Cast
from ..networks.resnet import resnet18
from ..networks.tracing import is_legacy
from ..training.parameters import by_name, copies
from .network import Network

LENET = ['W1', 'b1', 'W2', 'b2', 'W3', 'b3', 'W4', 'b4']
TOLERANCE = 1e-5  # of the largest number in an output
SMALLEST = 1e-30  # lower limit of that number, because all may be 0


def check_path(path: str | os.PathLike, new_folder: str | os.PathLike | None = None) -> None:
    """Raise ValueError if no model can be written to `path`, or onnx cannot be imported, or onnxruntime, if installed.

    `new_folder` is a folder that need not exist yet. Writes nothing.
    """
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
    check_writable(path, new_folder)


def write_chapter(net: Any, path: str | os.PathLike, lenet: Callable | None, log: Callable[[str], None]) -> None:
    """Write the network of a chapter: a Gluon block, or LeNet's parameters if ``lenet(X, params)`` is given; blocks.

    `net` may also be a list of LeNet's parameters for each device, or ResNet-18 in lower precision: its parameters are
    float32, and so is the model.
    """
    names: dict[str, Any] = {'input_names': ['images'], 'output_names': ['scores']}
    arguments: list = [numpy.zeros((1, 1, 28, 28), 'float32')]
    if isinstance(net, (list, tuple)):
        arguments.append(net[0] if net and isinstance(net[0], (list, tuple)) else net)
        net, names['param_names'] = lenet, LENET
    elif any(isinstance(layer, Cast) for layer in getattr(unwrapped(net), '_children', {}).values()):
        low = [*copies(net).values()]
        net = resnet18(low[-1][0].size)  # the bias of the last layer
        for param, arrays in zip(by_name(net).values(), low):
            param._load_init(arrays[0], [arrays[0].ctx])
    write_model(net, path, *arguments, **names, log=log)


def write_model(net: Any, path: str | os.PathLike, *examples: Any, input_names: Sequence[str] = (),
                output_names: Sequence[str] = (), param_names: Sequence[str] = (),
                batch_axis: int | Sequence[int | None] = 0, log: Callable[[str], None] = print) -> None:
    """Write a network as an ONNX model, see `export.to_onnx`; blocks."""
    check_path(path)
    from .conversion import onnx_model
    npx.waitall()  # reading batch norm's running statistics does not wait for them
    network = Network(net, examples, param_names)
    axes = [batch_axis] * len(network.inputs) if isinstance(batch_axis, int) else [*batch_axis]
    if not axes or len(axes) != len(network.inputs) or axes[0] is None or not all(
            axis is None or 0 <= axis < array.ndim for axis, array in zip(axes, network.inputs)):
        raise ValueError(f'batch_axis {batch_axis}: must be an axis of each of {len(network.inputs)} inputs, or None '
                         'for inputs other than the first')
    batches = [network.inputs, [_random_like(*each, seed) for seed, each in enumerate(zip(network.inputs, axes))]]
    results, graph = network.evaluate(batches, axes[0])
    if any(op.kind == 'dropout' and op.settings.get('mode') == 'always' for op in graph.operators):
        raise ValueError("no model is written because Dropout(mode='always') makes results random: use mode='training'")
    unused = [name for name in network.variables if name not in graph.variables]
    if unused:
        raise ValueError(f'the network does not use its input {unused[0]}: remove it from the network')
    params, number = {key: (name, array.asnumpy()) for key, (name, array) in network.params.items()}, len(results[0])
    inputs = [*(input_names or network.variables)]
    outputs = [*output_names] or ([f'output{i}' for i in range(number)] if number > 1 else ['output'])
    names = [*inputs, *outputs, *(name for name, _ in params.values())]
    if len(inputs) != len(axes) or len(outputs) != number or len(set(names)) != len(names):
        raise ValueError(f'input_names {inputs}, output_names {outputs}: must be {len(axes)} and {number} names, '
                         'different from each other and from those of the parameters')
    content = onnx_model(graph, dict(zip(network.variables, inputs)), params, outputs, axes[0]).SerializeToString()
    feeds = [{name: array.asnumpy() for name, array in zip(inputs, batch)} for batch in batches]
    remark = 'please report this' if network.is_graph else (
        'MXNet may not trace some of its code, such as a branch on values or an overridden forward')
    result = _compare(content, feeds, outputs, results, remark)
    write_atomically(path, content)
    log(f'model: {path}, {result}')


def _random_like(array: Any, batch_axis: int | None, seed: int = 0) -> Any:
    """Return random numbers in the range of an example, integers if it has only integers, for a larger batch."""
    values, rng = array.asnumpy(), numpy.random.default_rng(seed)
    shape = [size + 4 * (axis == batch_axis) for axis, size in enumerate(values.shape)]
    finite = values[numpy.isfinite(values)]
    if not finite.size:
        raise ValueError(f'an example of shape {values.shape} has no finite number: pass realistic values')
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        new = rng.random(shape) if values.dtype.kind == 'f' else numpy.full(shape, low)
    elif (finite == finite.round()).all() and max(-low, high) < 2**53:  # not the lowest float in a mask
        new = rng.integers(int(low), int(high) + 1, shape)
    else:
        new = rng.uniform(low, high, shape)
    make = mx.nd.array if is_legacy(array) else np.array
    return make(new.astype(values.dtype), dtype=values.dtype, ctx=array.ctx)


def _compare(content: bytes, feeds: list[dict], outputs: list[str], expected: Sequence[list], remark: str) -> str:
    """Compare the outputs of a model in onnxruntime with those expected, for each of some inputs.

    Return the largest difference in words; raise ValueError, with `remark`, if it is more than rounding.
    """
    if not importlib.util.find_spec('onnxruntime'):
        return 'not checked because onnxruntime is not installed: pip install onnxruntime'
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4  # 4: errors are raised, not also printed
    try:
        session = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
        found = [session.run(None, feed) for feed in feeds]
    except Exception as error:
        raise ValueError(f'no model is written because onnxruntime cannot run it: {reason(error)}') from error
    differences = {}
    for i, name in enumerate(outputs):
        pairs = [(right[i], results[i]) for right, results in zip(expected, found)]
        for Y, Y_found in pairs:
            if not (numpy.isfinite(Y).all() and numpy.isfinite(Y_found).all()):
                raise ValueError(f'no model is written because {name} of random inputs are not finite: check the '
                                 'parameters, or pass other examples to to_onnx')
            if (Y.shape, Y.dtype) != (Y_found.shape, Y_found.dtype):
                raise ValueError(f"no model is written because the model's {name} are {Y_found.dtype} {Y_found.shape}, "
                                 f"the network's {Y.dtype} {Y.shape}: see batch_axis in docs/export.md")
        largest = max(abs(Y.astype('float64')).max(initial=SMALLEST) for Y, _ in pairs)
        differences[name] = max(abs(Y_found.astype('float64') - Y).max(initial=0) for Y, Y_found in pairs) / largest
    name, difference = max(differences.items(), key=lambda item: item[1])
    if difference > TOLERANCE:
        raise ValueError(f"no model is written because numbers of the model's {name} in onnxruntime differ from the "
                         f"network's by {difference:.1e} of the largest; rounding explains {TOLERANCE:.0e}: {remark}")
    return f"checked in onnxruntime: numbers of {name} differ from the network's by {difference:.1e} of the largest"
