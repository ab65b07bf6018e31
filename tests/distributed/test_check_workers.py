"""check_data_parallel in a job: all workers together, compared with one device; rank 0 prints the report."""
import sys

import pytest
from jobs import PATH
from slow import slow

LIMIT = {'GLUON_MGPU_EXCHANGE_TIMEOUT': '5'}


def report(job, make, name, **settings):
    """Run the check in a job; return its exit status and its text."""
    with job(2, sys.executable, '-m', 'gluon_mgpu', 'check', f'checked:{make}', f'checked:{name}', '--horovod',
             PYTHONPATH=PATH, **settings) as run:
        return run.end(timeout=90), run.text


@pytest.mark.parametrize('make, name, status, words', [
    ('make', 'train_batch', 0, 'The step is right: k devices compute what one does.'),
    ('make', 'wrong', 1, 'the sum of the gradients does not reach'),
    ('make_synchronized', 'train_synchronized', 0, 'The step is right: k devices compute what one does.')])
def test_check(job, make, name, status, words):
    ended, text = report(job, make, name)
    assert (ended != 0) == status, text
    assert text.count('2 devices compared with one, in float64') == 1
    assert words in text
    assert 'batch norm' not in text  # that only fixed statistics make the devices equal
    assert ('cpu(0) of worker 1' in text) == status


@pytest.mark.parametrize('make, name, settings, words', [
    ('make_synchronized', 'train_synchronized_or_fail', LIMIT, "KeyError: 'after the exchange'"),
    ('make', 'train_or_fail', LIMIT, 'worker 1 has waited 5 s for the others in the end of a step (after KeyError'),
    slow('make', 'train_or_fail', {}, 'check: worker 1 has waited 60 s for the others')])
def test_the_step_fails_on_one_worker(job, make, name, settings, words):
    ended, text = report(job, make, name, **settings)
    assert ended != 0 and words in text, text
    assert name != 'train_or_fail' or "check: the step fails on worker 1 after KeyError: 'before" in text, text
