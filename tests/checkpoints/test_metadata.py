"""Forged metadata is refused, and raises no other error."""
import pytest

from gluon_mgpu.checkpoints.metadata import check_metadata
from gluon_mgpu.training.history import checked_history

VALID = {'config': {'chapter': 'scratch', 'dataset': 'glyphs', 'devices': ['cpu(0)', 'gpu(1)'], 'batch_size': 8,
                    'num_epochs': 1},
         'run': {'history': [[1, 2.0, 1.5, 0.5, 10.0, 0.1], [2, 2, 1, 1, 10, None], [3, 2.0, 1.5, 0.5, 10.0]],
                 'num_steps': 9, 'num_batches': 2, 'epoch_length': 3, 'loss': -1.0, 'rows': 5, 'seconds': 0.0}}
WRONG = (None, 'a', [], {}, [[]], True, float('nan'), float('inf'), 10**400)  # as no number; most entries are numbers
COUNT = (*WRONG, -1, 0.5, 2**31)
TEXT = (None, [], {}, True, 0.5, -1, 10**400)
FORGED = {
    'chapter': TEXT, 'dataset': TEXT, 'data_dir': TEXT[1:], 'dtype': TEXT[1:],
    'devices': (*WRONG, ['cpu:0'], ['cpu(0)\x1b'], [None], ['cpu(0)'] * (10**4 + 1)), 'batch_size': (*COUNT, 0),
    'num_epochs': (*COUNT, 0), 'history': (*WRONG[:2], {}, True, 0.5), 'num_steps': COUNT, 'num_batches': (*COUNT, 4),
    'epoch_length': (*COUNT, 1), 'loss': WRONG, 'rows': COUNT, 'seconds': (*WRONG, -1)}


@pytest.mark.parametrize('name', FORGED)
def test_forged_metadata(name):
    """No other error than the ValueError, and no endless loop."""
    check_metadata(VALID)
    check_metadata({**VALID, 'config': {**VALID['config'], 'data_dir': 'a', 'dtype': 'float32',
                                        'devices': ['cpu(0)'] * 10**4}})
    part = 'run' if name in VALID['run'] else 'config'
    for value in FORGED[name]:
        with pytest.raises(ValueError, match=r'(is|are) (missing or )?malformed|is not a list'):
            check_metadata({**VALID, part: {**VALID[part], name: value}})
    if name in VALID[part]:
        with pytest.raises(ValueError, match='is missing or malformed|is not a list|is malformed'):
            check_metadata({**VALID, part: {key: value for key, value in VALID[part].items() if key != name}})


@pytest.mark.parametrize('part', VALID)
@pytest.mark.parametrize('value', WRONG)
def test_metadata_of_another_kind(part, value):
    with pytest.raises(ValueError, match='missing|malformed'):
        check_metadata({**VALID, part: value})


@pytest.mark.parametrize('place, wrong', [
    (0, (*WRONG, 0, 2, 1.5)), (1, (*WRONG, -1)), (2, WRONG), (3, (*WRONG, -0.1, 1.1)), (4, (*WRONG, -1)),
    (5, WRONG[1:])])
def test_a_forged_history(place, wrong):
    row = [1, 2.0, 1.5, 0.5, 10.0, 0.1]
    assert checked_history([row, [2, *row[1:5]], [3, *row[1:5], None]])[0] == tuple(row)
    for value in wrong:
        with pytest.raises(ValueError, match='epoch 1 of its history is malformed'):
            checked_history([[*row[:place], value, *row[place + 1:]]])
    for rows in ([row[:4]], [[*row, 1]], [[2, *row[1:]]], [row, row], [1], ['abcdef'], 'a'):
        with pytest.raises(ValueError, match='history is'):
            checked_history(rows)
