"""Accuracy of a network on a dataset, computed on one device or on several in parallel."""
from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy

from ..base.program import Stopped, clear_engine_errors
from ..base.text import counted
from ..data.batches import as_pair
from ..devices.lists import check_omp_threads
from ..mxnet_setup.compat import Context, np, npx
from ..parallel.split import split_batch
from ..parallel.workers import Workers

MAX_STARTED = 8  # batches queued on the devices at a time; more would take more memory


def count_correct(y_hat, y):
    """Return the number of correct rows as an array (); does not wait."""
    y_hat, y = y_hat.as_np_ndarray(), y.as_np_ndarray()
    if y_hat.ndim > 2 and 1 < y_hat.shape[1] == y_hat.shape[-1]:
        raise ValueError(f'scores {y_hat.shape}: the classes may be in axis 1 or in the last; return scores of two '
                         'dimensions, such as net(X).reshape(-1, num_classes)')
    if y_hat.shape[1:] == (1,) and y_hat.dtype.kind == 'f':
        raise ValueError(f'scores {y_hat.shape}: one score for each row is no class; pass a function of classes, such '
                         'as lambda X: (net(X) > 0).reshape(-1), or > 0.5 after a sigmoid')
    scores, has_classes = y_hat, y_hat.ndim > 1 and y_hat.shape[1] > 1
    if has_classes:
        y_hat = np.argmax(scores, axis=1)  # (n, num_classes) -> (n,)
    if y_hat.size != y.size:
        raise ValueError(f'{counted(y_hat.size, "prediction")} and {counted(y.size, "label")}: there must be one '
                         'label for each row')
    if y.shape != y_hat.shape:  # comparing (n,) with (n, 1) would give (n, n)
        y = y.reshape(y_hat.shape)
    dtype = numpy.result_type(y_hat.dtype, y.dtype, 'int64')  # int64 or float64, which have the values of both
    correct = y_hat.astype(dtype, copy=False) == y.astype(dtype, copy=False)
    if has_classes:
        correct = correct > np.isnan(scores.max(axis=1))  # not right if a score is NaN, which argmax ignores
    return correct.sum()


def accuracy(y_hat: np.ndarray, y: np.ndarray) -> float:
    """Return the number of correct predictions, not their share; waits for `y_hat`. Source: D2L 23.7, ``accuracy``.

    `y_hat` has the scores (n, num_classes, ...) or the predicted classes (n,), `y` the labels (n, ...) or (n, 1). A row
    with a score that is NaN is not right. Raises ValueError for several outputs, if `y` has another number of labels,
    if the last axis could be that of the classes, or for one score (n, 1) for each row.
    """
    return float(count_correct(y_hat, y))


def evaluate_accuracy_gpu(net: Callable, data_iter: Iterable, device: Context | None = None) -> float:
    """Return the accuracy, 0 to 1, computed on one device, by default the network's first; waits. Source: D2L 23.7."""
    return evaluate_accuracy_gpus(net, data_iter, devices=_devices_of(net)[:1] if device is None else [device])


def evaluate_accuracy_gpus(net: Callable, data_iter: Iterable, split_f: Callable = split_batch,
                           devices: list | None = None, workers: Workers | None = None) -> float:
    """Return the accuracy on a dataset, 0 to 1, computed on several devices in parallel; waits for them.

    Source: D2L 13.6.2, ``evaluate_accuracy_gpus``. The book waits for each batch; here up to `MAX_STARTED` batches
    are queued. Batches may have any number of rows; every row counts once. Raises ValueError if there are no rows, if
    `devices` is missing and the network has no initialized parameters, for an iterator of ``mx.io``, and as `accuracy`.

    Parameters
    ----------
    net : gluon.Block or callable
        Maps X (n, ...), or lists and tuples of arrays as in the batches, to scores (n, num_classes) on X's own device.
    split_f : callable
        (X, y, devices) -> (X_shards, y_shards).
    devices : list of mx.Context, optional
        By default those of the network.
    workers : Workers, optional
        Counts are summed over all; each passes its own shard. By default, this process alone.
    """
    devices, workers = check_omp_threads(_devices_of(net) if devices is None else devices), workers or Workers()
    npx.waitall()  # under ``hybridize(static_shape=True)``, backward passes write statistics without the engine

    started, correct, rows = [], 0.0, 0  # started: arrays () of numbers of correct rows
    for features, labels in map(as_pair, data_iter):
        X_shards, y_shards = split_f(features, labels, devices)
        # Run in parallel
        pred_shards = [net(X_shard) for X_shard, y_shard in zip(X_shards, y_shards) if len(y_shard)]
        started.append([*map(count_correct, pred_shards, filter(len, y_shards))])
        rows += labels.size
        if len(started) == MAX_STARTED:
            correct += _sum(started[:MAX_STARTED // 2])
            del started[:MAX_STARTED // 2]
        if workers.own_signals.received:
            break
    with workers.time_limit('an evaluation'):
        correct += _sum(started)
    counts = workers.allgather((correct, rows), 'an evaluation')
    if workers.signals.received:
        raise Stopped(workers.signals.received)
    correct, rows = map(sum, zip(*counts))
    if rows == 0:
        raise ValueError('the dataset holds 0 rows: accuracy needs at least one; pass an iterator that yields batches')
    return correct / rows


def _sum(started: list) -> float:
    """Wait for batches; return their number of correct rows."""
    # Read the last batch first. When it is ready, the others are as well, so Python waits only once
    try:
        return sum(float(n) for num_correct in reversed(started) for n in num_correct)
    except (RuntimeError, ValueError):  # of MXNet's engine
        clear_engine_errors()  # those of other devices, which the next wait would raise, as in another cell
        raise


def _devices_of(net) -> list:
    try:
        return next(iter(net.collect_params().values())).list_ctx()
    except (AttributeError, StopIteration, RuntimeError):
        raise ValueError(f'{type(net).__name__} has no initialized parameters, so its devices are unknown: pass '
                         'devices=[...]') from None
