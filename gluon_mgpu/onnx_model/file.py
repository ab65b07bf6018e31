"""A network's ONNX model as a file, written once onnxruntime has given the network's own scores."""
from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from ..base.files import write_atomically
from ..mxnet_setup.compat import gluon, np
from ..networks.hybridize import unwrapped
from ..networks.precision import Cast
from ..networks.resnet import resnet18
from ..training.parameters import by_name, copies, wait

SUFFIX = '.onnx'
TOLERANCE = 1e-5  # of the largest score
SMALLEST = 1e-30  # the largest score counts as at least this: all may be 0
ROWS = (1, 5)     # of the batches that are compared


def check_path(path: str | os.PathLike, new_folder: str | os.PathLike | None = None) -> None:
    """Refuse a path that no model can be written to, and any path where onnx cannot be imported; writes nothing.

    Parameters
    ----------
    path : path-like
        The model. A file that is there already is going to be replaced.
    new_folder : path-like, optional
        A folder that need not be there yet.

    Raises
    ------
    ValueError
        If the name does not end in ``.onnx``, its folder is not there or may not be written, onnx is not installed, or
        onnx or onnxruntime is and cannot be imported.
    """
    path = Path(path)
    if path.suffix != SUFFIX or path.is_dir():
        raise ValueError(f'{path}: the name of a file that ends in {SUFFIX} expected')
    if not _imports('onnx', path):
        raise ValueError(f"{path} cannot be written without onnx: pip install onnx onnxruntime, or '.[onnx]' where "
                         'this package comes from')
    _imports('onnxruntime', path)
    folder = path.absolute().parent
    if new_folder is not None and folder == Path(new_folder).absolute() and not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f'{path} cannot be written: {folder} is no folder; make it first')
    if not os.access(folder, os.W_OK):
        raise ValueError(f'{path} cannot be written: nothing may be written in {folder}; name another folder')


def write(net: Any, path: str | os.PathLike, lenet: Callable | None = None,
          log: Callable[[str], None] = print) -> None:
    """Write a network as an ONNX model, with the values that it has on its first device; waits.

    Parameters
    ----------
    net : gluon.Block, what `hybridized` makes of one, a list of np.ndarray, or a list of such lists
        ResNet-18, or LeNet's parameters, also those on each device.
    path : path-like
        What it was before is left until the new file is complete.
    lenet : callable, optional
        ``lenet(X, params)`` are the scores of images X; needed with parameters.
    log : callable
        Is told in one line where the model is, and how it was checked.

    Raises
    ------
    ValueError
        If `check_path` does, the network is not known, or onnxruntime computes other scores. Nothing is written then.
    OSError
        If the file cannot be written.
    """
    check_path(path)
    wait()  # to read batch norm's running statistics does not wait for them
    model, scores = _lenet(net, lenet) if isinstance(net, (list, tuple)) else _gluon(net)
    content = model.SerializeToString()
    told = _check(content, model.graph.input[0].type.tensor_type.shape.dim[1].dim_value, scores)
    write_atomically(path, [content])
    log(f'model: {path}, {told}')


def _lenet(params, lenet: Callable | None) -> tuple:
    """The model of LeNet's parameters, and what computes scores in MXNet; both take and return NumPy's arrays."""
    from . import graph
    params = params[0] if params and isinstance(params[0], (list, tuple)) else params
    shapes = [getattr(array, 'shape', array) for array in params]
    if lenet is None or shapes != list(graph.LENET.values()):
        raise ValueError(f'a list of {len(shapes)} arrays that are not those of LeNet: {graph.KNOWN}')
    model = graph.lenet_model(_float32(dict(zip(graph.LENET, params))))
    return model, lambda X: lenet(np.array(X, ctx=params[0].ctx), params).asnumpy()


def _gluon(net) -> tuple:
    """The same of a Gluon network."""
    from . import graph
    block = unwrapped(net)
    if not isinstance(block, gluon.HybridBlock):
        raise ValueError(f'{type(net).__name__}: no network that can be exported; {graph.KNOWN}')
    arrays = {name: on_devices[0] for name, on_devices in copies(net).items()}
    values, device = _float32(arrays), next((array.ctx for array in arrays.values()), None)
    if Cast in _layers(block):
        net = block = _resnet18(block, values, device)
        values = dict(zip(by_name(block), values.values()))
    return graph.gluon_model(block, values), lambda X: net(np.array(X, ctx=device)).asnumpy()


def _float32(arrays: dict) -> dict[str, numpy.ndarray]:
    """The values of arrays, which must be finite numbers of float32."""
    values = {name: array.asnumpy() for name, array in arrays.items()}
    for name, value in values.items():
        if value.dtype != 'float32' or not numpy.isfinite(value).all():
            what = f'is {value.dtype}' if value.dtype != 'float32' else 'holds NaN or infinity'
            raise ValueError(f'{name} {what}: only finite numbers of float32 can be exported')
    return values


def _layers(block) -> list[type]:
    """The kinds of all layers of a network, in its order."""
    kinds: list[type] = []
    block.apply(lambda layer: kinds.append(type(layer)))
    return kinds


def _resnet18(low, values: dict[str, numpy.ndarray], device) -> gluon.HybridBlock:
    """ResNet-18 in float32, with the parameters of one in lower precision."""
    weight, *_, bias = values.values()
    num_classes = len(bias)
    net = resnet18(num_classes)
    net.initialize(ctx=device)
    net(np.zeros((1, weight.shape[1], 28, 28), ctx=device))  # it learns its shapes
    params = list(by_name(net).values())
    if (_layers(low) != _layers(resnet18(num_classes, 'bfloat16'))  # float16 has the same
            or [param.shape for param in params] != [value.shape for value in values.values()]):
        raise ValueError('of networks in lower precision, only resnet18(num_classes, dtype) can be exported')
    for param, value in zip(params, values.values()):
        param.set_data(np.array(value, ctx=device))
    return net


def _check(content: bytes, channels: int, scores: Callable) -> str:
    """Compare the scores of a model with those of MXNet, for random images; return what to say of it."""
    if not _imports('onnxruntime', 'the model'):
        return 'not checked, since onnxruntime is not installed: pip install onnxruntime'
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
    differences = []
    for rows in ROWS:
        X = numpy.random.default_rng(rows).random((rows, channels, 28, 28), 'float32')
        expected, (found,) = scores(X), session.run(None, {session.get_inputs()[0].name: X})
        if not (numpy.isfinite(expected).all() and numpy.isfinite(found).all()):
            raise ValueError('the scores of random images are not finite: not written; train again with a smaller '
                             'learning rate')
        differences.append(abs(found - expected).max() / max(abs(expected).max(), SMALLEST))
    difference = numpy.max(differences)  # NaN if one of them is; max() would pass over it
    if not difference <= TOLERANCE:
        raise ValueError(f"the model's scores in onnxruntime differ from the network's by {difference:.1e} of the "
                         f'largest, and rounding makes {TOLERANCE:.0e} at most: not written')
    return f"checked in onnxruntime: its scores are the network's, to {difference:.1e} of the largest"


def _imports(name: str, path: str | os.PathLike) -> bool:
    """Whether a module is installed; if it is and cannot be imported, `path` cannot be written."""
    if importlib.util.find_spec(name) is None:
        return False
    try:
        importlib.import_module(name)
    except Exception as error:  # also TypeError and AttributeError, with a protobuf or NumPy that does not fit
        reason = ' '.join(str(error).split()) or type(error).__name__
        raise ValueError(f'{path} cannot be written: {name} is installed and cannot be imported ({reason[:200]}); '
                         f'install it again: pip install --force-reinstall {name}') from error
    return True
