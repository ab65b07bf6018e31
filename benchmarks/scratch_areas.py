"""Speed and memory of both networks for several sizes of the engine's ring of scratch areas.

    python benchmarks/scratch_areas.py                         # 4, 16, 53 and 512 areas, about 6 minutes on 2 cores
    python benchmarks/scratch_areas.py --sizes 53 127 --rounds 5

Runs LeNet at batch 256 and ResNet-18 at batch 64, hybridized and not, on two CPU contexts. Each case runs in its
own process, and the sizes take turns. Prints medians over the rounds: milliseconds per step and peak memory. Linux
only.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

CASES = ('lenet', 'resnet18', 'resnet18, not hybridized')


def measure(case: str) -> dict:
    """Measure milliseconds per step and peak memory in MB in this process."""
    from gluon_mgpu.benchmark.workloads import NETWORKS
    from gluon_mgpu.mxnet_setup.compat import mx, np, npx
    devices = [mx.cpu(0), mx.cpu(1)]
    job = NETWORKS[case.split(',')[0]](devices)
    if case.endswith('not hybridized'):
        job.net = job.net.block
    rows, steps = (256, 80) if case == 'lenet' else (64, 8)
    X, y = np.random.uniform(size=(rows, 1, 28, 28)), np.zeros(rows)
    for step in range(steps + 3):
        if step == 3:  # warm-up done: memory is laid out
            npx.waitall()
            start = time.perf_counter()
        job.train_batch(X, y)
        if step % 8 == 2:
            npx.waitall()
    npx.waitall()
    seconds = (time.perf_counter() - start) / steps
    with open('/proc/self/status') as file:
        status = dict(line.split(':', 1) for line in file)
    return {'ms': 1000 * seconds, 'MB': int(status['VmHWM'].split()[0]) / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--sizes', type=int, nargs='+', default=[4, 16, 53, 512], metavar='N',
                        help='areas in the ring')
    parser.add_argument('--rounds', type=int, default=3, metavar='N', help='(default: %(default)s)')
    parser.add_argument('--case', choices=CASES, help=argparse.SUPPRESS)  # for the processes that this program starts
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.case)))
        return
    for case in CASES:
        results = {size: [] for size in args.sizes}
        for _ in range(args.rounds):
            for size in args.sizes:
                done = subprocess.run([sys.executable, __file__, '--case', case], check=True, text=True,
                                      stdout=subprocess.PIPE, env={**os.environ, 'MXNET_CPU_TEMP_COPY': str(size)})
                results[size].append(json.loads(done.stdout.splitlines()[-1]))
        for size, found in results.items():
            ms, mb = (statistics.median(r[unit] for r in found) for unit in ('ms', 'MB'))
            print(f'{case}, {size} areas: {ms:.1f} ms per step, {mb:,.0f} MB', flush=True)


if __name__ == '__main__':
    main()
