"""13.3, exercise 5: a diamond of dependencies: correct on two devices, and faster.

    python examples/exercises/diamond.py

Prints, on two CPU contexts (… are times):

    5 diamonds with branches of 4 products of 500x500
    on cpu(0):              … ms
    on [cpu(0), cpu(1)]:    … ms,    … times as fast
    the same result on both, to the last bit: True
    NumPy differs by ~4e-06 of the largest entry

            A             each diamond begins with the result of the one before
          /   \\
    left on    right on   at the same time, if on two devices
    device 0   device 1
          \\   /
            A + left - right

The program names no order. MXNet's engine knows what each operation reads and writes, and starts it when its inputs are
ready: the branches at the same time, the sum after both. The copy to the second device is such an operation as well.
"""
from __future__ import annotations

from functools import partial

import numpy
from common import median_seconds, read_flags, run_example
from mxnet import np, npx


def branch(A, W, times: int):
    """Multiply `times` times by W, on its device."""
    for _ in range(times):
        A = np.dot(A, W)
    return A


def diamonds(A, W_left, W_right, num: int, times: int):
    """Return the result of `num` diamonds; does not block."""
    for _ in range(num):
        left = branch(A, W_left, times)
        right = branch(A.as_in_ctx(W_right.ctx), W_right, times)
        A = np.tanh(A + left - right.as_in_ctx(A.ctx))
    return A


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, size=500, num=5, times=4, rounds=9)
    npx.random.seed(0)
    first, second = devices = args.devices[:2]
    A, W_left, W_right = (np.random.normal(scale=args.size**-0.5, size=(args.size, args.size), ctx=first)
                          for _ in range(3))
    on_one, on_two = (partial(diamonds, A, W_left, W, args.num, args.times) for W in (W_right, W_right.copyto(second)))
    print(f'{args.num} diamonds with branches of {args.times} products of {args.size}x{args.size}')
    one, two = median_seconds(on_one, on_two, rounds=args.rounds)
    print(f'on {first}:            {1e3 * one:.0f} ms')
    print(f'on {devices}:  {1e3 * two:.0f} ms, {one / two:.1f} times as fast')
    print(f'the same result on both, to the last bit: {(on_one().asnumpy() == on_two().asnumpy()).all()}')
    expected = A.asnumpy().astype('float64')
    for _ in range(args.num):
        left, right = (expected @ numpy.linalg.matrix_power(W.asnumpy().astype('float64'), args.times)
                       for W in (W_left, W_right))
        expected = numpy.tanh(expected + left - right)
    difference = abs(on_two().asnumpy() - expected).max() / abs(expected).max()
    print(f'NumPy differs by {difference:.0e} of the largest entry')


if __name__ == '__main__':
    run_example(main)
