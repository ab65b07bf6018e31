"""Detect what the graph of a network would leave out, so that such a network runs as it is."""
from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from ...mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, layers_of, mx
from .snapshot import Snapshot

_LOCK = threading.RLock()  # because `refuse_modes` changes classes of MXNet


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
            return library_calls[name](new, old)
        return set_mode

    def is_recording(answer: Any) -> int:
        status = library_calls['MXAutogradIsRecording'](answer)
        if threading.get_ident() == thread and not _called_by_mxnet():
            answer._obj.value = modes['MXAutogradSetIsRecording']
        return status

    # MXNet 2 calls the network with arrays, which it would record; only the code of the network sees its mode
    paused = autograd.pause(train_mode=autograd.is_training()) if MXNET_MAJOR >= 2 else contextlib.nullcontext()
    with _LOCK, paused:
        replaced = {'MXAutogradIsRecording': is_recording, **{name: set_or_refuse(name) for name in modes}}
        library_calls, call = {name: getattr(library, name) for name in replaced}, autograd.Function.__call__
        autograd.Function.__call__ = call_or_refuse
        vars(library).update(replaced)
        try:
            yield
        finally:
            autograd.Function.__call__ = call
            vars(library).update(library_calls)


@contextlib.contextmanager
def _refuse_questions() -> Iterator[None]:
    """Raise an error in the block if code reads the values of an array, or attributes that symbols do not have."""
    thread, library = threading.get_ident(), mx.base._LIB

    def copy_or_refuse(*args: Any) -> int:
        if threading.get_ident() == thread:
            raise EagerOnlyError('it reads the values of an array')
        return copy_to_host(*args)

    def raise_error(self: Any, name: str) -> None:
        is_asked = threading.get_ident() == thread and not name.startswith('_') and not _called_by_mxnet()
        kind = NotImplementedError if is_asked else AttributeError  # which hasattr would catch
        raise kind(f'{type(self).__name__!r} object has no attribute {name!r}')

    with _LOCK:
        copy_to_host = library.MXNDArraySyncCopyToCPU
        known = vars(mx.sym.Symbol).get('__getattr__')  # in a trace within another
        library.MXNDArraySyncCopyToCPU, mx.sym.Symbol.__getattr__ = copy_or_refuse, raise_error
        try:
            yield
        finally:
            library.MXNDArraySyncCopyToCPU = copy_to_host
            if known:
                mx.sym.Symbol.__getattr__ = known
            else:
                del mx.sym.Symbol.__getattr__


def _called_by_mxnet() -> bool:
    """Return whether MXNet itself changes the mode or asks, for example while parameters get their shapes."""
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
        with _refuse_questions():
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


def keeps_gradients(block: gluon.Block) -> bool:
    """Return whether a layer writes gradients where they were in its first backward pass, by MXNet's static shapes."""
    return any(getattr(layer, '_active', False) and dict(layer._flags).get('static_shape')
               for layer in layers_of(block))
