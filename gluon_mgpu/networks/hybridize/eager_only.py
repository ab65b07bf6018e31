"""Detect what the graph of a network would leave out, so that such a network runs as it is."""
from __future__ import annotations

import contextlib
import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from ...mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, layers_of, mx

_LOCK = threading.RLock()  # because `refuse_modes` changes classes of MXNet
# Attributes of blocks that MXNet changes by itself, for example at the first call
_OF_MXNET = {'_active', '_cached_graph', '_cached_op', '_cached_op_args', '_called_infer_shape_already', '_counter',
             '_flags', '_in_format', '_init_counter', '_out_format', 'skip_states'}


class EagerOnlyError(NotImplementedError):
    """A network does what its graph would leave out."""


@contextlib.contextmanager
def refuse_modes() -> Iterator[None]:
    """Raise `EagerOnlyError` in the block for an ``autograd.Function`` and for other modes of autograd."""
    # MXNet itself ignores modes, and traces the `forward` of a Function with the gradient of its operators
    thread, library = threading.get_ident(), mx.base._LIB
    modes = {'MXAutogradSetIsRecording': autograd.is_recording(), 'MXAutogradSetIsTraining': autograd.is_training()}

    def call_or_refuse(self: Any, *args: Any) -> Any:
        if threading.get_ident() == thread:
            raise EagerOnlyError(f'{type(self).__name__} is an autograd.Function')
        return call(self, *args)

    def set_or_refuse(name: str) -> Callable:
        def set_mode(new: Any, old: Any) -> int:
            if threading.get_ident() == thread and bool(new.value) != modes[name] and not _called_by_mxnet():
                raise EagerOnlyError('it uses autograd.pause or another mode of autograd')
            return setters[name](new, old)
        return set_mode

    # MXNet 2 calls the network with arrays, which it would record
    paused = autograd.pause(train_mode=autograd.is_training()) if MXNET_MAJOR >= 2 else contextlib.nullcontext()
    with _LOCK, paused:
        setters = {name: getattr(library, name) for name in modes}
        call = autograd.Function.__call__
        autograd.Function.__call__ = call_or_refuse
        for name in modes:
            setattr(library, name, set_or_refuse(name))
        try:
            yield
        finally:
            autograd.Function.__call__ = call
            for name, setter in setters.items():
                setattr(library, name, setter)


def _called_by_mxnet() -> bool:
    """Return whether MXNet itself changes the mode, for example while parameters get their shapes."""
    frame = sys._getframe(2)
    while frame.f_globals.get('__name__') == 'mxnet.autograd' and frame.f_back:
        frame = frame.f_back
    return frame.f_globals.get('__name__', '').startswith('mxnet.')


class SideEffectError(EagerOnlyError):
    """A call of a network changes more than its graph would."""


@contextlib.contextmanager
def refuse_side_effects(network: Callable) -> Iterator[None]:
    """Raise `SideEffectError` if calling a network in the block has effects that its graph would not; undo them."""
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers_of(network)):
        raise EagerOnlyError('it has forward hooks')
    before, of_python, of_numpy = Snapshot(network), random.getstate(), numpy.random.get_state()
    try:
        yield
    finally:  # also if the call cannot be traced to its end
        changed = not before.is_current()
        if changed:
            before.restore()
        drawn = random.getstate() != of_python or repr(numpy.random.get_state()) != repr(of_numpy)
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)
    if changed:
        raise SideEffectError('a call changes its attributes, or variables of its module')
    if drawn:
        raise SideEffectError('it draws random numbers of Python or NumPy')


class Snapshot:
    """The variables that the code of a network may read besides its arguments, as they are now.

    These are the attributes of all layers and the items of their lists and dicts, such as children and hooks; for code
    outside of MXNet also the global and nonlocal variables that it names. Changes within other objects go unnoticed.
    """

    def __init__(self, network: Callable):
        layers = layers_of(network)
        attributes = [vars(layer) for layer in layers]
        items = [value for of_layer in attributes for value in of_layer.values() if isinstance(value, (dict, list))]
        self._copies: list[tuple[Any, Any]] = [(container, container.copy()) for container in attributes + items]
        self._variables = [(*place, _value(*place)) for function in _functions(network, layers)
                           for place in _places(function)]
        self.params = list({id(param): param for layer in layers for param in layer._reg_params.values()}.values())

    def is_current(self) -> bool:
        """Return whether all variables still have the same values."""
        try:
            return (all(now == before or _differ_by_mxnet(now, before) for now, before in self._copies)
                    and all(_value(scope, name) is value for scope, name, value in self._variables))
        except ValueError:  # from comparing two arrays
            return False

    def restore(self) -> None:
        """Set all variables to their values in the snapshot."""
        for container, copy in self._copies:
            container.clear()
            container.update(copy) if isinstance(container, dict) else container.extend(copy)
        for scope, name, value in self._variables:
            if name:
                scope[name] = value
            elif _value(scope, name) is not value:
                scope.cell_contents = value


def _differ_by_mxnet(now: Any, before: Any) -> bool:
    return isinstance(now, dict) and _OF_MXNET.issuperset(
        name for name in {**now, **before} if now.get(name) is not before.get(name))


def _functions(network: Callable, layers: list) -> set[Callable]:
    """Return the methods of layers that are not MXNet's own, and the network if it is a function."""
    kinds = {kind for layer in layers for kind in type(layer).__mro__ if not kind.__module__.startswith('mxnet.')}
    methods = {inspect.unwrap(method) for kind in kinds for method in vars(kind).values() if inspect.isfunction(method)}
    return methods | {network} if inspect.isfunction(network) else methods


def _places(function: Any) -> Iterator[tuple]:
    """Yield where the global and nonlocal variables of a function are: (dict of globals, name) or (cell, None)."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
        yield from ((function.__globals__, name) for name in code.co_names if name in function.__globals__)
    yield from ((cell, None) for cell in function.__closure__ or ())


def _value(scope: Any, name: str | None) -> Any:
    try:
        return scope.get(name) if name else scope.cell_contents
    except ValueError:  # an empty cell
        return None


def keeps_gradients(block: gluon.Block) -> bool:
    """Return whether a layer writes gradients where they were in its first backward pass, by MXNet's static shapes."""
    return any(getattr(layer, '_active', False) and dict(layer._flags).get('static_shape')
               for layer in layers_of(block))
