"""Wrong command lines: exit status 2, one line, no traceback, nothing written."""
import importlib
import json
import shlex
from pathlib import Path

import idx_files
import numpy
import pytest
from runs import listing

from gluon_mgpu.__main__ import PROGRAMS
from gluon_mgpu.checkpoints import checkpoint

BOTH_CHAPTERS = """
--batch-size 0
--batch-size ten
--batch-size
--lr 0
--lr fast
--num-epochs 0
--num-gpus 0
--num-gpus 2 --devices cpu:0
--devices ''
--devices gpu:0
--devices gpu:all
--devices cpu:x
--devices cpu:0,cpu:0
--devices tpu:0
--dataset cifar
--dataset fashion-mnist --data-dir empty
--dataset fashion-mnist --data-dir missing
--dataset mnist --data-dir ~nosuchuser/x
--dataset mnist --data-dir broken
--train-size 0
--train-size 60001 --dataset mnist --data-dir data
--seed -1
--out-dir ''
--out-dir taken
--out-dir file
--out-dir file/run --dataset mnist --data-dir data
--resume ''
--resume auto
--resume auto --out-dir taken
--resume auto --out-dir file
--resume missing
--resume missing/checkpoint-00000001.safetensors
--resume taken
--resume empty
--resume file
--resume run/checkpoint-00000001.safetensors --out-dir elsewhere
--resume run --batch-size 32
--resume run --seed 1
--resume run --dataset glyphs
--resume run --train-size 16
--resume run/checkpoint-00000001.safetensors
--resume broken-run
--checkpoint-every 0
--checkpoint-every
--timeline --devices cpu:0,cpu:999
--quiet 3
--unknown
word
""".strip().splitlines()
ONE_CHAPTER = {
    'scratch': ['--allreduce', '--allreduce mesh', "--allreduce ''", '--dtype float16', '--resume concise-run'],
    'concise': ['--dtype', '--dtype int8', "--dtype ''", '--dtype float16 --devices cpu:0', '--allreduce ring',
                '--resume run']}
OTHER_PROGRAMS = {
    'devices': ['--unknown', 'word'],
    'doctor': ['--unknown', 'word', '--timeout', '--timeout nan', '--timeout soon'],
    'plot': ['', 'missing', 'empty', 'taken', '--out x', "run --out ''", 'broken-run'],
    'predict': ['', 'missing', 'empty', 'taken', 'file', 'broken-run', 'run no-image', 'run file', 'run data', 'run',
                'concise-run', 'run --devices gpu:0', "run --devices ''", 'run --data-dir missing',
                'foreign.safetensors', "run --out ''"],
    'export': ['', 'missing', 'empty', 'taken', 'file', 'broken-run', 'run', 'concise-run', 'foreign.safetensors',
               "run --out ''", 'run --out model', 'run --out missing/model.onnx', 'run --out empty', 'run word'],
    'timeline': ['', 'missing', 'file', 'empty', "file --out ''"],
    'scaling': ['--unknown', '--devices cpu:x', '--devices gpu:0', '--epochs 0'],
    'allreduce_cost': ['--unknown', '--devices cpu:x', '--devices cpu:0', '--devices gpu:0', '--out-dir taken'],
}
LINES = [(program, line) for program in ('scratch', 'concise') for line in (*BOTH_CHAPTERS, *ONE_CHAPTER[program])]
LINES += [(program, line) for program, lines in OTHER_PROGRAMS.items() for line in lines]


@pytest.fixture(scope='module')
def workplace(tmp_path_factory):
    """A folder with everything that the command lines name: runs, a broken run, and other files."""
    folder = tmp_path_factory.mktemp('wrong')
    for name in ('empty', 'taken', 'run', 'concise-run', 'broken-run', 'broken/mnist'):
        (folder / name).mkdir(parents=True)
    (folder / 'taken/notes.txt').write_text('not a run')
    (folder / 'file').write_text('no folder')
    (folder / 'foreign.safetensors').write_bytes(b'\0' * 99)
    idx_files.write(folder / 'data/mnist', idx_files.dataset(64, 16))
    for name in idx_files.dataset():
        (folder / 'broken/mnist' / name).write_bytes(b'no gzip file')
    for name, chapter in (('run', 'scratch'), ('concise-run', 'concise'), ('broken-run', 'scratch')):
        config = {'chapter': chapter, 'dataset': 'mnist', 'data_dir': 'data', 'devices': ['cpu(0)'], 'num_gpus': 1,
                  'batch_size': 16, 'lr': 0.1, 'num_epochs': 3, 'seed': 0, 'train_size': 64, 'dtype': 'float32',
                  'resume': None}
        (folder / name / 'config.json').write_text(json.dumps(config))
        for number in (1, 2):
            kept = checkpoint.Snapshot({'parameters/a': [numpy.zeros(2)]}, {'parameters': {'a': 1}})
            state = {'history': [], 'num_steps': number, 'num_batches': number, 'epoch_length': 4, 'loss': 1.0,
                     'rows': 16, 'seconds': 1.0}
            checkpoint.write(folder / name / f'checkpoint-{number:08}.safetensors', kept,
                             {'run': state, 'config': config})
    for path in (folder / 'broken-run').glob('*.safetensors'):
        path.write_bytes(path.read_bytes()[:-1])
    return folder


@pytest.mark.parametrize('program, line', LINES, ids=[' '.join(words) for words in LINES])
def test_a_wrong_command_line(program, line, workplace, monkeypatch, capsys, count):
    monkeypatch.chdir(workplace)
    monkeypatch.setattr('gluon_mgpu.devices.gpus.num_mxnet_gpus', lambda: 0)
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / 'benchmarks')
    module = f'gluon_mgpu.{PROGRAMS[program][0]}' if program in PROGRAMS else program  # of benchmarks/
    main = importlib.import_module(module).main
    before = listing(workplace)
    try:
        status = main(shlex.split(line))
    except SystemExit as ended:  # argparse
        status = ended.code
    err = capsys.readouterr().err
    assert status == 2, err
    assert 'is not a checkpoint of a run' not in err, err  # but what the line is about
    *warnings, line = err.splitlines()
    assert line.startswith(f'{program}: ') and 'Traceback' not in err, err
    assert all(warning.endswith('; skipped') for warning in warnings), err
    assert listing(workplace) == before
    count('a wrong command line: status 2, one line, nothing written')
