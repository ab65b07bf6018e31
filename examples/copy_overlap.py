"""Copies to the host: after the computation, or during it.

    python examples/copy_overlap.py
    python examples/copy_overlap.py --devices gpu:0 --size 4000 --inner 4000 --times 50

Prints, with two CPU contexts on two cores (all times vary):

    2 cores; 50 results of 1000x1000 per device
    on [cpu(0)]
      copied afterwards: ~0.042 s + ~0.016 s = ~0.058 s
      copied meanwhile:  ~0.053 s, ~1.10 times as fast
      the same results: True
    on [cpu(0), cpu(1)]
      copied afterwards: ~0.050 s + ~0.024 s = ~0.075 s
      copied meanwhile:  ~0.071 s, ~1.04 times as fast
      the same results: True

On a GPU, copies to the host have their own thread, stream and bus, so one result is copied while the next is computed.
This can save as much time as the copies or the products take, whichever is less. (The text's GPU: 0.49 s + 2.45 s one
after the other, 0.74 s at the same time.)

With a CPU context, a result is already in the host's memory, and `asnumpy()` copies it once more on Python's thread.
This is fast, and overlaps with the products only if a core is free. So the example shows on CPU contexts that the
results are equal, but not how much a GPU would gain.
"""
from __future__ import annotations

import os

from flags import read_flags, run_example
from gluon_mgpu import Timer
from mxnet import np, npx


def run(Xs: list, Ws: list, times: int) -> list:
    """Dispatch the products on all devices in turn; does not block."""
    return [np.dot(X, W) for _ in range(times) for X, W in zip(Xs, Ws)]  # (n, k) (k, n) -> (n, n)


def copy_after(Xs: list, Ws: list, times: int) -> tuple[list, float, float]:
    """Return the results on the host, the seconds of computing and the seconds of copying."""
    timer = Timer()
    results = run(Xs, Ws, times)
    npx.waitall()
    computed = timer.stop()
    host = [Y.asnumpy() for Y in results]
    return host, computed, timer.stop() - computed


def copy_meanwhile(Xs: list, Ws: list, times: int) -> tuple[list, float]:
    """Return the results on the host, and the seconds of computing and copying together."""
    timer = Timer()
    host = [Y.asnumpy() for Y in run(Xs, Ws, times)]  # waits for one result while the next are computed
    return host, timer.stop()


def compare(Xs: list, Ws: list, times: int) -> tuple:
    """Return the seconds of computing, of copying afterwards and of both at once; and if the results are equal."""
    copied, computing, copying = copy_after(Xs, Ws, times)
    copied_meanwhile, together = copy_meanwhile(Xs, Ws, times)
    return computing, copying, together, all((a == b).all() for a, b in zip(copied, copied_meanwhile))


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', size=1000, inner=32, times=50)
    X = np.random.uniform(size=(args.size, args.inner))
    W = np.random.uniform(size=(args.inner, args.size))
    print(f'{os.cpu_count()} cores; {args.times} results of {args.size}x{args.size} per device')
    for k in sorted({1, len(args.devices)}):
        devices = args.devices[:k]
        Xs, Ws = ([array.copyto(device) for device in devices] for array in (X, W))
        compare(Xs, Ws, args.times)  # warm-up: allocates memory
        computing, copying, together, equal = compare(Xs, Ws, args.times)
        print(f'on {devices}')
        print(f'  copied afterwards: {computing:.3f} s + {copying:.3f} s = {computing + copying:.3f} s')
        print(f'  copied meanwhile:  {together:.3f} s, {(computing + copying) / together:.2f} times as fast')
        print(f'  the same results: {equal}')


if __name__ == '__main__':
    run_example(main)
