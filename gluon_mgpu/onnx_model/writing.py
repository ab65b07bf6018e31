"""Writing a network as an ONNX model, after comparing its results in onnxruntime with the network's."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from ..base.files import write_atomically
from ..mxnet_setup.compat import mx, np
from ..training.parameters import wait
from .checks import check_path, compare
from .network import Network

LENET = {'W1': (20, 1, 3, 3), 'b1': (20,), 'W2': (50, 20, 5, 5), 'b2': (50,), 'W3': (800, 128), 'b3': (128,),
         'W4': (128, 10), 'b4': (10,)}


def write_chapter(net: Any, path: str | os.PathLike, lenet: Callable | None,
                  log: Callable[[str], None] = print) -> None:
    """Write the network of a chapter: a Gluon block, or LeNet's parameters if ``lenet(X, params)`` is given; blocks.

    `net` may also be a list of LeNet's parameters for each device.
    """
    image = numpy.zeros((1, 1, 28, 28), 'float32')
    if not isinstance(net, (list, tuple)):
        write_model(net, path, image, input_names=['images'], output_names=['scores'], log=log)
        return
    params = net[0] if net and isinstance(net[0], (list, tuple)) else net
    if [getattr(array, 'shape', None) for array in params] != list(LENET.values()):
        raise ValueError(f'a list of {len(params)} arrays without the shapes of LeNet: pass a network or its arrays')
    write_model(lenet, path, image, params, input_names=['images'], output_names=['scores'], param_names=[*LENET],
                log=log)


def write_model(net: Any, path: str | os.PathLike, *examples: Any, input_names: Sequence[str] = (),
                output_names: Sequence[str] = (), param_names: Sequence[str] = (),
                batch_axis: int | Sequence[int | None] = 0, log: Callable[[str], None] = print) -> None:
    """Write a network as an ONNX model, see `export.to_onnx`; blocks."""
    check_path(path)
    from .conversion import onnx_model
    wait()  # reading batch norm's running statistics does not wait for them
    network = Network(net, examples, param_names)
    axes = [batch_axis] * len(network.inputs) if isinstance(batch_axis, int) else [*batch_axis]
    if not axes or len(axes) != len(network.inputs) or axes[0] is None or not all(
            axis is None or 0 <= axis < array.ndim for axis, array in zip(axes, network.inputs)):
        raise ValueError(f'batch_axis {batch_axis}: must be an axis of each of {len(network.inputs)} inputs, or None '
                         'for inputs other than the first')
    batches = [network.inputs, [_random_like(array, axis) for array, axis in zip(network.inputs, axes)]]
    results, graph = network.evaluate(batches, axes[0])
    params, number = network.params(), len(results[0])
    inputs = [*(input_names or network.variables)]
    outputs = [*output_names] or ([f'output{i}' for i in range(number)] if number > 1 else ['output'])
    names = [*inputs, *outputs, *(name for name, _ in params.values())]
    if len(inputs) != len(axes) or len(outputs) != number or len(set(names)) != len(names):
        raise ValueError(f'input_names {inputs}, output_names {outputs}: must be {len(axes)} and {number} names, '
                         'different from each other and from those of the parameters')
    model = onnx_model(graph, dict(zip(network.variables, inputs)), params, outputs, axes[0])
    content = model.SerializeToString()
    feeds = [{name: array.asnumpy() for name, array in zip(inputs, batch)} for batch in batches]
    result = compare(content, feeds, [dict(zip(outputs, found)) for found in results])
    write_atomically(path, content)
    log(f'model: {path}, {result}')


def _random_like(array: Any, batch_axis: int | None) -> Any:
    """Return random numbers in the range of an example, integers if it has only integers, for a larger batch."""
    values, rng = array.asnumpy(), numpy.random.default_rng(0)
    shape = [size + 4 * (axis == batch_axis) for axis, size in enumerate(values.shape)]
    low, high = values.min(), values.max()
    if low == high:
        new = rng.random(shape) if values.dtype.kind == 'f' else numpy.full(shape, low)
    else:
        whole = (values == values.round()).all()
        new = rng.integers(int(low), int(high) + 1, shape) if whole else rng.uniform(low, high, shape)
    make = np.array if isinstance(array, np.ndarray) else mx.nd.array
    return make(new.astype(values.dtype), dtype=values.dtype, ctx=array.ctx)
