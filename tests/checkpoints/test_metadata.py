"""Forged metadata is refused, and raises no other error."""
import pytest
from refused import refused

from gluon_mgpu.base.arguments import is_count, is_number
from gluon_mgpu.checkpoints.metadata import check_metadata
from gluon_mgpu.training.history import checked_history

CONFIG = {'chapter': 'scratch', 'dataset': 'glyphs', 'devices': ['cpu(0)', 'gpu(1)'], 'batch_size': 8, 'num_epochs': 1}
ROW = [1, 2.0, 1.5, 0.5, 10.0, 0.1]
RUN = {'history': [ROW, [2, 2, 1, 1, 10, None], [3, *ROW[1:5]]], 'num_steps': 9, 'num_batches': 2, 'epoch_length': 3,
       'loss': -1.0, 'rows': 5, 'seconds': 0.0}


@pytest.mark.parametrize('value', [None, 'a', [], {}, True, float('nan'), float('inf'), 10**400, -2])
def test_what_is_no_number(value):
    assert not is_number(value, least=-1) and not is_count(value)
    assert not is_count(0.5) and not is_count(2**31) and not is_count(2, least=3)
    assert is_number(-1, least=-1) and is_number(0.5) and is_count(2**31 - 1) and is_count(3, least=3)


@pytest.mark.parametrize('part, name, value', [
    *(('config', name, value) for name, value in (
        ('chapter', 0.5), ('dataset', 0.5), ('data_dir', 0.5), ('dtype', 0.5), ('batch_size', 0), ('num_epochs', 0))),
    *(('config', 'devices', value) for value in (
        'a', [], ['cpu:0'], ['cpu(0)\x1b'], [None], ['cpu(0)'] * (10**4 + 1))),
    ('run', 'history', {}), ('run', 'num_steps', -1), ('run', 'loss', 'a')])  # more in training/test_epoch.py
def test_forged_metadata(part, name, value):
    valid = {'config': CONFIG, 'run': RUN}
    check_metadata(valid)
    check_metadata({**valid, 'config': {**CONFIG, 'data_dir': 'a', 'dtype': 'b', 'devices': ['cpu(0)'] * 10**4}})
    for wrong in (value, None) if name in valid[part] else (value,):
        line = refused(check_metadata, {**valid, part: {**valid[part], name: wrong}})
        assert line.endswith(('malformed', 'is not a list'))
    assert line and refused(check_metadata, {**valid, part: []})


@pytest.mark.parametrize('place, value', [(0, 1.5), (0, 2), (1, -1), (2, 'a'), (3, -0.1), (3, 1.1), (4, -1), (5, 'a')])
def test_a_forged_history(place, value):
    assert checked_history(RUN['history'])[0] == tuple(ROW)
    line = 'epoch 1 of its history is malformed'
    assert refused(checked_history, [[*ROW[:place], value, *ROW[place + 1:]]]) == line
    for row in (ROW[:4], [*ROW, 1], 1, 'abcdef'):
        assert refused(checked_history, [row]) == line
    assert refused(checked_history, [ROW, ROW]) == 'epoch 2 of its history is malformed'
