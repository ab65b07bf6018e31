"""Tests of the file of a model: contents, paths, and what is missing on the machine."""
import importlib.util
import os

import numpy
import onnx
import pytest
from oracle import lenet_params, to_mx

import gluon_mgpu
from gluon_mgpu.base.files import write_atomically
from gluon_mgpu.mxnet_setup.compat import gluon, np
from gluon_mgpu.programs.onnx.export import to_onnx
from gluon_mgpu.programs.onnx.writing import check_path


def missing(*names):
    """Return a `find_spec` for a machine without these modules."""
    find_spec = importlib.util.find_spec
    return lambda name, *args: None if name in names else find_spec(name, *args)


def test_contents_of_the_file():
    arrays = lenet_params(numpy.random.default_rng(0))
    to_onnx(to_mx(arrays), 'a.onnx', log=lambda line: None)
    model = onnx.load('a.onnx')
    assert [array.name for array in model.graph.initializer] == ['W1', 'b1', 'W2', 'b2', 'W3', 'b3', 'W4', 'b4']
    for expected, array in zip(arrays, model.graph.initializer):
        assert (onnx.numpy_helper.to_array(array) == expected).all()
    for value, name, shape in ((model.graph.input[0], 'images', ['batch', 1, 28, 28]),
                               (model.graph.output[0], 'scores', ['batch', 10])):
        tensor = value.type.tensor_type
        assert (value.name, tensor.elem_type) == (name, onnx.TensorProto.FLOAT)
        assert [axis.dim_param or axis.dim_value for axis in tensor.shape.dim] == shape
    assert (model.ir_version, model.opset_import[0].version, model.producer_name) == (8, 18, 'gluon_mgpu')
    assert model.producer_version == gluon_mgpu.__version__


@pytest.mark.parametrize('W4, b4', [(0, 0), (0, 1e-40), (1e-38, 0)])
def test_scores_that_are_all_zero_or_tiny(W4, b4, capsys):
    *params, W, b = to_mx(lenet_params(numpy.random.default_rng(0), 0.1))
    to_onnx([*params, W * 0 + W4, b * 0 + b4], 'a.onnx')
    assert 'model: a.onnx, checked in onnxruntime: ' in capsys.readouterr().out


@pytest.mark.parametrize('batch_axis', ['x', None, 1.5, 2])
def test_a_wrong_batch_axis(batch_axis):
    dense = gluon.nn.Dense(2, in_units=3)
    dense.initialize()
    with pytest.raises(ValueError, match=f'^batch_axis {batch_axis}: must be an axis of each of 1 inputs'):
        to_onnx(dense, 'a.onnx', np.ones((1, 3)), batch_axis=batch_axis)


def test_scores_that_overflow_are_rejected(tmp_path):
    params = [array * 1e30 for array in to_mx(lenet_params(numpy.random.default_rng(0), 0.1))]
    with pytest.raises(ValueError, match='^no model is written because numbers of scores for random inputs'):
        to_onnx(params, 'a.onnx')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('name', ['onnx', 'onnxruntime'])
@pytest.mark.parametrize('error', [ImportError('libx.so: cannot\nopen'), TypeError('Descriptors cannot be created')])
def test_a_module_that_cannot_be_imported(name, error, monkeypatch):
    """`check_path` reports it before training."""
    import_module = importlib.import_module

    def broken(module, *more):
        if module == name:
            raise error
        return import_module(module, *more)

    monkeypatch.setattr(importlib, 'import_module', broken)
    words = ' '.join(str(error).split())
    with pytest.raises(ValueError, match=rf'^a.onnx cannot be written because {name} cannot be imported, '
                                         rf'{words}: pip install --force-reinstall {name}$'):
        check_path('a.onnx')


def test_a_full_disk_keeps_the_old_file(tmp_path, full_disk):
    params = to_mx(lenet_params(numpy.random.default_rng(0)))
    (tmp_path / 'a.onnx').write_text('old')
    with full_disk(), pytest.raises(OSError, match='No space left'):
        to_onnx(params, 'a.onnx')
    assert [path.name for path in tmp_path.iterdir()] == ['a.onnx']
    assert (tmp_path / 'a.onnx').read_text() == 'old'


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


def test_paths(tmp_path, monkeypatch):
    (tmp_path / 'folder.onnx').mkdir()
    (tmp_path / 'file').write_text('')
    os.mkfifo('fifo.onnx')
    (tmp_path / 'broken.onnx').symlink_to('no/a.onnx')
    (tmp_path / 'link.onnx').symlink_to('new.onnx')
    for path, words in (('model', 'model: must be a file name that ends in .onnx'),
                        ('a.safetensors', 'must be a file name that ends in .onnx'),
                        ('.onnx', 'must be a file name that ends in .onnx'),
                        ('folder.onnx', 'must be a file name that ends in .onnx'),
                        ('no/a.onnx', f'no/a.onnx cannot be written: {tmp_path}/no is not a writable folder'),
                        ('file/a.onnx', f'file/a.onnx cannot be written: {tmp_path}/file is not'),
                        ('broken.onnx', f'broken.onnx cannot be written: {tmp_path}/no is not a writable folder'),
                        ('fifo.onnx', 'fifo.onnx cannot be written: it exists and is not a file'),
                        ('a' * 237 + '.onnx', 'its name must have at most 241 bytes')):
        with pytest.raises(ValueError, match=words):
            check_path(path)
    for path in ('a.onnx', 'link.onnx', 'a' * 236 + '.onnx'):
        check_path(path)
        write_atomically(path, b'')
    check_path('runs/new/a.onnx', 'runs/new')
    check_path(tmp_path / 'runs/new/a.onnx', 'runs/new')
    with pytest.raises(ValueError, match='runs is not a writable folder'):
        check_path('runs/a.onnx', 'runs/new')
    monkeypatch.setattr(os, 'access', lambda path, mode: False)  # root can write everywhere
    with pytest.raises(ValueError, match=f'a.onnx cannot be written: {tmp_path} is not a writable folder'):
        check_path('a.onnx')
