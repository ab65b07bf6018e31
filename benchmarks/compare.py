"""Comparison of this package, the book's code and PyTorch on the work of the chapters, on this machine's cores.

    python benchmarks/compare.py --quick                                   # about 20 minutes on 2 cores
    python benchmarks/compare.py --data-dir DIR --json compare.json --png compare.png
    python benchmarks/compare.py --work scratch --only ours torch-compile --rounds 7

Each contender runs alone, in its own process, in turn: A B C A B C. Run this on an otherwise idle machine. The
first run creates the environments of the other packages in .venv-compare; one that cannot be created is left out.
benchmarks/README.md describes what is measured.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package beside benchmarks/, installed or not

from harness import environments, process, results, rows
from harness.lineup import CONTENDERS, CORES, HOROVOD, OURS, WORKS

from gluon_mgpu.base.machine import processor

HERE = Path(__file__).resolve().parent


def main(argv: list | None = None) -> int:
    """Run the command line; return the exit status."""
    args = parse_arguments(argv)
    try:
        compare(args)
    except (ValueError, OSError) as error:
        print(f'compare: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('compare: interrupted', file=sys.stderr)
        return 130
    return 0


def parse_arguments(argv: list | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument('--quick', action='store_true', help='fewer rows, 4 epochs (the last 2 count), 2 rounds')
    parser.add_argument('--rounds', type=int, metavar='N', help='runs of each contender (default: 5)')
    parser.add_argument('--epochs', type=int, metavar='N', help='epochs per run (default: 3; the last 2 count)')
    parser.add_argument('--work', default=','.join(WORKS), metavar='LIST', help='(default: %(default)s)')
    parser.add_argument('--only', nargs='+', choices=CONTENDERS, metavar='NAME',
                        help=f'any of {", ".join(CONTENDERS)} (default: all; {HOROVOD} if installed)')
    parser.add_argument('--batch-size', type=int, metavar='ROWS', help='images in a batch (default: 256)')
    parser.add_argument('--data-dir', metavar='DIR', help='folder that contains fashion-mnist/ (default: use glyphs)')
    parser.add_argument('--env-dir', type=Path, default=HERE.parent / '.venv-compare', metavar='DIR',
                        help="folder for the peers' environments (default: .venv-compare in the repository)")
    parser.add_argument('--timeout', type=float, default=900, metavar='SECONDS',
                        help="limit of each run and of the measurement of the cores' peak speed (default: 900)")
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all numbers to this file')
    parser.add_argument('--png', type=Path, metavar='FILE', help='draw a bar chart')
    args = parser.parse_args(argv)
    args.rounds = (2 if args.quick else 5) if args.rounds is None else args.rounds
    # A short second epoch of torch.compile took 6.8 to 12.7 s in four rounds, scaled to all rows; later ones are steady
    args.uncounted = 2 if args.quick else 1
    args.epochs = args.uncounted + 2 if args.epochs is None else args.epochs
    args.work = args.work.split(',')
    args.only = args.only or [name for name in CONTENDERS if name != HOROVOD or importlib.util.find_spec('horovod')]
    unknown = [name for name in args.work if name not in WORKS]
    if unknown:
        parser.error(f'--work {",".join(unknown)}: choose from {", ".join(WORKS)}')
    for path in filter(None, (args.json, args.png)):
        if not path.absolute().parent.is_dir():
            parser.error(f'{path}: the folder {path.parent} does not exist')
    if args.rounds < 1 or args.epochs <= args.uncounted or (args.batch_size is not None and args.batch_size < 1):
        parser.error('--rounds and --batch-size must be at least 1, and --epochs at least '
                     f'{args.uncounted + 1}: the first {args.uncounted} are not counted')
    return args


def compare(args) -> None:
    """Run the whole comparison: environments, rounds, tables, files."""
    with tempfile.TemporaryDirectory(prefix='compare-data-') as folder:
        dataset, arrays = rows.load(args.data_dir, folder)
        pythons = find_pythons(args)
        machine = {'cpu': processor(), 'cores': CORES, 'platform': platform.platform(),
                   'versions': {name: environments.versions(python) for name, python in pythons.items()}}
        print(f'{machine["cpu"]}, {CORES} cores')
        for name, found in machine['versions'].items():
            print(f'{name}: ' + ', '.join(f'{package} {version}' for package, version in found.items()))
        works = []
        for name in args.work:
            num_rows = WORKS[name].quick_rows if args.quick else WORKS[name].rows
            works.append(measure(name, args, pythons, dataset, *rows.write(arrays, num_rows, folder)))
    if args.json:
        record = {'machine': machine, 'dataset': dataset, 'works': works}
        args.json.write_text(json.dumps(record, indent=2) + '\n')
    tables = {work['title']: work['summaries'] for work in works}
    if args.png and any(tables.values()):
        results.chart(tables, args.png, f'{machine["cpu"]}, {CORES} cores, {dataset}')


def measure(name: str, args, pythons: dict, dataset: str, data: Path, num_rows: int) -> dict:
    """Run the contenders of one work and print their table; return the entry for the JSON file."""
    work = WORKS[name]
    scaled = '' if num_rows == results.FULL_EPOCH else f'; s/epoch scaled to {results.FULL_EPOCH:,}'
    title = f'{work.title}, batch {args.batch_size or work.batch_size}, {num_rows:,} rows of {dataset}{scaled}'
    try:
        ceiling = process.ceiling(pythons[OURS], CORES, args.timeout)
    except process.ProgramError as error:
        log(f"{name}: the cores' peak speed was not measured: {error}")
        ceiling = {}
    runs_of = run_rounds(name, args, pythons, data)
    mflop = {contender: work.cropped_mflop if CONTENDERS[contender].crops else work.mflop for contender in runs_of}
    summaries = results.compare(runs_of, OURS, mflop, args.uncounted)
    print('\n' + results.table(title, summaries))
    if ceiling:
        print('peak GFLOP/s of the cores: ' + '; '.join(f'{what}: {rate:.0f}' for what, rate in ceiling.items()))
    print(flush=True)
    return {'work': name, 'title': title, 'rows': num_rows, 'summaries': summaries, 'ceiling_gflops': ceiling,
            'runs': runs_of}


def run_rounds(name: str, args, pythons: dict, data: Path) -> dict:
    """Run the contenders of one work in turn; return their runs by name. One that fails is reported and dropped."""
    work = WORKS[name]
    runs_of = {contender: [] for contender in args.only
               if name in CONTENDERS[contender].works and (CONTENDERS[contender].environment or OURS) in pythons}
    for number in range(args.rounds):
        for contender in list(runs_of):
            c = CONTENDERS[contender]
            job = {'name': contender, 'work': work.chapter, 'dtype': work.dtype, 'data': str(data), 'lr': work.lr,
                   'batch_size': args.batch_size or work.batch_size, 'epochs': args.epochs, 'cores': CORES,
                   'crop': c.crops and name == 'scratch', **c.options}
            try:
                run = process.run(pythons[c.environment or OURS], HERE / 'contenders' / c.program, job,
                                  args.timeout)
            except process.ProgramError as error:
                log(f'{name}: {contender} is left out: {error}')
                del runs_of[contender]
                continue
            runs_of[contender].append(run)
            log(f'{name}, round {number + 1} of {args.rounds}: {contender}, epochs of '
                f'{", ".join(f"{s:.2f}" for s in run["epoch_seconds"])} s')
    return runs_of


def find_pythons(args) -> dict:
    """Return the interpreters that the chosen contenders need; report missing environments."""
    wanted = {CONTENDERS[name].environment for name in args.only
              if any(work in CONTENDERS[name].works for work in args.work)}
    pythons = {OURS: Path(sys.executable)}
    for name in sorted(wanted - {None}):
        try:
            pythons[name] = environments.make(name, args.env_dir, log)
        except environments.MissingEnvironmentError as error:
            log(f'{name} is left out: {error}')
    return pythons


def log(line: str) -> None:
    """Print progress to stderr, apart from the tables on stdout."""
    print(line, file=sys.stderr, flush=True)


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raise an exception, which also ends the contender
    sys.exit(main())
