"""Tests of the doctor's report: its command line, and the self-test in a process of its own."""
import os
import sys
import time

import pytest
from healthy import SELF_TEST, facts_with
from slow import slow

import gluon_mgpu
from gluon_mgpu.programs.doctor import doctor_report as report


@pytest.mark.parametrize(('program', 'timeout', 'ended', 'during'), [
    slow('print(\'{"driver": {}}\', flush=True); import time; time.sleep(600)', 5, 'was killed after 5 s', 'mxnet'),
    ('import os, signal; os.kill(os.getpid(), signal.SIGSEGV)', 60, 'died of SIGSEGV', 'driver'),
    ('print("{\\"driver\\"", flush=True); import sys; sys.exit("gone")', 60, 'ended with status 1', 'driver'),
    ('', 60, 'ended with status 0', 'driver'),
], ids=['hangs', 'crashes', 'fails', 'leaves'])
def test_the_subprocess_hangs_crashes_or_fails(program, timeout, ended, during, monkeypatch):
    monkeypatch.setattr(report, 'PROGRAM', program)
    start = time.monotonic()
    found = report.run_self_test(timeout)
    assert time.monotonic() - start < timeout + 5
    assert (found['ended'], found['during']) == (ended, during)
    assert found['stderr'] == (['gone'] if 'gone' in program else [])


def test_the_subprocess_has_the_users_settings(monkeypatch):
    """Settings that this process has made are not passed on."""
    program = ('import json, os, sys; own = os.environ.get("MXNET_CPU_TEMP_COPY"); '
               'print(json.dumps({"driver": {"error": [own, *sys.argv]}}))')
    monkeypatch.setattr(report, 'PROGRAM', program)
    prepared = report.runtime.prepare()
    own_value, *path = report.run_self_test(30)['driver']['error']
    own = None if 'MXNET_CPU_TEMP_COPY' in prepared.variables else os.environ['MXNET_CPU_TEMP_COPY']
    assert own_value == own and path[1:] == [*map(str, sys.path)]


@pytest.mark.parametrize('can_train', [True, False])
def test_the_command_line_shows_the_screen(can_train, monkeypatch, capsys):
    fault = {'error': 'MXNet is not installed', 'remedy': 'pip install x; for GPUs y'}
    facts = facts_with() if can_train else facts_with(self_test__mxnet=fault)
    monkeypatch.setattr(report, 'run_self_test', lambda timeout: facts['self_test'])
    monkeypatch.setattr('gluon_mgpu.programs.doctor.facts.look', lambda: facts)
    assert report.main([]) == (0 if can_train else 1)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == '' and len(lines) <= 24
    if not can_train:
        assert lines[:5] == [f'gluon_mgpu {gluon_mgpu.__version__}: training cannot run', '',
                             'FAULT: MXNet is not installed', '  do: pip install x', '  do: for GPUs y']


@pytest.mark.parametrize(('path', 'status', 'line'), [(None, 1, ''), ('/dev/full', 2, 'doctor: [Errno 28] No space')],
                         ids=['closed pipe', 'full disk'])
def test_stdout_that_cannot_be_written(path, status, line, monkeypatch, capsys):
    monkeypatch.setattr(report, 'run_self_test', lambda timeout: SELF_TEST)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, 'w') as closed, open(path or os.devnull, 'w') as file, monkeypatch.context() as patch:
        patch.setattr(sys, 'stdout', file if path else closed)
        assert report.main([]) == status
    err = capsys.readouterr().err
    assert err.startswith(line) and bool(err) == bool(line)
