"""What `examine` has found, as one screen of text: what is wrong first, then what there is."""
from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

from ..devices.gpus import dotted

WIDTH, INDENT = 80, 12
COLOURS = {'fault': '\033[1;31m', 'warning': '\033[33m', 'well': '\033[32m'}


def screen(report: dict[str, Any], colour: bool = False) -> list[str]:
    """The lines of the screen; in commands to be copied they are not broken, however long.

    Parameters
    ----------
    report : dict
        From `examine`.
    colour : bool
        Mark what is wrong, for a terminal.
    """
    def painted(kind: str, text: str) -> str:
        return f'{COLOURS[kind]}{text}\033[0m' if colour else text

    can_train = report['can_train']
    verdict = _verdict(report)
    lines = [painted('well' if can_train else 'fault', verdict), '']
    for finding in report['findings']:
        first, *others = _wrapped(finding['level'].upper() if finding['level'] == 'fault' else finding['level'],
                                  finding['what'])
        lines += [painted(finding['level'], first), *others]
        titles = itertools.chain(['  do'], itertools.repeat(''))
        lines += [f'{title:{INDENT}}{part}' for title, part in zip(titles, finding['remedy'].split('; ')) if part]
        lines += ['']
    for title, text in _rows(report):
        lines += _wrapped(title, text)
    return lines


def _wrapped(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f'{title:{INDENT}}', subsequent_indent=' ' * INDENT,
                         break_long_words=False, break_on_hyphens=False)


def _verdict(report: dict) -> str:
    name = f'gluon_mgpu {report["gluon_mgpu"]}'
    if not report['can_train']:
        return f'{name}: training cannot run'
    devices = report['self_test'].get('devices', {}).get('devices')
    return f'{name}: training can run{" on " + " and ".join(devices) if devices else ""}'


def _rows(report: dict) -> Iterator[tuple[str, str]]:
    python, numpy, cores = report['python'], report['numpy'], report['cores']
    yield 'python', f'{python["version"]}, {python["platform"]}, {python["executable"]}'
    yield 'numpy', numpy['version'] or f'none ({numpy["error"]})'
    if report['packages_missing']:
        yield 'missing', ', '.join(report['packages_missing'])
    yield from _mxnet(report)
    yield from _gpus(report)
    yield 'cores', f'{cores["count"]}, {cores["processor"]}{", bfloat16" if cores["bfloat16"] else ""}'
    yield from _engine(report)
    yield 'horovod', _horovod(report)
    yield from _data(report)
    yield from _self_test(report['self_test'])


def _mxnet(report: dict) -> Iterator[tuple[str, str]]:
    builds, folder = report['mxnet']['builds'], report['mxnet']['folder']
    imported = report['self_test'].get('mxnet', {})
    if not builds and not folder:
        yield 'mxnet', 'none'
        return
    names = ' and '.join(f'{name} {version}' for name, version in builds.items()) or 'of a build that pip does not know'
    kind = {True: ', with CUDA', False: ', for CPUs', None: ''}[imported.get('cuda')]
    code = imported.get('code_for')
    code_for = f', code for compute capability {dotted(code[0])} to {dotted(code[1])}' if code else ''
    yield 'mxnet', f'{names}{kind}{code_for}, {folder}'
    libraries = report['cuda_libraries']
    if libraries:
        lacking = [name for name, there in libraries.items() if not there]
        found = f'{len(libraries) - len(lacking)} of the {len(libraries)} libraries found'
        yield 'cuda', found + (f'; missing: {", ".join(lacking)}' if lacking else '')


def _gpus(report: dict) -> Iterator[tuple[str, str]]:
    driver = report['self_test'].get('driver')
    if driver is None:
        yield 'driver', 'did not answer'
        return
    version, code = driver['cuda_version'], report['self_test'].get('mxnet', {}).get('code_for')
    if version:
        yield 'driver', f"NVIDIA's, for CUDA up to {dotted(version)}"
    for gpu in driver['gpus']:
        has_code = ''
        if code:
            has_code = f', {"code" if code[0] <= gpu["capability"] <= code[1] else "no code"} for it in this MXNet'
        builds = ', '.join(build.split(' (')[0] for build in gpu['builds']) or 'no MXNet'
        yield f'gpu:{gpu["index"]}', (f'{gpu["name"]}, {gpu["memory"] / 2**30:.1f} GiB, compute capability '
                                      f'{dotted(gpu["capability"])}{has_code}: runs with {builds}')
    if not driver['gpus']:
        yield 'gpus', f'none ({driver["reason"]}){": CPU contexts are used" if report["can_train"] else ""}'


def _engine(report: dict) -> Iterator[tuple[str, str]]:
    by: dict[str, list] = {}
    for entry in report['engine']:
        if entry['name'].startswith('mallopt '):
            continue
        value = f'{entry["name"]}={entry["value"]}' if entry['value'] else f'{entry["name"]} unset'
        by.setdefault(entry['by'] or 'nobody', []).append(value)
    allocator = [entry['name'].split()[1] for entry in report['engine'] if entry['name'].startswith('mallopt ')]
    if allocator:
        by.setdefault('gluon_mgpu', []).append(f'the allocator ({", ".join(allocator)})')
    title = 'engine'
    for who, values in by.items():
        yield title, f'set by {who}: {", ".join(values)}'
        title = ''


def _horovod(report: dict) -> str:
    if not report['horovod']['installed']:
        return f'not installed; for training on several machines, {report["horovod"]["remedy"]}'
    answer = report['self_test'].get('horovod')
    if answer is None:
        return 'installed, not tried'
    return answer.get('error') or 'works with this MXNet'


def _data(report: dict) -> Iterator[tuple[str, str]]:
    data = report['data']
    names = ('fashion-mnist', 'mnist')
    there = [f'{name} in {data[name]["folder"]}' for name in names if data[name]['folder']]
    lacking = ' and '.join(name for name in names if not data[name]['folder'])
    how = f'not in {data["named"]}' if data['named'] else 'downloaded when asked for'
    yield 'data', '; '.join([*there, *([f'{lacking}: {how}'] if lacking else []), 'glyphs: made here'])
    disks = [(use, disk) for use, disk in (('data', report['disks']['cache']), ('runs', report['disks']['runs']))]
    yield 'disk', ', '.join(f'{disk["free"] / 2**30:.0f} GiB free for {use} in {disk["folder"]}' if not disk['error']
                            else f'none for {use}: {disk["error"]}' for use, disk in disks)


def _self_test(test: dict) -> Iterator[tuple[str, str]]:
    allreduce, step, speed = (test.get(stage, {}) for stage in ('allreduce', 'step', 'speed'))
    told = []
    if 'right' in allreduce:
        told.append(f'sums over the devices are {"right" if allreduce["right"] else "wrong"}')
    if 'right' in step:
        told.append(f'a step equals that on {", ".join(step["reference"])}, to {step["difference"]:.0e}'
                    if step['right'] else f'a step differs from that on {", ".join(step["reference"])}')
    if 'speed_up' in speed:
        one, two = (1000 * seconds for seconds in speed['seconds'])
        told.append(f'LeNet: {one:.0f} ms per step on one device, {two:.0f} ms on two')
        told.append(f'two devices are {speed["speed_up"]:.2f} times as fast as one')
    if test['ended'] != 'well':
        told.append(f'the process {test["ended"]}')
    for i, line in enumerate(told or ['not begun, since it needs MXNet']):
        yield '' if i else 'self-test', line
