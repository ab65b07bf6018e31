"""tools/gpu_report.py with a stub driver, with a test list and the real one."""
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import stub_driver
from tool import TOOLS, load_tool

from gluon_mgpu.devices.nvidia_driver import Gpu

REPO = Path(__file__).parents[2]
LIST = """echo '█'; echo one; printf 'step 1\\rstep 2\\rstep 3\\n' >&2
echo broken; exit 7
echo hangs; setsid sleep 15 & sleep 30
python -c 'import os, sys; print(sys.prefix, os.environ["VIRTUAL_ENV"])'
"""


@pytest.fixture
def report(tmp_path):
    """A function that runs the tool in an empty folder, on a simulated machine with or without a GPU."""
    def run(*arguments, gpu=True):
        environment = {name: value for name, value in os.environ.items() if name != 'CUDA_VISIBLE_DEVICES'}
        if gpu:
            stub_driver.build(tmp_path)
        else:
            (tmp_path / 'libcuda.so.1').write_text('no library')
        gpus = [Gpu(0, 'Tesla V100', (7, 0), 2**34, '1a2b3c4d-0000-4000-8000-0123456789ab')]
        environment.update(stub_driver.environment(tmp_path, gpus))
        (tmp_path / 'work').mkdir()
        (tmp_path / 'list.txt').write_text(LIST, encoding='utf-8')
        command = [sys.executable, TOOLS / 'gpu_report.py', *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path / 'work', env=environment, text=True, capture_output=True,
                              timeout=60)
    return run


@pytest.mark.slow
def test_all_commands_are_run_and_reported(report, tmp_path):
    done = report('--list', tmp_path / 'list.txt', '--timeout', 2)
    assert (done.returncode, done.stderr) == (1, '')
    assert done.stdout.endswith('2 of 4 succeeded: their output is in gpu-report.txt; please attach it to an issue '
                                'of the repository\n')
    text = (tmp_path / 'work/gpu-report.txt').read_text(encoding='utf-8')
    seconds = re.findall(r'--- (.*), (\d+\.\d) s\n', text)
    assert [ended for ended, _ in seconds] == ['exit status 0', 'exit status 7', 'killed after 2 s', 'exit status 0']
    assert 2 <= float(seconds[2][1]) < 10 and float(seconds[0][1]) < 2
    assert 'gpu:0  Tesla V100 (compute capability 7.0)\n' in text
    assert '\n█\none\nstep 3\n--- exit status 0' in text
    assert '\nbroken\n--- exit status 7' in text
    assert '\nhangs\n--- killed after 2 s' in text  # although a process outside the group keeps the output open
    assert f'\n{sys.prefix} {sys.prefix}\n' in text  # the commands' python is the one that runs the tool
    assert text.endswith('\n2 of 4 succeeded\n')


@pytest.mark.parametrize('arguments, gpu, status, line', [
    ([], False, 2, 'gpu_report: no GPU to report on: .*\n'),
    (['--check'], False, 2, 'gpu_report: no GPU to report on: .*\n'), (['--check'], True, 0, '')])
def test_nothing_is_run_and_written(report, tmp_path, arguments, gpu, status, line):
    done = report(*arguments, gpu=gpu)
    assert (done.returncode, done.stdout) == (status, '') and re.fullmatch(line, done.stderr)
    assert list((tmp_path / 'work').iterdir()) == []


REAL_LIST = load_tool('gpu_report').commands_in((TOOLS / 'gpu_report.txt').read_text())


@pytest.mark.parametrize('command', REAL_LIST)
def test_the_real_commands_exist_and_know_their_flags(command, capsys, monkeypatch):
    """Without GPUs, the missing GPU is the only error of each command."""
    words = shlex.split(command)
    if '-m' in words:
        module, arguments = words[words.index('-m') + 1], words[words.index('-m') + 2:]
    elif words[0] == 'python':
        assert (REPO / words[1]).exists()
        monkeypatch.syspath_prepend((REPO / words[1]).parent)
        module, arguments = Path(words[1]).stem, words[2:]
    else:
        assert (REPO / words[0]).exists()
        return
    program = importlib.import_module(module)
    if module == 'pytest' or not {'--devices', '--horovod'} & set(arguments):
        return
    if not hasattr(program, 'main'):
        program = importlib.import_module(f'{module}.__main__')
    monkeypatch.setattr('gluon_mgpu.devices.gpus.num_mxnet_gpus', lambda: 0)
    monkeypatch.setattr('gluon_mgpu.devices.lists.num_mxnet_gpus', lambda: 0)
    alone = [word.replace('--horovod', '--devices=gpu:0') for word in arguments]
    assert program.main(alone) == 2
    err = capsys.readouterr().err
    assert 'gpu(0) ' in err or "'gpu:all' names no device" in err, err


def test_the_list_covers_everything_that_needs_a_gpu():
    commands = '\n'.join(REAL_LIST)
    for word in ('doctor', 'pytest -q --all --devices gpu:0,gpu:1', 'scaling', 'allreduce_cost', 'float16', 'horovod'):
        assert word in commands
