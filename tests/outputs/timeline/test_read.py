"""Tests of reading traces and inferring phases."""
import json

import pytest
from lanes import CPU0, CPU1, OPERATOR, PINNED

from gluon_mgpu.outputs.timeline import read as reading
from gluon_mgpu.outputs.timeline.draw import COLORS, main
from gluon_mgpu.outputs.timeline.read import Event, classify, read


def test_read_pairs_beginnings_and_ends_by_device_thread_and_name(write_trace):
    path = write_trace(
        ('B', CPU0, 7, 'Convolution', 1000), ('B', CPU1, 8, 'Convolution', 2000),
        ('E', CPU1, 8, 'Convolution', 5000), ('E', CPU0, 7, 'Convolution', 4000),
        ('B', CPU0, 7, '_backward_relu', 6000), ('B', CPU0, 7, '_backward_relu', 6500),  # nested
        ('E', CPU0, 7, '_backward_relu', 7000), ('E', CPU0, 7, '_backward_relu', 8000),
        ('B', CPU0, 7, 'DeleteVariable', 0), ('E', CPU0, 7, 'DeleteVariable', 10),
        ('B', CPU0, 7, 'unfinished', 100), ('E', CPU0, 7, 'never started', 100),
        ('B', OPERATOR, 7, 'Convolution', 100), ('E', OPERATOR, 7, 'Convolution', 200))
    assert read(path) == [Event('cpu(0)', 'forward', 0, 3, 'Convolution'),
                          Event('cpu(1)', 'forward', 1, 3, 'Convolution'),
                          Event('cpu(0)', 'backward', 5, 2, '_backward_relu'),
                          Event('cpu(0)', 'backward', 5.5, 0.5, '_backward_relu')]


def test_read_infers_phases_from_the_order_on_the_device_not_in_the_file(write_trace):
    rows = [(ts, pid, name) for pid in (CPU0, CPU1) for ts, name in enumerate((
        'CopyCPU2CPU', 'ImperativeBulk', '_npx_relu,Pooling', '_backward_relu', 'ImperativeBulk',
        'CopyCPU2CPU', '_npi_add', '_npi_multiply_scalar', '_npi_subtract'))]
    path = write_trace(*((letter, pid, pid, name, ts + (letter == 'E'))
                         for ts, pid, name in reversed(rows) for letter in 'BE'))
    events = read(path)
    for device in ('cpu(0)', 'cpu(1)'):
        assert [e.phase for e in events if e.device == device] == [
            'other', 'forward', 'forward', 'backward', 'backward', 'allreduce', 'allreduce', 'update', 'update']


def test_a_loss_after_the_backward_pass_changes_no_phase(write_trace):
    names = 'SetValueOp', '_npx_relu', '_backward_relu', 'pick,_npi_multiply_scalar', 'CopyCPU2CPU', '_npi_subtract'
    path = write_trace(*((letter, CPU0, 7, name, ts + (letter == 'E'))
                         for ts, name in enumerate(names) for letter in 'BE'))
    assert [e.phase for e in read(path)] == ['backward', 'forward', 'backward', 'forward', 'allreduce', 'update']


def test_a_backward_pass_without_names_begins_with_the_array_of_ones(write_trace):
    names = 'ImperativeBulk', 'SetValueOp', 'ImperativeBulk', 'log_softmax', 'CopyCPU2CPU', '_npi_subtract'
    path = write_trace(*((letter, CPU0, 7, name, ts + (letter == 'E'))
                         for ts, name in enumerate(names) for letter in 'BE'))
    assert [e.phase for e in read(path)] == ['forward', 'backward', 'backward', 'forward', 'allreduce', 'update']


def test_read_assigns_copies_to_pinned_memory_to_the_cpu_context_of_their_thread(write_trace):
    threads = (CPU1, 8), (PINNED, 8), (PINNED, 9)
    path = write_trace(*((letter, pid, tid, 'CopyCPU2CPU', ts) for pid, tid in threads
                         for letter, ts in (('B', tid), ('E', tid + 1))))
    assert [e.device for e in read(path)] == ['cpu(1)', 'cpu(1)', 'cpu pinned']


@pytest.mark.parametrize(('name', 'state', 'expected'), [
    ('_npx_relu,Pooling', 'forward', 'forward'),
    ('Activation,Convolution,BatchNorm,_npi_add', 'backward', 'forward'),
    ('ImperativeBulk', 'forward', 'forward'),
    ('ImperativeBulk', 'backward', 'backward'),
    ('_backward_BatchNorm,add_n,_backward_Activation', 'forward', 'backward'),
    ('negative{name=node_67_backward;}]', 'forward', 'backward'),  # MXNet 2
    ('SetValueOp', 'forward', 'backward'),
    ('CopyCPU2CPU', 'forward', 'other'),
    ('CopyGPU2GPU', 'backward', 'allreduce'),
    ('ElementwiseSum', 'backward', 'allreduce'),
    ('KVStoreReduce', 'backward', 'allreduce'),
    ('_npi_add', 'forward', 'forward'),
    ('_npi_add', 'backward', 'allreduce'),
    ('_npi_multiply_scalar', 'forward', 'forward'),
    ('_npi_multiply_scalar', 'backward', 'update'),
    ('_npi_subtract{a=(1, 2)}', 'backward', 'update'),
    ('multi_sgd_update', 'forward', 'update'),
    ('sgd_mom_update', 'backward', 'update'),
    ('adam_update', 'backward', 'update'),
    ('mp_lamb_update_phase2', 'backward', 'update'),
])
def test_phases(name, state, expected):
    phase, new_state = classify(name, state)
    assert phase == expected and phase in COLORS
    named = name != 'SetValueOp' and phase in ('forward', 'backward')
    assert new_state == (phase if named else state)


@pytest.mark.parametrize('content', [b'', b'no trace', b'[]', b'{}', b'{"traceEvents": 1}',
                                     b'{"traceEvents": [{"a": 1}]}', b'\xff\xfe'])
def test_other_files_are_rejected(content, tmp_path):
    path = tmp_path / 'x.json'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r'^.*x\.json is not a Chrome trace'):
        read(path)


@pytest.mark.parametrize('rows', [
    [('B', CPU0, 1, 5, 0), ('E', CPU0, 1, 5, 1)], [('B', CPU0, [], 'a', 0), ('E', CPU0, [], 'a', 1)],
    [('B', CPU0, 1, 'a', 0), ('E', CPU0, 1, 'a', 1), ('B', CPU0, 'x', 'a', 0), ('E', CPU0, 'x', 'a', 1)],
    [('B', CPU0, 1, 'a', 10**400), ('E', CPU0, 1, 'a', 10**400)]])
def test_a_broken_event_is_rejected(rows, write_trace, capsys):
    path = write_trace(*rows)
    assert main([str(path)]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith(f'timeline: {path} is not a Chrome trace')
    path.write_text('{"traceEvents": ' + '[' * 100_000)
    assert main([str(path)]) == 2


def test_a_trace_without_devices_is_rejected(write_trace):
    path = write_trace(('B', OPERATOR, 1, 'Convolution', 0), ('E', OPERATOR, 1, 'Convolution', 1))
    with pytest.raises(ValueError, match='contains no operation on a device'):
        read(path)


@pytest.mark.parametrize('start, end', [(0, float('nan')), (float('nan'), 1), (0, float('inf')), (-float('inf'), 0)])
def test_a_time_that_is_no_number_is_rejected(start, end, write_trace, capsys):
    """JSON of Python has NaN and Infinity."""
    rows = [('B', CPU0, 1, 'a', start), ('E', CPU0, 1, 'a', end), ('B', CPU0, 2, 'b', 0), ('E', CPU0, 2, 'b', 9)]
    path = write_trace(*rows)
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(f'timeline: {path} is not a Chrome trace')


@pytest.mark.parametrize('number, words', [(100, ''), (101, 'has more than 100 devices, too many for a picture')])
def test_too_many_devices(number, words, tmp_path):
    records = [{'ph': 'M', 'pid': pid, 'name': 'process_name', 'args': {'name': f'cpu/{pid}'}} for pid in range(number)]
    records += [{'ph': letter, 'pid': pid, 'tid': 1, 'name': 'a', 'ts': pid}
                for pid in range(number) for letter in 'BE']
    (tmp_path / 'a.json').write_text(json.dumps({'traceEvents': records}))
    if words:
        with pytest.raises(ValueError, match=words):
            read(tmp_path / 'a.json')
    else:
        assert len(read(tmp_path / 'a.json')) == number


def test_too_many_events(write_trace, monkeypatch):
    monkeypatch.setattr(reading, 'MAX_EVENTS', 2)
    rows = [(letter, CPU0, 1, 'a', ts) for ts in range(3) for letter in 'BE']
    assert len(read(write_trace(*rows[:4]))) == 2
    with pytest.raises(ValueError, match='has more than 2 operations, too many for a picture'):
        read(write_trace(*rows))
