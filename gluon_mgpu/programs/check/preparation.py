"""Find out which arrays and which dtype a user's step takes."""
import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace

from ...mxnet_setup.compat import gluon, mx, nd_semantics, npx
from .contents import LAYERS, count_copies, find_all, has_layer
from .user_training import Training

OF_ND = 'legacy|numpy_extension|ndarray.NDArray'  # in MXNet's errors if code for mx.nd gets arrays of mx.np


def semantics_of_step(several: Training, batch: Sequence) -> contextlib.AbstractContextManager:
    """Return the context in which to run a step: with the arrays of ``mx.nd`` if it is written for them."""
    if npx.is_np_array() and (error := _error(several, batch)):  # otherwise the user has called npx.reset_np
        with nd_semantics():
            works = _error(several, batch) is None
        if works or re.search(OF_ND, str(error)):
            return nd_semantics()
    return contextlib.nullcontext()


def _error(several: Training, batch: Sequence) -> Exception | None:
    try:
        replace(several).step(batch)
    except Exception as error:
        return error
    return None


def prepare(several: Training, batch: Sequence) -> tuple[Training, list[str]]:
    """Find shapes and constants, choose float64 if a step can compute in it; also name dropout and batch norm."""
    found, layers, exact = _first_step(several, batch)
    several = replace(several, **found)
    numbers = count_copies(several.on_one_device().state) + count_copies(several.state)
    on_all = {key: n for key, n in dict(*numbers[:1]).items() if all(other[key] == n for other in numbers)}
    several = replace(several, copies=on_all)  # without the state, to free its memory
    if not exact:
        return several, layers
    try:
        in_float64 = replace(several, dtype='float64')
        in_float64.on_one_device().step(batch)  # first, because errors of several devices are not all raised at once
        in_float64.step(batch)
    except Exception:  # the step cannot compute in float64, or not at all
        return several, layers
    return replace(in_float64), layers


def _first_step(several: Training, batch: Sequence) -> tuple[dict, list[str], bool]:
    one, again = several.on_one_device(), several.on_one_device()
    values, others = ({id(value): value for _, value in find_all(training.state, (gluon.Parameter, mx.nd.NDArray))}
                      for training in (one, again))
    constants = {key: value for key, value in values.items() if key in others}
    if any(value.grad is not None for value in constants.values()):
        raise ValueError('make returns the same parameters at each call: create new ones in it')
    params = [*find_all(one.state, gluon.Parameter)]
    if any(param._deferred_init for _, param in params):
        one.step(batch)
    # Without those that `forward` does not use
    shapes = tuple((path, param.shape) for path, param in params if not param._deferred_init)
    layers = [', '.join(path or 'the network' for path, block in find_all(one.state, gluon.Block)
                        if has_layer(block, kind)) for kind in LAYERS]
    # A Trainer that has taken a step keeps its dtype; MXNet's gradients of two recurrent layers are wrong in float64
    exact = not any(getattr(value, '_kv_initialized', False) or getattr(value, '_num_layers', 1) > 1
                    for _, value in find_all(again.state, (gluon.Trainer, gluon.rnn.rnn_layer._RNNLayer)))
    return {'shapes': shapes, 'constants': constants}, layers, exact
