"""Find out which arrays and which dtype a user's step takes."""
import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace

from ...mxnet_setup.compat import gluon, mx, nd_semantics
from .contents import LAYERS, count_copies, find_all, has_layer
from .user_training import Training

OF_ND = 'legacy|numpy_extension|ndarray.NDArray'  # in MXNet's errors if code for mx.nd gets arrays of mx.np


def fit(several: Training, batch: Sequence) -> tuple[Training, contextlib.AbstractContextManager]:
    """Find out which arrays a step takes: return the training, and the context in which to run it."""
    errors = []
    for semantics in (contextlib.nullcontext, nd_semantics):
        for training in (several, replace(several, widest='float64')):
            with semantics():
                errors.append(_error(training, batch))
            if errors[-1] is None:
                return training, semantics()
    return several, nd_semantics() if re.search(OF_ND, str(errors[0])) else contextlib.nullcontext()


def _error(several: Training, batch: Sequence) -> Exception | None:
    try:
        replace(several).step(batch)
    except Exception as error:
        return error
    return None


def prepare(several: Training, batch: Sequence) -> tuple[Training, list[str]]:
    """Find shapes and constants, choose float64 if a step can compute in it; also name dropout and batch norm."""
    several, layers, may_cast = _examine(several, batch)
    # The arrays without gradients that every device has
    numbers = count_copies(several.on_one_device().state) + count_copies(several.state)
    copies = {key: n for key, n in dict(*numbers[:1]).items() if all(other[key] == n for other in numbers)}
    several, in_float64 = (replace(several, copies=copies, dtype=dtype) for dtype in (None, 'float64'))
    # One device first, because errors of several are not all raised at once
    if may_cast and not _error(in_float64.on_one_device(), batch) and not _error(in_float64, batch):
        return in_float64, layers
    return several, layers


def _examine(several: Training, batch: Sequence) -> tuple[Training, list[str], bool]:
    """Return the training with its constants and with the shapes after a step on one device, names of layers, and
    whether float64 is possible."""
    one, again = several.on_one_device(), several.on_one_device()
    values, others = ({id(value): value for _, value in find_all(training.state, (gluon.Parameter, mx.nd.NDArray))}
                      for training in (one, again))
    constants = {key: value for key, value in values.items() if key in others}
    if any(value.grad is not None for value in constants.values()):
        raise ValueError('make returns the same parameters at each call: create new ones in it')
    params = [*find_all(one.state, gluon.Parameter)]
    if any(param._deferred_init for _, param in params):
        one.step(batch)
    shapes: dict = {}
    for path, param in params:
        if not param._deferred_init:  # as if `forward` does not use it
            shapes.setdefault(path, []).append(param.shape)
    layers = [', '.join(path or 'the network' for path, block in find_all(one.state, gluon.Block)
                        if has_layer(block, kind)) for kind in LAYERS]
    # A Trainer that has taken a step keeps its dtype; MXNet's gradients of two recurrent layers are wrong in float64
    may_cast = not any(getattr(value, '_kv_initialized', False) or getattr(value, '_num_layers', 1) > 1
                       for _, value in find_all(again.state, (gluon.Trainer, gluon.rnn.rnn_layer._RNNLayer)))
    return replace(several, shapes=shapes, constants=constants), layers, may_cast
