"""Writing a network as an ONNX model, after comparing its results in onnxruntime with the network's."""
from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy

from ..base.files import write_atomically
from ..mxnet_setup.compat import mx, np
from ..networks.graph import operations, semantics_of
from ..training.parameters import wait
from .network import Network

TOLERANCE = 1e-5  # of the largest number in an output
LENET = {'W1': (20, 1, 3, 3), 'b1': (20,), 'W2': (50, 20, 5, 5), 'b2': (50,), 'W3': (800, 128), 'b3': (128,),
         'W4': (128, 10), 'b4': (10,)}
SMALLEST = 1e-30  # lower limit of that number, because all may be 0


def check_path(path: str | os.PathLike, new_folder: str | os.PathLike | None = None) -> None:
    """Raise ValueError if no model can be written to `path`, or onnx cannot be imported, or onnxruntime, if installed.

    `new_folder` is a folder that need not exist yet. Writes nothing.
    """
    path = Path(path)
    if path.suffix != '.onnx' or path.is_dir():
        raise ValueError(f'{path}: must be a file name that ends in .onnx')
    if not _imports('onnx', path):
        raise ValueError(f'{path} cannot be written without onnx: pip install onnx onnxruntime')
    _imports('onnxruntime', path)
    folder = path.absolute().parent
    if new_folder is not None and folder == Path(new_folder).absolute() and not folder.exists():
        return
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f'{path} cannot be written: {folder} is not a writable folder')


def write_chapter(net: Any, path: str | os.PathLike, lenet: Callable | None, log: Callable[[str], None] = print) -> None:
    """Write the network of a chapter: a Gluon block, or LeNet's parameters if ``lenet(X, params)`` is given; blocks.

    `net` may also be a list of LeNet's parameters for each device.
    """
    image = numpy.zeros((1, 1, 28, 28), 'float32')
    if not isinstance(net, (list, tuple)):
        write_model(net, path, image, input_names=['images'], output_names=['scores'], log=log)
        return
    params = list(net[0] if net and isinstance(net[0], (list, tuple)) else net)
    if [getattr(array, 'shape', None) for array in params] != list(LENET.values()):
        raise ValueError(f"a list of {len(params)} arrays without the shapes of LeNet: pass a network or LeNet's parameters")
    write_model(lenet, path, image, params, input_names=['images'], output_names=['scores'], param_names=[*LENET],
                log=log)


def write_model(net: Any, path: str | os.PathLike, *examples: Any, input_names: Sequence[str] = (),
                output_names: Sequence[str] = (), param_names: Sequence[str] = (), batch_axis: int | Sequence[int | None] = 0,
                log: Callable[[str], None] = print) -> None:
    """Write a network as an ONNX model, see `export.to_onnx`; blocks."""
    check_path(path)
    from .conversion import onnx_model
    wait()  # reading batch norm's running statistics does not wait for them
    network = Network(net, examples, param_names)
    axes = [batch_axis] * len(network.inputs) if isinstance(batch_axis, int) else list(batch_axis)
    batches = [network.inputs, [_random_like(array, axis) for array, axis in zip(network.inputs, axes)]]
    results, graphs, arrays = zip(*map(network.run, batches))
    with semantics_of(network.inputs[0]):
        graph = operations(graphs, arrays, [batch[0].shape[axes[0]] for batch in batches])
    inputs = _names(input_names, len(network.inputs), 'input', network.variables)
    outputs = _names(output_names, len(results[0]), 'output')
    model = onnx_model(graph, dict(zip(network.variables, inputs)), _float32(network.params), outputs, axes[0])
    content = model.SerializeToString()
    feeds = [{name: array.asnumpy() for name, array in zip(inputs, batch)} for batch in batches]
    result = _compare(content, feeds, [dict(zip(outputs, found)) for found in results])
    write_atomically(path, content)
    log(f'model: {path}, {result}')


def _names(given: Sequence[str], number: int, kind: str, default: Sequence[str] = ()) -> list[str]:
    """Return the names of inputs or outputs."""
    names = list(given or default or ([kind] if number == 1 else [f'{kind}_{i}' for i in range(number)]))
    if len(names) != number or len(set(names)) != number:
        raise ValueError(f'{kind}_names {names}: must be {number} different names')
    return names


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


def _float32(params: dict[str, tuple[str, Any]]) -> dict[str, tuple[str, numpy.ndarray]]:
    """Copy parameters to NumPy; raise ValueError unless they are finite and float32."""
    copied = {variable: (name, array.asnumpy()) for variable, (name, array) in params.items()}
    for name, value in copied.values():
        if value.dtype != 'float32' or not numpy.isfinite(value).all():
            fault = f'is {value.dtype}' if value.dtype != 'float32' else 'contains NaN or infinity'
            raise ValueError(f'{name} {fault}; only finite float32 numbers can be exported')
    return copied


def _compare(content: bytes, feeds: list[dict], expected: list[dict]) -> str:
    """Compare a model's results in onnxruntime with those of the network; return the difference in words."""
    if not _imports('onnxruntime', 'the model'):
        return 'not checked because onnxruntime is not installed: pip install onnxruntime'
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    differences = []
    try:
        session = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
        found = [session.run(None, feed) for feed in feeds]
    except Exception as error:
        raise ValueError(f'no model is written because onnxruntime cannot run it: {' '.join(str(error).split())[:200]}') from error
    for results, right in zip(found, expected):
        for (name, Y), X in zip(right.items(), results):
            if not (numpy.isfinite(X).all() and numpy.isfinite(Y).all()):
                raise ValueError(f'no model is written because {name} of random inputs are not finite: train again with '
                                 'a smaller learning rate')
            if X.shape != Y.shape:
                raise ValueError(f'no model is written because {name} in onnxruntime have the shape {X.shape}, and the '
                                 f"network's {Y.shape}")
            scale = max(abs(Y).max(initial=0), SMALLEST)
            differences.append((abs(X.astype('float64') - Y).max(initial=0) / scale, name))
    difference, name = max(differences)
    if difference > TOLERANCE:
        raise ValueError(f"no model is written because {name} in onnxruntime differ from the network's by "
                         f'{difference:.1e} of the largest; rounding explains {TOLERANCE:.0e}: the network may contain '
                         'code that MXNet does not trace, such as a branch on values')
    return f"checked in onnxruntime: {name} differ from the network's by {difference:.1e} of the largest"


def _imports(name: str, path: str | os.PathLike) -> bool:
    """Return False if a module is not installed; raise ValueError if it is installed but cannot be imported."""
    if importlib.util.find_spec(name) is None:
        return False
    try:
        importlib.import_module(name)
    except Exception as error:  # also TypeError and AttributeError, from an incompatible protobuf or NumPy
        reason = ' '.join(str(error).split()) or type(error).__name__
        raise ValueError(f'{path} cannot be written because {name} cannot be imported ({reason[:200]}): '
                         f'pip install --force-reinstall {name}') from error
    return True
