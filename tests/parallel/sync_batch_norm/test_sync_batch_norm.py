"""Synchronized batch norm: k devices equal one with Gluon's batch norm."""
from functools import partial

import idx_files
import numpy
import oracle
import pytest
from bfloat16 import needs_bfloat16
from equals_one import rows, sequential, started, total_gradients
from norms import backward, equals_gluon, norm_of, refuses, small_net, square, train, trained
from refused import refused
from slow import slow
from threads import Threads, without_rows
from trainers import on_each_device, trainable

from gluon_mgpu import concise
from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, np
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.parallel.split import split_and_load
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.parallel.sync_batch_norm.train_batch import train_batch_synchronized
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training.parameters import copies, with_grad_req
from gluon_mgpu.training.run import Run

nn = gluon.nn


@pytest.mark.parametrize('k', [slow(1), slow(2), 3, slow(4)])
def test_k_devices_equal_one(k, device_list):
    equals_gluon(train, device_list(k))


@pytest.mark.slow
@pytest.mark.parametrize('k', [1, 4])
def test_resnet18_on_k_devices_equals_one(k, device_list):
    sizes = (64, 1, 5, 2, 7) * 2  # for each new size, 18 pieces are compiled on each device
    equals_gluon(partial(train, make=lambda: resnet18(10), sizes=sizes), device_list(k))


def test_evaluation_uses_the_running_statistics(devices):
    net = trained(devices, sizes=(5,))
    X = np.array(numpy.random.default_rng(0).normal(size=(3, 1, 12, 12)), dtype='float64', ctx=devices[1])
    assert abs(SyncBatchNorm(net)(X) - net(X)).asnumpy().max() < 1e-13  # rounding
    with autograd.record(), pytest.raises(ValueError, match=r'call net.forward\(X_shards\)'):
        SyncBatchNorm(net)(X)


@pytest.mark.parametrize('size', [1, 2])
def test_it_does_not_wait(device_list, no_waiting, size):
    devices, workers = device_list(3), Workers()
    workers.size = size
    net = small_net()
    net.initialize(ctx=devices)
    trainer = on_each_device(trainable(net), 'sgd', {'learning_rate': 0.1})
    net, loss = SyncBatchNorm(net, workers), gluon.loss.SoftmaxCrossEntropyLoss()
    rng = numpy.random.default_rng(0)
    batches = [tuple(map(np.array, oracle.images(rng, n))) for n in (6, 2) * 2]
    for X, y in batches[:2]:  # initialization and the Trainer block once
        train_batch_synchronized(X, y, net, loss, trainer, devices, 6)
    with no_waiting():
        for X, y in batches:
            train_batch_synchronized(X, y, net, loss, trainer, devices, 6)


def hybridized_resnet18(dtype):
    net = concise.resnet18(10, dtype)
    net.hybridize(static_alloc=True, static_shape=True)
    return net


@pytest.mark.parametrize(('net', 'dtype'), [
    (lambda dtype: small_net(), 'float32'),
    pytest.param(hybridized_resnet18, 'float32', marks=pytest.mark.slow),
    pytest.param(hybridized_resnet18, 'bfloat16', marks=[pytest.mark.slow, needs_bfloat16])])
def test_train_learns(devices, net, dtype):
    """Bright left half or bright right half, in batches of 16 and a last one of 1 row."""
    X, y = oracle.bright_halves(numpy.random.default_rng(0), 97, side=12, axis=3)
    batches = [(np.array(X[i:i + 16]), np.array(y[i:i + 16])) for i in range(0, 97, 16)]
    run = Run(3, quiet=True)
    concise.train(2, 16, 0.05, devices=devices, data=(batches, batches), run=run, net=SyncBatchNorm(net(dtype)),
                  train_batch=train_batch_synchronized)
    assert run.history[-1].loss < run.history[0].loss / 2


def test_a_checkpoint_has_one_copy_of_the_statistics(device_list, tmp_path):
    """So it can be loaded on any number of devices, without averaging."""
    net, other = (trained(device_list(k), sizes=(7, 1)[:k - 1]) for k in (3, 2))
    assert len(with_grad_req(net, 'null')) == 4
    path, lines = tmp_path / 'checkpoint.safetensors', []
    checkpoint.save(path, net)
    checkpoint.load(path, other, log=lines.append)
    assert lines == []
    for name, arrays in copies(other).items():
        assert all((copy == copies(net)[name][0].as_in_ctx(copy.ctx)).all() for copy in arrays)


@pytest.mark.slow
def test_a_run_is_resumed_with_the_flag(tmp_path, capsys):
    """On another number of devices, where the flag is kept. A run without the flag cannot be resumed with it."""
    idx_files.write(tmp_path / 'data' / 'mnist', idx_files.dataset(16, 8))
    first = ['--dataset', 'mnist', '--data-dir', str(tmp_path / 'data'), '--batch-size', '8', '--num-epochs', '1',
             '--no-plot', '--out-dir']
    assert concise.main([*first, str(tmp_path / 'with'), '--num-gpus', '2', '--sync-batch-norm']) == 0
    assert concise.main(['--resume', str(tmp_path / 'with'), '--num-epochs', '2', '--num-gpus', '3']) == 0
    assert 'differed between' not in capsys.readouterr().err  # the statistics of the two devices
    assert '"sync_batch_norm": true' in (tmp_path / 'with' / 'config.json').read_text()
    assert concise.main([*first, str(tmp_path / 'without')]) == 0
    assert concise.main(['--resume', str(tmp_path / 'without'), '--sync-batch-norm']) == 2
    assert '--sync-batch-norm' in capsys.readouterr().err


def test_the_backward_pass_of_autograd_is_refused(devices):
    """It ends at the outputs of the network, and the Trainer would use the gradients of the batch before."""
    net, X_shards = norm_of(devices)
    with autograd.record():
        ls = [y_hat.sum() for y_hat in net.forward(X_shards)]
    autograd.backward(ls)
    refuses(net, r'call net.backward\(ls\)', X_shards)


def test_forward_is_only_for_training(devices):
    net, X_shards = norm_of(devices)
    for shards, recording in ((X_shards, autograd.pause()), ([], autograd.record())):
        with recording:
            assert 'call it within autograd.record(); without training' in refused(net.forward, shards)


def test_losses_need_not_depend_on_all_shards(device_list):
    def program(devices, rng, wrap):
        net = started(small_net(), devices, rng, (1, 12, 12))
        X_shards, fast = split_and_load(rng.normal(size=(4, 1, 12, 12)), devices), wrap(net)
        with autograd.record():
            ls = [square(fast.forward(X_shards)[0][:2])]  # the rows of the first device
        fast.backward(ls)
        yield total_gradients(net)

    equals_gluon(program, device_list(2))


@without_rows
def test_a_part_without_rows_on_any_worker(devices):
    *nets, unchanged = (started(small_net(), devices, numpy.random.default_rng(0), (1, 12, 12)) for _ in range(3))
    Threads.run(2, lambda workers: backward(SyncBatchNorm(nets[workers.rank], workers), []))
    for net in nets:
        for arrays, of_unchanged in zip(copies(net).values(), copies(unchanged).values()):
            assert (arrays[0] == of_unchanged[0]).all()


def test_an_input_that_needs_gradients_behind_frozen_norms(devices):
    """A worker without rows would not know that the others exchange sums in the backward pass."""
    net, X_shards = norm_of(devices)
    for param in net.block[0].collect_params().values():
        param.grad_req = 'null'
    X_shards[0].attach_grad()
    workers = Workers()
    workers.size = 2
    refuses(SyncBatchNorm(net.block, workers), 'does not pass gradients on to X through a batch norm', X_shards)


def generator_and_discriminator(devices, rng):
    return (started(sequential(nn.Dense(5, in_units=5), nn.BatchNorm()), devices, rng, (5,)),
            started(sequential(nn.Dense(4), nn.BatchNorm(), nn.Dense(1)), devices, rng, (5,)))


def test_two_networks_in_a_row_meet_at_copies(device_list):
    """As the docstring of `backward` shows."""
    def program(devices, rng, wrap):
        nets = generator_and_discriminator(devices, rng)
        G, D = map(wrap, nets)
        with autograd.record():
            images = G.forward(split_and_load(rng.normal(size=(7, 5)), devices))
            copies = [image.detach() for image in images]
            for copy in copies:
                copy.attach_grad()
            ls = [((y_hat - 1) ** 2).sum() for y_hat in D.forward(copies)]
        D.backward(ls)
        G.backward(images, [copy.grad for copy in copies])
        yield total_gradients(*nets)

    equals_gluon(program, device_list(3))


@pytest.mark.parametrize('last', [0, 1])
def test_losses_that_depend_on_two_networks(last, devices, rng):
    """One of the networks would get no gradients."""
    G, D = nets = [*map(SyncBatchNorm, generator_and_discriminator(devices, rng))]
    with autograd.record():
        Z = split_and_load(np.ones((4, 5), dtype='float64'), devices)
        ls = [y_hat.sum() for y_hat in D.forward(G.forward(Z))]
    line = refused(nets[last].backward, ls)
    assert line.startswith('the losses also depend on another SyncBatchNorm, which gets no gradients')
    for net in nets:  # the next step begins anew
        backward(net, Z)


def test_a_shard_without_rows(devices):
    net, X_shards = norm_of(devices)
    refuses(net, '^a shard has no rows: leave it out', [X_shards[0], X_shards[1][:0]])


def penalty(device, params):
    return sum((param.data(device) ** 2).sum() for param in params)


@pytest.mark.parametrize('grad_req', ['write', 'add'])
def test_an_encoder_in_front(grad_req, device_list):
    """The losses also use its output directly, and all parameters, also of an unused layer, in a penalty."""
    def program(devices, rng, wrap):
        encoder = started(nn.Conv2D(2, 3), devices, rng, (1, 14, 14))
        net, unused = started(small_net(), devices, rng, (2, 12, 12)), started(nn.Dense(1, in_units=2), devices, rng)
        params = [param for block in (encoder, net, unused) for param in trainable(block)]
        for param in params:
            param.grad_req = grad_req
        X_shards, fast = split_and_load(rng.normal(size=(7, 1, 14, 14)), devices), wrap(net)
        for X in X_shards:
            X.attach_grad()
        for _ in range(2):
            with autograd.record():
                codes = [encoder(X) for X in X_shards]
                ls = [square(y_hat) + (code ** 3).sum() + len(code) * penalty(code.ctx, params)
                      for y_hat, code in zip(fast.forward(codes), codes)]
            fast.backward(ls)
            yield total_gradients(encoder, net, unused), rows([X.grad for X in X_shards])

    equals_gluon(program, device_list(3))


def test_layers_that_are_frozen_later(device_list):
    net, X_shards = norm_of(device_list(2))
    dense = net.block[1]
    for frozen in (False, True):
        dense.weight.grad_req = 'null' if frozen else 'write'
        for grad in dense.bias.list_grad():
            grad[:] = 7
        backward(net, X_shards)
        assert [grad.tolist() for grad in dense.bias.list_grad()] == [[3, 3], [2, 2]]


def test_the_batch_after_an_exception_in_the_loss(device_list):
    net, X_shards = norm_of(device_list(2))
    with pytest.raises(ZeroDivisionError), autograd.record():
        net.forward(X_shards)
        raise ZeroDivisionError
    backward(net, X_shards)
    assert [grad.tolist() for grad in net.block[1].bias.list_grad()] == [[3, 3], [2, 2]]


def test_a_backward_pass_needs_its_own_forward_pass(devices):
    net, X_shards = norm_of(devices)
    with autograd.record():
        first, second = net.forward(X_shards), net.forward(X_shards)
        ls = [(a + b).sum() for a, b in zip(first, second)]
    assert 'the losses depend on two forward passes of SyncBatchNorm' in refused(net.backward, ls)
    assert 'SyncBatchNorm.backward has no forward pass' in refused(net.backward, ls)


def test_when_a_network_is_traced_again(devices):
    """As documented: after `hybridize`, a new layer, or another dtype; not after a change of an attribute."""
    class Net(HybridBlock):
        def __init__(self):
            super().__init__()
            self.norm, self.factor, self.last = nn.BatchNorm(in_channels=2), 1.0, nn.Activation('relu')

        def forward(self, X):
            return self.last(self.norm(X) * self.factor)

    net, X = Net(), np.array(numpy.random.default_rng(0).normal(size=(6, 2)), dtype='float32', ctx=devices[0])
    net.initialize(ctx=devices[0])
    synchronized = SyncBatchNorm(net)

    def equal():
        with autograd.record():
            return bool(abs(synchronized.forward([X])[0] - net(X)).max() < 1e-5)  # float32

    assert equal()
    net.factor = 2.0
    assert not equal()
    net.hybridize(False)
    assert equal()
    net.last = nn.Activation('sigmoid')
    assert equal()
    net.cast('float64')
    X = X.astype('float64')
    assert equal()


def test_forward_hooks_are_refused(devices):
    net, X_shards = norm_of(devices)
    handle = net.block[0].register_forward_hook(print)
    refuses(net, r'cannot be traced \(it has forward hooks, .*: detach', X_shards)
    handle.detach()
    backward(net, X_shards)


@pytest.mark.parametrize('is_older', [False, pytest.param(True, marks=pytest.mark.skipif(
    MXNET_MAJOR >= 2, reason='MXNet 2 has no hybrid_forward'))])
def test_functions_of_autograd_are_refused(is_older, devices):
    class Own(autograd.Function):
        def forward(self, X):
            return X, X

        def backward(self, *gradients):
            return gradients[0] * 5

    class Net(HybridBlock):
        def forward(self, X):
            return Own()(X)[0]

    class Older(gluon.HybridBlock):
        def hybrid_forward(self, F, X):
            return Own()(X)[0]

    X_shards = [np.ones((2, 2), ctx=device) for device in devices]
    refuses(SyncBatchNorm(Older() if is_older else Net()), '^(Net|Older) calls Own, an autograd.Function, whose grad',
            X_shards)


@pytest.mark.parametrize('net', [gluon.nn.Sequential(), lambda X: X])
def test_what_is_no_hybrid_block(net):
    assert 'is no gluon.HybridBlock, so it cannot be cut at its batch norms' in refused(SyncBatchNorm, net)


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 traces without recording, also by net.hybridize()')
def test_code_that_asks_whether_autograd_records(devices):
    """The network is cut for each mode."""
    class Net(HybridBlock):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm(in_channels=2)

        def forward(self, X):
            return self.norm(X) * (2 if autograd.is_recording() else 3)

    net, X = Net(), np.arange(6, ctx=devices[0]).reshape(3, 2)
    net.initialize(ctx=devices[0])
    synchronized = SyncBatchNorm(net)
    for mode in (autograd.train_mode, autograd.record, autograd.train_mode):
        with mode():
            assert abs(synchronized.forward([X])[0] - net(X)).max() < 1e-5  # float32


def test_one_half_of_what_concise_train_needs(devices):
    (net, _), (X, y) = norm_of(devices), (np.zeros((4, 3, 4, 4)), np.zeros(4))
    of_network = refused(train_batch_synchronized, X, y, net.block, None, None, devices)
    assert of_network.startswith('train_batch_synchronized needs a SyncBatchNorm: pass net=')
    of_step = refused(concise.train_batch, X, y, net, None, None, devices)
    assert of_step.endswith('or pass train_batch=train_batch_synchronized to concise.train')


def steps_of_all_kinds(devices, rng, wrap, path):
    """Freeze and unfreeze, add penalties, predict in odd places, save."""
    net = started(small_net(), devices, rng, (1, 12, 12), scale=0.2)
    trainer, fast = on_each_device(trainable(net), 'sgd', {'learning_rate': 0.003, 'momentum': 0.9}), wrap(net)
    for i in range(8):
        for param in trainable(net[3]):
            param.grad_req = 'null' if i in (2, 3) else 'write'
        X_shards = split_and_load(rng.normal(size=(7, 1, 12, 12)), devices)
        with autograd.record():
            y_hats = fast.forward(X_shards)
            with autograd.predict_mode():
                before = [net(X) for X in X_shards]
            ls = [square(y_hat) for y_hat in y_hats]
            if i % 2:  # on one device, since each has the same parameters
                ls[0] = ls[0] + penalty(devices[0], trainable(net))
        fast.backward(ls)
        after = [net(X) for X in X_shards]
        trainer.step(7)
        net.save_parameters(path)
        loaded = small_net()
        loaded.load_parameters(path, ctx=devices[0], cast_dtype=True, dtype_source='saved')
        yield rows(before), rows(after), loaded


@pytest.mark.parametrize('k', [slow(1), slow(2), 3])
def test_steps_of_all_kinds(k, device_list, tmp_path):
    equals_gluon(partial(steps_of_all_kinds, path=str(tmp_path / 'net')), device_list(k))
