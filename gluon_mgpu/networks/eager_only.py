"""Errors for what a graph would leave out silently: ``autograd.Function``, and other modes of autograd in a network."""
from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ..mxnet_setup.compat import MXNET_MAJOR, autograd

_LOCK = threading.RLock()  # because `tracing` changes classes of MXNet


class EagerOnlyError(NotImplementedError):
    """A network does what its graph would leave out."""


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Trace in the block, in the present mode of autograd.

    MXNet traces the `forward` of an ``autograd.Function`` like other code, with the gradient of its operators, and
    ignores ``autograd.pause`` and other modes. In the block, both raise `EagerOnlyError` in this thread.
    """
    thread, mode = threading.get_ident(), (autograd.is_recording(), autograd.is_training())

    def call_or_refuse(self: Any, *args: Any) -> Any:
        if mode[0] and threading.get_ident() == thread:
            raise EagerOnlyError(f'{type(self).__name__} is an autograd.Function')
        return call(self, *args)

    def enter_or_refuse(self: Any) -> None:
        wanted = self._enter_is_record, self._enter_train_mode  # None: as it is
        changes = any(new not in (None, old) for new, old in zip(wanted, mode))
        # MXNet itself pauses, for example when parameters get their shapes
        by_mxnet = sys._getframe(1).f_globals.get('__name__', '').startswith('mxnet.')
        if changes and not by_mxnet and threading.get_ident() == thread:
            raise EagerOnlyError('it uses autograd.pause or another mode of autograd')
        enter(self)

    # MXNet 2 calls the network with arrays, which it would record
    paused = autograd.pause(train_mode=mode[1]) if MXNET_MAJOR >= 2 else contextlib.nullcontext()
    with _LOCK, paused:
        call, enter = autograd.Function.__call__, autograd._RecordingStateScope.__enter__
        autograd.Function.__call__, autograd._RecordingStateScope.__enter__ = call_or_refuse, enter_or_refuse
        try:
            yield
        finally:
            autograd.Function.__call__, autograd._RecordingStateScope.__enter__ = call, enter
