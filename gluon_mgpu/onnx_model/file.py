"""Writing a network as an ONNX model, after comparing its scores in onnxruntime with the network's."""
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

TOLERANCE = 1e-5  # of the largest score
SMALLEST = 1e-30  # lower limit of the largest score, because all scores may be 0
ROWS = (1, 5)     # batch sizes that are compared


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


def write(net: Any, path: str | os.PathLike, lenet: Callable | None = None,
          log: Callable[[str], None] = print) -> None:
    """Write a network as an ONNX model, see `export.to_onnx`; blocks.

    Writes nothing and raises ValueError if `check_path` fails, the network is not supported, or onnxruntime computes
    other scores. ``lenet(X, params)`` returns the scores of images X; it is needed if `net` is a list of parameters.
    `log` gets a line with the path and the result of the comparison.
    """
    check_path(path)
    wait()  # reading batch norm's running statistics does not wait for them
    model, scores = _lenet(net, lenet) if isinstance(net, (list, tuple)) else _gluon(net)
    content = model.SerializeToString()
    result = _compare(content, model.graph.input[0].type.tensor_type.shape.dim[1].dim_value, scores)
    write_atomically(path, content)
    log(f'model: {path}, {result}')


def _lenet(params, lenet: Callable | None) -> tuple:
    """Return the model of LeNet's parameters, and a function of NumPy arrays that computes its scores in MXNet."""
    from . import conversion
    params = params[0] if params and isinstance(params[0], (list, tuple)) else params
    shapes = [getattr(array, 'shape', array) for array in params]
    if lenet is None or shapes != list(conversion.LENET.values()):
        raise ValueError(f'a list of {len(shapes)} arrays without the shapes of LeNet; {conversion.KNOWN}')
    model = conversion.lenet_model(_float32(dict(zip(conversion.LENET, params))))
    return model, lambda X: lenet(np.array(X, ctx=params[0].ctx), params).asnumpy()


def _gluon(net) -> tuple:
    """Return the same for a Gluon network."""
    from . import conversion
    block = unwrapped(net)
    if not isinstance(block, gluon.HybridBlock):
        raise ValueError(f'{type(net).__name__} is not a network; {conversion.KNOWN}')
    arrays = {name: on_devices[0] for name, on_devices in copies(net).items()}
    values, device = _float32(arrays), next((array.ctx for array in arrays.values()), None)
    if Cast in _layers(block):
        net = block = _resnet18(block, values, device)
        values = dict(zip(by_name(block), values.values()))
    return conversion.gluon_model(block, values), lambda X: net(np.array(X, ctx=device)).asnumpy()


def _float32(arrays: dict) -> dict[str, numpy.ndarray]:
    """Copy arrays to NumPy; raise ValueError unless they are finite and float32."""
    values = {name: array.asnumpy() for name, array in arrays.items()}
    for name, value in values.items():
        if value.dtype != 'float32' or not numpy.isfinite(value).all():
            fault = f'is {value.dtype}' if value.dtype != 'float32' else 'contains NaN or infinity'
            raise ValueError(f'{name} {fault}; only finite float32 numbers can be exported')
    return values


def _layers(block) -> list[type]:
    """Return the types of all layers, in order."""
    types: list[type] = []
    block.apply(lambda layer: types.append(type(layer)))
    return types


def _resnet18(low, values: dict[str, numpy.ndarray], device) -> gluon.HybridBlock:
    """Return a float32 ResNet-18 with the parameters of `low`, one in lower precision."""
    weight, *_, bias = values.values()
    num_classes = len(bias)
    net = resnet18(num_classes)
    net.initialize(ctx=device)
    net(np.zeros((1, weight.shape[1], 28, 28), ctx=device))  # infers the shapes
    params = list(by_name(net).values())
    if (_layers(low) != _layers(resnet18(num_classes, 'bfloat16'))  # float16 has the same layers
            or [param.shape for param in params] != [value.shape for value in values.values()]):
        raise ValueError('in lower precision, only resnet18(num_classes, dtype) can be exported')
    for param, value in zip(params, values.values()):
        param.set_data(np.array(value, ctx=device))
    return net


def _compare(content: bytes, channels: int, scores: Callable) -> str:
    """Compare a model's scores of random images with those of MXNet; return the result in words."""
    if not _imports('onnxruntime', 'the model'):
        return 'not checked because onnxruntime is not installed: pip install onnxruntime'
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
    differences = []
    for rows in ROWS:
        X = numpy.random.default_rng(rows).random((rows, channels, 28, 28), 'float32')
        expected, (found,) = scores(X), session.run(None, {session.get_inputs()[0].name: X})
        if not (numpy.isfinite(expected).all() and numpy.isfinite(found).all()):
            raise ValueError('no model is written because scores of random images are not finite: train again with a '
                             'smaller learning rate')
        differences.append(abs(found - expected).max() / max(abs(expected).max(), SMALLEST))
    difference = max(differences)
    if difference > TOLERANCE:
        raise ValueError(f"no model is written because the model's scores in onnxruntime differ from the network's by "
                         f'{difference:.1e} of the largest score; rounding explains {TOLERANCE:.0e}')
    return f"checked in onnxruntime: scores differ from the network's by {difference:.1e} of the largest"


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
