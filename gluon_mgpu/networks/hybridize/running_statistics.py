"""Batch norm's running statistics in graphs with static memory, which write them without telling MXNet's engine.

The engine knows what such an operator reads and returns, but not that its backward pass (with cuDNN, its forward pass
in training) writes the statistics. So a read before or after it could see either values. Therefore each such pass runs
between operators that write the same numbers again: the engine runs earlier reads before it, and later ones after it.

A recorded call that never gets its backward pass leaves later ones without static memory: slower, but right.
"""
import contextlib
import functools
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...mxnet_setup.compat import Context, autograd, gluon, mx, zeros


class _Call(NamedTuple):
    """A recorded call with static memory."""

    statistic: Any  # the array that its backward pass writes
    marker: Any     # an argument of the call, whose gradient shows that there was a backward pass

    def is_pending(self) -> bool:
        return not self.marker._fresh_grad


_LOCK = threading.Lock()
# The last ones, by parameter and device
_CALLS: weakref.WeakKeyDictionary[gluon.Parameter, dict[Context, _Call]] = weakref.WeakKeyDictionary()


def marker_of_call(params: Sequence[gluon.Parameter], device: Context) -> Any:
    """Return one more argument for a recorded call with static memory, or None if it has to run without."""
    # That is if a call with the same statistics waits for its backward pass: two of these could run in either order,
    # since for the engine they only read the statistics
    _declare_in_backward_passes()
    with _LOCK:
        if any(device in calls and calls[device].is_pending() for calls in map(_CALLS.get, params) if calls):
            return None
        marker = zeros((1,), 'float32', device)
        marker.attach_grad()
        for param in params:
            _CALLS.setdefault(param, {})[device] = _Call(param.data(device), marker)
    return marker


@contextlib.contextmanager
def declared(arrays: Sequence[Any]) -> Iterator[None]:
    """Tell the engine that what the block starts writes these arrays."""
    _write_again(arrays)
    yield
    _write_again(arrays)


def _write_again(arrays: Sequence[Any]) -> None:
    groups: dict[tuple, list] = {}
    for array in arrays:
        groups.setdefault((array.ctx, array.dtype), []).append(array.as_nd_ndarray())
    with autograd.pause():
        for group in groups.values():
            mx.nd.amp_multicast(*group, num_outputs=len(group), out=group)  # to the dtype that all have


@functools.lru_cache
def _declare_in_backward_passes() -> None:
    """Declare what backward passes write, in the one function of MXNet's library that starts them."""
    library = mx.base._LIB
    run = library.MXAutogradBackwardEx

    def run_declared(*args: Any) -> int:
        retain_graph = args[5].value  # after num_output, output_handles, ograd_handles, num_variables, var_handles
        with _LOCK:
            pending = [call for calls in [*_CALLS.values()] for call in calls.values() if call.is_pending()]
        with declared([call.statistic for call in pending]):
            status = run(*args)
        if retain_graph:  # there may be another backward pass
            for call in pending:
                call.marker._fresh_grad = False
        return status

    library.MXAutogradBackwardEx = run_declared
