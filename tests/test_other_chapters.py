"""The loops of the book's other chapters: k devices equal one with plain Gluon, in float64."""
from functools import partial

import pytest
from book_steps import CHAPTERS, WRONG, as_mxnet, as_one, parameters_of, plain
from equals_one import equals_one
from slow import slow

import gluon_mgpu as d2l

ROWS = [7, 7, 2, 6, 1]  # the language model continues states from the first batch to the second


def train(devices, rng, chapter, way):
    state = chapter.make(way, devices)
    for rows in ROWS:
        chapter.step(state, *map(as_mxnet, chapter.batch(rng, rows)), devices)
        yield parameters_of(state)


@pytest.mark.parametrize('k', [slow(1), slow(2), 3])
@pytest.mark.parametrize('name', CHAPTERS)
def test_k_devices_equal_one(name, k, device_list):
    equals_one(partial(train, chapter=CHAPTERS[name], way=as_one), device_list(k),
               one=partial(train, chapter=CHAPTERS[name], way=plain))


def check(name, step, rng, devices=None):
    make, _, batch = CHAPTERS[name]
    return d2l.check_data_parallel(partial(make, as_one), step, [batch(rng, 16) for _ in range(2)], devices)


@pytest.mark.parametrize('name', [name if name == 'GAN' else slow(name) for name in CHAPTERS])
def test_the_check_accepts_it(name, rng):
    if name == 'fine-tuning':
        with pytest.raises(ValueError, match='^train_batch freezes or unfreezes parameters: do so in make'):
            check(name, CHAPTERS[name].step, rng)
        return
    report = check(name, CHAPTERS[name].step, rng)
    assert report.ok, report


@pytest.mark.slow  # quick: test_bert_and_the_check of the next file
@pytest.mark.parametrize('mistake', WRONG)
def test_the_check_names_a_mistake(mistake, device_list, rng):
    name, step, words = WRONG[mistake]
    report = check(name, step, rng, device_list(2))
    assert not report.ok and words in ' '.join(str(report).split()), report
