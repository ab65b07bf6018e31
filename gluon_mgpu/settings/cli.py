"""Command line of the chapters: settings, the run's folder, training, export."""
from __future__ import annotations

import argparse
import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

from ..base.arguments import LARGEST_INTEGER, integer
from ..base.files import SameFolder
from ..base.flags import Parser, quoted
from ..base.machine import num_cores, versions
from ..base.program import Stopped, run_program, show, warn
from ..base.text import counted, or_none
from ..checkpoints.checkpoint_callback import CheckpointCallback
from ..checkpoints.run_folder import check_free, claim_folder, this_process
from ..data import load_data
from ..devices import devices_words
from ..distributed.launchers import launch_info
from ..mxnet_setup.runtime import environment
from ..outputs.plot import AccuracyCurve
from ..outputs.timeline.record import Timeline, check_profiler
from ..parallel.workers import ThisProcess, Workers
from ..programs.onnx.writing import check_path
from ..training.callback import Callback, Patience, epochs_since_best
from ..training.evaluate import evaluate_accuracy_gpus
from ..training.history import EpochResult, summary
from ..training.run import Run
from ..training.schedules import schedule
from ..training.signals import StopSignals
from .chapters import CHAPTERS, Chapter
from .resume import ResumedRun, check_on_rank_0, record_resume, resumed_settings, run_to_resume
from .settings import ALL, FLAGS, SHARED, arguments_of, defaults, flags_of
from .setup import find_devices


def run(name: str, argv: list | None = None) -> int:
    """Run the chapter of this name as a program; return the exit status, see `base.program.run_program`."""
    def program() -> None:
        given = _given_flags(CHAPTERS[name], argv)
        signals = StopSignals()
        with _workers(name, given, signals) as workers, contextlib.ExitStack() as stack:
            Job(CHAPTERS[name], given, workers, stack).run(signals)
    return run_program(name, program)


class Job:
    """A command of a chapter: its settings, what it found and what it opened. `run` calls the other methods in order.

    `given` are the flags, `settings` all that have a flag; `devices` and `data` are those of this worker.
    """

    def __init__(self, chapter: Chapter, given: dict, workers: Workers, stack: contextlib.ExitStack):
        self.chapter, self.given, self.workers, self._stack = chapter, given, workers, stack
        self.settings: dict[str, Any] = {**defaults(chapter.name), **given}
        self.resumed: ResumedRun | None = None
        self.locked: SameFolder | None = None       # the run's folder, on rank 0
        self.devices: list = []                     # of this worker, from `load`
        self.data: tuple = ()                       # its shards, from `load`: training, possibly validation, and test
        self.config: dict[str, Any] = {}            # of the run, from `configure`
        self.heading = ''                           # of a curve, from `configure`
        self.folder: Any = None                     # the run's, from `open_folder`, possibly on another machine
        self.checkpoints: CheckpointCallback        # from `train`

    def run(self, signals: StopSignals) -> None:
        """Do all steps of a command, together with the other workers; `on_rank_0` calls a function on rank 0 only."""
        # Each call of `workers` waits for all of them, and sends an error of one, or the result of rank 0, to all
        workers = self.workers
        # 1. Compare flags first: workers with different flags would deadlock later. The platform may differ
        workers.check_equal({**versions(), 'platform': '', 'chapter': self.chapter.name,
                             **{ALL[name].flag: or_none(value) for name, value in self.settings.items()}})
        if self.settings['resume']:
            check_on_rank_0(self.settings['resume'], self.settings['out_dir'], workers)
        # 2. The settings, which rank 0 alone can read in the run's folder; devices and data, of which each has its own
        self.settings, resumed = workers.on_rank_0(self.find_settings)
        self.resumed = self.resumed or resumed
        workers.on_all_ranks(self.load)
        # 3. The configuration, which must be the same on all, and the run's folder, into which rank 0 alone writes
        self.configure(workers.allgather([str(device) for device in self.devices]))
        workers.check_equal({**self.config, 'platform': ''})
        folder = workers.on_rank_0(self.open_folder)
        self.folder = self.locked or folder
        with signals:  # until the end: after the training, a signal is ignored
            # 4. The training on all, and the export on rank 0
            net = self.train()
            workers.on_rank_0(lambda: self.export(net))

    def log(self, line: str) -> None:
        """Print a line, unless the program is quiet."""
        if self.workers.rank == 0 and not self.settings['quiet']:
            show(line)

    def find_settings(self) -> tuple[dict, ResumedRun | None]:
        """On rank 0, return all settings and the run to resume, if any, with its folder locked; write nothing."""
        settings, resume = self.settings, self.settings['resume']
        resumed = self.resumed = run_to_resume(resume, settings['out_dir'], self._stack) if resume else None
        if resumed:
            settings = resumed_settings(self.chapter.name, resumed, self.given)
        else:
            check_free(settings['out_dir'])
        if settings['export']:
            check_path(settings['export'], settings['out_dir'])
        return settings, resumed

    def load(self) -> None:
        """Find the devices of this worker, and load its shards of the data."""
        settings, on_rank_0 = self.settings, self.workers.rank == 0
        self.devices = find_devices(settings, self.workers, self.log, lambda name: ALL[name].flag)
        if settings['timeline']:
            check_profiler(self.devices)
        num_cpus = sum(device.device_type == 'cpu' for device in self.devices)
        if num_cpus > num_cores():
            self.log(f'{num_cpus} CPU contexts share {counted(num_cores(), "core")}: more contexts than cores do not '
                     'train faster')
        self.data = load_data(settings['dataset'], settings['batch_size'], settings['data_dir'], settings['train_size'],
                              settings['seed'], log=warn if on_rank_0 else lambda line: None,
                              progress=on_rank_0 and not settings['quiet'], shard=self.workers.shard,
                              test_size=settings['test_size'], name=lambda name: ALL[name].flag,
                              validation_size=settings['validation_size'])
        # The same limit as in `schedule`, which gets the number of updates after the folder is written
        integer('--num-epochs', settings['num_epochs'], 1, LARGEST_INTEGER // len(self.data[0]))

    def configure(self, devices: list[list[str]]) -> None:
        """Set `config`: all settings, the dataset and devices in use, digests of the data, versions."""
        settings, (train_iter, *held_out, test_iter) = self.settings, self.data
        all_devices = [name for names in devices for name in names]
        self.config = {'chapter': self.chapter.name, **settings, 'devices': all_devices, 'num_gpus': len(all_devices),
                       'data_dir': settings['data_dir'] and os.path.abspath(settings['data_dir']),
                       'export': settings['export'] and os.path.abspath(settings['export']),
                       'workers': self.workers.size, 'dataset': train_iter.dataset,
                       'train_size': train_iter.num_rows + (settings['validation_size'] or 0),
                       'train_digest': train_iter.digest, 'test_digest': test_iter.digest,
                       **versions(), 'environment': environment()}
        if held_out:
            self.config['validation_digest'] = held_out[0].digest
        self.heading = f'{self.chapter.network} on {train_iter.dataset}, {devices_words(all_devices)}'

    def open_folder(self) -> SameFolder:
        """On rank 0, print the first lines; create and lock the run's folder, or use that of the run to resume."""
        size = f', {self.workers.size} workers' if self.workers.size > 1 else ''
        train_iter, *held_out, test_iter = self.data
        batch_size, num_devices = self.settings['batch_size'], len(self.devices) * self.workers.size
        validation = f', {held_out[0].num_rows} validation' if held_out else ''
        self.log(f'{self.heading}{size}')
        self.log(f'{train_iter.num_rows} training{validation} and {test_iter.num_rows} test images, batches of '
                 f'{batch_size}, learning rate {self.settings["lr"]:g}')
        if train_iter.num_rows < batch_size:
            self.log(f'--batch-size {batch_size}: every update is divided by it, although a batch has only '
                     f'{counted(train_iter.num_rows, "image")}')
        if num_devices > batch_size:
            self.log(f'--batch-size {batch_size}: {num_devices - batch_size} of {num_devices} devices never get a row')
        before = self.resumed.config if self.resumed else {'run_id': secrets.token_hex(8)}
        self.config |= {'run_id': before.get('run_id'), 'process': this_process(),
                        'out_dir': self.settings['out_dir'] and os.path.abspath(self.settings['out_dir'])}
        if self.resumed is None:
            self.locked = claim_folder(self.settings['out_dir'], self.chapter.name, self.config, self._stack)
            return self.locked
        self.locked, checkpoint = self.resumed.folder, self.resumed.checkpoint
        changed = record_resume(self.resumed, self.config)
        line = (f'resuming from {checkpoint}' if checkpoint else
                f'{self.locked} has no checkpoint yet: starting from the beginning')
        if needed := checkpoint and self._to_train_longer(self.resumed.metadata['run']):
            line += f', which is the end of the run; to train longer, give {" and ".join(needed)}'
        self.log('; '.join([line, *(f'{name} {or_none(now)} instead of {or_none(before)}'
                                    for name, (before, now) in changed.items())]))
        return self.locked

    def _to_train_longer(self, state: dict) -> list[str]:
        """Return the flags that a resumed run needs to train at all; [] if it has not come to its end."""
        accuracies = [EpochResult(*epoch).test_acc for epoch in state['history']]
        num_epochs, patience = self.settings['num_epochs'], self.settings['patience']
        needed = ['a larger --num-epochs'] if len(accuracies) >= num_epochs else []
        if patience and accuracies and not state['num_batches']:  # within an epoch, `Patience` stops after it
            since_best = epochs_since_best(accuracies)
            needed += [f'--patience {since_best + 1} or more'] if since_best >= patience else []
        return needed

    def train(self) -> Any:
        """Call the chapter's ``train`` with a `Run` that writes to the run's folder; return the trained network."""
        settings, workers, num_batches = self.settings, self.workers, len(self.data[0])
        workers.resume_hint = f'; resume with: {self._resume_command()}'  # printed if a worker is lost
        self.checkpoints = CheckpointCallback(self.folder, settings['checkpoint_every'], self.config,
                                              resume=self.resumed and self.resumed.checkpoint,
                                              require=settings['require_checkpoint'], keep_best=settings['keep_best'])
        self.checkpoints.resume_command = self._resume_command()
        run = Run(settings['num_epochs'], settings['quiet'], folder=self.folder if workers.rank == 0 else None,
                  callbacks=[self.checkpoints, *self._callbacks()], workers=workers,
                  evaluated='validation' if settings['validation_size'] else 'test')
        lr = schedule(settings['lr_schedule'], settings['lr'], settings['num_epochs'] * num_batches,
                      settings['warmup_epochs'] * num_batches)
        arguments = {setting.name: settings.get(setting.name) for setting in arguments_of(self.chapter.name)}
        arguments |= {'num_gpus': len(self.devices), 'devices': self.devices, 'lr': lr, 'data': self.data[:2],
                      'run': run}
        try:
            self.chapter.module.train(**arguments)
            result = self.test(run.net) if settings['validation_size'] else ''
        except Stopped as stopped:
            raise self.checkpoints.save_on_stop(run, stopped.signum) from None
        finally:
            run.close()
        if settings['quiet'] and workers.rank == 0:
            show(summary(run.history, self.devices, workers.size, run.evaluated))
        if result and workers.rank == 0:
            show(result)
        return run.net

    def test(self, net: Any) -> str:
        """Evaluate the trained network on the test set, on all workers; return a line with its accuracy."""
        devices, test_iter = self.devices, self.data[-1]
        accuracy = evaluate_accuracy_gpus(self.chapter.scores_of(net, devices), test_iter, devices=devices,
                                          workers=self.workers)
        return f'test acc: {accuracy:.4f} on {test_iter.num_rows:,} test images, after the last epoch'

    def export(self, net: Any) -> None:
        """On rank 0, write the network as an ONNX model, if asked for."""
        path = self.settings['export']
        try:
            if path:
                os.stat(Path(path).parent)  # raises the OSError of a folder that has vanished
                self.chapter.write_model(net, path if self._is_elsewhere(path) else self.folder / Path(path).name,
                                         self.log)
        except OSError as error:
            problem, saved = f'cannot write {path} ({error.strerror or error})', self.checkpoints
            if saved.problem:  # the newest checkpoint is an earlier state
                is_there = (self.folder / 'config.json').exists()
                remedy = 'free some space' if is_there else f'put the folder {self.folder} back'
                raise ValueError(f'{problem} or the final checkpoint: {remedy}, and train the rest again with: '
                                 f'{self._resume_command()}') from None
            raise ValueError(f'{problem}; the run is complete; export it with: python -m gluon_mgpu export '
                             f'{quoted(str(saved.last))} --out {quoted(path)}') from None

    def _is_elsewhere(self, path: str) -> bool:
        return Path(path).resolve().parent != Path(self.folder).resolve()

    def _resume_command(self) -> str:
        """Return the command that resumes this run, also if it has no checkpoint yet."""
        launcher = f'{self.workers.launcher} ... ' if self.workers.launcher else ''
        horovod = ' --horovod' if self.settings['horovod'] else ''
        model = self.settings['export']
        export = f' --export {quoted(model)}' if model and self._is_elsewhere(model) else ''
        return (f'{launcher}python -m gluon_mgpu.{self.chapter.name}{horovod} --resume auto --out-dir '
                f'{quoted(self.folder)}{export}')

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
    info = launch_info()
    # mpirun and srun are also used to start independent programs
    if info.launcher == 'horovodrun' and info.size > 1:
        raise ValueError(f'horovodrun has started {info.size} workers, and each would train alone: add --horovod')
    return contextlib.nullcontext(ThisProcess(signals))


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
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        flag = unknown[0].partition('=')[0]
        chapters = [', '.join(setting.chapters) for setting in (*SHARED, *FLAGS) if setting.flag == flag]
        parser.error(f'{flag}: only for {chapters[0]}' if chapters else f'unrecognized arguments: {" ".join(unknown)}')
    return vars(given)
