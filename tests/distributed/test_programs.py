"""Programs unlike the chapters, on several workers: they compute what one process does, or are refused in one line."""
import re
import sys
import time

import numpy
import pytest
from programs import EQUAL
from test_equality import HERE

from gluon_mgpu.parallel.workers import ThisProcess


def output(job, tmp_path, name, num_workers=2, status=1):
    """Run a program that must end in time, on its own; return what the workers have printed."""
    path = ':'.join(str(place) for place in (HERE, HERE.parent, HERE.parents[1]))
    with job(num_workers, sys.executable, HERE / 'programs.py', name, tmp_path, PYTHONPATH=path) as run:
        assert (run.end(timeout=200) != 0) == status, run.text
    assert 'Exception ignored' not in run.text, run.text
    return run.text


@pytest.fixture(scope='module')
def expected():
    """The results of one process."""
    return {name: program(ThisProcess()) for name, program in EQUAL.items()}


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
    ('too_small', 'batch_size 5, but the training data has batches of 10 rows over all workers: use the same number'),
    ('known_lengths', 'train_iter has [5, 6] batches on the workers: must be equal'),
    ('other_lr', 'lr of the optimizer is 0.1 on worker 0 (localhost) and 0.2 on worker 1 (localhost): start all'),
    ('other_momentum', 'momentum of the optimizer is 0.0 on worker 0 (localhost) and 0.5 on worker 1'),
    ('other_optimizer', 'its optimizer is SGD on worker 0 (localhost) and NAG on worker 1'),
    ('other_divisor', 'rescale_grad of the optimizer is 1.0 on worker 0 (localhost) and 0.5 on worker 1'),
    ('not_broadcast', '(localhost): call workers.broadcast_parameters(net) before the first step'),
    ('another_trainer_first', 'the Trainer is Trainer '),
    ('other_seed', 'seed is 0 on worker 0 (localhost) and 1 on worker 1'),
    ('other_schedule', 'the learning rate is 0.3'),
    ('other_number_of_epochs', 'num_epochs is 2 on worker 0 (localhost) and 3 on worker 1'),
    ('other_activation', "is Activation ['relu'] on worker 0 (localhost) and Activation ['tanh'] on worker 1"),
    ('no_sum', '(localhost): sum the gradients over all workers, and update with the same settings'),
    ('other_setting', 'momentum is 0.0 on worker 0 (localhost) and 0.5 on worker 1')])
def test_all_workers_refuse(refusals, name, words):
    lines = re.findall(rf'^\[[01]\] {name}: (.*)', refusals, re.MULTILINE)
    assert len(lines) == 2 and lines[0] == lines[1] and words in lines[0], refusals


@pytest.mark.parametrize('name, first, second', [
    ('one_batch_more', 'the end of its program', 'an exchange of 8 gradients (number 6)'),
    ('one_batch_less_from_scratch', 'an exchange of gradients (number 6)', 'the end of its program'),
    ('one_returns', 'the end of its program', 'an exchange of values (number 1)'),
    ('one_exits', 'an exchange of values (number 1)', 'the end of its program'),
    ('one_ends_without_block', 'the end of its program', 'an exchange of values (number 1)'),
    ('one_freezes_a_layer', 'an exchange of 8 gradients (number 6)', 'an exchange of 6 gradients (number 1)'),
    ('unknown_lengths', 'an exchange of numbers (the end of epoch 1)', 'an exchange of .* (batch 6 of epoch 1)'),
    ('only_rank_0_evaluates', 'an evaluation (the end of epoch 1)', 'an exchange of values (the end of epoch 1)')])
def test_a_worker_leaves_the_others(job, tmp_path, name, first, second):
    """The job ends in seconds, and the message says where the workers were."""
    began = time.monotonic()
    text = output(job, tmp_path, name)
    assert time.monotonic() - began < 30  # with the start, on a busy machine
    places = re.search(r'worker 0 of 2 \(.*?\) is at (.*), and worker 1 of 2 \(.*?\) at (.*): all workers must', text)
    assert places and places[1] == first and re.fullmatch(re.escape(second).replace(r'\.\*', '.*'), places[2]), text
    assert 'Traceback' not in text, text


def test_a_program_without_with_block(job, tmp_path):
    output(job, tmp_path, 'without_block', status=0)
    first, second = (numpy.load(tmp_path / f'{rank}.npz') for rank in (0, 1))
    assert first.files and all((first[key] == second[key]).all() for key in first.files)


def test_a_slow_worker_is_named(job, tmp_path):
    text = output(job, tmp_path, 'slow_worker', status=0)
    assert re.search(r'worker 1 of 2 \(.*\) has not come in 1 s to an exchange of values \(number \d+\): others wait; '
                     'the job continues', text), text


@pytest.mark.parametrize('rank', [0, 1])
def test_only_the_users_own_error_is_printed(job, tmp_path, rank):
    """Not that of MXNet at exit, about the sums that worker could not make."""
    text = output(job, tmp_path, f'raises_on_{rank}')
    assert text.count('Traceback') == 1 and f"[{rank}] KeyError: 'requested by the test'" in text, text


def test_the_third_worker_leaves(job, tmp_path):
    text = output(job, tmp_path, 'third_returns', num_workers=3)
    assert re.search(r'worker 0 of 3 \(.*?\) is at an exchange of values \(number 1\), and worker 2 of 3 \(.*?\) at '
                     'the end of its program', text), text
