"""Tests of the file of a model: contents, paths, and what is missing on the machine."""
import importlib.util
import os
from pathlib import Path

import onnx
import pytest
from refused import refused
from small_models import lenet

import gluon_mgpu
from gluon_mgpu.programs.onnx.writing import to_onnx


def missing(*names):
    """Return a `find_spec` for a machine without these modules."""
    find_spec = importlib.util.find_spec
    return lambda name, *args: None if name in names else find_spec(name, *args)


def test_contents_of_the_file():
    params = lenet()
    to_onnx(params, 'a.onnx')
    model = onnx.load('a.onnx')
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ['images', 'scores']
    assert [array.name for array in model.graph.initializer] == ['W1', 'b1', 'W2', 'b2', 'W3', 'b3', 'W4', 'b4']
    for expected, array in zip(params, model.graph.initializer):
        assert (onnx.numpy_helper.to_array(array) == expected.asnumpy()).all()
    assert (model.ir_version, model.opset_import[0].version, model.producer_name) == (8, 18, 'gluon_mgpu')
    assert model.producer_version == gluon_mgpu.__version__


@pytest.mark.parametrize('W4, b4', [(0, 0), (0, 1e-40), (1e-38, 0)])
def test_scores_that_are_all_zero_or_tiny(W4, b4, capsys):
    *params, W, b = lenet(scale=0.1)
    to_onnx([*params, W * 0 + W4, b * 0 + b4], 'a.onnx')
    assert 'model: a.onnx, checked in onnxruntime: ' in capsys.readouterr().out


def test_without_onnxruntime_the_model_is_written_unchecked(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, 'find_spec', missing('onnxruntime'))
    to_onnx(lenet(), 'a.onnx')
    assert capsys.readouterr().out == ('model: a.onnx, not checked because onnxruntime is not installed: '
                                       'pip install onnxruntime\n')
    onnx.checker.check_model('a.onnx')


def test_without_onnx(monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', missing('onnx'))
    assert refused(to_onnx, lenet(), 'a.onnx') == (
        'a.onnx cannot be written without onnx: pip install onnx onnxruntime')
    assert not os.listdir()


@pytest.mark.parametrize('path', ['model', 'a.safetensors', '.onnx'])
def test_paths(path):
    assert refused(to_onnx, lenet(), path) == f'{path}: must be a file name that ends in .onnx'


def test_a_full_disk_keeps_the_old_file(full_disk):
    Path('a.onnx').write_text('old')
    with full_disk(), pytest.raises(OSError, match='No space left'):
        to_onnx(lenet(), 'a.onnx')
    assert os.listdir() == ['a.onnx'] and Path('a.onnx').read_text() == 'old'
