"""Comparison of a model in onnxruntime with its network."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy

from ...base.program import reason
from .examples import SPECIAL

TOLERANCE = 1e-5  # of the largest number in an output
SPECIAL_TOLERANCE = 1e-3  # for values far from the example, where rounding is larger, but a wrong branch larger still
OFFSET = 10  # how much larger numbers may be than their spread before their rounding moves results further
SMALLEST = 1e-30  # lower limit of the largest number, because all may be 0


class Example(NamedTuple):
    """Inputs of a network and its results. `words` describe inputs unlike those of the user."""

    inputs: Sequence
    results: list[numpy.ndarray]
    words: str = ''


def run_model(content: bytes, inputs: Sequence[str], batches: Iterable[Sequence]) -> list[list[numpy.ndarray]]:
    """Return the results of a model for batches of arrays, computed by onnxruntime."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4  # 4: errors are raised, not also printed
    try:
        model = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
        return [model.run(None, {name: array.asnumpy() for name, array in zip(inputs, batch)}) for batch in batches]
    except Exception as error:
        raise ValueError(f'no model is written because onnxruntime cannot run it, {reason(error)}') from error


def compare(outputs: Sequence[str], examples: Sequence[Example], found: Sequence[list[numpy.ndarray]],
            has_nan: Callable[[Sequence], bool], remark: str) -> str:
    """Return in words how far the results `found` by a model differ from those of the network.

    Raises ValueError if they differ by more than rounding explains. `has_nan` returns whether the network computes NaN
    on its way for some inputs: MXNet's relu, softmax and others make other numbers of it, ONNX's do not.
    """
    worst = 0.0, outputs[0]
    for i, name in enumerate(outputs):
        scale = max(_largest(example.results[i]) for example in examples if not example.words)
        for (inputs, results, words), of_model in zip(examples, found):
            Y, Y_found = results[i], of_model[i]
            if (Y.shape, Y.dtype) != (Y_found.shape, Y_found.dtype):
                raise ValueError(f'no model is written because output {name} is {Y_found.dtype} {Y_found.shape} in '
                                 f'the model and {Y.dtype} {Y.shape} in the network: see batch_axis in docs/export.md, '
                                 'and use astype in the network if MXNet infers another dtype than it computes')
            if not (words or (numpy.isfinite(Y).all() and numpy.isfinite(Y_found).all())):
                raise ValueError(f'no model is written because numbers of {name} for random inputs are not finite: '
                                 'check the parameters, or pass other examples to to_onnx')
            used = numpy.isfinite(Y)
            if not numpy.isfinite(Y_found[used]).all() and has_nan(inputs):
                used &= numpy.isfinite(Y_found)
            error = abs(numpy.nan_to_num(Y_found[used].astype('float64'), nan=numpy.inf) - Y[used]).max(initial=0)
            error /= max(scale, _largest(Y))
            limit = _rounding(inputs, words)
            if error > limit:
                where = f', for inputs that are {words}' * bool(words)
                raise ValueError(f"no model is written because numbers of the model's {name} in onnxruntime differ "
                                 f"from the network's by {error:.1e} of the largest{where}; rounding explains "
                                 f'{limit:.1e}: {remark}')
            worst = worst if words else max(worst, (error, name))
    shapes = ' and '.join(str(example.inputs[0].shape) for example in examples if not example.words)
    every = ', '.join(example.words for example in examples)
    named = ', '.join(name for name in (*SPECIAL, 'shifted') if name in every) or 'none'
    return (f"checked in onnxruntime: output {worst[1]} equals the network's up to {worst[0]:.1e} of its largest "
            f'number; compared for {shapes} in the range of the example; other values: {named}')


def _largest(Y: numpy.ndarray) -> float:
    return float(abs(Y.astype('float64')).max(initial=SMALLEST, where=numpy.isfinite(Y)))


def _rounding(inputs: Sequence, words: str) -> float:
    """Return how far rounding may move a result, in units of the largest."""
    if words:  # no number moves to infinity, but MXNet's own sums of shifted ones lose all digits
        return 1e30 if words == 'shifted' else SPECIAL_TOLERANCE
    arrays = [array.asnumpy().astype('float64') for array in inputs if array.dtype == numpy.float32]
    offsets = [abs(X).max() / X.std() for X in arrays if numpy.isfinite(X).all() and X.std() > 0]
    return TOLERANCE * max([OFFSET, *offsets]) / OFFSET
