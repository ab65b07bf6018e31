"""Checks of an ONNX export: the path and the installed packages before, the results in onnxruntime after conversion."""
from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path

import numpy

from ..base.files import check_writable

TOLERANCE = 1e-5  # of the largest number in an output
SMALLEST = 1e-30  # lower limit of that number, because all may be 0


def check_path(path: str | os.PathLike, new_folder: str | os.PathLike | None = None) -> None:
    """Raise ValueError if no model can be written to `path`, or onnx cannot be imported, or onnxruntime, if installed.

    `new_folder` is a folder that need not exist yet. Writes nothing.
    """
    if Path(path).suffix != '.onnx' or Path(path).is_dir():
        raise ValueError(f'{path}: must be a file name that ends in .onnx')
    if not _imports('onnx', path):
        raise ValueError(f'{path} cannot be written without onnx: pip install onnx onnxruntime')
    _imports('onnxruntime', path)
    check_writable(path, new_folder)


def compare(content: bytes, inputs: list[dict], expected: list[dict]) -> str:
    """Compare the results of a model in onnxruntime with those expected for each of some inputs, all of them by name.

    Return the largest difference in words; raise ValueError if it is more than rounding.
    """
    if not _imports('onnxruntime', 'the model'):
        return 'not checked because onnxruntime is not installed: pip install onnxruntime'
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4  # 4: errors are raised, not also printed
    differences = []
    try:
        session = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
        found = [session.run(None, arrays) for arrays in inputs]
    except Exception as error:
        reason = ' '.join(str(error).split())[:200]
        raise ValueError(f'no model is written because onnxruntime cannot run it: {reason}') from error
    for results, right in zip(found, expected):
        for (name, Y), Y_found in zip(right.items(), results):
            if not (numpy.isfinite(Y).all() and numpy.isfinite(Y_found).all()):
                raise ValueError(f'no model is written because {name} of random inputs are not finite: train again '
                                 'with a smaller learning rate')
            if (Y.shape, Y.dtype) != (Y_found.shape, Y_found.dtype):
                raise ValueError(f"no model is written because the model's {name} are {Y_found.dtype} {Y_found.shape}, "
                                 f"the network's {Y.dtype} {Y.shape}: see batch_axis in docs/export.md")
            difference = abs(Y_found.astype('float64') - Y).max(initial=0)
            differences.append((difference / max(abs(Y).max(initial=0), SMALLEST), name))
    difference, name = max(differences)
    if difference > TOLERANCE:
        raise ValueError(f"no model is written because the model's {name} in onnxruntime differ from the network's "
                         f'by {difference:.1e} of the largest; rounding explains {TOLERANCE:.0e}: MXNet may not trace '
                         'some of its code, such as a branch on values or an overridden forward')
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
