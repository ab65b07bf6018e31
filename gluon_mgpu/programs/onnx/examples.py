"""Inputs on which a model is compared with its network, so that both sides of decisions by value are reached."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from ...mxnet_setup.compat import mx, np
from ...networks.tracing import is_legacy
from .graph import Graph

SPECIAL = 'zeros', 'ones', 'negative', 'large'
SORTING = 'topk', 'sort', 'argsort', 'boxnms'
# Values that are possible with some operators. For equal numbers, MXNet may choose other indices; with invalid lengths
# or places, it reads or writes memory beyond an array; an integer divided by 0 ends the process.
ALLOWED = {**dict.fromkeys(SORTING, ('negative',)),
           **dict.fromkeys(('use_length', 'sequencemask', 'sequencereverse'), ('zeros', 'ones')),
           **dict.fromkeys(('roialign', 'gathernd', 'integer division'), ())}


def random_like(array: Any, batch_axis: int | None, seed: int) -> Any:
    """Return random numbers in the range of an example, for twice as many rows."""
    shape = [size * (1 + (axis == batch_axis)) for axis, size in enumerate(array.shape)]
    return array_like(array, _random(array.asnumpy(), shape, numpy.random.default_rng(seed)))


def special_inputs(inputs: Sequence, graph: Graph) -> dict[str, list]:
    """Return inputs with values outside the range of the examples, by words that describe them.

    Each input is once of each kind, while the others are of another. The last ones are 'shifted': with a large mean and
    a small spread.
    """
    kinds = {*_kinds(graph)}
    named = [name for name in SPECIAL if all(name in ALLOWED[kind] for kind in kinds & ALLOWED.keys())]
    values = [_values(array.asnumpy(), numpy.random.default_rng(seed)) for seed, array in enumerate(inputs, 1)]
    batches, words = {}, [*named, 'random']
    for turn, _ in enumerate(words):
        order = [words[(turn + place) % len(words)] for place, _ in enumerate(inputs)]
        batches[', '.join(order)] = [each[name] for each, name in zip(values, order)]
    batches.pop('random', None)
    if named == [*SPECIAL]:
        batches['shifted'] = [each['shifted'] for each in values]
    return {words: [*map(array_like, inputs, batch)] for words, batch in batches.items()}


def _kinds(graph: Graph) -> Iterator[str]:
    """Yield the kinds of operators, and names for what decides how they may be used."""
    for op in graph.operators:
        yield op.kind
        if op.settings.get('use_length'):
            yield 'use_length'
        if 'div' in op.kind and op.kind != 'divscalar' and 'int' in graph.arrays[op.output].dtype:
            yield 'integer division'


def _random(values: numpy.ndarray, shape: Sequence[int], rng: numpy.random.Generator) -> numpy.ndarray:
    finite = values[numpy.isfinite(values)]
    if not finite.size:
        raise ValueError(f'an example of shape {values.shape} has no finite number: pass realistic values')
    if values.shape[1:] == (5,):
        # Possibly regions of interest: the number of an image, beyond which MXNet would read, and two corners
        numbers = rng.choice(values[:, :1], shape[0])
        return numpy.concatenate([numbers, _random(values[:, 1:], (shape[0], 4), rng)], axis=1)
    low, high = float(finite.min()), float(finite.max())
    if values.dtype.kind != 'f' or (low < high and max(-low, high) < 2**53 and (finite == finite.round()).all()):
        return rng.choice(finite, shape)  # for example no 0, by which something is divided
    return rng.uniform(low, high, shape) if low < high else rng.random(shape)


def _values(values: numpy.ndarray, rng: numpy.random.Generator) -> dict[str, numpy.ndarray]:
    """Return values of each kind, in any dtype, for an input with the example ``values``; 'negative' has both signs."""
    kind, shape = values.dtype.kind, values.shape
    new = _random(values, shape, rng)
    found = dict.fromkeys(('negative', 'large', 'shifted', 'random'), new)
    found.update(zeros=numpy.zeros(shape), ones=numpy.ones(shape))
    if kind in 'if':
        found['negative'] = new * numpy.resize([-1, 1], shape)
    if kind in 'iu':
        largest = int(numpy.iinfo(values.dtype).max) // 2  # a sum of these does not overflow, if possible
        found['large'] = rng.integers(max(largest // values.size, min(largest, 127)), size=shape)
    if kind == 'f':
        limit = float(numpy.finfo(values.dtype).max) / 4
        found['large'] = numpy.clip(new * 100.0, -limit, limit)
        found['shifted'] = rng.uniform(10000, 10001, shape)
    return found


def array_like(array: Any, values: numpy.ndarray) -> Any:
    """Return values as an array with the dtype, the device and the semantics of another."""
    make = mx.nd.array if is_legacy(array) else np.array
    return make(values, dtype=array.dtype, ctx=array.ctx)
