"""Tests of recording steps, also one real step on every device."""
import os
import time

import pytest
from lanes import CPU0

from gluon_mgpu.mxnet_setup.compat import autograd, gluon, mx, np, npx
from gluon_mgpu.outputs.timeline import record as recording
from gluon_mgpu.outputs.timeline.read import parse, read
from gluon_mgpu.outputs.timeline.record import Timeline, check_profiler, record_timeline
from gluon_mgpu.training.run import Run


@pytest.fixture
def folder(tmp_path):
    """Return an empty folder for a run."""
    (tmp_path / 'run').mkdir()
    return tmp_path / 'run'


@pytest.fixture
def step(devices):
    """Return a function that computes something on the first device."""
    w = np.ones((30, 30), ctx=devices[0])
    w.attach_grad()

    def compute():
        with autograd.record():
            y = np.dot(w, w)
        y.backward()

    return compute


def test_median_step_of_the_chapter_on_every_device(devices, tmp_path, figures, capsys):
    from gluon_mgpu import scratch
    check_profiler(devices)
    batch = np.ones((16, 1, 28, 28)), np.zeros(16)
    timeline = Timeline(tmp_path, 'LeNet on ones', warm_up=2, steps=3)
    run = Run(2, callbacks=[timeline])
    scratch.train(len(devices), 16, 0.1, devices=devices, data=([batch] * 3, [batch]), run=run)
    assert (len(run.history), len(timeline.traces)) == (2, 3)
    assert f'timeline: {tmp_path / "timeline.png"}' in capsys.readouterr().out.splitlines()
    events = read(timeline.trace)
    assert {e.device for e in events} >= set(map(str, devices))
    for device in map(str, devices):
        names = [e.name.partition('{')[0] for e in events if e.device == device]
        assert names.count('_npi_subtract') == 8  # exactly one step, with an update of each parameter
        assert {e.phase for e in events if e.device == device} >= {'forward', 'backward', 'update'}
    assert 'allreduce' in {e.phase for e in events if e.device == str(devices[0])}
    assert all(e.start >= 0 and e.duration >= 0 for e in events)
    assert sorted(os.listdir(tmp_path)) == ['timeline.png', 'trace.json']
    assert (tmp_path / 'timeline.png').read_bytes()[:4] == b'\x89PNG'
    assert figures[0].axes[0].get_title() == 'LeNet on ones: the median of 3 steps'


@pytest.mark.parametrize('options', [None, {}, {'static_alloc': True}, {'static_alloc': True, 'static_shape': True}])
def test_networks_that_are_hybridized_or_not(options, devices, tmp_path):
    """Their forward operators have names if each runs on its own, or under static shapes."""
    from gluon_mgpu import concise
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Dense(10))
    if options is not None:
        net.hybridize(**options)
    batch, timeline = (np.ones((16, 1, 8, 8)), np.zeros(16)), Timeline(tmp_path, 'a network', warm_up=2, steps=1)
    run = Run(1, quiet=True, callbacks=[timeline])
    concise.train(len(devices), 16, 0.1, devices=devices, data=([batch] * 3, [batch]), run=run, net=net)
    events = read(timeline.trace)
    for device in map(str, devices):
        assert {e.phase for e in events if e.device == device} >= {'forward', 'backward', 'update'}
        is_named = 'BatchNorm' in {e.name.partition('{')[0] for e in events if e.device == device}
        assert is_named == (options is None or 'static_shape' in options)


def test_record_takes_any_step_any_number_of_times(step, devices, tmp_path):
    step()
    npx.waitall()
    first, second = (record_timeline(step, tmp_path / name) for name in ('1.json', '2.json'))
    assert len(first) == len(second)  # the second contains nothing of the first
    assert {e.device for e in second} == {str(devices[0])}


def test_a_profile_of_the_users_between_two_steps(step, tmp_path):
    expected = len(record_timeline(step, tmp_path / 'trace.json'))
    mx.profiler.set_config(profile_imperative=True, profile_symbolic=True, filename=str(tmp_path / 'theirs.json'))
    mx.profiler.set_state('run')
    step()
    npx.waitall()
    mx.profiler.set_state('stop')
    mx.profiler.dump(finished=False)
    assert 'dot' in (tmp_path / 'theirs.json').read_text()
    assert len(record_timeline(step, tmp_path / 'trace.json')) == expected


@pytest.mark.slow
def test_a_long_step_is_recorded_whole(step, tmp_path):
    """MXNet dumps its records once per second, possibly in the middle of a step."""
    def long_step():
        step()
        npx.waitall()
        time.sleep(1.5)
        step()

    step()
    path = tmp_path / 'trace.json'
    once, twice = record_timeline(step, path), record_timeline(long_step, path)
    products = [[e.name for e in events if 'dot' in e.name] for events in (once, twice)]
    assert products[1] == 2 * products[0] != []


def train(run, num_batches, step=lambda: None):
    """Train like the chapters: epochs of `num_batches` batches, with a `step` for each."""
    for _ in run.epochs([[]]):
        for _ in run.batches(range(num_batches)):
            step()
            run.record_losses([np.zeros(1)])
        run.end_epoch(0.5)


@pytest.fixture
def profiles(monkeypatch, write_trace):
    """Replace the profiler by one that records its calls and returns traces of the given milliseconds."""
    calls, milliseconds = [], []

    def stop():
        calls.append('stop')
        end = 1000 * milliseconds.pop(0)
        return write_trace(('B', CPU0, 7, 'Convolution', 0), ('E', CPU0, 7, 'Convolution', end)).read_text()

    monkeypatch.setattr(recording, 'start_profiler', lambda: calls.append('start'))
    monkeypatch.setattr(recording, 'stop_profiler', stop)
    return calls, milliseconds


@pytest.mark.parametrize('num_epochs, num_batches, warm_up, milliseconds, recorded, median', [
    (1, 9, 1, [7], [7], 7), (1, 9, 1, [9, 2], [9, 2], 2), (1, 9, 1, [1, 9, 8, 2, 3], [1, 9, 8, 2, 3], 3),
    # The third batch, the fourth and the fifth; the profile that was started after the third is discarded
    (3, 3, 2, [1, 100, 200, 3], [1, 200, 3], 3),
    # The profile that was started after the only batch of the first epoch is discarded
    (3, 1, 0, [1, 100, 2], [1, 2], 1)])
def test_the_median_step_is_kept_and_none_with_the_end_of_an_epoch(num_epochs, num_batches, warm_up, milliseconds,
                                                                   recorded, median, profiles, figures, folder):
    profiles[1].extend(milliseconds)
    timeline = Timeline(folder, 'LeNet', warm_up=warm_up, steps=len(recorded))
    train(Run(num_epochs, quiet=True, callbacks=[timeline]), num_batches)
    assert [parse(trace, '')[0].duration for trace in timeline.traces] == recorded
    assert [e.duration for e in read(timeline.trace)] == [median]
    assert profiles[0] == ['start', 'stop'] * len(milliseconds)
    assert figures[0].axes[0].get_title().startswith(f'LeNet: the median of {len(recorded)} step')


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize('num_steps', [0, 1])
def test_a_step_that_fails_leaves_the_profiler_off_and_no_half_trace(error, num_steps, step, folder, tmp_path,
                                                                     monkeypatch, capsys):
    record_timeline(step, tmp_path / 'warm-up.json')
    states, batches_left = [], [1 + num_steps]
    set_state = mx.profiler.set_state
    monkeypatch.setattr(mx.profiler, 'set_state', lambda state: states.append(state) or set_state(state))

    def failing_step():
        step()
        batches_left[0] -= 1
        if batches_left[0] < 0:
            raise error

    timeline = Timeline(folder, 'a product', warm_up=1)
    run = Run(1, callbacks=[timeline])
    with pytest.raises(error):
        try:
            train(run, 9, failing_step)
        finally:  # as the command line does
            run.close()
    assert states == ['run', 'stop'] * (num_steps + 1)
    timeline.train_end(run)
    assert len(states) == 2 * (num_steps + 1)  # nothing more to stop
    assert len(timeline.traces) == num_steps
    last_line = capsys.readouterr().out.splitlines()[-1]
    if num_steps:
        assert sorted(os.listdir(folder)) == ['timeline.png', 'trace.json']
        assert last_line == f'timeline: {timeline.picture}'
    else:
        assert os.listdir(folder) == []
        assert last_line == 'no timeline: no step was recorded; it needs at least 2 batches'
    npx.waitall()
    # Work in progress when the profiler stopped is in no later trace
    products = [[e.name for e in events if 'dot' in e.name]
                for events in (record_timeline(step, tmp_path / 'a.json'), read(tmp_path / 'warm-up.json'))]
    assert len(products[0]) == len(products[1]) > 0


def test_a_profile_that_cannot_be_written_does_not_end_the_run(folder, capsys, monkeypatch):
    """MXNet writes a temporary file and, for example on a full disk, reports no error."""
    recording.device_names()
    monkeypatch.setattr(recording, '_file', lambda: folder / 'none/trace.json')
    run = Run(1, callbacks=[Timeline(folder, 'LeNet', warm_up=1)])
    train(run, 9)
    assert len(run.history) == 1 and os.listdir(folder) == []
    assert f'no timeline: {folder}/trace.json contains no operation' in capsys.readouterr().err


def test_more_cpu_contexts_than_the_profiler_can_record_are_rejected(monkeypatch):
    monkeypatch.setattr('gluon_mgpu.outputs.timeline.record.num_cores', lambda: 2)
    check_profiler([mx.cpu(0), mx.cpu(1), mx.gpu(7)])
    with pytest.raises(ValueError, match=r'^cpu\(2\) is beyond .*: with 2 cores, use cpu:0 to cpu:1, or --no-t'):
        check_profiler([mx.cpu(0), mx.cpu(2)])


def test_memory_is_not_recorded(tmp_path):
    """MXNet 1.9 makes the counters without a lock; a device that then allocates fails with "Invalid device index"."""
    record_timeline(lambda: np.ones((300, 300)), tmp_path / 'trace.json')
    assert 'Memory: ' not in (tmp_path / 'trace.json').read_text()
