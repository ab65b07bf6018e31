"""The doctor's report as one screen of text: problems first, then facts."""
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from ...mxnet_setup.instructions import AVX2_KERNELS
from .self_test import STAGES

COMMAND = re.compile(r'pip |python|export |make ')


def screen(report: dict[str, Any], width: int = 80) -> list[str]:
    """Return the lines for a report from `examine`. Remedies with commands are not wrapped, so one can copy them."""
    devices = report['self_test'].get('devices', {}).get('devices')
    verdict = f'can run{" on " + " and ".join(devices) if devices else ""}' if report['can_train'] else 'cannot run'
    lines = [f'gluon_mgpu {report["gluon_mgpu"]}: training {verdict}', '']
    for finding in report['findings']:
        lines += _wrapped(f'{finding["level"].replace("fault", "FAULT")}: {finding["what"]}', width)
        for remedy in finding['remedy'].split('; ') if finding['remedy'] else []:
            lines += [f'  do: {remedy}'] if COMMAND.search(remedy) else _wrapped(f'  do: {remedy}', width)
        lines += ['']
    return lines + [line for title, text in _rows(report) for line in _wrapped(f'{title}: {text}', width)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent='    ', break_long_words=False, break_on_hyphens=False)


def _rows(report: dict) -> Iterator[tuple[str, str]]:
    python, numpy, cores, test = report['python'], report['numpy'], report['cores'], report['self_test']
    yield 'python', f'{python["version"]}, {python["platform"]}, {python["executable"]}'
    supplied = f'; supplied for MXNet: {", ".join(numpy["supplied"])}' if numpy['supplied'] else ''
    yield 'numpy', f'{numpy["version"] or "none"}{supplied}'
    builds = ' and '.join(f'{name} {version}' for name, version in report['mxnet']['builds'].items())
    yield 'mxnet', f'{builds or "none from pip"}, {report["mxnet"]["folder"] or "no folder"}'
    yield from _gpus(test.get('driver'))
    yield 'cores', f'{cores["count"]}, {cores["processor"]}'
    if kernels := test.get('mxnet', {}).get('openblas_kernels'):
        yield 'matrix products', f'with{"" if kernels in AVX2_KERNELS else "out"} AVX2 ({kernels} kernels)'
    without_amx = cores['amx_obstacle'] and f'without AMX, because {cores["amx_obstacle"]}'
    yield 'bfloat16', cores['bfloat16_obstacle'] or without_amx or 'with AMX'
    for by in ('gluon_mgpu', 'you'):
        if names := [f'{name}={value}' for name, value in report['engine'][by].items()]:
            yield f'set by {by}', ', '.join(names)
    for stage in STAGES:
        if says := test.get(stage, {}).get('says'):
            yield 'self-test', says
    if test['during']:
        yield 'self-test', f'the process {test["ended"]}'


def _gpus(driver: dict | None) -> Iterator[tuple[str, str]]:
    if driver is None:
        yield 'gpus', 'the driver did not answer'
    elif driver['gpus']:
        for gpu in driver['gpus']:
            yield f'gpu({gpu["index"]})', gpu['description']
    else:
        yield 'gpus', f'none: {driver["reason"]}; training uses CPU contexts: a CPU core acts as a device'
