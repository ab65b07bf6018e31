"""The timeline: reading traces, telling phases, the picture, and one real step on every device."""
import json
import os
import subprocess
import sys

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from gluon_mgpu.mxnet_setup.compat import autograd, mx, np, npx
from gluon_mgpu.timeline import draw as timeline, record as profiling
from gluon_mgpu.timeline.draw import COLORS, Event, busy_shares, classify, draw
from gluon_mgpu.timeline.record import TimelineLog, check_devices, record

CPU0, CPU1, PINNED, OPERATOR = range(4)
LANES = {CPU0: 'cpu/0', CPU1: 'cpu/1', PINNED: 'cpu pinned/', OPERATOR: 'operator'}
EVENTS = [Event('cpu(0)', 'forward', 0.0, 2.0, 'Convolution'), Event('cpu(1)', 'backward', 1.0, 1.0, '_backward'),
          Event('cpu(1)', 'backward', 1.5, 1.5, '_backward'), Event('cpu(1)', 'other', 3.0, 0.0, 'CopyCPU2CPU'),
          Event('cpu(0)', 'update', 4.0, 0.0, 'sgd_update')]


@pytest.fixture
def write_trace(tmp_path):
    """A function that writes a trace of (phase letter, pid, tid, name, microseconds) and returns its path."""
    def write(*rows):
        names = [{'ph': 'M', 'pid': pid, 'name': 'process_name', 'args': {'name': name}}
                 for pid, name in LANES.items()]
        records = [dict(zip(('ph', 'pid', 'tid', 'name', 'ts'), row)) for row in rows]
        path = tmp_path / 'trace.json'
        path.write_text(json.dumps({'traceEvents': names + records}))
        return path
    return write


@pytest.fixture
def figures(monkeypatch):
    """The figures drawn during the test."""
    drawn = []
    monkeypatch.setattr('matplotlib.figure.Figure', lambda **options: drawn.append(Figure(**options)) or drawn[-1])
    return drawn


def test_read_pairs_beginnings_and_ends_by_device_thread_and_name(write_trace):
    path = write_trace(
        ('B', CPU0, 7, 'Convolution', 1000), ('B', CPU1, 8, 'Convolution', 2000),
        ('E', CPU1, 8, 'Convolution', 5000), ('E', CPU0, 7, 'Convolution', 4000),
        ('B', CPU0, 7, '_backward_relu', 6000), ('B', CPU0, 7, '_backward_relu', 6500),  # nested
        ('E', CPU0, 7, '_backward_relu', 7000), ('E', CPU0, 7, '_backward_relu', 8000),
        ('B', CPU0, 7, 'DeleteVariable', 0), ('E', CPU0, 7, 'DeleteVariable', 10),
        ('B', CPU0, 7, 'unfinished', 100), ('E', CPU0, 7, 'never begun', 100),
        ('B', OPERATOR, 7, 'Convolution', 100), ('E', OPERATOR, 7, 'Convolution', 200))
    assert timeline.read(path) == [Event('cpu(0)', 'forward', 0, 3, 'Convolution'),
                          Event('cpu(1)', 'forward', 1, 3, 'Convolution'),
                          Event('cpu(0)', 'backward', 5, 2, '_backward_relu'),
                          Event('cpu(0)', 'backward', 5.5, 0.5, '_backward_relu')]


def test_read_tells_phases_by_the_order_on_the_device_whatever_that_of_the_file(write_trace):
    rows = [(ts, pid, name) for pid in (CPU0, CPU1) for ts, name in enumerate((
        'CopyCPU2CPU', 'ImperativeBulk', '_npx_relu,Pooling', '_backward_relu', 'ImperativeBulk',
        'CopyCPU2CPU', '_npi_add', '_npi_multiply_scalar', '_npi_subtract'))]
    path = write_trace(*((letter, pid, pid, name, ts + (letter == 'E'))
                         for ts, pid, name in reversed(rows) for letter in 'BE'))
    events = timeline.read(path)
    for device in ('cpu(0)', 'cpu(1)'):
        assert [e.phase for e in events if e.device == device] == [
            'other', 'forward', 'forward', 'backward', 'backward', 'allreduce', 'allreduce', 'update', 'update']


def test_read_counts_copies_to_pinned_memory_with_the_cpu_context_whose_worker_made_them(write_trace):
    threads = (CPU1, 8), (PINNED, 8), (PINNED, 9)
    path = write_trace(*((letter, pid, tid, 'CopyCPU2CPU', ts) for pid, tid in threads
                         for letter, ts in (('B', tid), ('E', tid + 1))))
    assert [e.device for e in timeline.read(path)] == ['cpu(1)', 'cpu(1)', 'cpu pinned']


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
])
def test_phases(name, state, expected):
    phase, new_state = classify(name, state)
    assert phase == expected
    named = name != 'SetValueOp' and phase in ('forward', 'backward')
    assert new_state == (phase if named else state)


def test_busy_shares_by_hand():
    # Of 4 ms: cpu(0) 0 to 2; cpu(1) 1 to 2 and, overlapping, 1.5 to 3
    assert busy_shares(EVENTS) == {'cpu(0)': 0.5, 'cpu(1)': 0.5}
    assert busy_shares(EVENTS[-1:]) == {'cpu(0)': 0.0}


def test_draw_has_a_lane_a_device_and_a_colour_a_phase(tmp_path, figures):
    draw(EVENTS, tmp_path / 'timeline.png', 'LeNet on glyphs')
    assert (tmp_path / 'timeline.png').read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'
    axes, = figures[0].axes
    assert axes.get_title() == 'LeNet on glyphs'
    assert [label.get_text() for label in axes.get_yticklabels()] == ['cpu(0)', 'cpu(1)']
    bars = {(bar.get_x(), round(bar.get_y() + 0.4), round(bar.get_width(), 6), bar.get_facecolor())
            for bar in axes.patches}
    assert bars == {(0, 0, 2, to_rgba(COLORS['forward'])), (1, 1, 1, to_rgba(COLORS['backward'])),
                    (1.5, 1, 1.5, to_rgba(COLORS['backward'])), (4, 0, 4 / 800, to_rgba(COLORS['update'])),
                    (3, 1, 4 / 800, to_rgba(COLORS['other']))}
    assert [text.get_text() for text in axes.texts] == ['50% busy', '50% busy']
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == [
        'forward', 'backward', 'update', 'other']


def test_one_step_of_the_chapter_on_every_device(devices, tmp_path):
    from gluon_mgpu import scratch
    check_devices(devices)
    batch = np.ones((16, 1, 28, 28)), np.zeros(16)
    train_iter = [batch] * 4
    log = TimelineLog(1, quiet=True, trace=tmp_path / 'trace.json', warm_up=2)
    scratch.train(len(devices), 16, 0.1, num_epochs=1, devices=devices, data=(train_iter, [batch]), log=log)
    assert len(log.history) == 1
    events = timeline.read(log.trace)
    assert {e.device for e in events} >= set(map(str, devices))
    for device in map(str, devices):
        names = [e.name.partition('{')[0] for e in events if e.device == device]
        assert names.count('_npi_subtract') == 1  # one step, no more and no less
        assert {e.phase for e in events if e.device == device} >= set(COLORS) - {'allreduce', 'other'}
    assert 'allreduce' in {e.phase for e in events if e.device == str(devices[0])}
    assert all(e.start >= 0 and e.duration >= 0 for e in events)
    assert os.listdir(tmp_path) == ['trace.json']


def test_record_takes_any_step_any_number_of_times(devices, tmp_path):
    w = np.ones((30, 30), ctx=devices[0])
    w.attach_grad()

    def step():
        with autograd.record():
            y = np.dot(w, w)
        y.backward()

    step()
    npx.waitall()
    first, second = (record(step, tmp_path / name) for name in ('1.json', '2.json'))
    assert len(first) == len(second)  # the second has nothing of the first
    assert {e.device for e in second} == {str(devices[0])}


def test_a_step_that_fails_leaves_the_profiler_off(tmp_path, monkeypatch):
    states = []
    set_state = mx.profiler.set_state
    monkeypatch.setattr(mx.profiler, 'set_state', lambda state: states.append(state) or set_state(state))
    log = TimelineLog(1, quiet=True, trace=tmp_path / 'trace.json', warm_up=0)
    batches = log.progress([1, 2])
    assert next(batches) == 1
    batches.close()  # what Python does to the chapter's loop when the loop's body raises
    log.close()
    assert states == ['run', 'stop']
    assert not log.trace.exists()


def test_a_run_of_few_batches_leaves_no_trace(tmp_path):
    log = TimelineLog(2, quiet=True, trace=tmp_path / 'trace.json', warm_up=4)
    for _ in range(2):
        assert list(log.progress([1, 2])) == [1, 2]
    log.close()
    assert not log.trace.exists()


def test_more_cpu_contexts_than_the_profiler_can_record_are_refused(monkeypatch):
    monkeypatch.setattr(profiling, 'num_cores', lambda: 2)
    check_devices([mx.cpu(0), mx.cpu(1), mx.gpu(7)])
    with pytest.raises(ValueError, match=r'^cpu\(2\) is beyond .*: with 2 cores a timeline takes cpu:0 to cpu:1$'):
        check_devices([mx.cpu(0), mx.cpu(2)])


@pytest.mark.parametrize('content', [b'', b'no trace', b'[]', b'{}', b'{"traceEvents": 1}',
                                     b'{"traceEvents": [{"a": 1}]}', b'\xff\xfe'])
def test_what_is_no_trace_is_refused(content, tmp_path):
    path = tmp_path / 'x.json'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r'^.*x\.json is not a Chrome trace'):
        timeline.read(path)


def test_a_trace_without_devices_is_refused(write_trace):
    path = write_trace(('B', OPERATOR, 1, 'Convolution', 0), ('E', OPERATOR, 1, 'Convolution', 1))
    with pytest.raises(ValueError, match='has no event that ran on a device'):
        timeline.read(path)


def test_the_command_on_its_own(write_trace, tmp_path, capsys):
    path = write_trace(('B', CPU0, 7, 'Convolution', 0), ('E', CPU0, 7, 'Convolution', 9))
    assert timeline.main([str(path)]) == 0
    assert (tmp_path / 'trace.png').exists()
    picture = tmp_path / 'a.png'
    ran = subprocess.run([sys.executable, '-m', 'gluon_mgpu.timeline', str(path), '--out', str(picture)],
                         capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f'picture: {picture}\n', '')
    assert picture.exists()
    capsys.readouterr()
    assert timeline.main([str(tmp_path / 'missing.json')]) == 2
    assert 'missing.json' in capsys.readouterr().err
    path.write_text('{}')
    assert timeline.main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(f'timeline: {path} is not a Chrome trace')
