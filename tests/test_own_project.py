"""The program and the other code of docs/own-project.md, with ``mx.nd`` and with NumPy semantics."""
from __future__ import annotations

import contextlib
import re
import sys
import textwrap
from functools import partial

import numpy
import pytest
from docs_code import OWN_PROJECT, SEMANTICS, blocks, program, table
from equals_one import equals_one, sequential, started, take_gradients
from semantics import array
from slow import slow
from trainers import on_each_device

import gluon_mgpu as d2l
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, mx, np, npx
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.programs.onnx.graph import semantics_of
from gluon_mgpu.training.parameters import parameters_by_name

pytestmark = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')


def synchronized(code: str) -> str:
    """Return the program with the step of synchronized batch norm."""
    step = textwrap.indent(blocks()['synchronized'], '    ')
    code, count = re.subn(r'^    with autograd\.record.*?(?=^    d2l.prep)', lambda _: step, code, flags=re.M | re.S)
    assert count == 1
    return code


@pytest.fixture(params=SEMANTICS)
def semantics(request):
    """Run a test in both; afterwards, the process has NumPy semantics again."""
    with semantics_of((mx.nd if request.param == 'mx.nd' else np).ones(1)):
        yield request.param


def data(rows: int, rng) -> tuple:
    arrays = rng.normal(size=(rows, 1, 8, 8)), rng.normal(size=(rows, 3)), rng.integers(0, 10, rows)
    return tuple(array.astype('float32') for array in arrays)


def parameters(net) -> dict:
    """Return the parameters on each device."""
    npx.waitall()
    return {name: [array.asnumpy() for array in param.list_data()] for name, param in parameters_by_name(net).items()}


def train(devices: list, rng, code: str):
    """Train the program's network on batches of 12, 7 and 2 rows."""
    names: dict = {}
    exec(code, names)
    net, trainer = names['make'](devices)
    state = (d2l.SyncBatchNorm(net), trainer) if 'net.forward' in code else (net, trainer)
    for rows in (12, 7, 2):
        names['train_batch'](state, *data(rows, rng), devices)
        yield net


def train_plainly(devices: list, rng, code: str):
    """Do the same on one device with nothing but Gluon."""
    names: dict = {}
    exec(code, names)
    net = names['Net']()
    net.initialize(ctx=devices)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
    for rows in (12, 7, 2):
        images, numbers, y = map(array, data(rows, rng))
        with autograd.record():
            l = names['loss'](net(images, numbers), y)
        l.backward()
        trainer.step(12)
        yield net


def test_all_code_is_tested():
    code = re.findall(r'\n\n((?:    .*\n)+)', re.sub(r'<!-- .* -->\n\n(?:    .*\n|\n)+', '\n\n', OWN_PROJECT))
    assert code == []
    assert list(blocks()) == ['program', 'check', 'evaluation', 'synchronized', 'checkpoints', 'clipping', 'in PyTorch',
                              'weights', 'export', 'workers']


@pytest.mark.parametrize('k', [1, 3])
def test_the_step_equals_plain_gluon(k, semantics, device_list):
    code = program(semantics)
    code = synchronized(code) if k > 1 else code
    equals_one(partial(train, code=code), device_list(k), one=partial(train_plainly, code=code),
               tolerance=1e-5)  # float32; the sums are in another order


def test_the_check(semantics):
    exec(program(semantics, 'check'), {})


MISTAKES = {  # in the program: code, what it becomes, and words of the report
    'rows of a shard': ('step(batch_size)', 'step(len(shards[2][0]))', 'divide'),
    'mean loss': ('label) for', 'label).mean() for', 'without means'),
    'kvstore=None': ('0.1})', '0.1}, kvstore=None)', "kvstore='device'"),
    'old gradients': ('d2l.prepare_idle_devices(net, y, devices)', '', 'without rows'),
}


@pytest.mark.parametrize('semantics', ['NumPy', slow('mx.nd')], indirect=True)
@pytest.mark.parametrize('mistake', MISTAKES)
def test_the_check_finds_a_mistake(mistake, semantics):
    right, wrong, words = MISTAKES[mistake]
    code = program(semantics, 'check')
    assert code.count(right) == 1
    with pytest.raises(AssertionError) as report:
        exec(code.replace(right, wrong), {})
    assert 'WRONG' in str(report.value) and words in str(report.value)


@pytest.mark.parametrize('hybridize', [False, True])
def test_evaluation_and_export(hybridize, semantics, devices, tmp_path, monkeypatch, rng):
    """Of a network that the step has trained, hybridized or not."""
    pytest.importorskip('onnx')
    monkeypatch.chdir(tmp_path)
    images, numbers, y = data(31, rng)
    batches = [((images[rows], numbers[rows]), y[rows]) for rows in (slice(0, 16), slice(16, 31))]
    names: dict = {'images': images, 'numbers': numbers, 'y': y, 'batches': batches, 'numpy': numpy}
    exec(program(semantics), names)
    names['net'], trainer = names['make'](devices)
    if hybridize:
        names['net'].hybridize(static_alloc=True, static_shape=True)
    names['train_batch']((names['net'], trainer), images, numbers, y, devices)
    npx.waitall()
    names['devices'] = devices[:1]  # others have other statistics
    exec(blocks()['evaluation'], names)
    of_nd = [array(of, ctx=devices[0]) for of in (images, numbers)]
    expected = names['net'](*of_nd).asnumpy()
    numpy.testing.assert_allclose(names['scores'][0].asnumpy(), expected, rtol=1e-4, atol=1e-5)  # float32
    assert names['accuracy'] == (expected.argmax(axis=1) == y).mean()
    assert sorted([*names['held_out'], *names['rest']]) == [*range(31)] and len(names['held_out']) == 3
    for inputs in of_nd, (images, numbers):
        exec(blocks()['export'], {'d2l': d2l, 'net': names['net'], 'images': inputs[0], 'numbers': inputs[1]})
        assert (tmp_path / 'mine.onnx').exists()
        (tmp_path / 'mine.onnx').unlink()


def test_a_resumed_run_ends_with_the_same_bits(semantics, devices, tmp_path, rng):
    names: dict = {}
    exec(program(semantics, 'checkpoints'), names)
    ends, rows = [], data(31, rng)
    for path, runs in (('whole', [2]), ('parts', [1, 2])):
        for num_epochs in runs:
            mx.random.seed(0)
            net = names['train'](devices, *rows, num_epochs, str(tmp_path / path))
        ends.append(parameters(net))
    for arrays, others in zip(*(end.values() for end in ends)):
        assert [array.tobytes() for array in arrays] == [array.tobytes() for array in others]


@pytest.mark.parametrize('max_norm', [0.1, 100])  # clipped and not
@pytest.mark.parametrize('k', [1, 2, 3])
def test_clipping_by_the_global_norm(k, max_norm, semantics, device_list):
    """As the package's Trainer does."""
    def program(devices, rng, make_trainer, step):
        net, loss = started(gluon.nn.Dense(3, in_units=4), devices, rng), gluon.loss.SoftmaxCrossEntropyLoss()
        trainer = make_trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
        X, y = array(rng.normal(size=(2, 4)), dtype='float64'), array([0, 2])
        take_gradients(lambda X, y: loss(net(X), y), [net], X, y, devices)
        step(net, trainer, devices, 2, max_norm)
        yield net

    names: dict = {'d2l': d2l}
    exec(blocks()['clipping'], names)
    equals_one(partial(program, make_trainer=on_each_device, step=names['clipped_step']), device_list(k),
               one=partial(program, make_trainer=partial(d2l.ClippingTrainer, clip_norm=max_norm),
                           step=lambda net, trainer, devices, batch_size, max_norm: trainer.step(batch_size)))


class Tensor:
    """An array like a tensor of PyTorch."""

    def __init__(self, array):
        self.numpy = array.asnumpy


def test_weights_from_pytorch(semantics, devices, tmp_path, monkeypatch):
    """tests/programs/onnx/test_export.py compares the names with those of the same network in PyTorch."""
    monkeypatch.chdir(tmp_path)
    nn = gluon.nn
    nets = [sequential(nn.Conv2D(3, 2, in_channels=1), nn.BatchNorm(in_channels=3), nn.Dense(2, in_units=12))
            for _ in range(2)]
    for net in nets:
        net.initialize(ctx=devices)
    arrays = {name: param.data(devices[0]) + 0.01 for name, param in parameters_by_name(nets[0]).items()}
    names = {name.replace('gamma', 'weight').replace('beta', 'bias'): Tensor(array) for name, array in arrays.items()}
    torch_net = type('Net', (), {'state_dict': lambda self: names})()
    exec(blocks()['in PyTorch'], {'net': torch_net, 'numpy': numpy})
    code = blocks()['weights']
    exec(code if semantics == 'mx.nd' else code.replace('nd.array', 'np.array'),
         {'net': nets[1], 'nd': mx.nd, 'np': np, 'd2l': d2l, 'numpy': numpy})
    for name, copies in parameters(nets[1]).items():
        assert all((copy == arrays[name].asnumpy()).all() for copy in copies)


def test_many_machines_alone(semantics, devices, monkeypatch, rng):
    """A single worker trains as without workers."""
    workers = Workers()
    workers.device = devices[0]
    module = type(sys)('horovod_workers')
    module.HorovodWorkers = lambda: contextlib.nullcontext(workers)
    monkeypatch.setitem(sys.modules, 'gluon_mgpu.distributed.horovod_workers', module)
    images, numbers, y = data(31, rng)
    found: dict = {'images': images, 'numbers': numbers, 'y': y}
    mx.random.seed(0)
    exec(program(semantics, 'workers'), found)
    mx.random.seed(0)
    state = found['make'](devices[:1])
    for rows in (slice(0, 12), slice(12, 24), slice(24, 31)):
        found['train_batch'](state, images[rows], numbers[rows], y[rows], devices[:1])
    for arrays, others in zip(parameters(found['net']).values(), parameters(state[0]).values()):
        assert arrays[0].tobytes() == others[0].tobytes()


@pytest.mark.parametrize('row', [pytest.param(row, id=row[0][0]) for row in table('| `mx.nd` | `mx.np` |')])
def test_the_table_from_mx_nd_to_mx_np(row):
    """Both columns compute the same numbers, of the same shape."""
    assert all(len(column) >= 1 for column in row) and len(row[0]) <= len(row[1])
    rng = numpy.random.default_rng(0)
    x, y = (rng.integers(-2, 3, (4, 3, 2)).astype('float32') for _ in range(2))
    for of_nd, of_np in zip(*row):
        found = []
        for expression, kind in ((of_nd, mx.nd), (of_np, np)):
            with semantics_of(kind.ones(1)):
                names = {'nd': mx.nd, 'np': np, 'npx': npx, 'x': kind.array(x), 'y': kind.array(y),
                         'z': kind.array([0, 2])}
                value = eval(expression, names)
                found.append(value.asnumpy() if hasattr(value, 'asnumpy') else numpy.array(value))
        assert found[0].shape == found[1].shape
        numpy.testing.assert_allclose(found[0], found[1], rtol=1e-6)
