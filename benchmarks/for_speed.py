"""Speed of training without each of the things that are for speed only.

    python benchmarks/for_speed.py                          # about an hour on 2 idle cores; Linux only
    python benchmarks/for_speed.py --cases LeNet --only 'no crop' 'not hybridized' --rounds 9
    python benchmarks/for_speed.py --only 'scratch areas: 4' 'scratch areas: 512'

Trains as the chapters do on two CPU contexts, with full batches of generated images and a smaller last one. As it is,
and with each thing switched off, takes turns, each in its own process for two epochs. Prints medians over the rounds of
the second epoch: milliseconds per step and their range, system time and page faults per step; and the largest memory.
The last column is the median of the ratios in each round.
"""
from __future__ import annotations

import argparse
import functools
import importlib.util
import inspect
import json
import os
import re
import resource
import statistics
import subprocess
import sys
from unittest.mock import patch

CASES = {  # chapter, batch size, full batches in an epoch, rows of the last batch, precision
    'LeNet': ('scratch', 256, 60, 96, ''),
    'ResNet-18': ('concise', 64, 12, 24, 'float32'),
    'ResNet-18 in bfloat16': ('concise', 64, 20, 24, 'bfloat16'),
}


# --- things that can be switched off ---

def no_crop():
    """Run LeNet on whole images."""
    from gluon_mgpu import scratch
    source, changes = re.subn(r'\n *X = X\[:, :, :-2, :-2\].*', '', inspect.getsource(scratch.lenet))
    assert changes == 1
    exec(source, vars(scratch))


def one_operator_for_all_shapes():
    """Run ResNet-18 by the one operator that Gluon has, which is prepared again when shape or mode change."""
    from gluon_mgpu.networks.static_shapes import StaticSequential
    del StaticSequential._call_cached_op


def no_static_shapes():
    """Run ResNet-18 with memory that is allocated once, but operators that are prepared in each call."""
    from gluon_mgpu.networks.static_shapes import StaticSequential
    hybridize = StaticSequential.hybridize
    patch.object(StaticSequential, 'hybridize', lambda self, static_shape, **flags: hybridize(self, **flags)).start()


def no_copies_in_graphs():
    """Run functions without copies of their inputs and outputs, so that the engine prepares operators again."""
    from gluon_mgpu.networks import hybridized
    patch.object(hybridized, '_copy', lambda symbol: symbol).start()


def not_hybridized():
    """Run each operator of the networks and the loss on its own."""
    from gluon_mgpu.networks.hybridized import hybridized
    from gluon_mgpu.networks.static_shapes import StaticSequential
    patch.object(hybridized, '__call__', lambda self, *args: self.function(*args)).start()
    patch.object(StaticSequential, 'hybridize', lambda self, **flags: None).start()


def losses_read_at_once():
    """Wait for the losses of each batch before the next one is queued."""
    from gluon_mgpu.training import epoch
    record = epoch._CurrentEpoch.record_losses

    def record_and_read(self, ls):
        record(self, ls)
        self._read()

    patch.object(epoch._CurrentEpoch, 'record_losses', record_and_read).start()


def arrays_outside_the_heap():
    """Import gluon_mgpu without its setting of the allocator."""
    spec = importlib.util.find_spec('gluon_mgpu')
    package = sys.modules['gluon_mgpu'] = importlib.util.module_from_spec(spec)
    from gluon_mgpu.mxnet_setup import runtime  # without the package's own code, which calls `prepare`
    runtime._keep_arrays_in_heap = lambda: None
    spec.loader.exec_module(package)


def scratch_areas(number):
    """Let the engine's ring have this many scratch areas."""
    os.environ['MXNET_CPU_TEMP_COPY'] = str(number)


VARIANTS = {
    'as it is': lambda: None, 'no crop': no_crop, 'one operator for all shapes': one_operator_for_all_shapes,
    'no static shapes': no_static_shapes, 'no copies in graphs': no_copies_in_graphs, 'not hybridized': not_hybridized,
    'losses read at once': losses_read_at_once,
    'arrays outside the heap': arrays_outside_the_heap,
    **{f'scratch areas: {number}': functools.partial(scratch_areas, number) for number in (4, 16, 512)},
}
ONLY_FOR = {  # bfloat16 needs a hybridized network
    'no crop': ('LeNet',), 'not hybridized': ('LeNet', 'ResNet-18'),
    **dict.fromkeys(('one operator for all shapes', 'no static shapes'), ('ResNet-18', 'ResNet-18 in bfloat16')),
}


# --- measurement ---

def measure(case: str, variant: str, batches: int | None) -> dict:
    """Train in this process; return ms, system time in ms and page faults per step of the second epoch, and peak MB."""
    VARIANTS[variant]()
    import numpy
    from harness.training import hybridized_resnet18

    from gluon_mgpu import concise, scratch
    from gluon_mgpu.data.batches import BatchIterator
    from gluon_mgpu.mxnet_setup.compat import mx
    from gluon_mgpu.training.run import Callback, Run

    class Usage(Callback):
        """Callback that records the resources used at the begin and end of training in the last epoch."""

        def epoch_begin(self, run):
            self.before = resource.getrusage(resource.RUSAGE_SELF)

        def epoch_trained(self, run):
            self.after, self.steps = resource.getrusage(resource.RUSAGE_SELF), run.state()['num_batches']

    chapter, rows, full, rows_of_last, dtype = CASES[case]
    num_rows = rows * (batches or full) + rows_of_last
    rng = numpy.random.default_rng(0)
    data = [BatchIterator(rng.integers(0, 256, (n, 28, 28), dtype='uint8'), rng.integers(0, 10, n), rows, 'noise')
            for n in (num_rows, rows)]
    usage = Usage()
    run = Run(2, quiet=True, callbacks=[usage])
    train = {'scratch': scratch.train, 'concise': concise.train}[chapter]
    network = {'net': hybridized_resnet18(dtype)} if dtype else {}
    train(2, rows, 0.01, devices=[mx.cpu(0), mx.cpu(1)], data=data, run=run, **network)
    before, after = usage.before, usage.after
    return {'ms': 1000 * run.history[1].seconds / usage.steps,
            'system ms': 1000 * (after.ru_stime - before.ru_stime) / usage.steps,
            'page faults': (after.ru_minflt - before.ru_minflt) / usage.steps, 'MB': after.ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument('--cases', nargs='+', choices=CASES, default=list(CASES), metavar='CASE', help=', '.join(CASES))
    parser.add_argument('--only', nargs='+', choices=VARIANTS, default=list(VARIANTS), metavar='THING',
                        help=f'besides "as it is": {", ".join([*VARIANTS][1:])}')
    parser.add_argument('--rounds', type=int, default=5, metavar='N', help='(default: %(default)s)')
    parser.add_argument('--batches', type=int, metavar='N', help='full batches in an epoch')
    parser.add_argument('--child', nargs=2, help=argparse.SUPPRESS)  # for the processes that this program starts
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(*args.child, args.batches)))
        return
    for case in args.cases:
        names = ['as it is', *(name for name in args.only if name != 'as it is' and case in ONLY_FOR.get(name, CASES))]
        results = {name: [] for name in names}
        for number in range(args.rounds):
            for name in names[::-1 if number % 2 else 1]:
                command = [sys.executable, __file__, '--child', case, name]
                command += ['--batches', str(args.batches)] if args.batches else []
                done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
                results[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(f'{case}: round {number + 1} of {args.rounds} done', file=sys.stderr)
        print_table(case, results)


def print_table(case: str, results: dict) -> None:
    """Print the results of a case as a Markdown table; `results` has those of each round by name."""
    print(f'| {case} | ms per step | from-to | system ms | page faults | MB | times as long |\n{"|---" * 7}|')
    for name, found in results.items():
        ms, system, faults, mb = ([r[unit] for r in found] for unit in found[0])
        ratio = statistics.median(a / r['ms'] for a, r in zip(ms, results['as it is']))
        print(f'| {name} | {statistics.median(ms):.1f} | {min(ms):.1f}-{max(ms):.1f} | {statistics.median(system):.1f} '
              f'| {statistics.median(faults):,.0f} | {max(mb):,.0f} | {ratio:.3f} |', flush=True)


if __name__ == '__main__':
    main()
