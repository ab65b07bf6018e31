"""Accuracy of a network on a dataset, on one device or on all of them at the same time."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..devices.lists import check_omp_threads
from ..distributed.workers import Workers
from ..mxnet_setup.compat import Context, np
from ..parallel.split import split_batch

MOST_STARTED = 8  # batches on the devices or waiting for them, with the memory of their rows


def _num_correct(y_hat, y):
    """The number of rows whose largest entry is at the label, as an array (): does not wait."""
    if y_hat.ndim > 1 and y_hat.shape[1] > 1:
        y_hat = np.argmax(y_hat, axis=1)  # (n, num_classes) -> (n,)
    if y_hat.size != y.size:
        raise ValueError(f'{y_hat.size} predictions and {y.size} labels: there must be one label for each row')
    # Both to (n,): (n,) == (n, 1) would compare each with each
    return (y_hat.reshape(-1).astype(y.dtype) == y.reshape(-1)).astype('float32').sum()


def accuracy(y_hat: np.ndarray, y: np.ndarray) -> float:
    """The number of correct predictions.

    Source: D2L 23.7, ``accuracy`` (a number of rows, not a share).

    Parameters
    ----------
    y_hat : np.ndarray, (n, num_classes) or (n,)
        Scores of each class, or the predicted classes themselves.
    y : np.ndarray, (n,) or (n, 1)
        The labels.

    Returns
    -------
    float
        How many of the n rows are right. Waits for `y_hat`.

    Raises
    ------
    ValueError
        If there are not as many labels as rows.
    """
    return float(_num_correct(y_hat, y))


def evaluate_accuracy_gpu(net: Callable, data_iter: Iterable, device: Context | None = None) -> float:
    """The share of right predictions over a dataset, computed on one device.

    Source: D2L 23.7, ``evaluate_accuracy_gpu``.

    Parameters
    ----------
    net : gluon.Block or callable
        Maps X (n, ...) to scores (n, num_classes) on X's own device.
    data_iter : iterable of (X, y)
        The batches.
    device : mx.Context, optional
        Where to compute; by default the first device of the network's first parameter.

    Returns
    -------
    float
        Between 0 and 1. Waits for the devices.
    """
    devices = _devices_of(net)[:1] if device is None else [device]
    return evaluate_accuracy_gpus(net, data_iter, devices=devices)


def evaluate_accuracy_gpus(net: Callable, data_iter: Iterable, split_f: Callable = split_batch,
                           devices: list | None = None, workers: Workers | None = None) -> float:
    """The share of right predictions over a dataset, computed on several devices at the same time.

    Source: D2L 13.6.2, ``evaluate_accuracy_gpus``. The book waits for each batch; here up to
    `MOST_STARTED` are started before the first is waited for. A batch may have any number of rows.

    Parameters
    ----------
    net : gluon.Block or callable
        Maps X (n, ...) to scores (n, num_classes) on X's own device.
    data_iter : iterable of (X, y)
        The batches; every row of every batch counts once.
    split_f : callable
        (X, y, devices) -> (X_shards, y_shards).
    devices : list of mx.Context, optional
        By default the devices on which the network's parameters are.
    workers : Workers, optional
        Count right rows and rows over all of them; each brings its own part of the batches.

    Returns
    -------
    float
        Between 0 and 1. Waits for the devices.

    Raises
    ------
    ValueError
        If there are no rows, if `net` has no parameters to ask for devices and none are given, and for several
        CPU contexts that would hang (`check_omp_threads`).
    """
    if devices is None:
        devices = _devices_of(net)
    devices = check_omp_threads(devices)

    def counts() -> Iterator[tuple[float, int]]:
        started: list = []
        for features, labels in data_iter:
            X_shards, y_shards = split_f(features, labels, devices)
            # Run in parallel
            pred_shards = [net(X_shard) for X_shard in X_shards]
            num_correct = [_num_correct(pred_shard, y_shard) for pred_shard, y_shard in zip(pred_shards, y_shards)]
            started.append((num_correct, labels.size))
            if len(started) == MOST_STARTED:
                yield _read(started[:MOST_STARTED // 2])
                del started[:MOST_STARTED // 2]
        yield _read(started)

    correct, rows = (workers or Workers()).allreduce_counts(counts())
    if rows == 0:
        raise ValueError('the dataset holds 0 rows: accuracy needs at least one; '
                         'pass an iterator that yields batches')
    return correct / rows


def _read(started: list) -> tuple[float, int]:
    """Wait for batches, and return how many of their rows are right, and how many rows there are."""
    # The last batch first: then Python waits, and wakes up between busy cores, once
    correct = [float(n) for num_correct, _ in started[::-1] for n in num_correct]
    return sum(correct), sum(size for _, size in started)


def _devices_of(net) -> list:
    """The devices on which the parameters of a Gluon block are."""
    try:
        return next(iter(net.collect_params().values())).list_ctx()
    except (AttributeError, StopIteration):
        what = 'has no parameters'
    except RuntimeError:
        what = 'is not initialized'
    raise ValueError(f'{type(net).__name__} {what}, and so is on no devices: pass devices=[...]')
