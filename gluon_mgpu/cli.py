"""The command line that both chapters share: what it refuses, and what happens in which order."""
from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable
from functools import partial
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


def run(train: Callable, chapter: str, network: str, argv: list | None, batch_size: int, lr: float,
        own_flags: dict | None = None, check: Callable | None = None, lenet: Callable | None = None) -> int:
    """Run a chapter's `train` as a program.

    Parameters
    ----------
    train : callable
        The chapter's ``train``.
    chapter, network : str
        The chapter's module and what it trains, for help, headings and file names.
    argv : list of str or None
        The arguments; None means those of this process.
    batch_size, lr : int, float
        The chapter's defaults.
    own_flags : dict, optional
        Flags of this chapter alone, with what argparse is to know of them; `train` takes them by name if
        they are given.
    check : callable, optional
        Takes `devices` and these flags by name, raises ValueError where they don't fit: before anything is
        loaded or written.
    lenet : callable, optional
        Where `train` trains bare arrays, the network: ``lenet(X, params)``.

    Returns
    -------
    int
        The exit status: 0, 2 for bad input and 1 for a failure of MXNet (with one line on stderr that says
        what and why), 130 after Ctrl-C, 143 after SIGTERM. What was recorded until then is in the output folder in
        any case.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(chapter, network, batch_size, lr)
    for flag, settings_of_flag in (own_flags or {}).items():
        parser.add_argument(flag, **settings_of_flag)
    args = parser.parse_args(argv)  # what is no flag at all is refused here, with the usage
    own_names = [flag.strip('-').replace('-', '_') for flag in own_flags or {}]
    return exit_status(chapter, lambda: _run(train, chapter, network, parser, args, argv, own_names, check, lenet))


def _run(train, chapter, network, parser, args, argv, own_names, check, lenet) -> None:
    signals = StopSignals()
    with _workers(args, chapter, signals) as workers, contextlib.ExitStack() as held:
        log = (lambda line: None) if args.quiet or workers.rank else show
        workers.check_equal({'chapter': chapter, **vars(args)})  # before flags decide which values are gathered
        # All that can be refused is refused before data is loaded, and before anything is written
        earlier = workers.on_rank_0(lambda: earlier_run(args.resume, args.out_dir)) if args.resume else None
        if earlier:
            args = workers.on_all_ranks(partial(_with_flags_of, earlier, chapter, parser, args, argv))
        else:
            workers.on_rank_0(lambda: check_free(args.out_dir))
        if args.export:
            workers.on_rank_0(lambda: onnx_file.check_path(args.export, args.out_dir))
        own = {name: getattr(args, name) for name in own_names if getattr(args, name) is not None}
        devices, (train_iter, test_iter) = workers.on_all_ranks(
            lambda: _devices_and_data(args, own, check, workers, log))
        all_devices = [device for its in workers.allgather(list(map(str, devices))) for device in its]
        config = {'chapter': chapter, **vars(args), 'devices': all_devices, 'num_gpus': len(all_devices),
                  'workers': workers.size, 'dataset': train_iter.dataset, 'train_size': train_iter.num_rows,
                  'training_rows': train_iter.digest, 'test_rows': test_iter.digest,
                  **versions(), 'environment': settings(), 'flags': vars(args)}
        workers.check_equal({**config, 'platform': ''})
        config['process'] = this_process()
        heading = f'{network} on {train_iter.dataset}, {", ".join(all_devices)}'
        log(f'{heading}{_how_many(workers)}: {train_iter.num_rows} training and {test_iter.num_rows} test images, '
            f'batches of {args.batch_size}, learning rate {args.lr:g}')

        changed = workers.on_rank_0(partial(differences, earlier.config, config)) if earlier else {}
        out_dir = earlier.folder if earlier else workers.on_rank_0(
            lambda: new_folder(args.out_dir, chapter, content=config))
        workers.on_rank_0(lambda: held.enter_context(hold(out_dir)))
        checkpoint = None
        if earlier:
            # Once more, now that no other run can write there
            earlier = workers.on_rank_0(lambda: earlier_run(args.resume, args.out_dir, log) or earlier)
            checkpoint = earlier.checkpoint
            workers.on_rank_0(partial(record, earlier, config, changed))
            log(_how_it_goes_on(earlier, changed))
        net = _train(train, args, out_dir, config, checkpoint, heading, workers, signals,
                     devices=devices, data=(train_iter, test_iter), **own)
        if args.export:
            workers.on_rank_0(lambda: _export(net, args.export, lenet, out_dir, log))


def _workers(args, chapter, signals) -> contextlib.AbstractContextManager[Workers]:
    """The workers that this command is one of."""
    found = place()
    if not args.horovod:
        if args.fp16_allreduce:
            raise ValueError('--fp16-allreduce is for what workers send each other: use it with --horovod')
        if found and found.launcher == 'horovodrun' and found.size > 1:
            raise ValueError(f'horovodrun has started {found.size} workers, and each would train for itself: add '
                             '--horovod')
        return contextlib.nullcontext(Workers(signals))
    if args.num_gpus is not None or args.devices is not None or getattr(args, 'allreduce', None):
        raise ValueError('--horovod: each worker has one device, and Horovod sums over the workers: leave out '
                         '--num-gpus, --devices and --allreduce, and start as many workers as there are to be devices')
    from .distributed.horovod_workers import HorovodWorkers
    return HorovodWorkers(args.fp16_allreduce, signals, chapter)


def _how_many(workers) -> str:
    return f', {workers.size} workers' if workers.size > 1 else ''


def _devices_and_data(args, own: dict, check: Callable | None, workers, log) -> tuple:
    devices = check_devices([workers.device]) if args.horovod else _devices(args, log)
    if args.timeline:
        check_profiler(devices)
    if check:
        check(devices=devices, **own)
    return devices, load_data(args.dataset, args.batch_size, data_dir=args.data_dir, train_size=args.train_size,
                              seed=args.seed, log=log, progress=not args.quiet and workers.rank == 0,
                              shard=workers.shard)


def _train(train, args, out_dir, config, checkpoint, heading, workers, signals, **options) -> Any:
    """Call the chapter's `train` with a run that keeps its record in `out_dir`; return what it has trained."""
    how_to_resume = shlex.join(['python', '-m', f'gluon_mgpu.{config["chapter"]}', *['--horovod'] * args.horovod,
                                '--resume', str(out_dir)])
    how_to_resume = f'{workers.launcher} ... {how_to_resume}' if workers.launcher else how_to_resume
    workers.advice = f'; to go on: {how_to_resume}'
    with signals:
        saver = CheckpointCallback(out_dir, args.checkpoint_every, config, checkpoint, args.require_checkpoint,
                      how_to_resume)
        pictures = _pictures(args, out_dir, heading) if workers.rank == 0 else []
        run = Run(args.num_epochs, quiet=args.quiet, folder=None if workers.rank else out_dir,
                  callbacks=[saver, *pictures], workers=workers)
        try:
            train(config['num_gpus'], args.batch_size, args.lr, run=run, seed=args.seed, **options)
        except Stopped as stopped:
            raise saver.stopped(run, stopped.signum) from None
        finally:  # also after an error or a signal: what was recorded until then
            run.close()
        if args.quiet and workers.rank == 0:  # the last line only
            show(run.summary(options['devices']))
    return run.net


def _export(net, path, lenet, out_dir, log) -> None:
    """Write the model; what stops that is told with the command that does it later."""
    try:
        onnx_file.write(net, path, lenet, log)
    except OSError as error:
        command = shlex.join(['python', '-m', 'gluon_mgpu.export', str(out_dir), '--out', str(path)])
        raise ValueError(f'{path} cannot be written ({error.strerror or error}), all else is done; to do it again: '
                         f'{command}') from None


def _pictures(args, out_dir, heading) -> list[Callback]:
    callbacks: list[Callback] = []
    if not args.no_plot:
        callbacks.append(AccuracyCurve(out_dir / 'accuracy.png', heading))
    if args.timeline:
        callbacks.append(Timeline(out_dir, heading))
    return callbacks


def _with_flags_of(earlier: Earlier, chapter, parser, args, argv: list) -> argparse.Namespace:
    """The flags of this command; those left out are of the run that it goes on with."""
    if earlier.config['chapter'] != chapter:
        raise ValueError(f'{earlier.folder} is a run of {earlier.config["chapter"]}: go on with it by python -m '
                         f'gluon_mgpu.{earlier.config["chapter"]}')
    kept = {**earlier.config.get('flags', {}), 'out_dir': str(earlier.folder), 'horovod': False,
            'fp16_allreduce': False}
    if args.num_gpus is not None or args.devices is not None or args.horovod:
        kept['num_gpus'] = kept['devices'] = None
    # As arguments once more, so that the parser checks them: a person may have edited the file
    args = parser.parse_args([*(f'--{name.replace("_", "-")}' + ('' if value is True else f'={value}')
                                for name, value in kept.items()
                                if name in vars(args) and value is not None and value is not False), *argv])
    check_same_run(earlier.config, {name: value for name, value in vars(args).items() if value not in (None, 'auto')})
    if earlier.checkpoint:
        check_num_epochs(args.num_epochs, earlier.position['run'])
    return args


def _how_it_goes_on(earlier: Earlier, changed: dict) -> str:
    if earlier.checkpoint is None:
        line = f'{earlier.folder} has no checkpoint yet: beginning anew'
    else:
        line = f'going on from {earlier.checkpoint}'
    differing = ', '.join(f'{name} {now} instead of {before}' for name, (before, now) in changed.items())
    return f'{line}; {differing}' if differing else line


def _devices(args, log) -> list:
    """The devices asked for; by default two, or the one GPU of a machine that has no more."""
    if args.devices is not None:
        return parse_devices(args.devices)
    num_gpus = num_mxnet_gpus()
    if not num_gpus:
        log(f'{why_no_gpus()}: training on CPU contexts')
    return devices_from(args.num_gpus or min(num_gpus, 2) or 2)


def _parser(chapter: str, network: str, batch_size: int, lr: float) -> argparse.ArgumentParser:
    """Return the parser of the flags that both chapters have.

    Parameters
    ----------
    chapter, network : str
        The chapter's module and what it trains, for the help.
    batch_size, lr : int, float
        The chapter's defaults.
    """
    flags = Parser(
        prog=f'python -m gluon_mgpu.{chapter}',
        description=f'Train {network} on several devices and tell its accuracy on the test images.')
    where = flags.add_mutually_exclusive_group()
    where.add_argument('--num-gpus', type=number(int, 1, MOST_DEVICES), metavar='N',
                       help='number of devices: GPUs, or CPU contexts on a machine with no GPU '
                            '(default: 2, or 1 on a machine with one GPU)')
    where.add_argument('--devices', type=text, metavar='LIST',
                       help="devices by name: 'gpu:0,gpu:1', 'cpu:0-3', 'gpu:all', 'cpu:all' (one per core)")
    flags.add_argument('--horovod', action='store_true',
                       help='be one of the workers that horovodrun, mpirun or srun has started: each on one device')
    flags.add_argument('--fp16-allreduce', action='store_true', help='with --horovod: send gradients as float16')
    flags.add_argument('--batch-size', type=number(int), default=batch_size, metavar='ROWS',
                       help='images in a batch, over all devices (default: %(default)s)')
    flags.add_argument('--lr', type=number(float), default=lr, metavar='RATE',
                       help='learning rate (default: %(default)s)')
    flags.add_argument('--num-epochs', type=number(int), default=10, metavar='N',
                       help='passes over the training images (default: %(default)s)')
    flags.add_argument('--dataset', choices=DATASETS, default='auto',
                       help='auto is fashion-mnist if it is there or can be downloaded, else glyphs '
                            '(default: %(default)s)')
    flags.add_argument('--data-dir', type=text, metavar='DIR',
                       help='folder that holds fashion-mnist/ and mnist/ '
                            '(default: $GLUON_MGPU_DATA, else the cache folder)')
    flags.add_argument('--train-size', type=number(int), metavar='N',
                       help='use the first N training images only (default: all)')
    flags.add_argument('--seed', type=number(int, 0, 2**31 - 1), default=0, metavar='N',
                       help='decides the initial parameters and the order of the images (default: %(default)s)')
    flags.add_argument('--out-dir', type=text, metavar='DIR',
                       help='new folder for config.json, history.csv and accuracy.png '
                            f'(default: runs/{chapter}-DATE-TIME)')
    flags.add_argument('--checkpoint-every', type=number(int), metavar='STEPS',
                       help='write a checkpoint after so many batches (default: after every epoch)')
    flags.add_argument('--resume', type=text, metavar='auto|PATH',
                       help='go on with the run in --out-dir, or begin it (auto); or with the run in a folder, or '
                            'from a checkpoint in it; flags left out are those of the run')
    flags.add_argument('--require-checkpoint', action='store_true',
                       help='end the run if a checkpoint cannot be written (default: say so and go on)')
    flags.add_argument('--export', type=text, metavar='MODEL.onnx',
                       help='write what has been trained as an ONNX model, at the end')
    flags.add_argument('--timeline', action='store_true',
                       help='profile steps of training: trace.json and timeline.png show the median one')
    flags.add_argument('--no-plot', action='store_true', help='draw no accuracy.png')
    flags.add_argument('--quiet', action='store_true', help='show the last line only')
    return flags
