"""Problems found in the facts, each with its remedy, the worst first."""
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...mxnet_setup.installation import how_to_get_horovod, replacement
from ...mxnet_setup.instructions import AVX2_KERNELS, ONEDNN_VARIABLE, OPENBLAS_VARIABLE
from .self_test import REPORT, STAGES

LITTLE_SPACE = 200 * 2**20  # bytes: ResNet-18 keeps two checkpoints of 45 MB and writes a third beside them
SLOW = 1.2                  # speed-up of two devices: 1.0 if they take turns, 1.3 to 1.9 measured on two busy cores


class Finding(NamedTuple):
    """A problem. With a 'fault', training cannot run; with a 'warning', it can."""

    level: str
    what: str
    remedy: str


def diagnose(facts: dict[str, Any]) -> list[Finding]:
    """Return the problems, faults first, in the facts of `facts.look` with ``'self_test'`` from `run_self_test`."""
    if not facts['disks']['runs']['folder']:  # even NumPy may fail to import there
        return [Finding('fault', 'the current folder has been deleted', 'change to a folder that exists')]
    found = [*_self_test(facts), *_instructions(facts), *_gpus(facts), *_disks(facts), *_data(facts), *_speed(facts)]
    return sorted(found, key=lambda finding: finding.level != 'fault')  # stable


def from_line(level: str, line: str) -> Finding:
    """Return the finding for an error message: the problem and, after the first colon outside brackets, the remedy."""
    for colon in re.finditer(': ', line):
        what, remedy = line[:colon.start()], line[colon.end():]
        if what.count('(') == what.count(')'):
            return Finding(level, what, remedy)
    return Finding(level, line, '')


def _unset(facts: dict) -> str:
    """Return the command that removes the settings of MXNet that the user has made, or ''."""
    yours = [name for name in facts['engine']['you'] if name.startswith('MXNET_')]
    return f'unset {" ".join(yours)}' if yours else ''


def _self_test(facts: dict) -> Iterator[Finding]:
    test, missing = facts['self_test'], facts['packages_missing']
    # A remedy that installs this package installs them as well
    if missing and not re.search(r"install (\.|'\.\[cu112\]') && ", test.get('mxnet', {}).get('error', '')):
        yield Finding('fault', f'not installed: {", ".join(missing)}', f'pip install {" ".join(missing)}')
    if test['during']:
        yield _crash(facts)
    for stage, (_, words) in STAGES.items():
        result = test.get(stage, {})
        error = result.get('error', '')
        if stage == 'horovod':
            if error and facts['horovod']['installed']:
                yield from_line('warning', error)
        elif error and 'remedy' not in result:
            yield from_line('fault', error)
        elif error and not (missing and error.startswith('ModuleNotFoundError')):
            yield Finding('fault', f'{words} failed ({error})', result['remedy'] or _unset(facts) or REPORT)


def _crash(facts: dict) -> Finding:
    ended, during = facts['self_test']['ended'], facts['self_test']['during']
    wheels = ' '.join(f'{name}=={version}' for name, version in facts['mxnet']['builds'].items()) or 'mxnet'
    remedy = {'driver': 'if nvidia-smi hangs as well, reboot', 'horovod': how_to_get_horovod(),
              'arithmetic': f'export {ONEDNN_VARIABLE}=AVX2 {OPENBLAS_VARIABLE}=Nehalem',
              'mxnet': _unset(facts) or f'pip install --force-reinstall --no-deps {wheels}; if that does not help, the '
                                        'processor is too old for this build'}.get(during, _unset(facts) or REPORT)
    if killed := ended.startswith('was killed'):
        remedy = f'on a slow or busy machine, use --timeout 300; otherwise {remedy}'
    # Training can run if only the timing at the end takes too long
    level = 'warning' if during == 'horovod' or (killed and during == 'speed') else 'fault'
    return Finding(level, f'the self-test {ended} while {STAGES[during][1]}', remedy)


def _instructions(facts: dict) -> Iterator[Finding]:
    obstacle = facts['cores']['amx_obstacle']
    if ': ' in obstacle:  # otherwise the processor has no AMX
        yield from_line('warning', f'bfloat16 without AMX, because {obstacle}')
    kernels = facts['self_test'].get('mxnet', {}).get('openblas_kernels')
    if kernels and facts['cores']['avx2'] and kernels not in AVX2_KERNELS:
        yield Finding('warning', f'matrix products without AVX2 ({kernels} kernels)', f'unset {OPENBLAS_VARIABLE}')


def _speed(facts: dict) -> Iterator[Finding]:
    speed, cores = facts['self_test'].get('speed', {}), facts['cores']['count']
    if speed.get('speed_up', SLOW) < SLOW and cores > 1:
        busy = f' (load {speed["load"]:.1f} on {cores} cores)' if speed['load'] else ''
        yield Finding('warning', f'two devices are only {speed["speed_up"]:.2f} times as fast as one', _unset(facts) or
                      f'repeat when the cores are idle{busy}; in a container, check its CPU limit')


def _gpus(facts: dict) -> Iterator[Finding]:
    test = facts['self_test']
    mxnet = test.get('mxnet', {})
    for gpu in test.get('driver', {}).get('gpus', []):
        name = f'gpu({gpu["index"]}) is {gpu["name"]}'
        if 'cuda' not in mxnet or name in test.get('devices', {}).get('error', ''):
            continue
        if not gpu['builds']:
            yield Finding('warning', f'{name}, which no MXNet supports', 'use CPU contexts')
        elif mxnet['cuda'] and mxnet['code_for'][0] <= gpu['capability'] <= mxnet['code_for'][1]:
            if gpu['index'] >= mxnet['num_gpus']:
                yield Finding('warning', f'{name}, but MXNet does not see it', 'update the NVIDIA driver')
        else:
            pip = 'mxnet-cu112' in gpu['builds']
            yield Finding('warning', f'{name}, which the installed MXNet does not support', 'to use it, ' +
                          (replacement('cu112') if pip else f'install {gpu["builds"][0]}'))


def _disks(facts: dict) -> Iterator[Finding]:
    runs, cache = facts['disks']['runs'], facts['disks'].get('cache')  # None if nothing is downloaded
    if runs['error']:
        yield Finding('fault', f'{runs["folder"]} cannot be written: {runs["error"]}',
                      'free some space, remove what is in the way, or name another folder with --out-dir')
    if cache and cache['error']:
        yield Finding('warning', f'{cache["folder"] or "a folder"} for downloaded data cannot be written: '
                      f'{cache["error"]}', 'set XDG_CACHE_HOME to a writable folder')
    for name, disk in (('runs', runs), ('data', cache)):
        if disk and not disk['error'] and disk['free'] < LITTLE_SPACE:
            yield Finding('warning', f'only {disk["free"] / 2**20:.0f} MB are free for {name} in {disk["folder"]}',
                          f'free {LITTLE_SPACE >> 20} MB; checkpoints of ResNet-18 take 45 MB each')


def _data(facts: dict) -> Iterator[Finding]:
    what, _, remedy = facts['data']['error'].partition('; ')
    if what:
        yield Finding('fault', what, f'unset GLUON_MGPU_DATA to download them; or {remedy}')
