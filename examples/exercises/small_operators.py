"""13.3, exercise 2: small operators at the same time on one processor: which gain, and which do not.

    python examples/exercises/small_operators.py

Prints, with two cores, in microseconds per operator (… are times):

    y = tanh(x), x of    one core  both cores in each  two operators at a time
                   16           …                   …                        …
                 1024           …                   …                        …
                16384           …                   …                        …
               262144           …                   …                        …

A processor can compute a large operator on all cores at once. A small one may take less time than dividing it. Two
operators at a time, one on each core, need no division. But Python dispatches one after another, so very small ones
cannot gain: a core computes them faster than Python dispatches them.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys

from common import median_seconds, read_flags, run_example
from mxnet import np, npx

SIZES = (16, 1024, 16384, 262144)


def measure(devices: list, size: int, times: int, rounds: int) -> float:
    """Return the median microseconds of an operator, one after another on each device."""
    Xs = [np.ones(size, ctx=device) for device in devices]

    def run():
        for i in range(times):
            npx.activation(Xs[i % len(Xs)], act_type='tanh')
    return 1e6 * median_seconds(run, rounds=rounds)[0] / times


def with_both_cores(args) -> list[float]:
    """Return the microseconds of each size on one device with two OpenMP threads, measured in another process."""
    flags = ['--both-cores', '--devices', f'cpu:{args.devices[0].device_id}',
             '--times', str(args.times), '--rounds', str(args.rounds)]
    done = subprocess.run([sys.executable, __file__, *flags], check=True, stdout=subprocess.PIPE,
                          env={**os.environ, 'OMP_NUM_THREADS': '2'})
    return json.loads(done.stdout)


def main(argv: list | None = None) -> None:
    at_least = 1 if '--both-cores' in sys.argv else 2  # `with_both_cores` passes this flag
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=at_least, times=400, rounds=5, both_cores=False)
    if any(device.device_type != 'cpu' for device in args.devices):
        args.refuse(f'--devices: {args.devices} must be CPU contexts, because operators on both cores are compared')
    if not args.both_cores:
        print('y = tanh(x), x of    one core  both cores in each  two operators at a time')
    one = [measure(args.devices[:1], size, args.times, args.rounds) for size in SIZES]
    if args.both_cores:  # the process that `with_both_cores` starts
        print(one)
        return
    for size, time, both in zip(SIZES, one, with_both_cores(args)):
        two = measure(args.devices[:2], size, args.times, args.rounds)
        print(f'{size:17}  {time:10.1f}  {both:18.1f}  {two:23.1f}')


if __name__ == '__main__':
    run_example(main)
