"""13.2, exercise 1: when Python's dispatch hides behind the computation.

    python examples/exercises/dispatch_cost.py
    python examples/exercises/dispatch_cost.py --devices gpu:0 --large 10000    # busy until all are dispatched

Prints, on a CPU context (… are times), per product of an m x m matrix with itself, in microseconds:

       m  t1: dispatch  t2: compute  waiting for each  asynchronously  max(t1, t2)
       1             …            …                 …               …            …
      16             …            …                 …               …            …
      64             …            …                 …               …            …
     128             …            …                 …               …            …
     256             …            …                 …               …            …

Python needs t1 to dispatch an operation, the device t2 to compute it, and Python t3 to learn that it is done. A program
that waits for each of n operations takes n (t1 + t2 + t3). Asynchronously, the time is max(t1 + n t2, n t1 + t2) + t3:
with t2 >= t1, the device is never idle, and otherwise it waits for Python. (The book's condition, n t2 > (n - 1) t1, is
almost t2 >= t1 if n is large.)
"""
from __future__ import annotations

from statistics import median

from common import median_seconds, read_flags, run_example
from gluon_mgpu import Timer
from mxnet import np, npx

SIZES = (1, 16, 64, 128, 256)


def pure_times(X, large, times: int) -> tuple[float, float]:
    """Return the seconds to dispatch all products, and to compute them once all are dispatched."""
    busy, timer = np.dot(large, large), Timer()  # keeps the device busy until all products are dispatched
    for _ in range(times):
        np.dot(X, X)
    dispatch = timer.stop()
    busy.wait_to_read()
    timer.start()
    npx.waitall()
    return dispatch, timer.stop()


def wait_for_each(X, times: int) -> None:
    """Compute the products one at a time."""
    for _ in range(times):
        np.dot(X, X).wait_to_read()


def wait_once(X, times: int) -> None:
    """Dispatch all products."""
    for _ in range(times):
        np.dot(X, X)


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0', times=1000, rounds=5, large=2000)
    device, times = args.devices[0], args.times
    large = np.ones((args.large, args.large), ctx=device)
    print('   m  t1: dispatch  t2: compute  waiting for each  asynchronously  max(t1, t2)')
    for m in SIZES:
        X = np.ones((m, m), ctx=device)
        measured = [pure_times(X, large, times) for _ in range(1 + args.rounds)]
        t1, t2 = map(median, zip(*measured[1:]))  # the first is a warm-up
        each, once = median_seconds(lambda X=X: wait_for_each(X, times), lambda X=X: wait_once(X, times),
                                    rounds=args.rounds)
        us = [f'{1e6 * seconds / times:.0f}' for seconds in (t1, t2, each, once, max(t1, t2))]
        print(f'{m:4}  {us[0]:>12}  {us[1]:>11}  {us[2]:>16}  {us[3]:>14}  {us[4]:>11}')


if __name__ == '__main__':
    run_example(main)
