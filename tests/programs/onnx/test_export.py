"""Runs and networks as ONNX models: onnxruntime and PyTorch predict the same as MXNet."""
import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import idx_files
import numpy
import onnx
import pytest
from devices_flag import devices_flag
from exported import run_model
from history_csv import history
from model_files import changed_graph
from oracle import images, lenet_params, numpy_lenet, to_mx
from semantics import semantics
from slow import slow
from trainers import trainable

from gluon_mgpu import concise, scratch
from gluon_mgpu.checkpoints.run_folder import checkpoints
from gluon_mgpu.data import load_data
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, mx, np, npx
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.programs import predict
from gluon_mgpu.programs.load_run import trained_network
from gluon_mgpu.programs.onnx.writing import to_onnx

REPO = Path(__file__).parents[3]
TOLERANCE = 1e-5  # of the largest score, as in the export's own check


def assert_equal(found, expected):
    """Check that the scores of each row are those expected, and give the same class."""
    assert found.shape == expected.shape and found.dtype == 'float32'
    assert abs(found - expected).max() <= TOLERANCE * abs(expected).max()
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()


@pytest.fixture
def lenet_arrays(seed):
    """Parameters whose scores differ from row to row."""
    return lenet_params(numpy.random.default_rng(seed), 0.2)


@pytest.fixture
def net(seed, devices):
    """ResNet-18 after a step on several devices, each with its own running statistics."""
    net = resnet18(10)
    net.initialize(ctx=devices)
    trainer = gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 0.1})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    rng = numpy.random.default_rng(seed)
    for device in devices:
        X, y = images(rng, 4)
        with autograd.record():
            l = loss(net(np.array(X, ctx=device)), np.array(y, ctx=device))
        l.backward()
    trainer.step(4 * len(devices))
    npx.waitall()
    return net


@pytest.mark.parametrize('rows', [1, 3, 64])
def test_lenet(rows, lenet_arrays, devices):
    """The model is compared with the chapter's LeNet and with LeNet in NumPy."""
    params = [scratch.get_params(to_mx(lenet_arrays), d) for d in devices]
    to_onnx(params, 'all.onnx')
    to_onnx(params[-1], 'one.onnx')
    assert Path('all.onnx').read_bytes() == Path('one.onnx').read_bytes()
    X, _ = images(numpy.random.default_rng(1), rows)
    found, = run_model('one.onnx', X)
    assert_equal(found, scratch.lenet(np.array(X, ctx=devices[0]), params[0]).asnumpy())
    assert_equal(found, numpy_lenet(X, lenet_arrays))


@pytest.mark.slow
def test_resnet18_on_its_first_device(net, devices):
    to_onnx(net, 'a.onnx')
    differ = 0.0
    for rows in (1, 3, 64):
        X, _ = images(numpy.random.default_rng(1), rows)
        first, other = (net(np.array(X, ctx=d)).asnumpy() for d in devices[:2])
        assert_equal(run_model('a.onnx', X)[0], first)
        differ = max(differ, abs(first - other).max() / abs(first).max())
    assert differ > 100 * TOLERANCE  # the devices differ, so it matters which one is exported


@pytest.fixture
def train(devices):
    """A function that trains a chapter on few rows for two epochs."""
    idx_files.write(Path('data/mnist'), idx_files.dataset(96, 50))
    flags = ['--dataset', 'mnist', '--data-dir', 'data', '--batch-size', '16', '--no-plot', *devices_flag(devices),
             '--num-epochs', '2', '--out-dir', 'run']

    def call(module, *more):
        assert module.main([*flags, *more]) == 0
    return call


@pytest.mark.parametrize('module', [scratch, slow(concise)])
def test_a_run(module, train, run, devices):
    """The model has the accuracy that the run printed."""
    train(module)
    checkpoint, model = run('run').splitlines()
    assert checkpoint == 'checkpoint: run/checkpoint-00000012.safetensors, after epoch 2 of 2'
    assert model.startswith('model: run/model.onnx, checked in onnxruntime')
    run(str(checkpoints('run')[0]), '--out', 'b.onnx')
    assert Path('run/model.onnx').read_bytes() == Path('b.onnx').read_bytes()
    if module is scratch:  # ResNet-18's accuracy is from several devices, each with its own statistics
        _, test_iter = load_data('mnist', 256, 'data')
        right = sum((run_model('b.onnx', X)[0].argmax(axis=1) == y.asnumpy()).sum() for X, y in test_iter)
        assert right == round(50 * float(history('run')[-1]['test_acc']))
    net, X = trained_network(Path('run'))[0], images(numpy.random.default_rng(1), 64)[0]
    assert_equal(run_model('b.onnx', X)[0], net(np.array(X, ctx=devices[0])).asnumpy())


def test_a_run_without_its_final_checkpoint(train, run, capfd):
    """The programs use an earlier epoch, and say so."""
    train(scratch)
    last, first = checkpoints('run')
    last.unlink()
    assert predict.main(['run']) == 0
    assert ' test images, after epoch 1 of 2\n' in capfd.readouterr().out
    assert run('run').startswith(f'checkpoint: {first}, after epoch 1 of 2\n')


def test_a_run_that_was_stopped_within_an_epoch(train, run):
    train(scratch, '--checkpoint-every', '4')
    assert run(str(checkpoints('run')[1])).startswith(
        'checkpoint: run/checkpoint-00000008.safetensors, in epoch 2 of 2 after 2 batches\n')


OLD_FILES = ['old net-symbol.json', 'old net-0012.params']


def module_files(loss, data, label):
    """Write the checkpoint of a Module and return its results for an array in prediction mode."""
    scores = mx.sym.FullyConnected(mx.sym.var('data'), num_hidden=3, flatten=False, name='fc')
    with semantics('nd'):
        module = mx.mod.Module(loss(scores), label_names=['loss_label'])
        module.bind([('data', data.shape)], [('loss_label', label)])
        module.init_params(mx.init.Uniform(1))
        module.save_checkpoint('old net', 12)
        module.forward(mx.io.DataBatch([mx.nd.array(data)], [mx.nd.zeros(label)]), is_train=False)
        return module.get_outputs()[0].asnumpy()


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no Module')
@pytest.mark.parametrize('loss, settings, shape, label', [
    ('SoftmaxOutput', {}, (2, 5), (2,)), ('SoftmaxOutput', {}, (2, 3, 5), (2, 3, 3)),  # over both other axes
    ('Softmax', {}, (2, 3, 5), (2, 3, 3)),  # its name in MXNet 0.x
    ('SoftmaxOutput', {'multi_output': True}, (2, 3, 5), (2, 3)),
    ('SoftmaxOutput', {'preserve_shape': True}, (2, 3, 5), (2, 3)),
    ('LogisticRegressionOutput', {}, (2, 5), (2, 3)), ('LinearRegressionOutput', {}, (2, 5), (2, 3))])
def test_the_checkpoint_of_a_module(loss, settings, shape, label, run):
    """The model needs no labels, and its parameters have the names of the file."""
    data = numpy.random.default_rng(0).random(shape, 'float32')
    expected = module_files(lambda X: getattr(mx.sym, loss)(X, name='loss', **settings), data, label)
    run(*OLD_FILES, '--shape', ','.join(map(str, shape)))
    graph = onnx.load('old net.onnx').graph
    assert [value.name for value in graph.input] == ['data']
    assert abs(run_model('old net.onnx', data)[0] - expected).max() <= TOLERANCE * abs(expected).max()
    assert {array.name for array in graph.initializer} == {'fc_weight', 'fc_bias'}


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no Module')
def test_files_of_older_versions(run):
    """They have the settings elsewhere, and Python 2 wrote L after some numbers."""
    def loss(X):
        return mx.sym.LinearRegressionOutput(mx.sym.slice(X, begin=(0, 1), end=(2, 3)), name='loss')

    data = numpy.random.default_rng(0).random((2, 5), 'float32')
    expected = module_files(loss, data, (2, 2))
    with changed_graph(OLD_FILES[0]) as graph:
        for node in graph['nodes']:
            node['param'] = {name: value.replace(')', 'L)') for name, value in node.pop('attrs', {}).items()}
        del graph['attrs']
    run(*OLD_FILES, '--shape', '2,5')
    found, = run_model('old net.onnx', data)
    assert abs(found - expected).max() <= TOLERANCE * abs(expected).max()


def programs():
    """Return the programs in docs/export.md: 'MODEL, LIBRARY' -> source."""
    blocks = re.findall(r'(?:^(?:    .*)?\n)+', (REPO / 'docs/export.md').read_text(), re.MULTILINE)
    found = [textwrap.dedent(block).strip() for block in blocks if re.search(r'^    import onnx', block, re.MULTILINE)]
    return {f'{re.search(r"(lenet|resnet18).onnx", code)[1]}, {re.search(r"import (torch|onnxruntime)", code)[1]}': code
            for code in found}


@pytest.mark.slow
@pytest.mark.parametrize('name', programs())
def test_the_programs_of_the_documentation(name, net, lenet_arrays, devices):
    """They print the classes of three black images. Those in PyTorch are compared on other images as well."""
    model, library = name.split(', ')
    if importlib.util.find_spec(library) is None:
        pytest.skip(f'{library} is not installed')
    params = scratch.get_params(to_mx(lenet_arrays), devices[0])
    to_onnx(params if model == 'lenet' else net, f'{model}.onnx')
    X = numpy.concatenate([numpy.zeros((3, 1, 28, 28), 'float32'), images(numpy.random.default_rng(1), 5)[0]])
    numpy.save('images.npy', X)
    more = 'import numpy\nnumpy.save("scores.npy", net(torch.tensor(numpy.load("images.npy"))).detach().numpy())'
    code = programs()[name] + ('\n' + more if library == 'torch' else '')
    # In a subprocess, because PyTorch and MXNet each load their own OpenMP
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    X_first = np.array(X, ctx=devices[0])
    expected = (scratch.lenet(X_first, params) if model == 'lenet' else net(X_first)).asnumpy()
    assert re.findall(r'\d+', done.stdout) == [str(i) for i in expected[:3].argmax(axis=1)]
    if library == 'torch':
        assert_equal(numpy.load('scores.npy'), expected)
