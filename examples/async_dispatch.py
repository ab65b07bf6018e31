"""Asynchronous execution: a call returns before its work is done.

    python examples/async_dispatch.py
    python examples/async_dispatch.py --devices gpu:all --size 4000

Prints, on two CPU contexts with a core each (all times vary; the ratio at the end is about the number of devices, or
the number of cores if that is smaller):

    50 products of a 1000x1000 matrix with itself, on cpu(0)
      dispatched after ~0.001 s, done after ~0.8 s
    the same on each of [cpu(0), cpu(1)]
      wait for each device:            ~1.6 s
      start on all, wait for all once: ~0.8 s, ~1.9 times as fast
      the sum of all results is the same: True

Python queues each product in MXNet's engine and continues. The engine has a thread for each device, so several devices
work at the same time, unless the program waits in between. `npx.waitall()` waits, and so does everything that needs a
value, such as `print(Y)`, `Y.asnumpy()` or `float(Y.sum())`.
"""
from __future__ import annotations

from flags import read_flags, run_example
from gluon_mgpu import Timer
from mxnet import np, npx


def run(X, times: int) -> list:
    """Dispatch `times` products of X with itself; does not block."""
    return [np.dot(X, X) for _ in range(times)]  # (n, n) each


def dispatch_and_completion(X, times: int) -> tuple[float, float]:
    """Return the seconds until all products are dispatched, and until they are done."""
    timer = Timer()
    run(X, times)
    dispatched = timer.stop()
    npx.waitall()
    return dispatched, timer.stop()


def total(results) -> float:
    """Return the sum of all entries of all results."""
    return sum(float(Y.sum()) for Y in results)


def wait_for_each(Xs: list, times: int) -> tuple[float, float]:
    """Return the seconds for all devices, waiting for each one before the next starts, and the sum of the results."""
    timer, results = Timer(), []
    for X in Xs:
        results += run(X, times)
        npx.waitall()
    return timer.stop(), total(results)


def wait_once(Xs: list, times: int) -> tuple[float, float]:
    """Return the same, starting all devices before waiting for any."""
    timer, results = Timer(), []
    for X in Xs:
        results += run(X, times)
    npx.waitall()
    return timer.stop(), total(results)


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', size=1000, times=50)
    X = np.random.randint(0, 2, size=(args.size, args.size)).astype('float32')
    Xs = [X.copyto(device) for device in args.devices]
    wait_once(Xs, args.times)  # warm-up: allocates memory and starts libraries

    print(f'{args.times} products of a {args.size}x{args.size} matrix with itself, on {args.devices[0]}')
    dispatched, done = dispatch_and_completion(Xs[0], args.times)
    print(f'  dispatched after {dispatched:.3f} s, done after {done:.2f} s')
    print(f'the same on each of {args.devices}')
    each, sum_each = wait_for_each(Xs, args.times)
    print(f'  wait for each device:            {each:.2f} s')
    once, sum_once = wait_once(Xs, args.times)
    print(f'  start on all, wait for all once: {once:.2f} s, {each / once:.1f} times as fast')
    print(f'  the sum of all results is the same: {sum_each == sum_once}')


if __name__ == '__main__':
    run_example(main)
