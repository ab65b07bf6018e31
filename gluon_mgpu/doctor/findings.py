"""What is wrong, from the facts: each fault in a line, with its remedy, the worst first."""
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..devices.gpus import dotted
from .child import STAGES

LITTLE_SPACE = 200 * 2**20  # bytes: ResNet-18 keeps two checkpoints of 45 MB and writes the third beside them
SLOW = 1.2                  # two devices that take turns are 1.0 times as fast as one; two busy cores gave 1.3 to 1.9
SERVERS = ('scheduler', 'server')  # values of DMLC_ROLE with which MXNet's import does not come back
PARALLEL_FAULT = 'do not train with it; report it with the output of python -m gluon_mgpu.doctor --json'


class Finding(NamedTuple):
    """What is wrong. With a 'fault' training cannot run; with a 'warning' it can."""

    level: str
    what: str
    remedy: str


def diagnose(facts: dict[str, Any]) -> list[Finding]:
    """What is wrong in what `facts.look` and `child.run` have found, faults before warnings.

    Parameters
    ----------
    facts : dict
        All of `facts.look`, and ``'self_test'`` from `child.run`.
    """
    found = [*_installation(facts), *_environment(facts), *_self_test(facts), *_gpus(facts), *_disks(facts),
             *_speed(facts)]
    return sorted(found, key=lambda finding: finding.level != 'fault')  # keeps the order of equals


def line_of(level: str, line: str) -> Finding:
    """A finding from a line as this package writes them: what is wrong, a colon outside of brackets, the remedy.

    Parameters
    ----------
    level : str
        'fault' or 'warning'.
    line : str
        Such as a ValueError's; one without a colon has no remedy.
    """
    depth = 0
    for i, letter in enumerate(line):
        depth += (letter == '(') - (letter == ')')
        if not depth and line[i:i + 2] == ': ':
            return Finding(level, line[:i], line[i + 2:])
    return Finding(level, line, '')


def _installation(facts: dict) -> Iterator[Finding]:
    mxnet, test = facts['mxnet'], facts['self_test']
    if mxnet['obstacle']:
        yield line_of('fault', mxnet['obstacle'])
    elif test.get('mxnet', {}).get('error'):
        role = _setting(facts, 'DMLC_ROLE')
        yield (Finding('fault', f'DMLC_ROLE={role} makes MXNet the {role} of a job when it is imported',
                       'unset DMLC_ROLE') if role in SERVERS else line_of('fault', test['mxnet']['error']))
    elif test['during'] == 'mxnet':
        yield Finding('fault', f'MXNet cannot be imported: the process {test["ended"]}', _why_no_import(facts))
    # Not where another Python is needed, or a command that installs them, too
    if facts['packages_missing'] and not re.search(r"^Python |install '\.\[", mxnet['obstacle']):
        names = ' '.join(facts['packages_missing'])
        yield Finding('fault', f'{names.replace(" ", ", ")}: not installed', f'pip install {names}')


def _why_no_import(facts: dict) -> str:
    role = _setting(facts, 'DMLC_ROLE')
    if role in SERVERS:
        return f'unset DMLC_ROLE: as {role}, MXNet waits for a job inside its import'
    if facts['self_test']['ended'].startswith('was killed'):
        return ('a disk may be slow: --timeout 300 waits longer; else install it anew: pip install --force-reinstall '
                f'--no-deps {_wheels(facts)}')
    return ('its library is broken, or not for this processor: pip install --force-reinstall --no-deps '
            f'{_wheels(facts)}')


def _wheels(facts: dict) -> str:
    return ' '.join(f'{name}=={version}' for name, version in facts['mxnet']['builds'].items())


def _environment(facts: dict) -> Iterator[Finding]:
    threads, test = facts['omp_threads'], facts['self_test']
    hangs = threads > 1 and not _mxnet_major(facts) >= 2 and not test.get('mxnet', {}).get('num_gpus')
    too_late = facts['mxnet']['imported_first']
    if too_late:
        refused = f', and {threads} threads per context hang' if hangs else ''
        yield Finding('fault' if hangs else 'warning',
                      f'MXNet was imported before gluon_mgpu, too early to set {", ".join(too_late)}{refused}',
                      'start Python anew and import gluon_mgpu first')
    elif hangs and 'devices' not in test:  # else it tells by itself
        yield Finding('fault', f"OMP_NUM_THREADS={threads} with 2 CPU contexts hangs in MXNet's OpenBLAS",
                      'unset it or set it to 1')
    if _setting(facts, 'MXNET_ENGINE_TYPE') == 'NaiveEngine':
        yield Finding('warning', 'MXNET_ENGINE_TYPE=NaiveEngine lets all devices take turns',
                      'unset it, unless you look for an error')


def _setting(facts: dict, variable: str) -> str | None:
    return next((entry['value'] for entry in facts['engine'] if entry['name'] == variable), None)


def _mxnet_major(facts: dict) -> int:
    versions = [facts['self_test'].get('mxnet', {}).get('version'), *facts['mxnet']['builds'].values()]
    return int(next(filter(None, versions), '1').split('.')[0])


def _self_test(facts: dict) -> Iterator[Finding]:
    test = facts['self_test']
    if test['ended'].startswith('could not'):
        yield Finding('warning', f'the self-test {test["ended"]}', 'run python -m gluon_mgpu.doctor in a shell')
    elif test['during'] == 'driver':
        yield Finding('fault', f'the self-test {test["ended"]} while {STAGES["driver"]}',
                      'if nvidia-smi does not answer either, reboot')
    elif test['during'] not in ('', 'mxnet', 'horovod'):
        yield Finding('fault', f'the self-test {test["ended"]} while {STAGES[test["during"]]}',
                      'report it with the output of python -m gluon_mgpu.doctor --json')
    for stage in ('devices', 'allreduce', 'step', 'speed'):
        error = test.get(stage, {}).get('error', '')
        if error and not (facts['packages_missing'] and error.startswith('ModuleNotFoundError')):
            yield line_of('fault', error)
    allreduce, step = (test.get(stage, {}) for stage in ('allreduce', 'step'))
    if allreduce.get('right') is False:
        yield Finding('fault', f'sums over the devices are wrong: {", ".join(allreduce["wrong"])}', PARALLEL_FAULT)
    if step.get('right') is False:
        yield Finding('fault', f"a step of training differs from that of {', '.join(step['reference'])} by more than "
                      f'{step["tolerance"]:g} of it', PARALLEL_FAULT)
    if facts['horovod']['installed'] and (test.get('horovod', {}).get('error') or test['during'] == 'horovod'):
        yield line_of('warning', test.get('horovod', {}).get('error') or
                      f'Horovod cannot be imported (the process {test["ended"]}): {facts["horovod"]["remedy"]}')


def _speed(facts: dict) -> Iterator[Finding]:
    speed_up = facts['self_test'].get('speed', {}).get('speed_up', SLOW)
    if speed_up < SLOW and facts['cores']['count'] > 1 and _setting(facts, 'MXNET_ENGINE_TYPE') != 'NaiveEngine':
        yield Finding('warning', f'two devices are only {speed_up:.2f} times as fast as one', _why_slow(facts))


def _why_slow(facts: dict) -> str:
    load, cores = facts['self_test']['speed']['load'], facts['cores']['count']
    if load and load > cores / 2:
        return f'the cores are busy (load {load:.1f} on {cores} cores): look again when they are not'
    mine = [entry['name'] for entry in facts['engine'] if entry['by'] == 'you' and entry['name'].startswith('MXNET_')]
    if mine:
        return f'unset {", ".join(mine)}'
    return 'others may use the cores, or a container may have fewer than it shows: look again when they are free'


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
            yield Finding('warning', f'{name}: no MXNet on PyPI has code for it, nor ever will',
                          f'{builds}, else CPU contexts' if builds else 'CPU contexts')
        elif mxnet.get('cuda') is False:
            yield Finding('warning', f'{name}, and the CPU build of MXNet is installed, which cannot use it',
                          f'install {builds}: docs/devices.md')
        elif mxnet.get('cuda') and gpu['index'] >= mxnet['num_gpus']:
            yield Finding('warning', f'{name}, and MXNet cannot see it', 'the driver may be too old')


def _disks(facts: dict) -> Iterator[Finding]:
    runs, cache = facts['disks']['runs'], facts['disks']['cache']
    if not runs['folder']:
        yield Finding('fault', f'{runs["error"]}, where runs are kept', 'change to a folder that exists')
    elif runs['error']:
        yield Finding('fault', f'{runs["folder"]} cannot be written ({runs["error"]}), where runs are kept',
                      'make room, remove what is in the way, go to another folder, or name one with --out-dir')
    if cache['error']:
        where = f'{cache["folder"]} cannot be written ({cache["error"]})' if cache['folder'] else cache['error']
        yield Finding('warning', f'{where}: what is downloaded cannot be kept there',
                      'let XDG_CACHE_HOME name a folder that can be written')
    for name, disk in (('runs', runs), ('data', cache)):
        if not disk['error'] and disk['free'] < LITTLE_SPACE:
            yield Finding('warning', f'{disk["free"] / 2**20:.0f} MB are free for {name} in {disk["folder"]}',
                          f'have {LITTLE_SPACE >> 20} MB: ResNet-18 keeps checkpoints of 45 MB')
    what, _, remedy = facts['data']['fashion-mnist'].get('error', '').partition('; ')
    if what and facts['data']['mnist']['folder']:
        yield Finding('warning', f'GLUON_MGPU_DATA: {what}',
                      f'train on MNIST, which is there: --dataset mnist; {remedy}')
    elif what:
        yield Finding('fault', f'GLUON_MGPU_DATA: {what}', remedy)
