"""Resume a run: find it, keep its settings, check that those that were changed may change, and record the changes."""
from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ..base.files import SameFolder
from ..base.program import InputError, warn
from ..base.text import or_none
from ..checkpoints import run_folder
from ..checkpoints.metadata import check_metadata
from ..devices.lists import devices_text
from ..parallel.workers import Workers
from ..training.epoch import check_num_epochs
from .chapters import CHAPTERS
from .settings import ALL, defaults, flags_of

AUTO = 'auto'
# The digests of the datasets
ROWS = {'train_digest': ('training', '--train-size'), 'validation_digest': ('validation', '--train-size'),
        'test_digest': ('test', '--test-size')}
# Entries of config.json whose changes are not worth a note
NOT_NOTED = ('run_id', 'process', 'resumed', *ROWS,
             *(name for name, setting in ALL.items() if setting.on_resume == 'not kept'))


class ResumedRun(NamedTuple):
    """A run that can be resumed."""

    folder: SameFolder
    config: dict
    checkpoint: Path | None  # to resume from; None if none was written
    metadata: dict           # of the checkpoint: run state and configuration


def run_to_resume(resume: str, out_dir: str | None, stack: ExitStack) -> ResumedRun | None:
    """Return the run that ``--resume`` means; None for ``auto`` if there is no run in `out_dir` yet.

    `resume` is ``'auto'``, the folder of a run, or a checkpoint in it. The folder stays locked until `stack` is closed.
    """
    if resume == AUTO:
        if out_dir is None:
            raise ValueError('--resume auto: give --out-dir as well, the folder of the run')
        path = folder = Path(out_dir)
        if not folder.is_dir() or run_folder.is_empty(folder):
            return None
    else:
        path = Path(resume)
        folder = path if path.is_dir() else path.parent
        if not path.exists():
            raise ValueError(f"--resume {resume}: does not exist; give 'auto', the folder of a run or a checkpoint")
        if out_dir is not None and Path(out_dir).resolve() != folder.resolve():
            raise ValueError(f'--out-dir {out_dir}: a resumed run stays in its folder {folder}; leave --out-dir out')
    locked = run_folder.lock_folder(folder, stack)  # so that no other process writes there
    try:
        config = run_folder.read_config(folder)
    except ValueError as error:
        remedy = 'give another --out-dir' if resume == AUTO else 'name the folder of a run, or a checkpoint in it'
        is_elsewhere = path != folder and not (folder / 'config.json').exists()
        problem = 'the file is not in the folder of a run' if is_elsewhere else error
        raise ValueError(f'--resume {resume}: {problem}; {remedy}') from None
    run_folder.check_links(folder)
    found, metadata = run_folder.newest_checkpoint(path)
    if found is None and resume != AUTO:
        raise ValueError(f'--resume {resume}: there is no complete checkpoint in it; start a new run with another '
                         '--out-dir')
    if found:
        check_checkpoint(found, metadata, config)
    others = run_folder.checkpoints(folder) if path != folder else []
    for newer in others:
        if run_folder.steps_in_name(newer) > metadata['run']['num_steps'] and not newer.samefile(path):
            raise ValueError(f'--resume {resume}: {newer.name} is newer and would be lost; move it elsewhere first')
    return ResumedRun(locked, config, found, metadata)


def check_checkpoint(path: Path, metadata: dict, config: dict) -> None:
    """Raise ValueError unless a checkpoint is complete, and of the run in ``config.json``, possibly edited."""
    try:
        check_metadata(metadata)
    except ValueError as error:
        raise ValueError(f'{path} is not a checkpoint of a run, {error}: move it elsewhere') from None
    kept = metadata['config']
    if kept.get('run_id') != config.get('run_id'):
        raise ValueError(f'{path} is of another run: move it elsewhere, or name the folder that it is from')
    for name in ('chapter', *ROWS, *(name for name, setting in ALL.items() if setting.on_resume == 'fixed')):
        default = ALL[name].default if name in ALL else None
        before, now = (each.get(name, default) for each in (kept, config))
        if before != now:
            raise ValueError(f'{name} is {now!r} in config.json and {before!r} in {path}: restore config.json, or '
                             'start a new run')


def check_on_rank_0(resume: str, out_dir: str | None, workers: Workers) -> None:
    """Raise InputError if the run to resume is on the machine of another worker only, where rank 0 cannot read it."""
    path = Path(out_dir or '') if resume == AUTO else Path(resume)
    found = workers.allgather(path.is_file() or (path / 'config.json').exists())
    if any(found) and not found[0]:
        host = workers.hosts[found.index(True)]
        raise InputError(f'--resume {resume}: {path} is on {host} and not on {workers.hosts[0]}, where worker 0 reads '
                         f'and writes it; start worker 0 on {host}, or share or copy the folder')


def resumed_settings(chapter: str, resumed: ResumedRun, given: dict) -> dict:
    """Return the settings of a run to resume, with those in `given` changed; ValueError if it would be another run."""
    before, folder, other = resumed.config, resumed.folder, resumed.config['chapter']
    if other != chapter:
        if other in CHAPTERS:
            raise ValueError(f'{folder} is a run of {other}: resume it with python -m gluon_mgpu.{other}')
        raise ValueError(f'{folder} is a run of {other!r}: must be of {" or ".join(CHAPTERS)}')
    settings, dropped = defaults(chapter), {*given}
    if given.get('horovod'):
        dropped |= {'devices', 'allreduce'}
    elif given.keys() & {'num_gpus', 'devices'}:
        dropped |= {'devices'}
    for setting in flags_of(chapter):
        if setting.on_resume != 'not kept' and setting.name in before and setting.name not in dropped:
            value = before[setting.name]
            if setting.name == 'devices' and isinstance(value, list):
                value = devices_text(value)  # each once; workers may have devices of the same name
            # Checked, because someone may have edited the file
            settings[setting.name] = setting.checked(f'{folder}/config.json: {setting.name}', value)
    # 'auto' is resolved when the data is loaded; then `record_resume` checks it
    check_same_run(before, {name: value for name, value in given.items() if value != 'auto'})
    settings = {**settings, **given, 'out_dir': str(folder)}
    model = before.get('export')
    if model and 'export' not in given:
        settings['export'] = None  # config.json, possibly from somebody else, must not name files outside the folder
        if os.path.dirname(model) == before.get('out_dir'):
            settings['export'] = str(folder / os.path.basename(model))  # the folder was possibly moved or copied
        else:
            warn(f'the model will not be exported to {model}, outside the folder of the run, unless --export is given '
                 'again')
    if resumed.checkpoint:
        check_num_epochs(settings['num_epochs'], resumed.metadata['run'], '--num-epochs')
    return settings


def check_same_run(before: dict, now: dict) -> None:
    """Raise ValueError if the settings in `now`, possibly not all of them, would make it another run."""
    for setting in [ALL[name] for name in now if name in ALL and ALL[name].on_resume == 'fixed']:
        value, recorded, flag = now[setting.name], before.get(setting.name, setting.default), setting.flag
        if value != recorded:
            raise ValueError(f'{flag} {or_none(value)}: the run to resume has {or_none(recorded)}; leave {flag} '
                             'out, or start a new run')
    for name, (rows, flag) in ROWS.items():
        if before.get(name) and now.get(name, before[name]) != before[name]:
            raise ValueError(f'the {rows} images or labels differ from those of the run to resume: leave '
                             f'{flag} out and name the same folder with --data-dir, or start a new run')


def record_resume(resumed: ResumedRun, now: dict) -> dict[str, list]:
    """Write the ``config.json`` of a resumed run, with what has changed; return that as ``{name: [before, now]}``."""
    before = {**defaults(resumed.config['chapter']), **resumed.config}
    check_same_run(before, now)
    if resumed.checkpoint:
        rows = now['train_size'] - (now['validation_size'] or 0)
        check_position(resumed, -(-rows // now['batch_size']))
    changed = {name: [before.get(name), value] for name, value in now.items()
               if name not in NOT_NOTED and before.get(name) != value}
    note = {'from': resumed.checkpoint.name if resumed.checkpoint else None,
            'time': time.strftime('%Y-%m-%d %H:%M:%S'), 'changed': changed}
    run_folder.write_config(resumed.folder, {**now, 'resumed': [*before.get('resumed', []), note]})
    return changed


def check_position(resumed: ResumedRun, length: int) -> None:
    """Raise ValueError unless the state to resume is possible with epochs of `length` batches."""
    state = resumed.metadata['run']
    if (state['num_steps'] != len(state['history']) * length + state['num_batches']
            or state['epoch_length'] not in (0, length)):
        raise ValueError(f'{resumed.checkpoint} is of epochs with another number of batches than {length}: move it '
                         'elsewhere')
