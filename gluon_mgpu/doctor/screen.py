"""The doctor's report as one screen of text: problems first, then facts."""
from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from ..devices.gpus import dotted

WIDTH, INDENT = 80, 12
COLOURS = {'fault': '\033[1;31m', 'warning': '\033[33m', 'well': '\033[32m'}


def screen(report: dict[str, Any], colour: bool = False) -> list[str]:
    """Return the lines for a report from `examine`. Remedies are not wrapped, so that commands can be copied."""
    def painted(kind: str, text: str) -> str:
        return f'{COLOURS[kind]}{text}\033[0m' if colour else text

    devices = report['self_test'].get('devices', {}).get('devices')
    verdict = f'can run{" on " + " and ".join(devices) if devices else ""}' if report['can_train'] else 'cannot run'
    lines = [painted('well' if report['can_train'] else 'fault',
                     f'gluon_mgpu {report["gluon_mgpu"]}: training {verdict}'), '']
    for finding in report['findings']:
        level = finding['level']
        first, *others = _wrapped('FAULT' if level == 'fault' else level, finding['what'])
        remedies = [part for part in finding['remedy'].split('; ') if part]
        lines += [painted(level, first), *others]
        lines += [f'{"" if i else "  do":{INDENT}}{remedy}' for i, remedy in enumerate(remedies)]
        lines += ['']
    for title, text in _rows(report):
        lines += _wrapped(title, text)
    return lines


def _wrapped(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f'{title:{INDENT}}', subsequent_indent=' ' * INDENT,
                         break_long_words=False, break_on_hyphens=False)


def _rows(report: dict) -> Iterator[tuple[str, str]]:
    python, numpy, cores = report['python'], report['numpy'], report['cores']
    yield 'python', f'{python["version"]}, {python["platform"]}, {python["executable"]}'
    supplied = f'; supplied for MXNet: {", ".join(numpy["supplied"])}' if numpy['supplied'] else ''
    yield 'numpy', f'{numpy["version"] or "none"}{supplied}'
    if report['packages_missing']:
        yield 'missing', ', '.join(report['packages_missing'])
    yield from _mxnet(report)
    yield from _gpus(report)
    yield 'cores', f'{cores["count"]}, {cores["processor"]}{", bfloat16" if cores["bfloat16"] else ""}'
    for i, line in enumerate(_engine(report)):
        yield '' if i else 'engine', line
    yield 'horovod', _horovod(report)
    yield from _data(report)
    for i, line in enumerate(_self_test(report['self_test'])):
        yield '' if i else 'self-test', line


def _mxnet(report: dict) -> Iterator[tuple[str, str]]:
    builds, folder = report['mxnet']['builds'], report['mxnet']['folder']
    imported = report['self_test'].get('mxnet', {})
    if not builds and not folder:
        yield 'mxnet', 'none'
        return
    names = ' and '.join(f'{name} {version}' for name, version in builds.items()) or 'a build unknown to pip'
    kind = {True: ', with CUDA', False: ', for CPUs', None: ''}[imported.get('cuda')]
    code = imported.get('code_for')
    code_for = f', for compute capability {dotted(code[0])} to {dotted(code[1])}' if code else ''
    yield 'mxnet', f'{names}{kind}{code_for}, {folder}'


def _gpus(report: dict) -> Iterator[tuple[str, str]]:
    driver = report['self_test'].get('driver')
    if driver is None:
        yield 'driver', 'did not answer'
        return
    code = report['self_test'].get('mxnet', {}).get('code_for')
    if driver['cuda_version']:
        yield 'driver', f'NVIDIA, for CUDA up to {dotted(driver["cuda_version"])}'
    for gpu in driver['gpus']:
        supported = f', {"" if code[0] <= gpu["capability"] <= code[1] else "not "}supported here' if code else ''
        builds = ', '.join(build.split(' (')[0] for build in gpu['builds']) or 'no MXNet'
        yield f'gpu:{gpu["index"]}', (f'{gpu["name"]}, {gpu["memory"] / 2**30:.1f} GiB, compute capability '
                                      f'{dotted(gpu["capability"])}{supported}; runs with {builds}')
    if not driver['gpus']:
        yield 'gpus', f'none: {driver["reason"]}'
        if report['can_train']:
            yield '', 'training uses CPU contexts: a CPU core acts as a device'


def _engine(report: dict) -> Iterator[str]:
    for by, words in (('gluon_mgpu', 'set by gluon_mgpu'), ('you', 'set by you'), (None, 'not set')):
        entries = [(entry['name'], entry['value']) for entry in report['engine'] if entry['by'] == by]
        found = [f'{name}={value}' if value else name for name, value in entries if not name.startswith('mallopt')]
        allocator = ', '.join(name.split()[1] for name, _ in entries if name.startswith('mallopt'))
        if allocator:
            found.append(f'the memory allocator ({allocator})')
        if found:
            yield f'{words}: {", ".join(found)}'


def _horovod(report: dict) -> str:
    if not report['horovod']['installed']:
        return f'not installed; for training on several machines, {report["horovod"]["remedy"]}'
    result = report['self_test'].get('horovod')
    if result is None:
        return 'installed, not tested'
    return result.get('error') or 'works with this MXNet'


def _data(report: dict) -> Iterator[tuple[str, str]]:
    data = report['data']
    names = ('fashion-mnist', 'mnist')
    found = [f'{name} in {data[name]["folder"]}' for name in names if data[name]['folder']]
    missing = ' and '.join(name for name in names if not data[name]['folder'])
    how = f'not in {data["named"]}' if data['named'] else 'downloaded when needed'
    yield 'data', '; '.join([*found, *([f'{missing}: {how}'] if missing else []), 'glyphs: built in'])
    disks = (('data', report['disks']['cache']), ('runs', report['disks']['runs']))
    yield 'disk', ', '.join(f'{disk["free"] / 2**30:.0f} GiB free for {use} in {disk["folder"]}' if not disk['error']
                            else f'no place for {use}' for use, disk in disks)


def _self_test(test: dict) -> list[str]:
    allreduce, step, speed = (test.get(stage, {}) for stage in ('allreduce', 'step', 'speed'))
    lines = []
    if 'right' in allreduce:
        lines.append(f'sums over the devices are {"right" if allreduce["right"] else "wrong"}')
    if 'right' in step:
        equal = 'differs from' if not step['right'] else f'agrees to {step["difference"]:.0e} with'
        lines.append(f'a training step {equal} one on {", ".join(step["reference"])}')
    if 'speed_up' in speed:
        one, two = (1000 * seconds for seconds in speed['seconds'])
        lines.append(f'LeNet: {one:.0f} ms per step on one device, {two:.0f} ms on two')
        lines.append(f'two devices are {speed["speed_up"]:.2f} times as fast as one')
    if test['ended'] != 'well':
        lines.append(f'the process {test["ended"]}')
    return lines or ['not run, because it needs MXNet']
