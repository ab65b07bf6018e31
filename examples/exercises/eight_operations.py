"""13.3, exercise 1: does MXNet run eight independent operations at the same time?

    python examples/exercises/eight_operations.py

Prints, on two CPU contexts (… are times):

    8 products of 1000x1000 matrices
                                     ms  at the same time
    one after another on cpu(0)       …                 1
    independent on cpu(0)             …                 1
    independent on both               …                 2

MXNet starts an operation as soon as its inputs are ready and its device is free. A CPU context has one thread for
computing, so independent operations on one context run one after another, just as dependent ones. On two contexts,
two run at the same time. The last column counts them in the profiler's trace, so it does not depend on how busy the
machine is.
"""
from __future__ import annotations

import tempfile
from itertools import accumulate
from pathlib import Path

from common import median_seconds, read_flags, run_example
from gluon_mgpu import check_profiler, record_timeline
from mxnet import np


def in_a_row(X) -> None:
    """Compute eight products, each with the result of the one before."""
    Y = X
    for _ in range(8):
        Y = np.dot(Y, X)


def independent(Xs: list) -> None:
    """Compute eight products that do not need each other, in turn on each device."""
    for i in range(8):
        np.dot(Xs[i % len(Xs)], Xs[i % len(Xs)])


def at_the_same_time(function) -> int:
    """Return the largest number of operations that ran at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        events = record_timeline(function, Path(folder) / 'trace.json')
    starts_and_ends = sorted([(e.start, 1) for e in events] + [(e.start + e.duration, -1) for e in events])
    return max(accumulate(change for _, change in starts_and_ends))


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, size=1000, rounds=9)
    check_profiler(args.devices[:2])
    Xs = [np.eye(args.size, ctx=device) for device in args.devices[:2]]
    functions = {f'one after another on {args.devices[0]}': lambda: in_a_row(Xs[0]),
                 f'independent on {args.devices[0]}': lambda: independent(Xs[:1]),
                 'independent on both': lambda: independent(Xs)}
    print(f'8 products of {args.size}x{args.size} matrices')
    print(f'{"ms":>34}  at the same time')
    seconds = median_seconds(*functions.values(), rounds=args.rounds)
    for (name, function), time in zip(functions.items(), seconds):
        print(f'{name:27}  {1e3 * time:5.0f}  {at_the_same_time(function):16}')


if __name__ == '__main__':
    run_example(main)
