"""NaN, infinity and engine errors end the run, and its last good checkpoint is kept."""
import re

import pytest
from runs import outcome, run

from gluon_mgpu import scratch
from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import checkpoints
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import mx, np
from gluon_mgpu.training.epoch import DivergenceError
from gluon_mgpu.training.run import Callback, Run


@pytest.mark.slow
def test_divergence_ends_the_run_and_leaves_the_last_good_checkpoint(scratch_command, uninterrupted, short_run, count):
    """A resumed run ends if its learning rate is far too large, and can then be resumed with the right one."""
    kept = checkpoints(short_run)[0].read_bytes()
    done = run([*scratch_command, '--lr', '1e30', '--checkpoint-every', '1', '--resume', short_run])
    assert done.returncode == 2
    assert re.search(r'(the loss is (nan|inf|-inf) in epoch 2, batch \d|'
                     r'parameter \d is no longer finite in epoch 2 after \d batches).*use a smaller learning rate',
                     done.stderr.splitlines()[-1]), done.stderr
    for path in checkpoints(short_run):
        assert_finite(path)
    assert checkpoints(short_run)[-1].read_bytes() == kept
    for path in checkpoints(short_run)[:-1]:  # written with the wrong rate, before the divergence
        path.unlink()
    assert run([*scratch_command, '--lr', '0.2', '--resume', short_run]).returncode == 0
    assert outcome(short_run) == uninterrupted
    count('NaN or infinity in training: ended, the last good checkpoint resumed with equal results')


def assert_finite(path):
    for arrays in checkpoint.read(path)[1].values():
        assert all(abs(array).max() < float('inf') for array in arrays)


class Poison(Callback):
    """Callback that sets a parameter to NaN after `at` batches; the loss may stay finite."""

    def __init__(self, at):
        self.at = at

    def batch_end(self, run):
        if run.num_steps == self.at:
            run.net[-1][0][:] = float('nan')


def train(devices, rng, every, folder, *callbacks, allreduce=scratch.allreduce):
    """Train three epochs of four batches, with a checkpoint after `every` batch, or each epoch."""
    batches = BatchIterator(rng.integers(0, 255, (64, 28, 28), 'uint8'), rng.integers(0, 9, 64), 16, 'random')
    run = Run(3, quiet=True, callbacks=[*callbacks, CheckpointCallback(folder, every=every)])
    scratch.train(len(devices), 16, 0.1, devices=devices, data=(batches, [next(iter(batches))]), run=run,
                  allreduce=allreduce)


@pytest.mark.parametrize('every', [1, None], ids=['every step', 'every epoch'])
@pytest.mark.parametrize('at', [3, 4, 6])
def test_a_parameter_that_is_nan_is_never_saved(at, every, devices, rng, tmp_path, count):
    with pytest.raises(DivergenceError, match='use a smaller learning rate'):
        train(devices, rng, every, tmp_path, Poison(at))
    last = at - 1 if every else 4 if at > 4 else None
    assert [path.name for path in checkpoints(tmp_path)][:1] == ([f'checkpoint-{last:08}.safetensors'] if last else [])
    for path in checkpoints(tmp_path):
        assert_finite(path)
    count('a parameter that is NaN: ended, not saved')


@pytest.mark.parametrize('every', [1, None], ids=['every step', 'every epoch'])
@pytest.mark.parametrize('at', [2, 6])
def test_an_engine_error_ends_the_run_and_nothing_is_saved_afterwards(at, every, devices, rng, tmp_path, count):
    """Inverting a singular matrix fails on the engine's thread: it raises once, and later values are garbage."""
    sums, num_params = [], len(scratch.init_params())

    def failing(data):
        scratch.allreduce(data)
        sums.append(data)
        if len(sums) == at * num_params:  # the last one of the step
            data[0] += np.linalg.inv(np.zeros((1, 1), ctx=data[0].ctx))[0]

    with pytest.raises((mx.base.MXNetError, ValueError)) as caught:
        train(devices, rng, every, tmp_path, allreduce=failing)
    assert 'the input matrix is non-convertible' in str(caught.value)
    assert len(sums) <= 8 * num_params  # at the end of the epoch at the latest
    assert all(int(path.name[11:19]) < at for path in checkpoints(tmp_path))
    assert len(checkpoints(tmp_path)) == (min(at - 1, 2) if every else at > 4)
    count('an engine error: ended, nothing saved afterwards')
