"""Speed, system time and page faults of training without each of the allocator's settings.

    python benchmarks/allocator.py               # about 10 minutes on 2 idle cores
    python benchmarks/allocator.py --rounds 9

Trains on two CPU contexts: LeNet at batch 256, ResNet-18 at batch 64, hybridized, not hybridized and in bfloat16. Each
case runs in its own process; all settings, none, and all but one take turns. Prints the median time per step and its
range, the median system time and page faults per step, and the largest memory. Linux with glibc only; bfloat16 only on
CPUs that support it.
"""
import argparse
import functools
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time

CASES = ('lenet', 'resnet18', 'resnet18 not hybridized', 'resnet18 in bfloat16')
SETTINGS = ('mmap_max', 'trim_threshold', 'arena_max', 'top_pad')


def set_allocator(names: list) -> None:
    """Import gluon_mgpu with only these settings of the allocator."""
    spec = importlib.util.find_spec('gluon_mgpu')
    package = sys.modules['gluon_mgpu'] = importlib.util.module_from_spec(spec)
    from gluon_mgpu.mxnet_setup import runtime  # without the package's own code, which calls `prepare`
    runtime.ALLOCATOR = {name: runtime.ALLOCATOR[name] for name in names}
    spec.loader.exec_module(package)
    assert runtime.prepare().allocator


def measure(case: str) -> dict:
    """Measure milliseconds, system time in ms and page faults per step, and peak memory in MB, in this process."""
    from gluon_mgpu.benchmark import workloads
    from gluon_mgpu.mxnet_setup.compat import mx, np, npx
    if case.endswith('bfloat16'):
        workloads.resnet18 = functools.partial(workloads.resnet18, dtype='bfloat16')
    network = case.split()[0]
    job = workloads.NETWORKS[network]([mx.cpu(0), mx.cpu(1)])
    if case.endswith('not hybridized'):
        job.net = job.net.block
    rows, steps = (256, 100) if network == 'lenet' else (64, 10)
    X, y = np.random.uniform(size=(rows, 1, 28, 28)), np.zeros(rows)
    for step in range(steps + 3):
        if step == 3:  # warm-up done: memory is laid out
            npx.waitall()
            start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        job.train_batch(X, y)
        if step % 8 == 2:
            npx.waitall()
    npx.waitall()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return {'ms': 1000 * seconds / steps, 'system ms': 1000 * (after.ru_stime - before.ru_stime) / steps,
            'page faults': (after.ru_minflt - before.ru_minflt) / steps, 'MB': after.ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5, metavar='N', help='(default: %(default)s)')
    parser.add_argument('--case', nargs='+', help=argparse.SUPPRESS)  # for the processes that this program starts
    args = parser.parse_args()
    if args.case:
        case, *names = args.case
        set_allocator(names)
        print(json.dumps(measure(case)))
        return
    variants = {'all': SETTINGS, 'none': (),
                **{f'no {left_out}': [name for name in SETTINGS if name != left_out] for left_out in SETTINGS}}
    from gluon_mgpu.base.machine import processor_flags
    for case in CASES if 'avx512_bf16' in processor_flags() else CASES[:-1]:
        results = {variant: [] for variant in variants}
        for _ in range(args.rounds):
            for variant, names in variants.items():
                done = subprocess.run([sys.executable, __file__, '--case', case, *names], check=True, text=True,
                                      stdout=subprocess.PIPE)
                results[variant].append(json.loads(done.stdout.splitlines()[-1]))
        for variant, found in results.items():
            ms, system, faults, mb = (sorted(r[unit] for r in found) for unit in found[0])
            print(f'{case}, {variant}: {statistics.median(ms):.1f} ms per step ({ms[0]:.1f} to {ms[-1]:.1f}), '
                  f'system {statistics.median(system):.1f} ms, {statistics.median(faults):,.0f} page faults, '
                  f'{mb[-1]:,.0f} MB', flush=True)


if __name__ == '__main__':
    main()
