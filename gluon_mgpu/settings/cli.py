"""Command line of the chapters: settings, the run's folder, training."""
from __future__ import annotations

import argparse
import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

from ..base.flags import Parser, quoted
from ..base.machine import versions
from ..base.program import Stopped, run_program, show, warn
from ..base.text import or_none
from ..checkpoints.checkpoint_callback import CheckpointCallback
from ..checkpoints.run_folder import check_free, claim_folder
from ..data import load_data
from ..devices import devices_words
from ..mxnet_setup.runtime import environment
from ..outputs.plot import AccuracyCurve
from ..outputs.timeline.record import Timeline, check_profiler
from ..parallel.workers import Workers
from ..training.callback import Callback, Patience
from ..training.evaluate import evaluate_accuracy_gpus
from ..training.history import summary
from ..training.run import Run
from ..training.schedules import schedule
from ..training.signals import StopSignals
from .chapters import CHAPTERS, Chapter
from .resume import ResumedRun, changes, record_resume, resumed_settings, run_to_resume
from .settings import ALL, defaults, flags_of
from .setup import arguments_of_train, find_devices


def run(name: str, module: Any, argv: list | None = None) -> int:
    """Run ``module.train`` of the chapter of this name as a program; return the exit status."""
    def program() -> None:
        given = _given_flags(CHAPTERS[name], argv)
        signals = StopSignals()
        with _workers(name, given, signals) as workers, contextlib.ExitStack() as stack:
            Job(CHAPTERS[name], module, given, workers, stack).run(signals)
    return run_program(name, program)


class Job:
    """A command of a chapter: its settings, what it found and what it opened. `run` calls the other methods in order.

    `given` are the flags, `settings` all that have a flag; `devices` and `data` are those of this worker.
    """

    def __init__(self, chapter: Chapter, module: Any, given: dict, workers: Workers, stack: contextlib.ExitStack):
        self.chapter, self.module, self.given, self.workers, self._stack = chapter, module, given, workers, stack
        self.settings: dict[str, Any] = {**defaults(chapter.name), **given}
        self.resumed: ResumedRun | None = None
        self.devices: list = []                     # of this worker, from `load`
        self.data: tuple = ()                       # its shards, from `load`: training, possibly validation, and test
        self.config: dict[str, Any] = {}            # of the run, from `configure`
        self.heading = ''                           # of a curve, from `configure`
        self.folder: Any = None                     # the run's, from `open_folder`, possibly on another machine

    def run(self, signals: StopSignals) -> None:
        """Do all steps of a command, together with the other workers; `on_rank_0` calls a function on rank 0 only."""
        # Each call of `workers` waits for all of them, and sends an error of one, or the result of rank 0, to all
        workers = self.workers
        # 1. Compare flags first: workers with different flags would deadlock later. The platform may differ
        workers.check_equal({**versions(), 'platform': '', 'chapter': self.chapter.name,
                             **{ALL[name].flag: or_none(value) for name, value in self.settings.items()}})
        # 2. The settings, which rank 0 alone can read in the run's folder; devices and data, of which each has its own
        self.settings, self.resumed = workers.on_rank_0(self.find_settings)
        workers.on_all_ranks(self.load)
        # 3. The configuration, which must be the same on all, and the run's folder, into which rank 0 alone writes
        self.configure(workers.allgather([str(device) for device in self.devices]))
        workers.check_equal({**self.config, 'platform': ''})
        self.folder = workers.on_rank_0(self.open_folder)
        self.print_heading()
        with signals:  # until the results are printed
            self.train()

    def log(self, line: str) -> None:
        """Print a line, unless the program is quiet."""
        if self.workers.rank == 0 and not self.settings['quiet']:
            show(line)

    def find_settings(self) -> tuple[dict, ResumedRun | None]:
        """On rank 0, return all settings and the run to resume, if any, with its folder locked; write nothing."""
        settings, resume = self.settings, self.settings['resume']
        if resumed := run_to_resume(resume, settings['out_dir'], self._stack) if resume else None:
            return resumed_settings(self.chapter.name, resumed, self.given), resumed
        check_free(settings['out_dir'])
        return settings, None

    def load(self) -> None:
        """Find the devices of this worker, and load its shards of the data."""
        settings, on_rank_0 = self.settings, self.workers.rank == 0
        self.devices = find_devices(settings, self.workers, self.log)
        if settings['timeline']:
            check_profiler(self.devices)
        self.data = load_data(settings['dataset'], settings['batch_size'], settings['data_dir'], settings['train_size'],
                              settings['seed'], log=warn if on_rank_0 else lambda *lines: None,
                              progress=on_rank_0 and not settings['quiet'], shard=self.workers.shard,
                              test_size=settings['test_size'], name=lambda name: ALL[name].flag,
                              validation_size=settings['validation_size'])

    def configure(self, devices: list[list[str]]) -> None:
        """Set `config`: all settings, the dataset and devices in use, digests of the data, versions."""
        settings, (train_iter, *held_out, test_iter) = self.settings, self.data
        all_devices = [name for names in devices for name in names]
        self.config = {'chapter': self.chapter.name, **settings, 'devices': all_devices, 'num_gpus': len(all_devices),
                       'data_dir': settings['data_dir'] and os.path.abspath(settings['data_dir']),
                       'workers': self.workers.size, 'dataset': train_iter.dataset,
                       'train_size': train_iter.num_rows + (settings['validation_size'] or 0),
                       'train_digest': train_iter.digest, 'test_digest': test_iter.digest,
                       **versions(), 'environment': environment()}
        if held_out:
            self.config['validation_digest'] = held_out[0].digest
        self.heading = f'{self.chapter.network} on {train_iter.dataset}, {devices_words(all_devices)}'

    def print_heading(self) -> None:
        """Print what is trained on what, and what is unusual about it."""
        train_iter, *held_out, test_iter = self.data
        workers = f', {self.workers.size} workers' if self.workers.size > 1 else ''
        validation = f', {held_out[0].num_rows} validation' if held_out else ''
        self.log(self.heading + workers)
        self.log(f'{train_iter.num_rows} training{validation} and {test_iter.num_rows} test images, batches of '
                 f'{self.settings["batch_size"]}, learning rate {self.settings["lr"]:g}')

    def open_folder(self) -> Path:
        """On rank 0, create and lock the run's folder, or take that of the run to resume, and write config.json."""
        out_dir = self.settings['out_dir']
        self.config['out_dir'] = out_dir and os.path.abspath(out_dir)
        if self.resumed is None:
            self.config['run_id'] = secrets.token_hex(8)
            return claim_folder(out_dir, self.chapter.name, self.config, self._stack)
        folder, config, checkpoint, metadata = self.resumed
        self.config['run_id'] = config.get('run_id')
        changed = changes(self.resumed, self.config)
        record_resume(self.resumed, self.config, changed)
        line = f'resuming from {checkpoint}' if checkpoint else f'{folder} has no complete checkpoint: starting anew'
        if checkpoint and len(metadata['run']['history']) >= self.settings['num_epochs']:
            line += ', the end of the run: to train longer, give a larger --num-epochs'
        self.log('; '.join([line, *(f'{name} {or_none(now)} instead of {or_none(before)}'
                                    for name, (before, now) in changed.items())]))
        return folder

    def train(self) -> None:
        """Call the chapter's ``train`` with a `Run` that writes to the run's folder, and print the results."""
        settings, workers, num_batches = self.settings, self.workers, len(self.data[0])
        checkpoints = CheckpointCallback(self.folder, settings['checkpoint_every'], self.config,
                                         self.resumed and self.resumed.checkpoint, settings['keep_best'])
        checkpoints.is_locked, checkpoints.resume_command = True, self._resume_command()
        workers.resume_hint = f'; resume with: {checkpoints.resume_command}'  # printed if a worker is lost
        run = Run(settings['num_epochs'], quiet=settings['quiet'], callbacks=[checkpoints, *self._callbacks()],
                  folder=self.folder if workers.rank == 0 else None, workers=workers,
                  evaluated='validation' if settings['validation_size'] else 'test')
        lr = schedule(settings['lr_schedule'], settings['lr'], settings['num_epochs'] * num_batches,
                      settings['warmup_epochs'] * num_batches)
        arguments = arguments_of_train(self.chapter, self.module, settings, workers)
        try:
            self.module.train(len(self.devices), settings['batch_size'], lr, devices=self.devices, data=self.data[:2],
                              run=run, seed=settings['seed'], **arguments)
            lines = [summary(run.history, self.devices, workers.size, run.evaluated)] if settings['quiet'] else []
            if settings['validation_size']:
                lines.append(self.test(run.net))
        except Stopped as stopped:
            raise checkpoints.save_on_stop(run, stopped.signum) from None
        finally:
            run.close()
        for line in lines if workers.rank == 0 else ():
            show(line)

    def test(self, net: Any) -> str:
        """Evaluate the trained network on the test set, on all workers; return a line with its accuracy."""
        devices, test_iter = self.devices, self.data[-1]
        accuracy = evaluate_accuracy_gpus(self.chapter.scores_of(self.module, net, devices), test_iter, devices=devices,
                                          workers=self.workers)
        return f'test acc: {accuracy:.4f} on {test_iter.num_rows:,} test images, after the last epoch'

    def _resume_command(self) -> str:
        """Return the command that resumes this run, also if it has no checkpoint yet."""
        launcher, horovod = ('horovodrun ... ', ' --horovod') if self.settings['horovod'] else ('', '')
        return (f'{launcher}python -m gluon_mgpu.{self.chapter.name}{horovod} --resume auto --out-dir '
                f'{quoted(self.folder)}')

    def _callbacks(self) -> list[Callback]:
        settings, on_rank_0 = self.settings, self.workers.rank == 0
        callbacks: list[Callback] = [Patience(settings['patience'])] if settings['patience'] else []
        if on_rank_0 and settings['plot']:
            callbacks.append(AccuracyCurve(self.folder / 'accuracy.png', self.heading))
        if on_rank_0 and settings['timeline']:
            callbacks.append(Timeline(self.folder, self.heading))
        return callbacks


def _workers(chapter: str, given: dict, signals: StopSignals) -> contextlib.AbstractContextManager[Workers]:
    if given.get('horovod'):
        if given.keys() & {'num_gpus', 'devices', 'allreduce'}:
            raise ValueError('--horovod: each worker has one device, and Horovod sums the gradients; leave out '
                             '--num-gpus, --devices and --allreduce, and start one worker per device')
        from ..distributed.horovod_workers import HorovodWorkers
        return HorovodWorkers(signals, chapter)
    if (size := os.environ.get('HOROVOD_SIZE', '1')) != '1':
        raise ValueError(f'horovodrun has started {size} workers, and each would train alone: add --horovod')
    return contextlib.nullcontext(Workers(signals))


def _given_flags(chapter: Chapter, argv: list | None) -> dict:
    parser = Parser(f'gluon_mgpu.{chapter.name}', usage='%(prog)s [--FLAG VALUE ...]',  # one with all would be too wide
                    description=f'Train {chapter.network} on several devices and print its test accuracy.')
    either = parser.add_mutually_exclusive_group()
    for setting in flags_of(chapter.name):
        group = either if setting.name in ('num_gpus', 'devices') else parser
        default = setting.default_text or setting.default_of(chapter.name)
        if setting.kind is bool:
            action = group.add_argument(setting.flag, action=argparse.BooleanOptionalAction, help=setting.help)
        else:
            choices = '{' + ','.join(setting.choices) + '}' if setting.choices else None
            action = group.add_argument(setting.flag, type=setting.from_flag, metavar=choices or setting.metavar,
                                        help=setting.help + (f' (default: {default})' if default is not None else ''))
        action.default = argparse.SUPPRESS
    return vars(parser.parse_args(argv))
