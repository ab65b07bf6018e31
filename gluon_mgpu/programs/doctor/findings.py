"""Problems found in the facts, each with its remedy, the worst first."""
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...mxnet_setup.installation import replacement
from ...mxnet_setup.instructions import ONEDNN_VARIABLE, OPENBLAS_VARIABLE
from .self_test import REPORT, STAGES

SLOW = 1.2  # speed-up of two devices: 1.0 if they take turns, 1.3 to 1.9 measured on two busy cores


class Finding(NamedTuple):
    """A problem. With a 'fault', training cannot run; with a 'warning', it can."""

    level: str
    what: str
    remedy: str


def diagnose(facts: dict[str, Any]) -> list[Finding]:
    """Return the problems, faults first, in the facts of `facts.look` with ``'self_test'`` from `run_self_test`."""
    found = [*_self_test(facts), *_gpus(facts), *_speed(facts)]
    return sorted(found, key=lambda finding: finding.level != 'fault')  # stable


def _unset(facts: dict) -> str:
    """Return the command that removes the settings of MXNet that the user has made, or ''."""
    yours = [name for name in facts['engine']['you'] if name.startswith('MXNET_')]
    return f'unset {" ".join(yours)}' if yours else ''


def _self_test(facts: dict) -> Iterator[Finding]:
    test = facts['self_test']
    if test['during']:
        yield _crash(facts)
    for stage in STAGES:
        result = test.get(stage, {})
        if 'error' in result:
            yield Finding('fault', result['error'], result['remedy'])


def _crash(facts: dict) -> Finding:
    ended, during = facts['self_test']['ended'], facts['self_test']['during']
    wheels = ' '.join(f'{name}=={version}' for name, version in facts['mxnet']['builds'].items()) or 'mxnet'
    remedy = {'driver': 'if nvidia-smi hangs as well, reboot',
              'arithmetic': f'export {ONEDNN_VARIABLE}=AVX2 {OPENBLAS_VARIABLE}=Nehalem',
              'mxnet': _unset(facts) or f'pip install --force-reinstall --no-deps {wheels}; if that does not help, the '
                                        'processor is too old for this build'}.get(during, _unset(facts) or REPORT)
    if killed := ended.startswith('was killed'):
        remedy = f'on a slow or busy machine, use --timeout 300; otherwise {remedy}'
    # Training can run if only the timing at the end takes too long
    level = 'warning' if killed and during == 'speed' else 'fault'
    return Finding(level, f'the self-test {ended} while {STAGES[during][1]}', remedy)


def _speed(facts: dict) -> Iterator[Finding]:
    speed_up = facts['self_test'].get('speed', {}).get('speed_up', SLOW)
    if speed_up < SLOW and facts['cores']['count'] > 1:
        yield Finding('warning', f'two devices are only {speed_up:.2f} times as fast as one', _unset(facts) or
                      'repeat when the cores are idle; in a container, check its CPU limit')


def _gpus(facts: dict) -> Iterator[Finding]:
    test = facts['self_test']
    mxnet = test.get('mxnet', {})
    for gpu in test.get('driver', {}).get('gpus', []):
        name = f'gpu({gpu["index"]}) is {gpu["name"]}'
        if 'cuda' not in mxnet or name in test.get('devices', {}).get('error', ''):
            continue
        if not (mxnet['cuda'] and mxnet['code_for'][0] <= gpu['capability'] <= mxnet['code_for'][1]):
            build = gpu['builds'][0] if gpu['builds'] else 'nothing, because no MXNet supports it: use CPU contexts'
            remedy = replacement('cu112') if build == 'mxnet-cu112' else f'install {build}'
            yield Finding('warning', f'{name}, which the installed MXNet does not support', f'to use it, {remedy}')
        elif gpu['index'] >= mxnet['num_gpus']:
            yield Finding('warning', f'{name}, but MXNet does not see it', 'update the NVIDIA driver')
