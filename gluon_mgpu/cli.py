"""The command line that both chapters share: what it refuses, and what happens in which order."""
from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from . import flags
from .data import load_data
from .devices import check_devices, devices_from, parse_devices
from .devices.gpus import num_mxnet_gpus, why_no_gpus
from .machine import versions
from .mxnet_setup.runtime import settings
from .onnx_model import file as onnx_file
from .parallel.launchers import place
from .parallel.workers import Workers
from .plot import AccuracyCurve
from .program import Stopped, exit_status, show
from .timeline.record import Timeline, check_profiler
from .training.folder import check_free, hold, new_folder, this_process
from .training.hook import Hook
from .training.resume import Earlier, check_same_run, differences, earlier_run, record
from .training.run import Run, check_num_epochs
from .training.saver import Saver
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
    parser = flags.parser(chapter, network, batch_size, lr)
    for flag, settings_of_flag in (own_flags or {}).items():
        parser.add_argument(flag, **settings_of_flag)
    args = parser.parse_args(argv)  # what is no flag at all is refused here, with the usage
    own_names = [flag.strip('-').replace('-', '_') for flag in own_flags or {}]
    return exit_status(chapter, lambda: _run(train, chapter, network, parser, args, argv, own_names, check, lenet))


def _run(train, chapter, network, parser, args, argv, own_names, check, lenet) -> None:
    signals = StopSignals()
    with _workers(args, chapter, signals) as workers, contextlib.ExitStack() as held:
        say = (lambda line: None) if args.quiet or workers.rank else show
        workers.agree({'chapter': chapter, **vars(args)})  # before flags decide which values are gathered
        # All that can be refused is refused before data is loaded, and before anything is written
        earlier = workers.first(lambda: earlier_run(args.resume, args.out_dir)) if args.resume else None
        if earlier:
            args = workers.each(partial(_with_flags_of, earlier, chapter, parser, args, argv))
        else:
            workers.first(lambda: check_free(args.out_dir))
        if args.export:
            workers.first(lambda: onnx_file.check_path(args.export, args.out_dir))
        own = {name: getattr(args, name) for name in own_names if getattr(args, name) is not None}
        devices, (train_iter, test_iter) = workers.each(lambda: _devices_and_data(args, own, check, workers, say))
        all_devices = [device for its in workers.gather(list(map(str, devices))) for device in its]
        config = {'chapter': chapter, **vars(args), 'devices': all_devices, 'num_gpus': len(all_devices),
                  'workers': workers.size, 'dataset': train_iter.dataset, 'train_size': train_iter.num_rows,
                  'training_rows': train_iter.digest, 'test_rows': test_iter.digest,
                  **versions(), 'environment': settings(), 'flags': vars(args)}
        workers.agree({**config, 'platform': ''})
        config['process'] = this_process()
        heading = f'{network} on {train_iter.dataset}, {", ".join(all_devices)}'
        say(f'{heading}{_how_many(workers)}: {train_iter.num_rows} training and {test_iter.num_rows} test images, '
            f'batches of {args.batch_size}, learning rate {args.lr:g}')

        changed = workers.first(partial(differences, earlier.config, config)) if earlier else {}
        out_dir = earlier.folder if earlier else workers.first(
            lambda: new_folder(args.out_dir, chapter, content=config))
        workers.first(lambda: held.enter_context(hold(out_dir)))
        checkpoint = None
        if earlier:
            # Once more, now that no other run can write there
            earlier = workers.first(lambda: earlier_run(args.resume, args.out_dir, say) or earlier)
            checkpoint = earlier.checkpoint
            workers.first(partial(record, earlier, config, changed))
            say(_how_it_goes_on(earlier, changed))
        net = _train(train, args, out_dir, config, checkpoint, heading, workers, signals,
                     devices=devices, data=(train_iter, test_iter), **own)
        if args.export:
            workers.first(lambda: _export(net, args.export, lenet, out_dir, say))


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
    from .parallel.horovod_workers import HorovodWorkers
    return HorovodWorkers(args.fp16_allreduce, signals, chapter)


def _how_many(workers) -> str:
    return f', {workers.size} workers' if workers.size > 1 else ''


def _devices_and_data(args, own: dict, check: Callable | None, workers, say) -> tuple:
    devices = check_devices([workers.device]) if args.horovod else _devices(args, say)
    if args.timeline:
        check_profiler(devices)
    if check:
        check(devices=devices, **own)
    return devices, load_data(args.dataset, args.batch_size, data_dir=args.data_dir, train_size=args.train_size,
                              seed=args.seed, say=say, progress=not args.quiet and workers.rank == 0,
                              part=workers.part)


def _train(train, args, out_dir, config, checkpoint, heading, workers, signals, **options) -> Any:
    """Call the chapter's `train` with a run that keeps its record in `out_dir`; return what it has trained."""
    how_to_resume = shlex.join(['python', '-m', f'gluon_mgpu.{config["chapter"]}', *['--horovod'] * args.horovod,
                                '--resume', str(out_dir)])
    how_to_resume = f'{workers.launcher} ... {how_to_resume}' if workers.launcher else how_to_resume
    workers.advice = f'; to go on: {how_to_resume}'
    with signals:
        saver = Saver(out_dir, args.checkpoint_every, config, checkpoint, args.require_checkpoint,
                      how_to_resume)
        pictures = _pictures(args, out_dir, heading) if workers.rank == 0 else []
        run = Run(args.num_epochs, quiet=args.quiet, folder=None if workers.rank else out_dir,
                  hooks=[saver, *pictures], workers=workers)
        try:
            train(config['num_gpus'], args.batch_size, args.lr, run=run, seed=args.seed, **options)
        except Stopped as stopped:
            raise saver.stopped(run, stopped.signum) from None
        finally:  # also after an error or a signal: what was recorded until then
            run.close()
        if args.quiet and workers.rank == 0:  # the last line only
            show(run.summary(options['devices']))
    return run.net


def _export(net, path, lenet, out_dir, say) -> None:
    """Write the model; what stops that is told with the command that does it later."""
    try:
        onnx_file.write(net, path, lenet, say)
    except OSError as error:
        command = shlex.join(['python', '-m', 'gluon_mgpu.export', str(out_dir), '--out', str(path)])
        raise ValueError(f'{path} cannot be written ({error.strerror or error}), all else is done; to do it again: '
                         f'{command}') from None


def _pictures(args, out_dir, heading) -> list[Hook]:
    hooks: list[Hook] = []
    if not args.no_plot:
        hooks.append(AccuracyCurve(out_dir / 'accuracy.png', heading))
    if args.timeline:
        hooks.append(Timeline(out_dir, heading))
    return hooks


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


def _devices(args, say) -> list:
    """The devices asked for; by default two, or the one GPU of a machine that has no more."""
    if args.devices is not None:
        return parse_devices(args.devices)
    num_gpus = num_mxnet_gpus()
    if not num_gpus:
        say(f'training on CPU contexts: {why_no_gpus()}')
    return devices_from(args.num_gpus or min(num_gpus, 2) or 2)
