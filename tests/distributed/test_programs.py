"""Programs unlike the chapters, on several workers: they compute what one process does, or end with one line."""
import re
import sys

import numpy
import pytest
from jobs import HERE, LOST, PATH
from programs import EQUAL

from gluon_mgpu.parallel.workers import Workers


def output(job, tmp_path, name, num_workers=2, status=1, **environment):
    """Run a program that must end in time, on its own; return what the workers have printed."""
    with job(num_workers, sys.executable, HERE / 'programs.py', name, tmp_path, PYTHONPATH=PATH, **environment) as run:
        assert (run.end(timeout=200) != 0) == status, run.text
    assert 'Exception ignored' not in run.text, run.text
    return run.text


@pytest.fixture(scope='module')
def expected():
    """The results of one process."""
    return {name: program(Workers()) for name, program in EQUAL.items()}


@pytest.mark.parametrize('num_workers', [2, 3])
def test_workers_equal_one_process(job, tmp_path, expected, num_workers):
    output(job, tmp_path, 'EQUAL', num_workers, status=0)
    found = [numpy.load(tmp_path / f'{rank}.npz') for rank in range(num_workers)]
    for name, arrays in expected.items():
        for key, right in arrays.items():
            array, *others = (of_worker[f'{name}/{key}'] for of_worker in found)
            tolerance = 1e-6 if array.dtype == 'float32' else 1e-12  # sums in another order
            numpy.testing.assert_allclose(array, right, rtol=tolerance, atol=tolerance, err_msg=f'{name} {key}')
            assert all((other == array).all() for other in others), (name, key)


@pytest.fixture(scope='module')
def refusals(job, tmp_path_factory):
    """The lines that the workers have printed."""
    return output(job, tmp_path_factory.mktemp('refused'), 'REFUSED', status=0)


@pytest.mark.parametrize('name, words', [
    ('too_large', 'batch_size 20, but the training data has batches of 10 rows over all workers: use the same number'),
    ('known_lengths', 'train_iter has [5, 6] batches on the workers: must be equal'),
    ('other_lr', 'lr of the optimizer is 0.1 on worker 0 and 0.2 on worker 1: start all'),
    ('other_optimizer', 'the optimizer is SGD on worker 0 and NAG on worker 1'),
    ('other_divisor', 'rescale_grad of the optimizer is 1.0 on worker 0 and 0.5 on worker 1'),
    ('not_broadcast', 'on worker 1: call workers.broadcast_parameters(net) before the first step'),
    ('another_trainer_first', 'the Trainer is Trainer '),
    ('other_seed', 'seed is 0 on worker 0 and 1 on worker 1'),
    ('other_schedule', 'the learning rate is 0.1'),
    ('no_sum', 'on worker 1: sum the gradients over all workers, and update with the same settings'),
    ('other_setting', 'batch_size is')])
def test_all_workers_refuse(refusals, name, words):
    lines = re.findall(rf'^\[[01]\] {name}: (.*)', refusals, re.MULTILINE)
    assert len(lines) == 2 and lines[0] == lines[1] and words in lines[0], refusals


@pytest.mark.parametrize('name, exchange', [
    ('unknown_lengths', r'an exchange of \w+ \(epoch 1\)'),
    ('only_rank_0_evaluates', r'(an evaluation|an exchange of values) \(epoch 1\)'),  # of either worker
    ('one_freezes_a_layer', 'the sum of the gradients')])
def test_an_exchange_that_does_not_end(job, tmp_path, name, exchange):
    text = output(job, tmp_path, name, GLUON_MGPU_EXCHANGE_TIMEOUT='5')
    assert re.search(f' has waited 5 s for the others in {exchange}: all workers must take the same steps', text), text


def test_a_program_without_with_block(job, tmp_path):
    output(job, tmp_path, 'without_block', status=0, GLUON_MGPU_EXCHANGE_TIMEOUT='6')
    first, second = (numpy.load(tmp_path / f'{rank}.npz') for rank in (0, 1))
    assert first.files and all((first[key] == second[key]).all() for key in first.files)


def test_a_worker_raises_an_error(job, tmp_path):
    text = output(job, tmp_path, 'raises')
    assert "[1] KeyError: 'requested by the test'" in text and LOST in text, text


@pytest.mark.parametrize('name, num_workers', [('third_returns', 3), ('one_batch_more', 2)])
def test_a_worker_leaves_the_others(job, tmp_path, name, num_workers):
    assert LOST in output(job, tmp_path, name, num_workers)
