"""Errors for what a graph would leave out silently: ``autograd.Function``, and other modes of autograd in a network.

MXNet ignores both while a network is traced. Here they raise `EagerOnlyError` then, and work as before otherwise.
"""
from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from ..mxnet_setup.compat import MXNET_MAJOR, autograd


class EagerOnlyError(NotImplementedError):
    """A network does what its graph would leave out."""


class _Traced(threading.local):
    """The mode, (recording, training), of the graph that this thread is tracing; None if it is not."""

    mode: tuple[bool, bool] | None = None


_TRACED = _Traced()
_call_function, _enter_mode = autograd.Function.__call__, autograd._RecordingStateScope.__enter__


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Trace in the block, in the present mode of autograd."""
    before, mode = _TRACED.mode, (autograd.is_recording(), autograd.is_training())
    try:
        # MXNet 2 calls the network with arrays, which it would record
        with autograd.pause(train_mode=mode[1]) if MXNET_MAJOR >= 2 else contextlib.nullcontext():
            _TRACED.mode = mode
            yield
    finally:
        _TRACED.mode = before


def _call_unless_traced(self, *args):
    if _TRACED.mode and _TRACED.mode[0]:  # the graph would have the gradient of the operators in `forward`
        raise EagerOnlyError(f'{type(self).__name__} is an autograd.Function')
    return _call_function(self, *args)


def _enter_unless_traced(self):
    if _TRACED.mode:
        wanted = self._enter_is_record, self._enter_train_mode  # None: as it is
        changes = any(new not in (None, old) for new, old in zip(wanted, _TRACED.mode))
        # MXNet itself pauses, for example when parameters get their shapes
        if changes and not sys._getframe(1).f_globals.get('__name__', '').startswith('mxnet.'):
            raise EagerOnlyError('it uses autograd.pause or another mode of autograd')
    return _enter_mode(self)


autograd.Function.__call__ = _call_unless_traced
autograd._RecordingStateScope.__enter__ = _enter_unless_traced
