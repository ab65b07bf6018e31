"""Tests of the facts about a machine."""
import os
import re
import subprocess

import pytest
from healthy import SELF_TEST

from gluon_mgpu.data.folders import FILES
from gluon_mgpu.programs.doctor import doctor_report as module, facts
from gluon_mgpu.programs.doctor.doctor_report import main
from gluon_mgpu.programs.doctor.screen import screen


def test_a_full_file_system(tmp_path, monkeypatch, capsys):
    disk = tmp_path / 'disk'
    disk.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=100000', 'tmpfs', disk], capture_output=True).returncode:
        pytest.skip('mounting a file system is not permitted here')
    try:
        monkeypatch.setattr(module, 'run_self_test', lambda timeout: SELF_TEST)
        monkeypatch.chdir(disk)
        assert main([]) == 0
        assert capsys.readouterr().out.splitlines()[2].startswith('warning     only 0 MB are free for runs in')
        (disk / 'large').write_bytes(bytes(90000))
        assert main([]) == 1
        assert capsys.readouterr().out.splitlines()[2].startswith(f'FAULT       {disk}/runs')
        assert os.listdir(disk) == ['large']
    finally:
        monkeypatch.undo()
        subprocess.run(['umount', disk], check=True)


@pytest.mark.parametrize('make', [lambda path: path.touch(), lambda path: path.symlink_to('nowhere')],
                         ids=['a file', 'a link to nothing'])
def test_runs_is_not_a_folder(make, tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'run_self_test', lambda timeout: SELF_TEST)
    monkeypatch.chdir(tmp_path)
    make(tmp_path / 'runs')
    fault, = module.examine()['findings']
    assert fault['level'] == 'fault' and 'remove what is in the way' in fault['remedy']
    assert fault['what'].startswith(f'{tmp_path}/runs cannot be written: N')  # Not a directory, No such file


def test_runs_is_a_link_to_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'run_self_test', lambda timeout: SELF_TEST)
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'elsewhere').mkdir()
    (tmp_path / 'runs').symlink_to('elsewhere')
    assert module.examine()['findings'] == []


def test_the_current_folder_has_been_deleted(tmp_path, monkeypatch, capsys):
    """On Python 3.13, NumPy cannot be imported there; reinstalling it would not help."""
    failed = {**SELF_TEST, 'mxnet': {'error': 'NumPy cannot be imported (SystemError): pip install numpy'}}
    monkeypatch.setattr(module, 'run_self_test', lambda timeout: failed)
    folder = tmp_path / 'deleted'
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ['FAULT       the current folder has been deleted',
                          '  do        change to a folder that exists']
    assert sum(line.startswith('FAULT') for line in lines) == 1


@pytest.mark.parametrize('folder', ['/proc/none', '/dev/null/cache'], ids=['read-only', 'no folder'])
def test_a_cache_that_cannot_be_written(folder, monkeypatch):
    monkeypatch.setattr(module, 'run_self_test', lambda timeout: SELF_TEST)
    monkeypatch.setenv('XDG_CACHE_HOME', folder)
    report = module.examine()
    warning, = report['findings']
    assert report['can_train'] and warning['what'].startswith(f'{folder}/gluon-mgpu for downloaded data ')
    assert warning['remedy'] == 'set XDG_CACHE_HOME to a writable folder'


def test_a_data_folder_that_lacks_files(tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'run_self_test', lambda timeout: SELF_TEST)
    monkeypatch.setenv('GLUON_MGPU_DATA', str(tmp_path))
    report = module.examine()
    fault, = report['findings']
    assert not report['can_train'] and fault['level'] == 'fault'
    assert re.fullmatch(f'{tmp_path}/fashion-mnist, from GLUON_MGPU_DATA: .* missing', fault['what'])
    assert fault['remedy'].startswith('unset GLUON_MGPU_DATA') and fault['remedy'].endswith('--dataset glyphs')
    (tmp_path / 'fashion-mnist').mkdir()
    for name in FILES:
        (tmp_path / 'fashion-mnist' / name).touch()
    report = module.examine()
    assert report['findings'] == [] and report['data']['folder'] == str(tmp_path / 'fashion-mnist')
    # Nothing will be downloaded, so the folder for that does not matter
    monkeypatch.setenv('XDG_CACHE_HOME', '/proc/none')
    report = module.examine()
    assert report['findings'] == [] and [*report['disks']] == ['runs']
    assert not any('for data' in line for line in screen(report))


def test_the_home_folder_is_hidden(monkeypatch, tmp_path):
    home, link = tmp_path / 'ann', tmp_path / 'link'
    home.mkdir()
    link.symlink_to(home)
    monkeypatch.setenv('HOME', str(link))
    before = {'a': [f'{link}/x', f'{home}/y:{home}', f'{home}a/z', ['in', f'{link}'], f'a\n{home}/t'], 'b': None}
    after = {'a': ['~/x', '~/y:~', f'{home}a/z', ['in', '~'], 'a\n~/t'], 'b': None}
    assert facts.without_home(before) == after


def test_no_home_folder(monkeypatch):
    monkeypatch.setattr(facts.os.path, 'expanduser', lambda path: path)
    assert facts.without_home({'a': '/x'}) == {'a': '/x'}
