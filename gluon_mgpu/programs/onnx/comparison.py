"""Comparison of a model in onnxruntime with its network, on examples that reach both sides of decisions by value."""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy

from ...mxnet_setup.compat import mx, np
from ...networks.graph_operators import Operator
from ...networks.tracing import is_legacy
from .rounding import SPECIAL_TOLERANCE, TOLERANCE

SMALLEST = 1e-30  # lower limit of the largest number, because all may be 0
SPECIAL = 'zeros', 'ones', 'negative', 'large'
# Operators that decide by value, and that have no result for some values
DECIDING = re.compile('.*(where|equal|greater|less|logical|mask|embedding|take|pick|onehot|mod|floor|ceil|sign$).*')
PARTIAL = re.compile('.*(log(?!ical)|sqrt|power|div|reciprocal|exp(?!and)|norm).*')
# Values that are possible with some operators. For equal numbers, MXNet may choose other indices; with invalid lengths
# or places, it reads or writes memory beyond an array.
ALLOWED = {**dict.fromkeys(('topk', 'sort', 'argsort', 'boxnms'), 'negative'),
           **dict.fromkeys(('use_length', 'sequencemask', 'sequencereverse'), 'zeros ones'),
           'roialign': '', 'gathernd': ''}


class Example(NamedTuple):
    """Inputs of a network and its results. `words` describe inputs that are not like those of the user.

    Of these, only finite numbers are compared, and if `is_partial`, only those that are finite in onnxruntime too.
    """

    inputs: Sequence
    results: list[numpy.ndarray]
    words: str = ''
    is_partial: bool = False


def random_like(array: Any, batch_axis: int | None, seed: int = 0) -> Any:
    """Return random numbers in the range of an example, integers if it has only integers, for a larger batch."""
    shape = [size + min(size, 4) * (axis == batch_axis) for axis, size in enumerate(array.shape)]
    return array_like(array, _random(array.asnumpy(), shape, numpy.random.default_rng(seed)))


def special_examples(compute: Callable[[list], list | None], inputs: Sequence, operators: list[Operator]
                     ) -> list[Example]:
    """Return examples with values outside the range of some inputs, except those that MXNet cannot `compute`.

    In a network that decides by value, each input is once of each kind, while the others are of another. Other networks
    get one list of inputs in which the kinds are mixed.
    """
    kinds = {name for op in operators for name in (op.kind, 'use_length' if op.settings.get('use_length') else '')}
    named = [name for name in SPECIAL if all(name in ALLOWED[kind] for kind in kinds & ALLOWED.keys())]
    if not named:
        return []
    rngs = [numpy.random.default_rng(seed) for seed, _ in enumerate(inputs, 1)]
    values = [[_special(array.asnumpy(), name, rng) for name in (*named, 'random')] for array, rng in zip(inputs, rngs)]
    if 'use_length' in kinds or any(DECIDING.fullmatch(op.kind) or (
            op.kind == 'cast' and not op.output.dtype.startswith('float')) for op in operators):
        orders = [[(i + place) % len(values[0]) for place, _ in enumerate(inputs)] for i, _ in enumerate(values[0])]
        batches = {', '.join([*named, 'random'][i] for i in order): [each[i] for i, each in zip(order, values)]
                   for order in orders if order != [len(named)]}
    else:
        batches = {', '.join(named): [numpy.choose(numpy.resize(range(len(named)), each[0].shape), each)
                                      for each in values]}
    arrays = {words: [*map(array_like, inputs, batch)] for words, batch in batches.items()}
    return [Example(batch, results, words, any(map(PARTIAL.fullmatch, kinds)))
            for words, batch in arrays.items() if (results := compute(batch))]


def _random(values: numpy.ndarray, shape: Sequence[int], rng: numpy.random.Generator) -> numpy.ndarray:
    finite = values[numpy.isfinite(values)]
    if values.ndim == 2 and values.shape[1] == 5 and len(values) and _are_indices(values[:, 0]):
        # Possibly regions of interest: the number of an image, beyond which MXNet would read, and two corners
        numbers = rng.integers(0, int(values[:, 0].max()) + 1, (shape[0], 1))
        return numpy.concatenate([numbers, _random(values[:, 1:], (shape[0], 4), rng)], axis=1)
    if not finite.size:
        raise ValueError(f'an example of shape {values.shape} has no finite number: pass realistic values')
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        return rng.random(shape) if values.dtype.kind == 'f' else numpy.full(shape, low)
    if (finite == finite.round()).all() and max(-low, high) < 2**53:  # not the lowest float in a mask
        return rng.integers(int(low), int(high) + 1, shape)
    return rng.uniform(low, high, shape)


def _are_indices(values: numpy.ndarray) -> bool:
    return bool(((values >= 0) & (values < 2**31) & (values == values.round())).all())


def _special(values: numpy.ndarray, name: str, rng: numpy.random.Generator) -> numpy.ndarray:
    """Return values of one kind, in any dtype, for an input with the example ``values``; 'negative' has both signs."""
    dtype, new = values.dtype, _random(values, values.shape, rng)
    if name in ('zeros', 'ones'):
        return numpy.full(values.shape, name == 'ones')
    if name == 'negative' and dtype.kind in 'if':
        return new * numpy.resize([-1, 1], new.shape)
    if name == 'large' and dtype.kind in 'iu':
        return rng.integers(numpy.iinfo(dtype).max // 2, size=values.shape, dtype=dtype)
    if name == 'large' and dtype.kind == 'f':
        largest = float(numpy.finfo(dtype).max) / 4
        return numpy.clip(new * 100.0, -largest, largest)
    return new


def array_like(array: Any, values: numpy.ndarray) -> Any:
    """Return values as an array with the dtype, the device and the semantics of another."""
    make = mx.nd.array if is_legacy(array) else np.array
    dtype = numpy.dtype(array.dtype)
    return make(values.astype(dtype), dtype=dtype, ctx=array.ctx)


def session(content: bytes, inputs: Sequence[str]) -> Callable[[Sequence], list[numpy.ndarray]]:
    """Return a model as a function of arrays, computed by onnxruntime."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4  # 4: errors are raised, not also printed
    model = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
    return lambda batch: model.run(None, {name: array.asnumpy() for name, array in zip(inputs, batch)})


def compare(outputs: Sequence[str], examples: Sequence[Example], found: Sequence[list], coordinates: float,
            remark: str) -> str:
    """Return in words how far the results `found` of a model differ from those of the network in `examples`.

    Raises ValueError if they differ by more than rounding explains, where `coordinates` is the share of
    `rounding.of_coordinates`.
    """
    # The first example is the user's
    differences: dict[bool, list[tuple]] = {True: [], False: []}  # of special examples and of others
    for i, name in enumerate(outputs):
        largest = max(_largest(example.results[i]) for example in examples if not example.words)
        for (_, expected, words, is_partial), results in zip(examples, found):
            Y, Y_found = expected[i], results[i]
            if (Y.shape, Y.dtype) != (Y_found.shape, Y_found.dtype):
                advice = 'see batch_axis in docs/export.md' if Y.shape != Y_found.shape else (
                    'MXNet infers another dtype than it computes, use astype in the network')
                raise ValueError(f'no model is written because output {name} is {Y_found.dtype} {Y_found.shape} in '
                                 f'the model and {Y.dtype} {Y.shape} in the network: {advice}')
            if not (words or (numpy.isfinite(Y).all() and numpy.isfinite(Y_found).all())):
                raise ValueError(f'no model is written because numbers of {name} for random inputs are not finite: '
                                 'check the parameters, or pass other examples to to_onnx')
            used = numpy.isfinite(Y) & (numpy.isfinite(Y_found) if is_partial else True)
            error = abs(numpy.nan_to_num(Y_found[used].astype('float64'), nan=numpy.inf) - Y[used]).max(initial=0)
            differences[words != ''].append((error / max(largest, _largest(Y)), name, words))
    for limit, worst in (TOLERANCE, max(differences[False])), (SPECIAL_TOLERANCE, max(differences[True], default=(0,))):
        limit += coordinates
        if worst[0] > limit:
            where = f', for inputs that are {worst[2]}' * bool(worst[2])
            raise ValueError(f"no model is written because numbers of the model's {worst[1]} in onnxruntime differ "
                             f"from the network's by {worst[0]:.1e} of the largest{where}; rounding explains "
                             f'{limit:.1e}: {remark}')
    difference, name, _ = max(differences[False])
    shapes = ' and '.join(str(example.inputs[0].shape) for example in examples if not example.words)
    words = ', '.join(name for name in SPECIAL if any(name in example.words for example in examples)) or 'none'
    return (f"checked in onnxruntime: output {name} equals the network's up to {difference:.1e} of its largest number; "
            f'compared for {shapes} in the range of the example; other values: {words}')


def _largest(Y: numpy.ndarray) -> float:
    return float(abs(Y.astype('float64')).max(initial=SMALLEST, where=numpy.isfinite(Y)))
