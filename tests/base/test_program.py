"""Tests of how programs end: with an exit status and one line."""
import os
import shlex
import subprocess
import sys

import pytest

from gluon_mgpu.base.program import reason, run_program
from gluon_mgpu.mxnet_setup.compat import mx, np, npx


def end_with(error, capsys):
    """Run a program that raises `error`; return its exit status and the line on stderr."""
    def work():
        raise error

    status = run_program('program', work)
    line, = capsys.readouterr().err.splitlines()
    return status, line


@pytest.mark.parametrize(('error', 'status', 'line'), [
    (ValueError('a\nrm -r b'), 2, r'program: a\nrm -r b'),
    (FileNotFoundError(2, 'No such file', 'x'), 2, 'program: x: No such file'),
    (KeyboardInterrupt(), 130, 'program: interrupted'),
    (MemoryError('Unable to allocate 9 TiB'), 1,
     'program: out of memory (Unable to allocate 9 TiB): use a smaller batch or, in training, --accumulate 2'),
    (mx.base.MXNetError('Traceback:\n  File "x.cc"\nMXNetError: cudaMalloc: out of memory'), 1,
     'program: out of memory (cudaMalloc: out of memory): use a smaller batch or, in training, --accumulate 2'),
    (mx.base.MXNetError('CUDNN_STATUS_ALLOC_FAILED'), 1,
     'program: out of memory (CUDNN_STATUS_ALLOC_FAILED): use a smaller batch or, in training, --accumulate 2'),
    (mx.base.MXNetError('Check failed: a == b'), 1, 'program: MXNet failed (Check failed: a == b): '
     'set MXNET_ENGINE_TYPE=NaiveEngine to see where'),
])
def test_an_error_is_reported_in_one_line(error, status, line, capsys):
    assert end_with(error, capsys) == (status, line)


def test_the_naive_engine_shows_where_mxnet_failed(monkeypatch):
    monkeypatch.setenv('MXNET_ENGINE_TYPE', 'NaiveEngine')

    def work():
        raise mx.base.MXNetError('Check failed: a == b')

    with pytest.raises(mx.base.MXNetError):
        run_program('program', work)


def test_a_pipe_that_its_reader_has_closed(capfd):
    command = f'{shlex.quote(sys.executable)} -m gluon_mgpu devices | true; exit ${{PIPESTATUS[0]}}'
    statuses = {subprocess.run(['bash', '-c', f'sleep 0.1; {command}']).returncode for _ in range(2)}
    assert statuses <= {0, 1} and capfd.readouterr().err == ''  # 0 if it was faster than true

    def work():
        raise BrokenPipeError(32, 'Broken pipe')

    assert run_program('program', work) == 1 and capfd.readouterr() == ('', '')


def test_other_errors_keep_their_traceback():
    def work():
        raise RuntimeError('a bug')

    with pytest.raises(RuntimeError, match='a bug'):
        run_program('program', work)


def test_an_engine_error_is_printed_once(devices, capsys):
    """That of one device; those of the others are not raised later."""
    def work():
        arrays = [np.random.normal(size=(2, 2), scale=-np.ones((2, 2), ctx=device), ctx=device) for device in devices]
        arrays[0].asnumpy()

    assert run_program('program', work) == 1
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith('program: MXNet failed (')
    npx.waitall()


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='needs /dev/full')
@pytest.mark.parametrize('module', ['gluon_mgpu', 'gluon_mgpu.devices'])
def test_output_that_cannot_be_written(module):
    buffered = {name: value for name, value in os.environ.items() if name != 'PYTHONUNBUFFERED'}
    with open('/dev/full', 'w') as full:
        done = subprocess.run([sys.executable, '-m', module], stdout=full, stderr=subprocess.PIPE, text=True,
                              env=buffered)
    assert (done.returncode, done.stderr) == (2, f'{module.split(".")[-1]}: [Errno 28] No space left on device\n')


@pytest.mark.parametrize(('error', 'line'), [
    (mx.base.MXNetError('Traceback (most recent call last):\n  File "x.cc", line 60\nMXNetError: Cannot find\n it'),
     'Cannot find it'),
    (mx.base.MXNetError('[09:15:00] ../x.cc:60: Cannot find it'), '[09:15:00] ../x.cc:60: Cannot find it'),
    (OSError(28, 'No space left on device', 'x'), 'No space left on device'),
    (KeyError(), 'KeyError'),
])
def test_the_reason_of_an_error(error, line):
    assert reason(error) == line
