"""The examples: each runs as a program, and its results are compared with one device or with NumPy."""
import importlib
import re
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path

import numpy
import pytest
from devices_flag import devices_flag
from oracle import images
from slow import slow

from gluon_mgpu import check_data_parallel, concise, scratch
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, mx, np

FOLDER = Path(__file__).parent.parent / 'examples'

# Name: number of devices in the docstring, and flags with which it is fast and prints as many lines as by default
PROGRAMS = {
    'async_dispatch': (2, ['--size', '64']),
    'book_tryouts': (2, []),
    'copy_overlap': (2, ['--size', '64', '--times', '5']),
    'data_parallel': (4, []),
    'fine_tuning': (2, ['--rows', '16', '--side', '16', '--batch-size', '8']),
    'layer_partition': (2, []),
    'many_machines': (2, []),
    'minerva_style': (2, ['--size', '64']),
    'network_partition': (2, ['--width', '16', '--batch-size', '32']),
    'one_device': (2, []),
    'one_device_concise': (2, ['--rows', '8']),
    'one_step': (2, ['--no-pause']),
    'straight_dope': (4, ['--dataset', 'glyphs', '--train-size', '300']),
}
SMALL = ['--dataset', 'glyphs', '--train-size', '16', '--test-size', '8', '--batch-size', '2']
EXERCISES = {
    'batch_times_k': (4, [*SMALL, '--num-epochs', '1']),
    'diamond': (2, ['--size', '16', '--rounds', '1']),
    'dispatch_cost': (1, ['--times', '10', '--large', '64', '--rounds', '1']),
    'eight_operations': (2, ['--size', '32', '--rounds', '1']),
    'learning_rates': (4, [*SMALL, '--num-epochs', '1']),
    'parallel_accuracy': (4, ['--dataset', 'glyphs', '--test-size', '20', '--batch-size', '8', '--rounds', '1']),
    'resnet18_settings': (2, ['--dataset', 'glyphs', '--train-size', '2', '--test-size', '2', '--num-epochs', '4']),
    'shared_allreduce': (4, ['--rounds', '1']),
    'sixteen_devices': (3, ['--dataset', 'glyphs', '--rows', '7', '--rows-of-resnet', '4']),
    'small_operators': (2, ['--rounds', '1', '--times', '4']),
    'steps_in_flight': (2, ['--dataset', 'glyphs', '--steps', '3', '--batch-size', '3']),
    'unequal_devices': (2, ['--dataset', 'glyphs', '--steps', '1', '--batch-size', '64', '--rounds', '1']),
    'wait_for_one': (2, ['--size', '16', '--rounds', '1']),
}
PROGRAMS.update({f'exercises/{name}': program for name, program in EXERCISES.items()})
SEEDED = ('book_tryouts', 'data_parallel', 'layer_partition', 'many_machines', 'minerva_style', 'one_device',
          'one_step', 'exercises/shared_allreduce')  # the flags above do not change their numbers


@pytest.fixture
def example(request, monkeypatch):
    """The module of the example in the name of the test: test_NAME__SUBJECT."""
    for folder in (FOLDER / 'exercises', FOLDER):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(request.function.__name__[5:].split('__')[0])


def shape_of(lines):
    """Return the lines with # for each number, or … for a time, and without the spaces that align them."""
    lines = [re.sub(r'~?-?\d+(\.\d*)?(e[-+]\d+)?|…', '#', line) for line in lines]
    return [re.sub(r' *([\[\]]) *', r'\1', re.sub(r' +', ' ', line)).strip() for line in lines]


NUMBER = re.compile(r'[~\w]?-?\d+(?:\.\d*)?(?:e[-+]\d+)?|…')  # ~ or … if it varies; also the end of a name


def assert_same_numbers(line, expected, seeded):
    """Compare, up to a unit of the last digit shown; zero must be exact. Differences from one device stay as small."""
    for mine, number in zip(NUMBER.findall(line), NUMBER.findall(expected)):
        if number[0] == '~' and 'e-' in number:
            assert float(mine) < 30 * float(number[1:]), (line, expected)
        elif number[0] not in '~…' and seeded:
            unit = 10.0 ** -len(number.partition('.')[2])
            assert mine == number or (float(number) and abs(float(mine) - float(number)) < 1.5 * unit), (line, expected)


def expected_output(name):
    """Return the indented lines after the paragraph 'Prints ...' in an example's docstring."""
    docstring = (FOLDER / f'{name}.py').read_text().split('"""')[1]
    block = re.search(r'(?s:Prints.*?\n\n)((?:    .*\n)+)', docstring)
    return [line[4:] for line in block[1].splitlines()]


def complaints(stderr):
    """Return the lines that report a problem: with MXNet 1.9 all, with MXNet 2 those with a word such as 'error'.

    CUDA builds print a harmless line when a KVStore is created without a GPU. MXNet 2 prints its memory pools and
    pooling operators, from several threads, so that these lines may be mixed up.
    """
    return [line for line in stderr.splitlines() if 'GPU context requested, but no GPUs found' not in line
            and (MXNET_MAJOR < 2 or re.search('traceback|warning|error|failed', line, re.IGNORECASE))]


@pytest.mark.parametrize('name', [name if name == 'data_parallel' else slow(name) for name in PROGRAMS])
def test_program_prints_what_its_docstring_says(name, device_list):
    num_devices, flags = PROGRAMS[name]
    devices = device_list(num_devices)
    program = [sys.executable, str(FOLDER / f'{name}.py'), *flags, *devices_flag(devices)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, cwd=FOLDER.parent)
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    if devices[0].device_type == 'cpu':  # the docstrings show a machine without GPUs
        printed, expected = done.stdout.splitlines(), expected_output(name)
        assert shape_of(printed) == shape_of(expected)
        seeded = name in SEEDED and MXNET_MAJOR < 2 and devices == [mx.cpu(i) for i in range(num_devices)]
        for line, of_docstring in zip(printed, expected):
            assert_same_numbers(line, of_docstring, seeded)


def test_all_programs_are_tested_and_in_the_readme():
    programs = {path.stem for path in FOLDER.glob('*.py')} - {'flags'}
    assert programs == set(re.findall(r'\((\w+)\.py\)', (FOLDER / 'README.md').read_text()))
    assert programs == {name for name in PROGRAMS if 'exercises/' not in name}


def test_all_exercises_are_tested_and_in_the_docs():
    programs = {path.stem for path in (FOLDER / 'exercises').glob('*.py')} - {'common'}
    text = (FOLDER.parent / 'docs' / 'exercises.md').read_text()
    assert programs == EXERCISES.keys() == set(re.findall(r'\(\.\./examples/exercises/(\w+)\.py\)', text))


def test_parallel_accuracy__every_split_counts_the_same_rows(example, device_list, capsys):
    flags = ['--dataset', 'glyphs', '--test-size', '20', '--batch-size', '7', '--rounds', '1']
    example.main([*flags, *devices_flag(device_list(4))])
    _, on_host, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == [on_host.split()[2]] * 5


def test_unequal_devices__each_context_has_a_thread_of_its_own(example, devices):
    if devices[0].device_type == 'cpu':
        assert len({example.thread_of(device) for device in devices[:2]}) == 2


@pytest.mark.parametrize('argv, line', [
    (['--devices', 'cpu:0'], 'at least 2 are needed, not [cpu(0)]'),
    (['--devices', 'tpu:0,cpu:0'], "'tpu:0' names no device"),
    (['--width', '0'], '--width 0: must be an integer of at least 1'),
])
def test_network_partition__rejects_invalid_flags(example, argv, line, capsys):
    with pytest.raises(SystemExit) as end:
        example.main(argv)
    assert end.value.code == 2
    err, = capsys.readouterr().err.splitlines()
    assert line in err and err.endswith('; --help shows all flags')


def test_async_dispatch__returns_before_the_work_is_done(example, devices, no_waiting, monkeypatch):
    monkeypatch.setattr(example, 'npx', types.SimpleNamespace(waitall=lambda: time.sleep(0.1)))
    with no_waiting():
        dispatched, done = example.dispatch_and_completion(np.ones((9, 9), ctx=devices[0]), 50)
    assert done - dispatched >= 0.1


def test_one_step__prints_what_happens_without_allreduce(example, devices, tmp_path, capsys):
    picture = tmp_path / 'one_step.png'
    example.main(['--no-pause', '--without-allreduce', '--steps', '3', '--out', str(picture)])
    with_it, without, last = capsys.readouterr().out.splitlines()[-3:]
    assert with_it.startswith('3 steps with allreduce: replicas differ by 0, losses on 8 rows ')
    assert re.fullmatch(r'3 steps without allreduce: replicas differ by 0\.\d+, losses on 8 rows( \d\.\d+)+', without)
    assert last == f'picture: {picture}'


@pytest.mark.parametrize('flags, is_terminal, pauses', [([], True, 5), ([], False, 0), (['--no-pause'], True, 0)])
def test_one_step__waits_for_enter_between_the_stages(example, monkeypatch, flags, is_terminal, pauses):
    asked = []
    monkeypatch.setattr('sys.stdin', types.SimpleNamespace(isatty=lambda: is_terminal))
    monkeypatch.setattr('builtins.input', asked.append)
    example.main(flags)
    assert asked == ['(Enter continues) '] * pauses
    monkeypatch.setattr('sys.stdin', None)  # closed before Python started
    example.main(flags)
    assert asked == ['(Enter continues) '] * pauses


@pytest.mark.parametrize('num_rows, small_batches', [(70, [[16, 16], [16, 16], [6]]), (5, [[5]])])
def test_minerva_style__an_epoch_is_numpys_and_uses_every_row(example, devices, num_rows, small_batches):
    rng = numpy.random.default_rng(0)
    X, y = rng.normal(size=(num_rows, 6)), rng.integers(0, 4, num_rows)
    Y, W = numpy.eye(4)[y], rng.normal(size=(6, 4))
    owl = example.Owl(devices[:2])
    W_mx, rows = example.train_epoch(owl, X, Y, owl.array(W), batch_size=32, lr=0.5)
    assert rows == small_batches
    for start in range(0, num_rows, 32):
        X_batch, Y_batch = X[start:start + 32], Y[start:start + 32]
        P = numpy.exp(X_batch @ W)
        P /= P.sum(axis=1, keepdims=True)
        W = W - 0.5 / 32 * X_batch.T @ (P - Y_batch)
    assert W_mx.data.ctx == devices[0]
    numpy.testing.assert_allclose(W_mx.data.asnumpy(), W, atol=1e-5)  # float32 against float64


def test_straight_dope__step_is_that_of_one_device(example, devices):
    def make(devices):
        net = example.make_net(devices)
        return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})

    def step(state, X, y, devices):
        example.train_batch(X, y, devices, *state, 12)

    X, y = images(numpy.random.default_rng(0), 20)
    report = check_data_parallel(make, step, [(X, y)])
    assert report.ok, report
    net = example.make_net(devices)
    predictions = net(np.array(X, ctx=devices[0])).argmax(axis=1)
    assert example.valid_batch(X, predictions, devices, net) == 20


@pytest.mark.parametrize('name', ['one_device', slow('one_device_concise')])
def test_one_device_equals_the_chapter(name, devices, monkeypatch):
    """To the last bit: the code for several devices does not change the numbers of one."""
    monkeypatch.syspath_prepend(str(FOLDER))
    example, chapter = importlib.import_module(name), scratch if name == 'one_device' else concise
    losses = importlib.import_module('one_device').losses
    alone = losses(example.train, devices[:1], 32, 0.02)
    assert alone == losses(partial(chapter.train, 1), devices[:1], 32, 0.02)
    assert alone[0] > alone[1]  # it learns
