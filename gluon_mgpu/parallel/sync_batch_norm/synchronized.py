"""Synchronized batch norm: mean and variance over the rows of all devices, so that k devices equal one."""
from __future__ import annotations

import threading
import weakref
from operator import is_
from typing import Any, NamedTuple

from ...base.nested import leaves, refill
from ...mxnet_setup.compat import autograd, gluon, layers_of, mx, np
from ...networks.tracing import UNKNOWN, is_legacy
from ..workers import Workers
from .cut import Backward, Piece, as_input, cut
from .norm import Norm

_networks: weakref.WeakSet[SyncBatchNorm] = weakref.WeakSet()  # that have been trained, in any thread
_lock = threading.Lock()  # for iteration over them


class SyncBatchNorm:
    """A network whose batch norm layers use the rows of all devices in training; the network itself does not change.

        synchronized = SyncBatchNorm(net)
        with autograd.record():
            ls = [loss(y_hat, y_shard) for y_hat, y_shard in zip(synchronized.forward(X_shards), y_shards)]
        synchronized.backward(ls)  # not autograd.backward: each loss depends on the rows of all devices
        scores = net(X)            # after training; uses the running statistics

    The network is cut at its batch norms. All devices compute a piece, then the statistics of its output are combined,
    then all compute the next piece. Running statistics are updated in the backward pass, as by ``gluon.nn.BatchNorm``
    on one device. They are the same on all devices, including those without rows.

    Parameters
    ----------
    net : gluon.HybridBlock
        Initialized on all devices, possibly of ``mx.nd``. Its `forward` is traced, as by ``net.hybridize()``, and must
        be pure as for `hybridized`. It is traced again if the nesting of the arguments, layers, dtypes or frozen
        parameters change. After changes of other attributes, call ``net.hybridize(active=False)``, or they have no
        effect. Only its ``gluon.nn.BatchNorm`` layers may combine rows.
    workers : Workers, optional
        The processes that train together; by default, this one alone. All must call `forward` and `backward` equally
        often, a worker without rows with ``net.forward([])``, one list for each input, and ``net.backward([])``.
    """

    def __init__(self, net: Any, workers: Workers | None = None):
        net = net.block if isinstance(net, SyncBatchNorm) else net  # a cell of a notebook may run twice
        if not isinstance(net, gluon.HybridBlock):
            raise ValueError(f'{type(net).__name__} is no gluon.HybridBlock, so it cannot be cut at its batch norms: '
                             'make it one, or train without synchronized batch norm')
        self.block: gluon.HybridBlock = net
        self._workers = workers or Workers()
        self._parts: list[Piece | Norm] = []
        self._inputs: list[str] = []                # names of the network's inputs
        self._results: list[str] = []               # and of its outputs
        self._result_lists: Any = None              # and the lists that they are in
        self._cut_for: tuple = ()                   # number of inputs, frozen parameters and dtypes, mode
        self._input_lists: Any = None               # the lists that the inputs are in
        self._layers: list = []                     # the network's, and Gluon's list of its last `hybridize`
        self._pending: _ForwardPass | None = None   # waits for its backward pass
        self._outdated: list = []                   # outputs of a forward pass before that one

    def initialize(self, *args, **settings):
        """Initialize the network inside."""
        self.block.initialize(*args, **settings)

    def collect_params(self, *args):
        """Return the parameters of the network inside."""
        return self.block.collect_params(*args)

    def __call__(self, *args):
        if autograd.is_training():
            raise ValueError('SyncBatchNorm needs the rows of all devices to train: call net.forward(X_shards), or '
                             'pass train_batch=train_batch_synchronized to concise.train')
        return self.block(*args)

    def forward(self, X_shards: list, *more_shards: list) -> list:
        """Return the output for each shard of a batch, while autograd records; does not block after the first call.

        `X_shards` has one array (n_i, ...) with at least one row per device, for some or all devices of the network, or
        a list or tuple of such arrays; `more_shards` are those of its other inputs, or None instead of an input. With
        several workers, the lists may be empty. Raises ValueError outside training mode, without shards, for two on one
        device, if ``autograd.backward`` was called instead of `backward` for the previous batch, or if the network
        cannot be traced or has another batch norm than ``gluon.nn.BatchNorm``.
        """
        inputs = [shards if isinstance(shards, (list, tuple)) else [shards] * len(X_shards)
                  for shards in (X_shards, *more_shards)]
        self._check_shards(inputs)
        self._outdated, self._pending = self._pending.y_hats() if self._pending else [], None
        _check_not_reached(self._outdated, 'autograd.backward(ls) ends at the outputs of SyncBatchNorm: call '
                                           'net.backward(ls)')
        # 1. Cut the network; a worker without rows does not know the shapes of its inputs
        params = {param.var().name: param for param in self.collect_params().values()}
        unknown = (UNKNOWN, *(None if shards is None else UNKNOWN for shards in more_shards))
        self._cut(next(zip(*inputs), unknown), [(param.grad_req == 'null', param.dtype) for param in params.values()])
        # 2. The names of the arrays that need gradients, and on each device the arrays by name. The parts read from
        # `arrays_on` and add their results; `inputs_on` stays, for `backward`
        args_on = [leaves(args) for args in zip(*inputs)]
        trained = {name for name, param in params.items() if param.grad_req != 'null'}
        recorded = {name for args in args_on for name, X in zip(self._inputs, args) if _is_recorded(X)}
        if recorded:
            self._check_all_exchange(trained)
            trained |= recorded
        inputs_on = [{**{name: param.data(args[0].ctx).as_np_ndarray() for name, param in params.items()},
                      **{name: X.as_np_ndarray() for name, X in zip(self._inputs, args)}} for args in args_on]
        arrays_on = [inputs.copy() for inputs in inputs_on]
        # 3. All devices compute a part before the next; each part adds its results to `arrays_on` and `trained`
        backwards = [part.run(arrays_on, trained) for part in self._parts]
        # 4. The outputs, at which the graph of the losses begins, so that `backward` gets their gradients first
        legacy = bool(args_on) and is_legacy(args_on[0][0])
        y_hats_on = [{name: as_input(arrays[name].as_nd_ndarray() if legacy else arrays[name])
                      for name in self._results} for arrays in arrays_on]
        if autograd.is_recording():
            self._pending = _ForwardPass(inputs_on, backwards, y_hats_on)
            with _lock:
                _networks.add(self)
        return [refill(self._result_lists, map(y_hats.get, self._results)) for y_hats in y_hats_on]

    def _check_shards(self, inputs: list) -> None:
        if not autograd.is_training() or (not inputs[0] and self._workers.size == 1):
            raise ValueError('SyncBatchNorm.forward trains on at least one shard: call it within autograd.record(); '
                             'without training, call net(X)')
        devices_of = [{getattr(X, 'ctx', None) for X in leaves(args)} for args in zip(*inputs)]
        lists = {structure(args) for args in zip(*inputs)}
        same_number = {len(shards) for shards in inputs} == {len(devices_of)}
        one_device_each = all(len(devices) == 1 for devices in devices_of)
        all_differ = len(set().union(*devices_of)) == len(devices_of)
        if not (same_number and one_device_each and all_differ) or len(lists) > 1 or None in lists:
            raise ValueError(f'X_shards are on {[sorted(map(str, devices)) for devices in devices_of]}: pass one array '
                             'per device, and those of other inputs in other lists, on the same devices')
        if not all(len(X) for X in leaves(inputs)):
            raise ValueError('a shard has no rows: leave it out, as d2l.split_batch does')

    def _cut(self, args: tuple, params: list[tuple]) -> None:
        """Cut the network, unless it was cut for such arguments, parameters and layers."""
        cut_for, lists = (len(args), params, autograd.is_recording()), structure(args)  # the lists are None for UNKNOWN
        layers = [self.block._flags, *layers_of(self.block)]  # `hybridize` replaces the list of flags
        is_current = len(layers) == len(self._layers) and all(map(is_, layers, self._layers))
        if cut_for != self._cut_for or lists not in (None, self._input_lists) or not is_current:
            parts, self._inputs, self._results, self._result_lists = cut(self.block, args)
            self._parts = [part if isinstance(part, Piece) else Norm(part, self._workers) for part in parts]
            self._cut_for, self._input_lists, self._layers = cut_for, lists, layers

    def backward(self, ls: list, head_grads: list | None = None) -> None:
        """Do the same as ``autograd.backward`` for losses that were computed from the outputs; does not block.

        Raises ValueError if `forward` was not called before, or if the losses also depend on an earlier `forward` or
        another `SyncBatchNorm`. Two of them in a row, such as ``G`` and ``D``, meet at copies:

            images = G.forward(Z_shards)
            copies = [image.detach() for image in images]
            for copy in copies:
                copy.attach_grad()
            ls = [loss(y_hat) for y_hat in D.forward(copies)]
            ...
            D.backward(ls)
            G.backward(images, [copy.grad for copy in copies])
        """
        if not self._pending:
            raise ValueError('SyncBatchNorm.backward has no forward pass: call net.forward(X_shards) for each backward')
        forward, self._pending = self._pending, None  # first, for a new try after Ctrl-C
        y_hats = forward.y_hats()
        ls, head_grads = list(ls), list(head_grads or [None] * len(ls))
        with autograd.pause(train_mode=True):
            # 1. The gradients of the outputs. The losses need not depend on all of them
            others = [y_hat for y_hat in y_hats if not any(y_hat is l for l in ls)]
            zeros = [np.zeros_like(y_hat.as_np_ndarray()) for y_hat in others]
            of_outputs = iter(y_hats and autograd.grad(ls + others, y_hats, head_grads + zeros, retain_graph=True))
            # 2. Those of the parameters and of the inputs, through the network
            gradients_on = [{name: next(of_outputs).as_np_ndarray() for name in y_hats} for y_hats in forward.y_hats_on]
            for backward in reversed(forward.backwards):
                backward(gradients_on)
            # 3. Pass them on to what is in front of X, and write all gradients. It must be one pass, because the losses
            # may also use X, what is in front of it, and parameters in other ways, such as in a penalty
            for inputs, gradients in zip(forward.inputs_on, gradients_on):
                for name in self._inputs:
                    if not _is_recorded(inputs[name]):  # unlike that of another device
                        gradients.pop(name, None)
                names = [name for name in gradients if name in inputs]  # not the output, if all layers are frozen
                ls += [inputs[name] for name in names]
                head_grads += [gradients[name] for name in names]
            if ls:
                autograd.backward(ls, head_grads)
        _check_not_reached(self._outdated, 'the losses depend on two forward passes of SyncBatchNorm, but '
                                           'net.backward(ls) only works for the last one: call it after each forward')
        with _lock:
            others = [net for net in _networks if net is not self]
        for other in others:
            if (pending := other._pending) and any(y_hat._fresh_grad for y_hat in pending.y_hats()):
                other._pending = None
                raise ValueError('the losses also depend on another SyncBatchNorm, which gets no gradients: see '
                                 'help(SyncBatchNorm.backward)')

    def _check_all_exchange(self, trained: set[str]) -> None:
        """Raise ValueError if X is recorded and a worker without rows would not know which norms need gradients."""
        norms = [part.layer for part in self._parts if isinstance(part, Norm)]
        if self._workers.size > 1 and any(trained.isdisjoint((layer.gamma, layer.beta)) for layer in norms):
            raise ValueError('with several workers, SyncBatchNorm does not pass gradients on to X through a batch norm '
                             'without trained scale or shift: use X.detach(), or train them')


class _ForwardPass(NamedTuple):
    inputs_on: list[dict]       # on each device, the inputs and the parameters by name
    backwards: list[Backward]   # of each part
    y_hats_on: list[dict]       # on each device, the outputs by name

    def y_hats(self) -> list:
        return [y_hat for y_hats in self.y_hats_on for y_hat in y_hats.values()]


def _check_not_reached(y_hats: list, message: str) -> None:
    """Raise ValueError if autograd has written gradients of these outputs, which `backward` would not pass on."""
    if any(y_hat._fresh_grad for y_hat in y_hats):
        y_hats.clear()
        raise ValueError(message)


def structure(values: Any) -> tuple | type | None:
    """Return the types of nested lists and of the arrays and None in them; None if there is anything else."""
    if isinstance(values, (list, tuple)):
        found = type(values), *map(structure, values)
        return None if None in found else found
    return type(values) if values is None or isinstance(values, mx.nd.NDArray) else None


def _is_recorded(array: Any) -> bool:
    """Return whether an array has a gradient attached, or was computed while autograd recorded."""
    try:
        autograd.get_symbol(array)
    except mx.base.MXNetError:
        return False
    return True
