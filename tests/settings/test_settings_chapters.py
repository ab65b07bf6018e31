"""The table of chapters: a row and a module with `train` are enough for another one."""
import re
import sys
import types
from pathlib import Path

import idx_files
import pytest

from gluon_mgpu import concise
from gluon_mgpu.mxnet_setup.compat import gluon
from gluon_mgpu.programs import predict
from gluon_mgpu.programs.onnx import export
from gluon_mgpu.settings import chapters, cli
from gluon_mgpu.settings.chapters import CHAPTERS, Chapter
from gluon_mgpu.settings.settings import ALL


def mlp():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation='relu'), gluon.nn.Dense(10))
    return net


@pytest.fixture
def third_chapter(monkeypatch):
    module = types.ModuleType('gluon_mgpu.third')
    monkeypatch.setitem(sys.modules, 'gluon_mgpu.third', module)
    row = Chapter('third', 'a perceptron', 'train it', lambda module, config: mlp(), own=chapters.OF_TRAINER)
    monkeypatch.setitem(CHAPTERS, 'third', row)

    module.train, module.train_batch = concise.train, concise.train_batch
    return module


def test_the_settings_of_chapters_are_declared():
    """A misspelt one would be a setting of all chapters, or have no effect."""
    assert all({*chapter.own, *chapter.defaults} <= ALL.keys() for chapter in CHAPTERS.values())


def test_each_chapter_has_tests():
    tests = Path(__file__).parents[1]
    assert [name for name in CHAPTERS if not (tests / f'test_{name}.py').exists()] == []


def test_a_third_chapter(third_chapter, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(predict, 'draw_predictions', lambda *args: None)
    idx_files.write(tmp_path / 'mnist', idx_files.dataset(48, 30))
    run = str(tmp_path / 'run')
    assert cli.run('third', third_chapter, [
        '--dataset', 'mnist', '--data-dir', str(tmp_path), '--devices', 'cpu:0-1', '--batch-size', '16', '--momentum',
        '0.9', '--num-epochs', '1', '--out-dir', run]) == 0
    assert cli.run('third', third_chapter, ['--resume', run, '--num-epochs', '2']) == 0
    accuracy = re.findall(r'^test acc: ([\d.]+)', capsys.readouterr().out, re.MULTILINE)[-1]
    assert predict.main([run]) == 0
    assert round(float(capsys.readouterr().out.split()[2]), 2) == float(accuracy)
    pytest.importorskip('onnxruntime')
    assert export.main([run]) == 0 and 'checked in onnxruntime' in capsys.readouterr().out


def test_its_settings(third_chapter, capsys):
    for chapter, flag, value in (('third', 'dtype', 'float16'), ('third', 'allreduce', 'tree'),
                                 ('scratch', 'momentum', '0.9')):
        owners = [name for name in CHAPTERS if flag in CHAPTERS[name].own]
        assert ('third' in owners) == (flag == 'momentum')
        with pytest.raises(SystemExit):
            cli.run(chapter, third_chapter, [f'--{flag}', value])
        assert f'{chapter}: unrecognized arguments: --{flag} {value}' in capsys.readouterr().err
