"""13.6, exercise 3: training without `waitall`, and with a limited number of steps in flight.

    python examples/exercises/steps_in_flight.py --out steps-in-flight.png    # one picture for each line; Linux only

Prints, on two CPU contexts (… are times):

    LeNet, 60 steps of 256 rows
    steps in flight  loop ends after  done after  more memory
                  0               … s         … s        ~0 MB
                  1               … s         … s        ~0 MB
                  2               … s         … s        ~0 MB
          unlimited               … s         … s       ~52 MB
    the parameters are the same: True

Without waiting, the loop ends long before the work is done, so a timer that stops there measures Python. All batches
are in memory at once. With 0 steps in flight, each step ends before the next begins, and the devices idle while Python
loads and splits the next batch. One or two steps in flight can hide this, with the memory of one or two more batches.
"""
from __future__ import annotations

import hashlib
import multiprocessing
import tempfile
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

from common import available, part_of, read_flags, run_example
from gluon_mgpu import Timer, check_profiler, draw_timeline, parse_devices, record_timeline
from gluon_mgpu.scratch import get_params, init_params, train_batch
from mxnet import npx

LIMITS = (0, 1, 2, -1)  # -1: unlimited


def memory(field: str) -> float:
    """Return a field of this process's memory in MB: VmRSS is the current use, VmHWM the maximum."""
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def train(devices: list, device_params: list, batches, limit: int) -> None:
    """Train with at most `limit` steps in flight beside the current one; unlimited if it is negative."""
    in_flight: deque = deque()
    for X, y in batches:
        train_batch(X, y, device_params, devices, 0.1)
        in_flight.append([params[-1].copy() for params in device_params])  # ready when the step has ended
        if len(in_flight) > limit >= 0:
            for copy in in_flight.popleft():
                copy.wait_to_read()


def name_of(limit: int) -> str:
    """Return a limit of steps in flight as text."""
    return str(limit) if limit >= 0 else 'unlimited'


def picture(out: str, limit: int) -> Path:
    """Return the path of the picture for a limit."""
    path = Path(out)
    return path.with_name(f'{path.stem}-{name_of(limit)}{path.suffix or ".png"}')


def measure(devices: str, limit: int, args: dict) -> tuple:
    """Return the seconds until the loop ended and until all was done, the memory added in MB, and a digest of the
    parameters; draw a few steps.
    """
    devices = parse_devices(devices)
    npx.random.seed(0)
    params = init_params()
    device_params = [get_params(params, device) for device in devices]
    train_iter, _ = part_of(args['dataset'], args['batch_size'], args['steps'] * args['batch_size'], 1)
    train(devices, device_params, islice(train_iter, 5), 0)
    before, timer = memory('VmRSS'), Timer()
    train(devices, device_params, train_iter, limit)
    ended = timer.stop()
    npx.waitall()
    done, more = timer.stop(), memory('VmHWM') - before
    digest = hashlib.sha256(b''.join(param.asnumpy().tobytes() for param in device_params[0])).hexdigest()
    if args['out']:
        path = picture(args['out'], limit)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            events = record_timeline(lambda: train(devices, device_params, islice(train_iter, 6), limit),
                                     f'{folder}/trace.json')
        draw_timeline(events, path, f'6 steps; in flight: {name_of(limit)}')
    return ended, done, more, digest


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', batch_size=256, steps=60, dataset='auto', out='')
    args.dataset = available(args.dataset)
    if args.out:
        check_profiler(args.devices)
    devices = ','.join(f'{device.device_type}:{device.device_id}' for device in args.devices)
    flags = {name: getattr(args, name) for name in ('batch_size', 'steps', 'dataset', 'out')}
    print(f'LeNet, {args.steps} {"step" if args.steps == 1 else "steps"} of {args.batch_size} rows')
    print('steps in flight  loop ends after  done after  more memory')
    digests = set()
    for limit in LIMITS:
        # Separate processes, because a process keeps its memory
        with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as process:
            ended, done, more, digest = process.submit(measure, devices, limit, flags).result()
        digests.add(digest)
        print(f'{name_of(limit):>15}  {ended:13.2f} s  {done:8.2f} s  {more:8.0f} MB', flush=True)
    print(f'the parameters are the same: {len(digests) == 1}')
    if args.out:
        print('pictures:', *(picture(args.out, limit) for limit in LIMITS))


if __name__ == '__main__':
    run_example(main)
