"""Resume a run: find it, keep its settings, and compare its configuration with the new one."""
from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ..base.text import or_none
from ..checkpoints import run_folder
from ..checkpoints.metadata import check_metadata
from ..devices.lists import devices_text
from ..training.epoch import check_num_epochs
from .settings import ALL, defaults, flags_of

AUTO = 'auto'
OF_COMMAND = 'resume', 'out_dir', 'horovod', 'num_gpus'  # where a command runs: not settings of the run
GONE = 'shares', 'label_smoothing'  # settings of version 3


class ResumedRun(NamedTuple):
    """A run that can be resumed."""

    folder: Path
    config: dict
    checkpoint: Path | None  # to resume from; None if none was written
    metadata: dict           # of the checkpoint: run state and configuration


def run_to_resume(resume: str, out_dir: str | None, stack: ExitStack) -> ResumedRun | None:
    """Return the run that ``--resume`` means; None for ``auto`` if there is no run in `out_dir` yet.

    `resume` is ``'auto'``, the folder of a run, or a checkpoint in it. The folder stays locked until `stack` is closed.
    """
    path = Path(out_dir or '') if resume == AUTO else Path(resume)
    folder = path if resume == AUTO or path.is_dir() else path.parent
    if resume == AUTO:
        if out_dir is None:
            raise ValueError('--resume auto: give --out-dir as well, the folder of the run')
        if not folder.is_dir() or run_folder.is_empty(folder):
            return None
    elif not path.exists():
        raise ValueError(f"--resume {resume}: does not exist; give 'auto', the folder of a run or a checkpoint")
    elif out_dir is not None and Path(out_dir).resolve() != folder.resolve():
        raise ValueError(f'--out-dir {out_dir}: a resumed run stays in its folder {folder}; leave --out-dir out')
    run_folder.lock_folder(folder, stack)  # so that no other process writes there
    config = run_folder.read_config(folder)
    found, metadata = run_folder.newest_checkpoint(path)
    if found is None and resume != AUTO:
        raise ValueError(f'--resume {resume}: there is no complete checkpoint in it; start a new run with another '
                         '--out-dir')
    if found:
        try:
            check_metadata(metadata)
        except ValueError as error:
            raise ValueError(f'{found} is not a checkpoint of a run, {error}: move it elsewhere') from None
        if path != folder:
            run_folder.check_newest(folder, metadata['run']['num_steps'])
    return ResumedRun(folder, config, found, metadata)


def resumed_settings(chapter: str, resumed: ResumedRun, given: dict) -> dict:
    """Return the settings of a run to resume, with those in `given` changed."""
    before, folder = resumed.config, resumed.folder
    if before['chapter'] != chapter:
        raise ValueError(f'{folder} is a run of {before["chapter"]}, not of {chapter}: resume it with that program')
    for name in GONE:
        if before.get(name):
            raise ValueError(f'{folder} was trained with {name} {before[name]}, which this version of gluon_mgpu does '
                             'not have: resume it with version 3, or start a new run')
    replaced = {*given, *OF_COMMAND}
    if given.keys() & {'num_gpus', 'devices', 'horovod'}:
        replaced.add('devices')
    if given.get('horovod'):
        replaced.add('allreduce')
    settings = {**defaults(chapter), **given, 'out_dir': str(folder)}
    for setting in flags_of(chapter):
        if setting.name in before and setting.name not in replaced:
            value = before[setting.name]
            if setting.name == 'devices' and isinstance(value, list):
                value = devices_text(value)  # each once; workers may have devices of the same name
            # Checked, because someone may have edited the file
            settings[setting.name] = setting.checked(f'{folder}/config.json: {setting.name}', value)
    if resumed.checkpoint:
        check_num_epochs(settings['num_epochs'], resumed.metadata['run'], '--num-epochs')
    return settings


def changes(resumed: ResumedRun, now: dict) -> dict[str, list]:
    """Return the changes of a resumed run, as ``{name: [before, now]}``; ValueError if they make it another run."""
    # That of the checkpoint, because somebody may have edited config.json
    config = resumed.metadata['config'] if resumed.checkpoint else resumed.config
    before = {**defaults(now['chapter']), **config}
    changed = {name: [before[name], value] for name, value in now.items()
               if name not in OF_COMMAND and before.get(name, value) != value}
    fixed = {setting.name: setting.flag for setting in ALL.values() if setting.fixed}
    digests = {f'{part}_digest': f'digest of the {part} images and labels' for part in ('train', 'validation', 'test')}
    for name, label in {'run_id': 'run_id', 'chapter': 'chapter', **fixed, **digests}.items():
        if name in changed:
            old, new = map(or_none, changed[name])
            raise ValueError(f'{label} {new}: {resumed.checkpoint or resumed.folder} has {old}, and a resumed run '
                             'cannot change it; leave it as it was, or start a new run')
    return changed


def record_resume(resumed: ResumedRun, now: dict, changed: dict) -> None:
    """Write the ``config.json`` of a resumed run, with a note of what has changed."""
    note = {'from': resumed.checkpoint.name if resumed.checkpoint else None,
            'time': time.strftime('%Y-%m-%d %H:%M:%S'), 'changed': changed}
    run_folder.write_config(resumed.folder, {**now, 'resumed': [*resumed.config.get('resumed', []), note]})
