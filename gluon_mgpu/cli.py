"""Command line of the chapters `scratch` and `concise`: flags, checks, the run's folder, training, export."""
from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .base.flags import Parser, integer_flag, number_flag, text
from .base.machine import versions
from .base.program import Stopped, run_program, show
from .checkpoints.callback import CheckpointCallback
from .checkpoints.resume import ResumedRun, check_on_rank_0, check_same_run, find_resumed_run, record_resume
from .checkpoints.run_folder import check_free, lock_folder, new_folder, this_process
from .data import DATASETS, load_data
from .devices import check_devices, devices_from, devices_text, parse_devices
from .devices.gpus import num_mxnet_gpus, why_no_gpus
from .devices.lists import MAX_DEVICES
from .distributed.launchers import launch_info
from .distributed.workers import Workers
from .mxnet_setup.runtime import settings
from .onnx_model import file as onnx_file
from .parallel.split import check_shares
from .plot import AccuracyCurve
from .timeline.record import Timeline, check_profiler
from .training.run import Callback, Run, check_num_epochs
from .training.schedules import SCHEDULES, schedule
from .training.signals import StopSignals


@dataclass
class Chapter:
    """A chapter of the book as a program; `batch_size` and `lr` are its defaults.

    `extra_flags` are flags of this chapter only, with the arguments of argparse's ``add_argument`` for each. `train`
    and `check` get the values of these flags by name; `check` raises ValueError if they do not fit `devices` or
    `workers`.
    `forward` is the forward function, if `train` trains bare arrays instead of a Gluon block.
    """

    name: str
    network: str
    train: Callable
    batch_size: int
    lr: float
    extra_flags: dict[str, dict] = field(default_factory=dict)
    check: Callable | None = None
    forward: Callable | None = None

    def extra_arguments(self, args: argparse.Namespace) -> dict:
        """Return the values of the extra flags, without those that were left out."""
        names = [flag.strip('-').replace('-', '_') for flag in self.extra_flags]
        return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def run(chapter: Chapter, argv: list | None = None) -> int:
    """Run a chapter as a program; return the exit status, see `base.program.run_program`."""
    argv = sys.argv[1:] if argv is None else argv
    return run_program(chapter.name, lambda: _run(chapter, _parser(chapter), argv))


def _run(chapter: Chapter, parser: argparse.ArgumentParser, argv: list) -> None:
    args, signals = parser.parse_args(argv), StopSignals()
    with _workers(args, chapter, signals) as workers, contextlib.ExitStack() as stack:
        def log(line: str) -> None:
            if workers.rank == 0 and not args.quiet:
                show(line)

        # First, because workers with different flags could call different collectives below and deadlock. Their
        # platforms may differ
        workers.check_equal({**versions(), 'platform': '', 'chapter': chapter.name, **vars(args)})
        if args.resume:
            check_on_rank_0(args.resume, args.out_dir, workers)
        # on_rank_0 broadcasts the result. Both on_rank_0 and on_all_ranks raise an error of one rank on all ranks
        args, resumed = workers.on_rank_0(lambda: _find_run(chapter, parser, args, argv, stack, log))
        devices, data = workers.on_all_ranks(lambda: _devices_and_data(chapter, args, workers, log))
        config = _configuration(chapter, args, workers, devices, data)
        heading = f'{chapter.network} on {config["dataset"]}, {", ".join(config["devices"])}'
        size = f', {workers.size} workers' if workers.size > 1 else ''
        log(f'{heading}{size}: {config["train_size"]} training and {data[1].num_rows} test images, batches of '
            f'{args.batch_size}, learning rate {args.lr:g}')
        out_dir, checkpoint = workers.on_rank_0(lambda: _open_folder(args, resumed, config, stack, log))
        net = _train(chapter, args, config, out_dir, checkpoint, heading, workers, signals, devices, data)
        if args.export:
            workers.on_rank_0(lambda: _export(net, args.export, chapter.forward, out_dir, log))


def _workers(args, chapter: Chapter, signals) -> contextlib.AbstractContextManager[Workers]:
    """Return a context manager for the workers of the job: those of Horovod, or this process alone."""
    if args.horovod:
        if any(getattr(args, name, None) is not None for name in ('num_gpus', 'devices', 'allreduce', 'shares')):
            raise ValueError('--horovod: each worker has one device, and Horovod sums the gradients; leave out '
                             '--num-gpus, --devices, --shares and --allreduce, and start one worker per device')
        from .distributed.horovod_workers import HorovodWorkers
        return HorovodWorkers(signals, chapter.name)
    info = launch_info()
    # mpirun and srun are also used to start independent programs
    if info and info.launcher == 'horovodrun' and info.size > 1:
        raise ValueError(f'horovodrun has started {info.size} workers, and each would train alone: add --horovod')
    return contextlib.nullcontext(Workers(signals))


def _find_run(chapter: Chapter, parser, args, argv: list, stack: contextlib.ExitStack,
              log) -> tuple[argparse.Namespace, ResumedRun | None]:
    """Return the flags and the run to resume, if any, with its folder locked. Writes nothing.

    Checks flags that depend on each other, and the paths that will be written.
    """
    resumed = find_resumed_run(args.resume, args.out_dir, stack, log) if args.resume else None
    if resumed:
        args = _resumed_flags(chapter, parser, args, argv, resumed)
    else:
        check_free(args.out_dir)
    if args.warmup_epochs >= args.num_epochs:
        raise ValueError(f'--warmup-epochs {args.warmup_epochs}: must be less than --num-epochs {args.num_epochs}')
    if args.accumulate > args.batch_size:
        raise ValueError(f'--accumulate {args.accumulate}: must be at most --batch-size {args.batch_size}')
    if args.export:
        onnx_file.check_path(args.export, args.out_dir)
    return args, resumed


def _resumed_flags(chapter: Chapter, parser, args, argv: list, resumed: ResumedRun) -> argparse.Namespace:
    """Return the flags of this command; flags that were left out get their values from the run to resume."""
    before = resumed.config
    if before['chapter'] != chapter.name:
        raise ValueError(f'{resumed.folder} is a run of {before["chapter"]}: resume it with python -m '
                         f'gluon_mgpu.{before["chapter"]}')
    # `devices` also determines num_gpus. A run may continue with Horovod or without it
    kept = {name: before.get(name) for name in vars(args) if name not in ('num_gpus', 'horovod')}
    kept['out_dir'] = resumed.folder
    if args.horovod:
        kept.pop('allreduce', None)
    if args.num_gpus is not None or args.devices is not None or args.horovod:
        del kept['devices'], kept['shares']
    elif isinstance(kept['devices'], list):
        kept['devices'] = devices_text(kept['devices'])  # each once; workers may have devices of the same name
    # Parse and check them like flags, because someone may have edited config.json; argv comes last and wins
    args = parser.parse_args([*(f'--{name.replace("_", "-")}' + ('' if value is True else f'={value}')
                                for name, value in kept.items() if value is not None and value is not False), *argv])
    # None: a flag that was left out. 'auto' is resolved when the data is loaded; then `record_resume` checks it
    check_same_run(before, {name: value for name, value in vars(args).items() if value not in (None, 'auto')})
    if resumed.checkpoint:
        check_num_epochs(args.num_epochs, resumed.metadata['run'])
    return args


def _devices_and_data(chapter: Chapter, args, workers: Any, log) -> tuple[list, tuple]:
    """Return this process's devices, and its shards of the data: (train_iter, test_iter)."""
    if args.horovod:
        devices = check_devices([workers.device])
    elif args.devices is not None:
        devices = parse_devices(args.devices)
    else:
        available = num_mxnet_gpus()
        if not available:
            log(f'{why_no_gpus()}; training on CPU contexts')
        devices = devices_from(args.num_gpus or (min(available, 2) if available else 2))
    if args.shares:
        check_shares(args.shares, devices)
    if args.timeline:
        check_profiler(devices)
    if chapter.check:
        chapter.check(devices=devices, workers=workers, **chapter.extra_arguments(args))
    return devices, load_data(args.dataset, args.batch_size, data_dir=args.data_dir, train_size=args.train_size,
                              seed=args.seed, log=log, progress=not args.quiet and workers.rank == 0,
                              shard=workers.shard)


def _configuration(chapter: Chapter, args, workers: Workers, devices: list, data: tuple) -> dict:
    """Return the content of config.json: all flags, the dataset and devices in use, digests of the data, versions."""
    train_iter, test_iter = data
    all_devices = [name for names in workers.allgather(list(map(str, devices))) for name in names]
    config = {'chapter': chapter.name, **vars(args), 'devices': all_devices, 'num_gpus': len(all_devices),
              'data_dir': args.data_dir and os.path.abspath(os.path.expanduser(args.data_dir)),
              'export': args.export and os.path.abspath(args.export),
              'workers': workers.size, 'dataset': train_iter.dataset, 'train_size': train_iter.num_rows,
              'train_digest': train_iter.digest, 'test_digest': test_iter.digest,
              **versions(), 'environment': settings()}
    workers.check_equal({**config, 'platform': ''})
    return {**config, 'process': this_process()}


def _open_folder(args, resumed: ResumedRun | None, config: dict, stack: contextlib.ExitStack,
                 log) -> tuple[Path, Path | None]:
    """Create and lock the run's folder, or use that of the run to resume; return it and the checkpoint, if any."""
    if resumed is None:
        out_dir = new_folder(args.out_dir, config['chapter'], content=config)
        stack.enter_context(lock_folder(out_dir))
        return out_dir, None
    changed = record_resume(resumed, config)
    line = (f'resuming from {resumed.checkpoint}' if resumed.checkpoint else
            f'{resumed.folder} has no checkpoint yet: starting from the beginning')
    log('; '.join([line, *(f'{name} {now} instead of {before}' for name, (before, now) in changed.items())]))
    return resumed.folder, resumed.checkpoint


def _train(chapter: Chapter, args, config: dict, out_dir: Path, checkpoint: Path | None, heading: str,
           workers: Workers, signals: StopSignals, devices: list, data: tuple) -> Any:
    """Call the chapter's `train` with a `Run` that writes to `out_dir`; return the trained network."""
    horovod = ['--horovod'] * args.horovod
    launcher = f'{workers.launcher} ... ' if workers.launcher else ''
    command = launcher + shlex.join(['python', '-m', f'gluon_mgpu.{chapter.name}', *horovod])
    folder = shlex.quote(str(out_dir))
    # Printed if a worker is lost; `auto` because there may be no checkpoint yet
    workers.resume_hint = f'; resume with: {command} --resume auto --out-dir {folder}'
    with signals:
        checkpoints = CheckpointCallback(out_dir, args.checkpoint_every, config, resume=checkpoint,
                                         require=args.require_checkpoint, resume_command=f'{command} --resume {folder}')
        callbacks: list[Callback] = [checkpoints]
        if workers.rank == 0 and not args.no_plot:
            callbacks.append(AccuracyCurve(out_dir / 'accuracy.png', heading))
        if workers.rank == 0 and args.timeline:
            callbacks.append(Timeline(out_dir, heading))
        run = Run(args.num_epochs, args.quiet, folder=out_dir if workers.rank == 0 else None, callbacks=callbacks,
                  workers=workers)
        steps = len(data[0])  # per epoch
        lr = schedule(args.lr_schedule, args.lr, args.num_epochs * steps, args.warmup_epochs * steps)
        try:
            chapter.train(len(devices), args.batch_size, lr, run=run, seed=args.seed, devices=devices,
                          data=data, accumulate=args.accumulate, shares=args.shares, **chapter.extra_arguments(args))
        except Stopped as stopped:
            raise checkpoints.save_on_stop(run, stopped.signum) from None
        finally:
            run.close()
        if args.quiet and workers.rank == 0:
            show(run.summary(devices))
    return run.net


def _export(net, path: str, forward: Callable | None, out_dir: Path, log) -> None:
    try:
        onnx_file.write(net, path, forward, log)
    except OSError as error:
        command = shlex.join(['python', '-m', 'gluon_mgpu.export', str(out_dir), '--out', path])
        raise ValueError(f'cannot write {path} ({error.strerror or error}); the run is complete; export it with: '
                         f'{command}') from None


def _parser(chapter: Chapter) -> argparse.ArgumentParser:
    parser = Parser(f'gluon_mgpu.{chapter.name}',
                    f'Train {chapter.network} on several devices and print its test accuracy.')
    add = parser.add_mutually_exclusive_group().add_argument
    add('--num-gpus', type=integer_flag(1, MAX_DEVICES), metavar='N',
        help='number of devices: GPUs, or CPU contexts on a machine without GPUs '
             '(default: 2, or 1 on a machine with one GPU)')
    add('--devices', type=text, metavar='LIST',
        help="names of devices: 'gpu:0,gpu:1', 'cpu:0-3', 'gpu:all' (NVIDIA GPUs), 'cpu:all' (one CPU context per "
             'core) (default: the first devices, as many as --num-gpus)')
    add = parser.add_argument
    add('--shares', type=text, metavar='LIST',
        help="relative speeds of the devices: with '3,1', the first of two gets three quarters of the rows")
    add('--horovod', action='store_true',
        help='train as one worker of a job started by horovodrun, mpirun or srun; each worker has one device')
    add('--batch-size', type=integer_flag(), default=chapter.batch_size, metavar='ROWS',
        help='images in a batch, over all devices (default: %(default)s)')
    add('--lr', type=number_flag(), default=chapter.lr, metavar='RATE', help='learning rate (default: %(default)s)')
    add('--lr-schedule', choices=SCHEDULES, default='constant',
        help='cosine: the rate falls to almost 0; step: it is divided by 10 after half and three quarters of the '
             'steps (default: %(default)s)')
    add('--warmup-epochs', type=integer_flag(0), default=0, metavar='N',
        help='raise the rate from 0 to --lr in the first N epochs (default: %(default)s)')
    add('--accumulate', type=integer_flag(), default=1, metavar='N',
        help='train each batch in N parts, which needs less memory (default: %(default)s)')
    add('--num-epochs', type=integer_flag(), default=10, metavar='N',
        help='passes over the training images (default: %(default)s)')
    add('--dataset', choices=DATASETS, default='auto',
        help='auto: fashion-mnist, or glyphs, generated images, if it cannot be downloaded (default: %(default)s)')
    add('--data-dir', type=text, metavar='DIR',
        help='folder with fashion-mnist/ and mnist/; nothing is downloaded (default: $GLUON_MGPU_DATA; if that is '
             'not set, ~/.cache/gluon-mgpu, into which they are downloaded)')
    add('--train-size', type=integer_flag(), metavar='N', help='use only the first N training images (default: all)')
    add('--seed', type=integer_flag(0, 2**31 - 1), default=0, metavar='N',
        help='seed of the initial parameters and the order of the images (default: %(default)s)')
    add('--out-dir', type=text, metavar='DIR',
        help='new folder for config.json, history.csv, accuracy.png and checkpoints '
             f'(default: runs/{chapter.name}-DATE-TIME)')
    add('--checkpoint-every', type=integer_flag(), metavar='STEPS',
        help='write a checkpoint every STEPS batches and at the end (default: after every epoch)')
    add('--resume', type=text, metavar='auto|PATH',
        help='resume the run in a folder or from one of its checkpoints; auto: resume the run in --out-dir, or start '
             'it; flags that are left out, except those of Horovod, keep the values of the run; --shares '
             'only without --devices, --num-gpus and --horovod')
    add('--require-checkpoint', action='store_true',
        help='end the run if a checkpoint cannot be written (default: warn and continue)')
    add('--export', type=text, metavar='MODEL.onnx', help='write the trained network as an ONNX model')
    add('--timeline', action='store_true',
        help='profile some training steps and plot the one of median duration in timeline.png')
    add('--no-plot', action='store_true', help='do not draw accuracy.png')
    add('--quiet', action='store_true', help='print only the summary and warnings')
    for flag, flag_settings in chapter.extra_flags.items():
        add(flag, **flag_settings)
    return parser
