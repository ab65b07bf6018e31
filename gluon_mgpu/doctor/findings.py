"""Problems found in the facts, each with its remedy, the worst first."""
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..devices.gpus import dotted
from ..mxnet_setup.installation import replacement
from .child import STAGES

LITTLE_SPACE = 200 * 2**20  # bytes: ResNet-18 keeps two checkpoints of 45 MB and writes a third beside them
SLOW = 1.2                  # speed-up of two devices: 1.0 if they take turns, 1.3 to 1.9 measured on two busy cores
REPORT = 'report it with the output of python -m gluon_mgpu.doctor --json'


class Finding(NamedTuple):
    """A problem. With a 'fault', training cannot run; with a 'warning', it can."""

    level: str
    what: str
    remedy: str


def diagnose(facts: dict[str, Any]) -> list[Finding]:
    """Return the problems, faults first, in the facts of `facts.look` with ``'self_test'`` from `child.run`."""
    found = [*_installation(facts), *_environment(facts), *_self_test(facts), *_gpus(facts), *_disks(facts),
             *_data(facts), *_speed(facts)]
    return sorted(found, key=lambda finding: finding.level != 'fault')  # stable


def from_line(level: str, line: str) -> Finding:
    """Return the finding for an error message: the problem and, after the first colon outside brackets, the remedy."""
    parts = line.split(': ')
    for i in range(1, len(parts)):
        what = ': '.join(parts[:i])
        if what.count('(') == what.count(')'):
            return Finding(level, what, ': '.join(parts[i:]))
    return Finding(level, line, '')


def _installation(facts: dict) -> Iterator[Finding]:
    mxnet, test = facts['mxnet'], facts['self_test']
    if mxnet['obstacle']:
        yield from_line('fault', mxnet['obstacle'])
    elif test['during'] == 'mxnet':
        wheels = ' '.join(f'{name}=={version}' for name, version in mxnet['builds'].items())
        reinstall = f'pip install --force-reinstall --no-deps {wheels}' if wheels else 'install MXNet again'
        if test['ended'].startswith('was killed'):
            remedy = f'on a slow disk, try --timeout 300; otherwise {reinstall}'
        else:
            remedy = _unset(facts) or f'{reinstall}; if that does not help, the processor is too old for this build'
        yield Finding('fault', f'MXNet cannot be imported: the process {test["ended"]}', remedy)
    # Not if the remedy above is another Python, or a command that installs them as well
    if facts['packages_missing'] and not re.search(r"^Python |install ('\.\[|\. &&)", mxnet['obstacle']):
        yield Finding('fault', f'not installed: {", ".join(facts["packages_missing"])}',
                      f'pip install {" ".join(facts["packages_missing"])}')


def _environment(facts: dict) -> Iterator[Finding]:
    threads, too_late = facts['omp_threads'], facts['mxnet']['imported_first']
    hangs = threads > 1 and _mxnet_major(facts) < 2 and not facts['self_test'].get('mxnet', {}).get('num_gpus')
    if too_late:
        hang = f', and {threads} threads per context hang' if hangs else ''
        yield Finding('fault' if hangs else 'warning',
                      f'MXNet was imported before gluon_mgpu, too early to set {", ".join(too_late)}{hang}',
                      'restart Python and import gluon_mgpu first')
    if _setting(facts, 'MXNET_ENGINE_TYPE') == 'NaiveEngine':
        yield Finding('warning', 'MXNET_ENGINE_TYPE=NaiveEngine makes all devices take turns',
                      'unset it unless you are debugging')


def _setting(facts: dict, variable: str) -> str | None:
    return next((entry['value'] for entry in facts['engine'] if entry['name'] == variable), None)


def _unset(facts: dict) -> str:
    """Return the command that removes the settings of MXNet that the user has made, or ''."""
    yours = [entry['name'] for entry in facts['engine'] if entry['by'] == 'you' and entry['name'].startswith('MXNET_')]
    return f'unset {" ".join(yours)}' if yours else ''


def _mxnet_major(facts: dict) -> int:
    versions = [facts['self_test'].get('mxnet', {}).get('version'), *facts['mxnet']['builds'].values()]
    return int(next(filter(None, versions), '1').split('.')[0])


def _self_test(facts: dict) -> Iterator[Finding]:
    test = facts['self_test']
    if test['ended'].startswith('could not'):
        yield Finding('warning', f'the self-test {test["ended"]}', 'run python -m gluon_mgpu.doctor in a shell')
    elif test['during'] not in ('', 'mxnet', 'horovod'):
        remedy = 'if nvidia-smi hangs as well, reboot' if test['during'] == 'driver' else _unset(facts) or REPORT
        killed = 'killed' in test['ended']
        if killed:
            remedy = f'on a slow or busy machine, use --timeout 300; otherwise {remedy}'
        # Training can run if only the timing at the end takes too long
        kind = 'warning' if killed and test['during'] == 'speed' else 'fault'
        yield Finding(kind, f'the self-test {test["ended"]} while {STAGES[test["during"]]}', remedy)
    for stage in ('mxnet', 'devices', 'allreduce', 'step', 'speed')[bool(facts['mxnet']['obstacle']):]:
        result = test.get(stage, {})
        error = result.get('error', '')
        if 'remedy' not in result and error:
            yield from_line('fault', error)
        elif error and not (facts['packages_missing'] and error.startswith('ModuleNotFoundError')):
            yield Finding('fault', f'{STAGES[stage]} failed ({error})', result['remedy'] or _unset(facts) or REPORT)
    allreduce, step, horovod = (test.get(stage, {}) for stage in ('allreduce', 'step', 'horovod'))
    if allreduce.get('right') is False:
        yield Finding('fault', f'sums over the devices are wrong: {", ".join(allreduce["wrong"])}',
                      f'do not train; {REPORT}')
    if step.get('right') is False:
        yield Finding('fault', f'a training step differs from one on {", ".join(step["reference"])} by more than '
                      f'{step["tolerance"]:.0%}', f'do not train; {REPORT}')
    if facts['horovod']['installed'] and horovod.get('error'):
        yield from_line('warning', horovod['error'])
    elif facts['horovod']['installed'] and test['during'] == 'horovod':
        yield Finding('warning', f'Horovod cannot be imported: the process {test["ended"]}', facts['horovod']['remedy'])


def _speed(facts: dict) -> Iterator[Finding]:
    speed_up, cores = facts['self_test'].get('speed', {}).get('speed_up', SLOW), facts['cores']['count']
    if speed_up >= SLOW or cores == 1 or _setting(facts, 'MXNET_ENGINE_TYPE') == 'NaiveEngine':
        return
    load = facts['self_test']['speed']['load']
    busy = f' (load {load:.1f} on {cores} cores)' if load else ''
    yield Finding('warning', f'two devices are only {speed_up:.2f} times as fast as one', _unset(facts) or
                  f'repeat when the cores are idle{busy}; in a container, check its CPU limit')


def _gpus(facts: dict) -> Iterator[Finding]:
    test = facts['self_test']
    mxnet = test.get('mxnet', {})
    refused = test.get('devices', {}).get('error', '')
    for gpu in test.get('driver', {}).get('gpus', []):
        name = f'gpu({gpu["index"]}) is {gpu["name"]} (compute capability {dotted(gpu["capability"])})'
        if name in refused:
            continue
        builds = ' or '.join(gpu['builds'])
        if 'mxnet-cu112' not in gpu['builds'] and _mxnet_major(facts) < 2:
            yield Finding('warning', f'{name}, which no MXNet on PyPI supports',
                          f'install {builds}, or use CPU contexts' if builds else 'use CPU contexts')
        elif mxnet.get('cuda') is False:
            yield Finding('warning', f'{name}, but the CPU build of MXNet is installed',
                          f'to use it, {replacement("cu112")}')
        elif mxnet.get('cuda') and gpu['index'] >= mxnet['num_gpus']:
            yield Finding('warning', f'{name}, but MXNet does not see it', 'update the NVIDIA driver')


def _disks(facts: dict) -> Iterator[Finding]:
    runs, cache = facts['disks']['runs'], facts['disks']['cache']
    if not runs['folder']:
        yield Finding('fault', 'the current folder has been deleted', 'change to a folder that exists')
    elif runs['error']:
        yield Finding('fault', f'{runs["folder"]} cannot be written: {runs["error"]}',
                      'free some space, remove what is in the way, or name another folder with --out-dir')
    if cache['error']:
        what = (f'{cache["folder"]}, for downloaded data, cannot be written: {cache["error"]}' if cache['folder'] else
                'there is no home folder for downloaded data')
        yield Finding('warning', what, 'set XDG_CACHE_HOME to a writable folder')
    for name, disk in (('runs', runs), ('data', cache)):
        if not disk['error'] and disk['free'] < LITTLE_SPACE:
            yield Finding('warning', f'only {disk["free"] / 2**20:.0f} MB are free for {name} in {disk["folder"]}',
                          f'free {LITTLE_SPACE >> 20} MB; checkpoints of ResNet-18 take 45 MB each')


def _data(facts: dict) -> Iterator[Finding]:
    what, _, remedy = facts['data']['fashion-mnist'].get('error', '').partition('; ')
    if what:
        only_mnist = facts['data']['mnist']['folder']
        yield Finding('warning' if only_mnist else 'fault', f'GLUON_MGPU_DATA: {what}',
                      f'{"train on MNIST with --dataset mnist; " if only_mnist else ""}{remedy}; '
                      'unset GLUON_MGPU_DATA to download them')
