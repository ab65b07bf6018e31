"""Resume a run: keep its settings, check that those that were changed may change, and record the changes."""
from __future__ import annotations

import time

from ..devices.lists import devices_text
from ..settings import ALL, defaults, flags_of
from ..training.epoch import check_num_epochs
from .find import ResumedRun
from .run_folder import write_config

ROWS = {'train_digest': 'training', 'test_digest': 'test'}  # the digests of the datasets
# Entries of config.json whose changes are not worth a note
FREE = ('run_id', 'process', 'resumed', *ROWS, *(name for name, setting in ALL.items() if setting.on_resume == 'free'))


def resumed_settings(chapter: str, resumed: ResumedRun, given: dict) -> dict:
    """Return the settings of a run to resume, with those in `given` changed.

    Raises ValueError if it is a run of another chapter, would be another run, or has reached a later epoch.
    """
    before, folder = resumed.config, resumed.folder
    if before['chapter'] != chapter:
        raise ValueError(f'{folder} is a run of {before["chapter"]}: resume it with python -m '
                         f'gluon_mgpu.{before["chapter"]}')
    settings, dropped = defaults(chapter), set()
    if given.get('horovod'):
        dropped = {'devices', 'shares', 'allreduce'}
    elif given.keys() & {'num_gpus', 'devices'}:
        dropped = {'devices', 'shares'}
    for setting in flags_of(chapter):
        if setting.kept and setting.name in before and setting.name not in dropped:
            value = before[setting.name]
            if setting.name == 'devices' and isinstance(value, list):
                value = devices_text(value)  # each once; workers may have devices of the same name
            # Checked, because someone may have edited the file
            settings[setting.name] = setting.checked(value, f'{folder}/config.json: {setting.name}')
    # 'auto' is resolved when the data is loaded; then `record_resume` checks it
    check_same_run(before, {name: value for name, value in given.items() if value != 'auto'})
    settings = {**settings, **given, 'out_dir': str(folder)}
    if resumed.checkpoint:
        check_num_epochs(settings['num_epochs'], resumed.metadata['run'])
    return settings


def check_same_run(before: dict, now: dict) -> None:
    """Raise ValueError if the settings in `now`, possibly not all of them, would make it another run."""
    for name, value in now.items():
        if name in ALL and ALL[name].on_resume == 'fixed':
            recorded, flag = before.get(name, ALL[name].default), ALL[name].flag
            if value != recorded:
                raise ValueError(f'{flag} {value}: the run to resume has {recorded}; leave {flag} out, or start a new '
                                 'run')
    for name, rows in ROWS.items():
        if before.get(name) and now.get(name, before[name]) != before[name]:
            raise ValueError(f'the {rows} images or labels differ from those of the run to resume: give the folder '
                             'with the same data as --data-dir, or start a new run')


def record_resume(resumed: ResumedRun, now: dict) -> dict[str, list]:
    """Write the new configuration `now` of a resumed run into its ``config.json``, with a note of what has changed.

    Returns the settings that have changed, as ``{name: [before, now]}``. Raises ValueError if it would be another run.
    """
    before = {**defaults(resumed.config['chapter']), **resumed.config}
    check_same_run(before, now)
    changed = {name: [before.get(name), value] for name, value in now.items()
               if name not in FREE and before.get(name) != value}
    note = {'from': resumed.checkpoint.name if resumed.checkpoint else None,
            'time': time.strftime('%Y-%m-%d %H:%M:%S'), 'changed': changed}
    write_config(resumed.folder, {**now, 'resumed': [*before.get('resumed', []), note]})
    return changed
