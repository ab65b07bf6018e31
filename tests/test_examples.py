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
from oracle import images, lenet_params, numpy_lenet, to_mx
from slow import slow

from gluon_mgpu import concise, scratch
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, mx, np, npx
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.scratch import get_params, init_params, lenet, loss

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
SEEDED = ('book_tryouts', 'data_parallel', 'layer_partition', 'many_machines', 'one_device', 'one_step',
          'exercises/shared_allreduce')  # the flags above do not change their numbers


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


def assert_same_numbers(line, expected):
    """Compare, up to a unit of the last digit shown; zero must be exact."""
    for mine, number in zip(NUMBER.findall(line), NUMBER.findall(expected)):
        if number[0] not in '~…':
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
        if name in SEEDED and MXNET_MAJOR < 2 and devices == [mx.cpu(i) for i in range(num_devices)]:
            for line, of_docstring in zip(printed, expected):
                assert_same_numbers(line, of_docstring)


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


def test_shared_allreduce__bytes_by_hand(example, device_list):
    devices = device_list(4)
    data = [np.arange(8, ctx=device) for device in devices]
    # 3 messages of 2 numbers, 8 bytes, to the hub and 3 back, for each of 4 hubs
    assert example.traffic(example.by_chunk, data) == dict.fromkeys(devices, 96)
    num_bytes = example.traffic(lambda data: example.by_parameter(data, [1, 5, 2]), data)  # 5 on device 0
    assert [num_bytes[device] for device in devices] == [8 * n for n in (15 + 3, 6 + 6, 3 + 7, 8)]
    assert [d.asnumpy().tolist() for d in data] == [[16 * n for n in range(8)]] * 4


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


def numpy_mlp_gradients(X, y, params):
    """Compute the gradients of the summed cross-entropy of Z by hand; Z is first X, then tanh(Z) W for each W."""
    inputs, Z = [], X
    for W in params:
        inputs.append(numpy.tanh(Z))
        Z = inputs[-1] @ W
    P = numpy.exp(Z - Z.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    P[numpy.arange(len(y)), y] -= 1
    grads = []
    for W, H in zip(params[::-1], inputs[::-1]):
        grads.insert(0, H.T @ P)
        P = (P @ W.T) * (1 - H**2)
    return grads


@pytest.mark.parametrize('num_devices', [1, 2, 3])
@pytest.mark.parametrize('num_micro', [1, 3])
def test_network_partition__step_is_numpys(example, device_list, num_devices, num_micro):
    devices = device_list(num_devices)
    params = example.init_params(num_layers=4, width=12)
    X, y = numpy.random.rand(10, 12).astype('float32'), numpy.random.randint(0, 10, 10)  # 10 rows: 4, 3 and 3
    X_mx, y_mx = np.array(X, ctx=devices[0]), np.array(y, ctx=devices[0])
    stages = example.cut(params, devices)
    assert [len(stage) for stage in stages] == {1: [5], 2: [2, 3], 3: [1, 2, 2]}[num_devices]
    wanted = [W.asnumpy().astype('float64') for W in params]
    for _ in range(2):  # the second time, old gradients must not be added to
        example.train_batch(X_mx, y_mx, stages, devices, num_micro, lr=0.5)
        wanted = [W - 0.5 / 10 * grad for W, grad in zip(wanted, numpy_mlp_gradients(X, y, wanted))]
    for device, stage in zip(devices, stages):
        assert all(W.ctx == W.grad.ctx == device for W in stage)
    for W, W_wanted, W_before in zip(example.weights(stages), wanted, params):
        numpy.testing.assert_allclose(W.asnumpy(), W_wanted, atol=1e-5)  # float32 against float64
        assert abs(W - W_before.as_in_ctx(W.ctx)).max() > 1e-4


@pytest.mark.parametrize('num_devices', [2, 3, 4])
def test_layer_partition__equals_one_device(example, device_list, num_devices):
    devices = device_list(num_devices)
    rng = numpy.random.default_rng(0)
    arrays = lenet_params(rng, scale=0.1)
    params, (X, y) = to_mx(arrays), images(rng, 6)
    X_mx, y_mx = np.array(X, ctx=devices[0]), np.array(y, ctx=devices[0])

    device_params = example.cut(params, devices)
    for device, parts in zip(devices, device_params):  # every device has a part of each parameter
        assert all(part.ctx == device and 0 < part.size < param.size for part, param in zip(parts, params))
    scores = example.split_lenet(X_mx, device_params, devices, [])
    assert scores.ctx == devices[0]
    numpy.testing.assert_allclose(scores.asnumpy(), numpy_lenet(X, arrays), atol=1e-4)  # scores are about 1

    grads, moved = example.gradients(X_mx, y_mx, params, devices)
    whole = [param.as_in_ctx(devices[0]) for param in params]
    for param in whole:
        param.attach_grad()
    with autograd.record():
        l = loss(lenet(X_mx, whole), y_mx)
    l.backward()
    for grad, param in zip(grads, whole):
        assert grad.shape == param.shape
        of_one = param.grad.asnumpy()
        assert abs(grad - of_one).max() < 1e-5 * abs(of_one).max()  # sums in another order
    assert moved == example.bytes_by_way(6, num_devices)['layer-wise partitioning']


def test_layer_partition__bytes_by_hand(example):
    assert example.bytes_by_way(256, 2) == {
        'network partitioning': 2 * 256 * 800 * 4,  # after pooling, 50 channels of 4x4
        'layer-wise partitioning': 2 * 256 * (3380 + 800 + 128 + 5) * 4,
        'data parallelism': 2 * (180 + 20 + 25000 + 50 + 102400 + 128 + 1280 + 10) * 4}
    assert example.bytes_by_way(1, 4)['network partitioning'] == 2 * (3380 + 800 + 128) * 4


@pytest.mark.parametrize('num_devices', [2, 3])
def test_one_step__is_a_training_step(example, device_list, num_devices):
    devices = device_list(num_devices)
    (X, y), params = example.bars(), init_params(0.1)
    device_params, alone, wanted = ([get_params(params, device) for device in where]
                                    for where in (devices, devices[:1], devices[:1]))
    texts = dict(example.stages(X, y, device_params, alone[0], devices, lr=0.1))
    assert [text.split(':')[0] for text in texts] == ['Batch', 'Split', 'Forward', 'Backward', 'Allreduce', 'Update']
    *_, split, _, _, _, update = texts.values()
    assert [line.split('labels ')[1] for line in split] == {
        2: ['0 1 2 3', '4 5 6 7'], 3: ['0 1 2', '3 4 5', '6 7']}[num_devices]
    assert len(update) == num_devices + 1
    assert max(len(line) for text, lines in texts.items() for line in (f'1. {text}', *(f'   {line}' for line in lines))
               ) <= 80  # a terminal's width
    scratch.train_batch(X, y, wanted, devices[:1], lr=0.1)
    for params_of_one in (*device_params, *alone):
        # float32, sums in another order
        assert example.largest_difference([wanted[0], params_of_one]) < 1e-6
    assert example.largest_difference([wanted[0], params]) > 1e-3


@pytest.mark.slow
def test_one_step__replicas_drift_apart_without_allreduce(example, devices, tmp_path):
    (X, y), params = example.bars(), init_params(0.1)
    runs = {function.__name__: example.train(X, y, params, devices, 0.1, 12, function)
            for function in (scratch.allreduce, lambda data: None)}
    (with_it, losses_with), (without, losses_without) = runs.values()
    assert with_it == [0] * 13
    assert without[0] == 0 < without[1] < without[6] < without[12]
    assert max(losses_with[12]) < 0.3 * min(losses_with[0])
    assert min(losses_without[12]) > 3 * max(losses_with[12])
    example.draw(runs, tmp_path / 'new' / 'one_step.png')
    assert (tmp_path / 'new' / 'one_step.png').read_bytes().startswith(b'\x89PNG')


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


@pytest.mark.parametrize('out, line', [('a.foo', '--out a.foo: must end in .png, .pdf, .svg, .jpg'),
                                       ('.', '--out .: must be the name of a file, not of a folder')])
def test_learning_rates__refuses_a_picture_before_it_trains(example, out, line, capsys):
    with pytest.raises(SystemExit) as end:
        example.main(['--out', out, *SMALL])
    captured = capsys.readouterr()
    assert (end.value.code, captured.out) == (2, '') and captured.err.endswith(f': {line}; --help shows all flags\n')


def test_data_parallel__step_is_that_of_one_device(example, device_list):
    devices = device_list(4)
    params, (X, y) = init_params(0.1), images(numpy.random.default_rng(0), 10)
    ls, device_params = example.step(X, y, params, devices, lr=0.2)
    assert [len(l) for l in ls] == [3, 3, 2, 2]
    for others in device_params[1:]:
        assert example.largest_difference(device_params[0], others) == 0
    _, alone = example.step(X, y, params, devices[:1], lr=0.2)
    assert example.largest_difference(device_params[0], alone[0]) < 1e-6  # float32, sums in another order
    assert example.largest_difference(params, alone[0]) > 1e-3


def test_minerva_style__operands_move_to_the_current_device(example, devices):
    owl = example.Owl(devices)
    a = owl.array([[1, 2], [3, 4]])
    owl.set_device(1)
    b = owl.array([[1, 0], [2, 1]])
    for result, wanted in ((a + b, [[2, 2], [5, 5]]), (a - b, [[0, 2], [1, 3]]), (a * b, [[1, 0], [6, 4]]),
                           (a @ b, [[5, 2], [11, 4]]), (a * 2, [[2, 4], [6, 8]])):
        assert result.data.ctx == devices[1]
        assert result.data.asnumpy().tolist() == wanted
    assert (a.data.ctx, b.data.ctx) == (devices[0], devices[1])
    owl.set_device(0)
    assert (a + b).data.ctx == devices[0]


@pytest.mark.parametrize('num_rows, small_batches', [(70, [[16, 16], [16, 16], [6]]), (60, [[16, 16], [16, 12]]),
                                                     (5, [[5]]), (64, [[16, 16], [16, 16]])])
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


def test_straight_dope__weights_are_equal_and_gradients_are_not(example, device_list, seed):
    devices = device_list(4)
    X, y = images(numpy.random.default_rng(seed), 11)  # shards of 3, 3, 3 and 2 rows
    net, one = example.make_net(devices), example.make_net(devices[:1])
    X_shards, y_shards = split_batch(X, y, devices)
    scores = [net(X_shard) for X_shard in X_shards]
    assert [(s.ctx, s.shape) for s in scores] == [(d, (n, 10)) for d, n in zip(devices, (3, 3, 3, 2))]
    one(np.array(X, ctx=devices[0]))
    for p, q in zip(one.collect_params().values(), net.collect_params().values()):
        p.set_data(q.data(devices[0]))
    if MXNET_MAJOR < 2:
        assert all(name.startswith('cnn_') for name in net.collect_params())

    example.forward_backward(net, X_shards, y_shards)
    example.forward_backward(one, [np.array(X, ctx=devices[0])], [np.array(y, ctx=devices[0])])
    for p, of_one in zip(net.collect_params().values(), one.collect_params().values()):
        weights, grads = ([a.asnumpy() for a in arrays] for arrays in (p.list_data(), p.list_grad()))
        assert all((w == weights[0]).all() for w in weights)
        assert all(abs(g - grads[0]).max() > 0 for g in grads[1:])
        of_one = of_one.grad(devices[0]).asnumpy()
        assert abs(sum(grads) - of_one).max() < 1e-4 * abs(of_one).max()  # sums in another order


@pytest.mark.parametrize('num_rows', [2, 10])
def test_straight_dope__training_and_validation_are_those_of_one_device(example, device_list, num_rows):
    devices = device_list(4)
    X, y = to_mx(images(numpy.random.default_rng(0), num_rows))
    results = []
    for where in (devices, devices[:1]):
        npx.random.seed(0)
        net = example.make_net(where)
        for device in where:
            net(np.zeros((1, 1, 28, 28), ctx=device))
        trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
        for _ in range(2):  # the second time, the gradients of the first must not count
            example.train_batch(X, y, where, net, trainer, num_rows)
        predictions = net(X.as_in_ctx(where[0])).asnumpy().argmax(axis=1)
        assert example.valid_batch(X, y, where, net) == (predictions == y.asnumpy()).sum()
        results.append([p.data(where[0]).asnumpy() for p in net.collect_params().values()])
    for several, one in zip(*results):
        assert abs(several - one).max() < 1e-5  # float32, sums in another order


@pytest.mark.parametrize('name', ['one_device', slow('one_device_concise')])
def test_one_device_equals_the_chapter(name, devices, monkeypatch):
    """To the last bit: the code for several devices does not change the numbers of one."""
    monkeypatch.syspath_prepend(str(FOLDER))
    example, chapter = importlib.import_module(name), scratch if name == 'one_device' else concise
    losses = importlib.import_module('one_device').losses
    alone = losses(example.train, devices[:1], 32, 0.02)
    assert alone == losses(partial(chapter.train, 1), devices[:1], 32, 0.02)
    assert alone[0] > alone[1]  # it learns
