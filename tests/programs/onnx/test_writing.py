"""Tests of the file of a model: contents, paths, and what is missing on the machine."""
import importlib.util
from pathlib import Path

import numpy
import onnx
import pytest
from oracle import lenet_params, to_mx

import gluon_mgpu
from gluon_mgpu.programs.onnx.writing import to_onnx


def missing(*names):
    """Return a `find_spec` for a machine without these modules."""
    find_spec = importlib.util.find_spec
    return lambda name, *args: None if name in names else find_spec(name, *args)


def test_contents_of_the_file():
    arrays = lenet_params(numpy.random.default_rng(0))
    to_onnx(to_mx(arrays), 'a.onnx', log=lambda line: None)
    model = onnx.load('a.onnx')
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ['images', 'scores']
    assert [array.name for array in model.graph.initializer] == ['W1', 'b1', 'W2', 'b2', 'W3', 'b3', 'W4', 'b4']
    for expected, array in zip(arrays, model.graph.initializer):
        assert (onnx.numpy_helper.to_array(array) == expected).all()
    assert (model.ir_version, model.opset_import[0].version, model.producer_name) == (8, 18, 'gluon_mgpu')
    assert model.producer_version == gluon_mgpu.__version__


@pytest.mark.parametrize('W4, b4', [(0, 0), (0, 1e-40), (1e-38, 0)])
def test_scores_that_are_all_zero_or_tiny(W4, b4, capsys):
    *params, W, b = to_mx(lenet_params(numpy.random.default_rng(0), 0.1))
    to_onnx([*params, W * 0 + W4, b * 0 + b4], 'a.onnx')
    assert 'model: a.onnx, checked in onnxruntime: ' in capsys.readouterr().out


def test_without_onnxruntime_the_model_is_written_unchecked(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, 'find_spec', missing('onnxruntime'))
    to_onnx(to_mx(lenet_params(numpy.random.default_rng(0))), 'a.onnx')
    assert capsys.readouterr().out == ('model: a.onnx, not checked because onnxruntime is not installed: '
                                       'pip install onnxruntime\n')
    onnx.checker.check_model('a.onnx')


def test_without_onnx(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, 'find_spec', missing('onnx'))
    with pytest.raises(ValueError, match='a.onnx cannot be written without onnx: pip install onnx onnxruntime'):
        to_onnx(to_mx(lenet_params(numpy.random.default_rng(0))), 'a.onnx')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('path', ['model', 'a.safetensors', '.onnx', 'folder.onnx'])
def test_paths(path):
    Path('folder.onnx').mkdir()
    with pytest.raises(ValueError, match=f'^{path}: must be a file name that ends in .onnx'):
        to_onnx(to_mx(lenet_params(numpy.random.default_rng(0))), path)


def test_a_full_disk_keeps_the_old_file(tmp_path, full_disk):
    (tmp_path / 'a.onnx').write_text('old')
    with full_disk(), pytest.raises(OSError, match='No space left'):
        to_onnx(to_mx(lenet_params(numpy.random.default_rng(0))), 'a.onnx')
    assert [path.name for path in tmp_path.iterdir()] == ['a.onnx']
    assert (tmp_path / 'a.onnx').read_text() == 'old'
