"""The doctor's report as one screen of text: problems first, then facts."""
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from ...mxnet_setup.instructions import AVX2_KERNELS

WIDTH, INDENT = 80, 12
COMMAND = re.compile(r'pip |python|export |tools/')


def screen(report: dict[str, Any]) -> list[str]:
    """Return the lines for a report from `examine`. Remedies with commands are not wrapped, so one can copy them."""
    devices = report['self_test'].get('devices', {}).get('devices')
    verdict = f'can run{" on " + " and ".join(devices) if devices else ""}' if report['can_train'] else 'cannot run'
    lines = [f'gluon_mgpu {report["gluon_mgpu"]}: training {verdict}', '']
    for finding in report['findings']:
        lines += _wrapped(finding['level'].replace('fault', 'FAULT'), finding['what'])
        remedies = [part for part in finding['remedy'].split('; ') if part]
        for i, remedy in enumerate(remedies):
            title = '' if i else '  do'
            lines += [f'{title:{INDENT}}{remedy}'] if COMMAND.search(remedy) else _wrapped(title, remedy)
        lines += ['']
    for title, texts in _rows(report):
        for i, text in enumerate(texts):
            lines += _wrapped('' if i else title, text)
    return lines


def _wrapped(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f'{title:{INDENT}}', subsequent_indent=' ' * INDENT,
                         break_long_words=False, break_on_hyphens=False)


def _rows(report: dict) -> Iterator[tuple[str, list[str]]]:
    python, numpy, cores, test = report['python'], report['numpy'], report['cores'], report['self_test']
    yield 'python', [f'{python["version"]}, {python["platform"]}, {python["executable"]}']
    supplied = f'; supplied for MXNet: {", ".join(numpy["supplied"])}' if numpy['supplied'] else ''
    yield 'numpy', [f'{numpy["version"] or "none"}{supplied}']
    yield 'missing', [', '.join(report['packages_missing'])]
    yield 'mxnet', [_mxnet(report)]
    yield 'gpus', _gpus(test.get('driver'))
    yield 'cores', [f'{cores["count"]}, {cores["processor"]}', *_instructions(cores, test.get('mxnet', {}))]
    set_by = {by: [f'{name}={value}' for name, value in report['engine'][by].items()] for by in ('gluon_mgpu', 'you')}
    set_by['gluon_mgpu'] += ['the memory allocator'] if report['engine']['allocator'] else []
    yield 'engine', [f'set by {by}: {", ".join(names)}' for by, names in set_by.items() if names]
    yield 'horovod', [test.get('horovod', {'error': 'not tested'}).get('error', 'works with this MXNet')]
    data = report['data']
    if not data['error']:
        yield 'data', [f'fashion-mnist {"in " + data["folder"] if data["folder"] else "is downloaded when needed"}']
    yield 'disk', [_disk(report['disks'])]
    says = [stage['says'] for stage in test.values() if isinstance(stage, dict) and 'says' in stage]
    yield 'self-test', [*says, *([] if test['ended'] == 'well' else [f'the process {test["ended"]}'])]


def _instructions(cores: dict, mxnet: dict) -> Iterator[str]:
    if kernels := mxnet.get('openblas_kernels'):
        yield f'matrix products with{"" if kernels in AVX2_KERNELS else "out"} AVX2 ({kernels} kernels)'
    if cores['bfloat16_obstacle']:
        yield f'no bfloat16: {cores["bfloat16_obstacle"].partition(";")[0]}'
    else:
        without = cores['amx_obstacle'].partition(': ')[0]
        yield f'bfloat16 without AMX: {without}' if without else 'bfloat16 with AMX'


def _mxnet(report: dict) -> str:
    builds, folder = report['mxnet']['builds'], report['mxnet']['folder']
    if not builds and not folder:
        return 'none'
    names = ' and '.join(f'{name} {version}' for name, version in builds.items()) or 'a build unknown to pip'
    kind = {True: ', with CUDA', False: ', for CPUs', None: ''}[report['self_test'].get('mxnet', {}).get('cuda')]
    return f'{names}{kind}, {folder}'


def _gpus(driver: dict | None) -> list[str]:
    if driver is None:
        return ['the driver did not answer']
    if not driver['gpus']:
        return [f'none: {driver["reason"]}', 'training uses CPU contexts: a CPU core acts as a device']
    return [f'gpu({gpu["index"]}) {gpu["description"]}' for gpu in driver['gpus']]


def _disk(disks: dict) -> str:
    named = {'data': disks.get('cache'), 'runs': disks['runs']}
    return ', '.join(f'no place for {use}' if disk['error'] else
                     f'{disk["free"] / 2**30:.0f} GiB free for {use} in {disk["folder"]}'
                     for use, disk in named.items() if disk)
