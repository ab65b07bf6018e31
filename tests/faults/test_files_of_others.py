"""Each program gets FIFOs, links, huge files, control characters and random bytes in place of each file that it reads.

It ends in time, with one line and status 2, or does without the file, and sends no control character to the terminal.
"""
from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import idx_files
import numpy
import pytest
from devices_flag import devices_flag
from limits import limits
from PIL import Image

from gluon_mgpu.__main__ import PROGRAMS, main
from gluon_mgpu.data import glyphs
from gluon_mgpu.data.folders import FILES
from gluon_mgpu.mxnet_setup.compat import mx

PACKAGE = Path(__file__).parents[2] / 'gluon_mgpu'
CHECKPOINT = 'run/checkpoint-00000004.safetensors'
IMAGES, LABELS = (f'data/mnist/{name}' for name in FILES[:2])
TRAIN = ['--dataset', 'mnist', '--data-dir', 'data', '--batch-size', '16', '--num-epochs', '1', '--no-plot']
TEST = ['predict', 'run', '--data-dir', 'data']
SYMBOL = ['export', 'net-symbol.json', 'net-0000.params', '--shape', '2,3']
# Each command, and the files that it reads; those that read none, or only code, have an empty list
READ = {
    'scratch': [(['scratch', *TRAIN, '--out-dir', 'new'], [IMAGES, LABELS]),
                (['scratch', '--resume', 'run'], ['run/config.json', 'run/history.csv', CHECKPOINT, IMAGES]),
                (['scratch', '--resume', CHECKPOINT, '--no-plot'], [CHECKPOINT])],
    'concise': [(['concise', '--resume', 'run'], ['run/config.json', CHECKPOINT])],
    'predict': [(['predict', 'run', 'shoe.png'], ['shoe.png', 'run/history.csv', CHECKPOINT]),
                (['predict', CHECKPOINT, 'shoe.png'], [CHECKPOINT]),
                (TEST, [f'data/mnist/{FILES[2]}', f'data/mnist/{FILES[3]}'])],
    'export': [(['export', 'run'], ['run/history.csv', CHECKPOINT]), (['export', CHECKPOINT], [CHECKPOINT]),
               (SYMBOL, SYMBOL[1:3])],
    'plot': [(['plot', 'run'], ['run/config.json', 'run/history.csv'])],
    'timeline': [(['timeline', 'trace.json'], ['trace.json'])],
    'check': [], 'doctor': [], 'devices': [],
}
# Each command that writes into a folder that may be from somebody else, and the names that it chooses
WRITTEN = [(['timeline', 'trace.json'], 'trace.png'), (['plot', 'run'], 'accuracy.png'), (SYMBOL, 'net.onnx'),
           (['export', 'run'], 'run/model.onnx'), (TEST, 'run/predictions.png'),
           (['scratch', '--resume', 'run', '--num-epochs', '2', '--no-plot'], 'run/history.csv')]


@pytest.fixture(scope='module')
def files(devices, tmp_path_factory):
    """A folder with all of these files."""
    folder = tmp_path_factory.mktemp('files')
    idx_files.write(folder / 'data/mnist', idx_files.dataset(64, 16))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(['scratch', *TRAIN, *devices_flag(devices), '--out-dir', 'run']) == 0
        Image.new('L', (9, 9)).save('shoe.png')
        mx.sym.broadcast_mul(mx.sym.var('data'), mx.sym.var('scale')).save('net-symbol.json')
        mx.nd.save('net-0000.params', {'arg:scale': mx.nd.ones((1, 3))})
        names = {'ph': 'M', 'pid': 0, 'name': 'process_name', 'args': {'name': 'cpu/0'}}
        events = [{'ph': letter, 'pid': 0, 'tid': 1, 'name': 'dot', 'ts': ts} for letter, ts in (('B', 0), ('E', 9))]
        Path('trace.json').write_text(json.dumps({'traceEvents': [names, *events]}))
    return folder


@pytest.fixture
def here(files, tmp_path, monkeypatch):
    """The current folder, with a copy of the files."""
    shutil.copytree(files, tmp_path / 'here')
    monkeypatch.chdir(tmp_path / 'here')
    return tmp_path / 'here'


def write_sparse(path):
    path.touch()
    os.truncate(path, 2**42)


KINDS = {  # functions that write a file of this kind
    'FIFO': os.mkfifo, 'link': lambda path: path.symlink_to('/dev/zero'), 'huge': write_sparse,
    'control characters': lambda path: path.write_bytes(b'\x1b[31m\x1b]0;title\x07\r\n' * 9),
    'random bytes': lambda path: path.write_bytes(numpy.random.default_rng(0).bytes(10_000))}


def test_all_programs_are_tested():
    assert READ.keys() == PROGRAMS.keys()


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('command, name', [
    (command, name) for commands in READ.values() for command, names in commands for name in names],
    ids=lambda value: '-'.join(Path(value).parts[-1:]) if isinstance(value, str) else f'{value[0]} {value[1]}')
def test_files_that_are_not_what_they_should_be(command, name, kind, here, capfd, count):
    (here / name).unlink()
    KINDS[kind](here / name)
    with limits():
        status = main(command)
    out, err = capfd.readouterr()
    assert status in (0, 2) and 'Traceback' not in err, err
    assert not re.search('[\x00-\x09\x0b-\x1f\x7f-\x9f]', out + err)
    if status == 2:
        line = err.splitlines()[-1]
        assert re.search(rf'{re.escape(Path(name).name)}|\brun\b', line), line
    count('a file of another kind: refused in one line, or not needed')


@pytest.mark.parametrize('target', ['mine', 'missing'])
@pytest.mark.parametrize('command, name', WRITTEN, ids=lambda value: value if isinstance(value, str) else value[0])
def test_no_file_is_written_through_a_link(command, name, target, here, tmp_path):
    mine = tmp_path / 'mine'
    mine.write_text('mine')
    (here / name).unlink(missing_ok=True)
    (here / name).symlink_to(tmp_path / target)
    assert main(command) == 0
    assert mine.read_text() == 'mine' and not (tmp_path / 'missing').exists() and not (here / name).is_symlink()


def test_a_cached_dataset_that_is_a_fifo(tmp_path):
    os.mkfifo(tmp_path / 'glyphs.npz')
    with limits(5):
        assert glyphs._cached(tmp_path / 'glyphs.npz') is None
