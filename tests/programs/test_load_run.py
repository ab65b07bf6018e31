"""Tests of loading a finished run."""
import pytest

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.programs import predict
from gluon_mgpu.programs.load_run import run_to_load
from gluon_mgpu.programs.onnx import export
from gluon_mgpu.training.run import Run


def test_a_run_without_a_checkpoint(tmp_path, capsys):
    (tmp_path / 'config.json').touch()
    for program in (predict, export):
        assert program.main([str(tmp_path)]) == 2
        assert f'{tmp_path}: no complete checkpoint was found; resume the run, or ' in capsys.readouterr().err


def test_a_file_that_is_no_checkpoint(tmp_path, capsys):
    path, missing = tmp_path / 'net.params', tmp_path / 'missing'
    path.write_bytes(b'of another program')
    for name, problem in ((path, 'truncated or altered, or not a checkpoint of gluon_mgpu'),
                          (missing, 'does not exist')):
        assert predict.main([str(name)]) == 2
        assert capsys.readouterr().err == (f'predict: {name}: {problem}; name the folder of a run or one of its '
                                           'checkpoints\n')


@pytest.mark.parametrize('config, problem', [
    (None, 'chapter of its configuration is missing or malformed'),
    ({'chapter': 'mine', 'dataset': 'mnist', 'devices': ['cpu(0)'], 'batch_size': 1, 'num_epochs': 1},
     "its chapter is 'mine'")])
def test_a_checkpoint_of_no_chapter(config, problem, tmp_path):
    checkpoint.save(tmp_path / 'a.safetensors', [[np.zeros(1)]], config=config, run=Run(1).state())
    with pytest.raises(checkpoint.CheckpointError, match=f'must be from a run of scratch or concise; {problem}'):
        run_to_load(tmp_path / 'a.safetensors')
