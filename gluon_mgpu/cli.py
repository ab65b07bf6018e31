"""Command line of both chapters: flags, checks, the run's folder, training, export."""
from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .base.machine import versions
from .base.program import Parser, Stopped, exit_status, number, show, text
from .checkpoints.callback import CheckpointCallback
from .checkpoints.resume import Earlier, check_same_run, differences, earlier_run, record
from .checkpoints.run_folder import check_free, hold, new_folder, this_process
from .data import DATASETS, load_data
from .devices import check_devices, devices_from, parse_devices
from .devices.gpus import num_mxnet_gpus, why_no_gpus
from .devices.lists import MOST_DEVICES
from .distributed.launchers import place
from .distributed.workers import Workers
from .mxnet_setup.runtime import settings
from .onnx_model import file as onnx_file
from .plot import AccuracyCurve
from .timeline.record import Timeline, check_profiler
from .training.run import Callback, Run, check_num_epochs
from .training.signals import StopSignals


@dataclass
class Chapter:
    """A chapter as a program.

    `own_flags` are argparse's settings for the chapter's own flags. `train` and `check` get their values by name;
    `check` raises ValueError if they do not fit the devices. `lenet` is the network if `train` trains bare arrays.
    """

    name: str
    network: str
    train: Callable
    batch_size: int
    lr: float
    own_flags: dict[str, dict] = field(default_factory=dict)
    check: Callable | None = None
    lenet: Callable | None = None

    def own(self, args: argparse.Namespace) -> dict:
        """Return the values of the chapter's own flags that are given."""
        names = [flag.strip('-').replace('-', '_') for flag in self.own_flags]
        return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def run(chapter: Chapter, argv: list | None = None) -> int:
    """Run a chapter as a program; return the exit status, see `base.program.exit_status`."""
    argv = sys.argv[1:] if argv is None else argv
    return exit_status(chapter.name, lambda: _run(chapter, _parser(chapter), argv))


def _run(chapter: Chapter, parser: argparse.ArgumentParser, argv: list) -> None:
    args, signals = parser.parse_args(argv), StopSignals()
    with _workers(args, chapter, signals) as workers, contextlib.ExitStack() as lock:
        def log(line: str) -> None:
            if workers.rank == 0 and not args.quiet:
                show(line)

        workers.check_equal({'chapter': chapter.name, **vars(args)})  # first: flags decide what is gathered below
        args, earlier = workers.on_rank_0(lambda: _find_run(chapter, parser, args, argv))
        devices, data = workers.on_all_ranks(lambda: _devices_and_data(chapter, args, workers, log))
        config = _configuration(chapter, args, workers, devices, data)
        heading = f'{chapter.network} on {config["dataset"]}, {", ".join(config["devices"])}'
        size = f', {workers.size} workers' if workers.size > 1 else ''
        log(f'{heading}{size}: {config["train_size"]} training and {data[1].num_rows} test images, batches of '
            f'{args.batch_size}, learning rate {args.lr:g}')
        out_dir, checkpoint = workers.on_rank_0(lambda: _open_folder(args, earlier, config, lock, log))
        net = _train(chapter, args, config, out_dir, checkpoint, heading, workers, signals, devices, data)
        if args.export:
            workers.on_rank_0(lambda: _export(net, args.export, chapter.lenet, out_dir, log))


def _workers(args, chapter: Chapter, signals) -> contextlib.AbstractContextManager[Workers]:
    if args.horovod:
        if args.num_gpus is not None or args.devices is not None or getattr(args, 'allreduce', None):
            raise ValueError('--horovod: each worker has one device, and Horovod sums the gradients; leave out '
                             '--num-gpus, --devices and --allreduce, and start one worker per device')
        from .distributed.horovod_workers import HorovodWorkers
        return HorovodWorkers(args.fp16_allreduce, signals, chapter.name)
    if args.fp16_allreduce:
        raise ValueError('--fp16-allreduce: works only with --horovod')
    found = place()
    if found and found.launcher == 'horovodrun' and found.size > 1:
        raise ValueError(f'horovodrun has started {found.size} workers, and each would train alone: add --horovod')
    return contextlib.nullcontext(Workers(signals))


def _find_run(chapter: Chapter, parser, args, argv: list) -> tuple[argparse.Namespace, Earlier | None]:
    """Return the flags and the run to resume, if any. Writes nothing, but refuses paths that cannot be written."""
    earlier = earlier_run(args.resume, args.out_dir) if args.resume else None
    if earlier:
        args = _resumed_flags(chapter, parser, args, argv, earlier)
    else:
        check_free(args.out_dir)
    if args.export:
        onnx_file.check_path(args.export, args.out_dir)
    return args, earlier


def _resumed_flags(chapter: Chapter, parser, args, argv: list, earlier: Earlier) -> argparse.Namespace:
    """Return the flags of this command; flags that were left out have the values of the run."""
    before = earlier.config
    if before['chapter'] != chapter.name:
        raise ValueError(f'{earlier.folder} is a run of {before["chapter"]}: resume it with python -m '
                         f'gluon_mgpu.{before["chapter"]}')
    kept = {name: before.get(name) for name in vars(args) if name not in ('num_gpus', 'horovod', 'fp16_allreduce')}
    kept['out_dir'] = earlier.folder
    if args.num_gpus is not None or args.devices is not None or args.horovod:
        del kept['devices']
    elif isinstance(kept['devices'], list):  # each name once: workers may have devices of the same name
        kept['devices'] = ','.join(dict.fromkeys(map(str, kept['devices']))).replace('(', ':').replace(')', '')
    # Parsed again, because someone may have edited the file
    args = parser.parse_args([*(f'--{name.replace("_", "-")}' + ('' if value is True else f'={value}')
                                for name, value in kept.items() if value is not None and value is not False), *argv])
    check_same_run(before, {name: value for name, value in vars(args).items() if value not in (None, 'auto')})
    if earlier.checkpoint:
        check_num_epochs(args.num_epochs, earlier.position['run'])
    return args


def _devices_and_data(chapter: Chapter, args, workers: Any, log) -> tuple[list, tuple]:
    if args.horovod:
        devices = check_devices([workers.device])
    elif args.devices is not None:
        devices = parse_devices(args.devices)
    else:
        num_gpus = num_mxnet_gpus()
        if not num_gpus:
            log(f'{why_no_gpus()}: training on CPU contexts')
        devices = devices_from(args.num_gpus or min(num_gpus, 2) or 2)
    if args.timeline:
        check_profiler(devices)
    if chapter.check:
        chapter.check(devices=devices, **chapter.own(args))
    return devices, load_data(args.dataset, args.batch_size, data_dir=args.data_dir, train_size=args.train_size,
                              seed=args.seed, log=log, progress=not args.quiet and workers.rank == 0,
                              shard=workers.shard)


def _configuration(chapter: Chapter, args, workers: Workers, devices: list, data: tuple) -> dict:
    """Return the content of config.json: the flags, with actual values instead of defaults, data and versions."""
    train_iter, test_iter = data
    all_devices = [name for names in workers.allgather(list(map(str, devices))) for name in names]
    config = {'chapter': chapter.name, **vars(args), 'devices': all_devices, 'num_gpus': len(all_devices),
              'workers': workers.size, 'dataset': train_iter.dataset, 'train_size': train_iter.num_rows,
              'training_rows': train_iter.digest, 'test_rows': test_iter.digest,
              **versions(), 'environment': settings()}
    workers.check_equal({**config, 'platform': ''})
    return {**config, 'process': this_process()}


def _open_folder(args, earlier: Earlier | None, config: dict, lock: contextlib.ExitStack,
                 log) -> tuple[Path, Path | None]:
    """Create the run's folder, or lock that of the run to resume; return it and the checkpoint to resume from."""
    if earlier is None:
        out_dir = new_folder(args.out_dir, config['chapter'], content=config)
        lock.enter_context(hold(out_dir))
        return out_dir, None
    changed = differences(earlier.config, config)
    lock.enter_context(hold(earlier.folder))
    earlier = earlier_run(args.resume, args.out_dir, log) or earlier  # again, now that no other run can write there
    record(earlier, config, changed)
    line = (f'resuming from {earlier.checkpoint}' if earlier.checkpoint else
            f'{earlier.folder} has no checkpoint yet: starting from the beginning')
    log('; '.join([line, *(f'{name} {now} instead of {before}' for name, (before, now) in changed.items())]))
    return earlier.folder, earlier.checkpoint


def _train(chapter: Chapter, args, config: dict, out_dir: Path, checkpoint: Path | None, heading: str,
           workers: Workers, signals: StopSignals, devices: list, data: tuple) -> Any:
    """Call the chapter's `train` with a run that is recorded in `out_dir`; return the trained network."""
    command = shlex.join(['python', '-m', f'gluon_mgpu.{chapter.name}', *['--horovod'] * args.horovod,
                          '--resume', str(out_dir)])
    command = f'{workers.launcher} ... {command}' if workers.launcher else command
    workers.advice = f'; resume with: {command}'
    with signals:
        saver = CheckpointCallback(out_dir, args.checkpoint_every, config, checkpoint, args.require_checkpoint, command)
        callbacks: list[Callback] = [saver]
        if workers.rank == 0 and not args.no_plot:
            callbacks.append(AccuracyCurve(out_dir / 'accuracy.png', heading))
        if workers.rank == 0 and args.timeline:
            callbacks.append(Timeline(out_dir, heading))
        run = Run(args.num_epochs, args.quiet, None if workers.rank else out_dir, callbacks, workers)
        try:
            chapter.train(config['num_gpus'], args.batch_size, args.lr, run=run, seed=args.seed, devices=devices,
                          data=data, **chapter.own(args))
        except Stopped as stopped:
            raise saver.stopped(run, stopped.signum) from None
        finally:
            run.close()
        if args.quiet and workers.rank == 0:
            show(run.summary(devices))
    return run.net


def _export(net, path: str, lenet: Callable | None, out_dir: Path, log) -> None:
    try:
        onnx_file.write(net, path, lenet, log)
    except OSError as error:
        command = shlex.join(['python', '-m', 'gluon_mgpu.export', str(out_dir), '--out', path])
        raise ValueError(f'{path} cannot be written ({error.strerror or error}), the run itself is complete; export '
                         f'it again with: {command}') from None


def _parser(chapter: Chapter) -> argparse.ArgumentParser:
    parser = Parser(prog=f'python -m gluon_mgpu.{chapter.name}',
                    description=f'Train {chapter.network} on several devices and print its test accuracy.')
    where = parser.add_mutually_exclusive_group()
    where.add_argument('--num-gpus', type=number(int, 1, MOST_DEVICES), metavar='N',
                       help='number of devices: GPUs, or CPU contexts on a machine without GPUs '
                            '(default: 2, or 1 on a machine with one GPU)')
    where.add_argument('--devices', type=text, metavar='LIST',
                       help="names of devices: 'gpu:0,gpu:1', 'cpu:0-3', 'gpu:all' (NVIDIA GPUs), 'cpu:all' (one CPU "
                            'context per core) (default: the first devices, as many as --num-gpus)')
    add = parser.add_argument
    add('--horovod', action='store_true',
        help='train as one worker of a job started by horovodrun, mpirun or srun; each worker has one device')
    add('--fp16-allreduce', action='store_true', help='with --horovod: send gradients as float16')
    add('--batch-size', type=number(int), default=chapter.batch_size, metavar='ROWS',
        help='images in a batch, over all devices (default: %(default)s)')
    add('--lr', type=number(float), default=chapter.lr, metavar='RATE', help='learning rate (default: %(default)s)')
    add('--num-epochs', type=number(int), default=10, metavar='N',
        help='passes over the training images (default: %(default)s)')
    add('--dataset', choices=DATASETS, default='auto',
        help='auto is fashion-mnist if it is here or can be downloaded, else glyphs (default: %(default)s)')
    add('--data-dir', type=text, metavar='DIR',
        help='folder with fashion-mnist/ and mnist/ (default: $GLUON_MGPU_DATA, else the cache folder)')
    add('--train-size', type=number(int), metavar='N', help='use only the first N training images (default: all)')
    add('--seed', type=number(int, 0, 2**31 - 1), default=0, metavar='N',
        help='decides the initial parameters and the order of the images (default: %(default)s)')
    add('--out-dir', type=text, metavar='DIR',
        help=f'new folder for config.json, history.csv and accuracy.png (default: runs/{chapter.name}-DATE-TIME)')
    add('--checkpoint-every', type=number(int), metavar='STEPS',
        help='write a checkpoint every STEPS batches (default: after every epoch)')
    add('--resume', type=text, metavar='auto|PATH',
        help='resume the run in a folder or from one of its checkpoints; auto: resume the run in --out-dir, or start '
             'it; flags that are left out keep the values of the run')
    add('--require-checkpoint', action='store_true',
        help='end the run if a checkpoint cannot be written (default: warn and continue)')
    add('--export', type=text, metavar='MODEL.onnx', help='write the trained network as an ONNX model')
    add('--timeline', action='store_true', help='profile training steps and draw the median one: timeline.png')
    add('--no-plot', action='store_true', help='do not draw accuracy.png')
    add('--quiet', action='store_true', help='print the last line only')
    for flag, flag_settings in chapter.own_flags.items():
        add(flag, **flag_settings)
    return parser
