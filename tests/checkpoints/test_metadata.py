"""Metadata of another program is refused, and raises no other error."""
import pytest
from refused import refused

from gluon_mgpu.base.arguments import is_count, is_number
from gluon_mgpu.checkpoints.metadata import check_metadata
from gluon_mgpu.training.history import checked_history

ROW = [1, 2.0, 1.5, 0.5, 10.0, 0.1]
VALID = {'config': {'chapter': 'scratch', 'dataset': 'glyphs', 'devices': ['cpu(0)', 'gpu(1)'], 'batch_size': 8,
                    'num_epochs': 1},
         'run': {'history': [ROW, [2, 2, 1, 1, 10, None], [3, *ROW[1:5]]], 'num_steps': 9, 'num_batches': 2,
                 'epoch_length': 3, 'loss': -1.0, 'rows': 5, 'seconds': 0.0}}


@pytest.mark.parametrize('value', [None, 'a', [], {}, True, float('nan'), float('inf'), 10**400])
def test_what_is_no_number(value):
    assert not is_number(value) and not is_count(value)
    assert not is_count(0.5) and not is_count(2**31) and not is_count(-1)
    assert is_number(-0.5) and is_count(2**31 - 1) and is_count(0)


@pytest.mark.parametrize('part, name', [(part, name) for part, record in VALID.items() for name in record])
def test_a_missing_or_malformed_entry(part, name):
    check_metadata(VALID)
    check_metadata({**VALID, 'config': {**VALID['config'], 'data_dir': 'a', 'dtype': 'b'}})
    kind = {'config': 'configuration', 'run': 'state'}[part]
    for value in (None, {}):
        assert refused(check_metadata, {**VALID, part: {**VALID[part], name: value}}) == (
            f'{name} of its {kind} is missing or malformed')
    assert refused(check_metadata, {**VALID, part: []})


@pytest.mark.parametrize('place, value', [(0, 1.5), (0, 2), (1, 'a'), (2, float('nan')), (3, None), (4, []), (5, 'a')])
def test_a_malformed_history(place, value):
    assert checked_history(VALID['run']['history'])[0] == tuple(ROW)
    wrong = 'epoch 1 of its history is malformed'
    assert refused(checked_history, [[*ROW[:place], value, *ROW[place + 1:]]]) == wrong
    assert refused(checked_history, ['abcdef']) == wrong
    for row in (ROW[:4], [*ROW, 1], 1):
        assert refused(checked_history, [row]) == 'its history is malformed'
    assert refused(checked_history, [ROW, ROW]) == 'epoch 2 of its history is malformed'
