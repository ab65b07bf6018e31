"""A training step in parts gives the gradient of the whole batch; its devices must fit."""
import numpy
import pytest
from gluon_mgpu.parallel.sharing import Devices, as_devices
from trainers import on_each_device, trainable

from gluon_mgpu import concise, scratch
from gluon_mgpu.base.nested import leaves, refill
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, init, mx, np, npx
from gluon_mgpu.parallel import step
from gluon_mgpu.parallel.split import split_and_load, split_batch
from gluon_mgpu.parallel.workers import ThisProcess
from gluon_mgpu.programs.onnx.graph import semantics_of
from gluon_mgpu.training.parameters import by_name, copies, unchanged_names


def of_three():
    """Return a worker, one of three."""
    workers = ThisProcess()
    workers.size = 3
    return workers


def weights_on(devices):
    """Return a list of one weight for each device, whose gradients are NaN, as if left by the step before."""
    weights = [np.ones(2, ctx=device) for device in devices]
    for w in weights:
        w.attach_grad()
        w.grad[:] = numpy.nan
    return [[w] for w in weights]


def backward(X, y, params, devices, calls=None):
    """The gradient of w in sum(w * x) is the sum of the rows of the device."""
    X_shards, y_shards = split_batch(X, y, devices)
    if calls is not None:
        calls.append([y_shard.tolist() for y_shard in y_shards])
    with autograd.record():
        ls = [(w * X_shard).sum(axis=1) for [w], X_shard in zip(params, X_shards)]
    for l in ls:
        l.backward()
    step.prepare_idle_devices(params, X, devices)
    return ls


def rows_of_parts(num_rows, devices, **options):
    """Return the rows of each part on each device, where row i holds the number i."""
    calls = []
    X = np.arange(2 * num_rows, dtype='float32').reshape(-1, 2)
    step.in_parts(backward, X, np.arange(num_rows), weights_on(devices), Devices(devices, **options), calls)
    return calls


def test_parts_by_hand(device_list):
    two = device_list(2)
    assert rows_of_parts(8, two) == [[[0, 1, 2, 3], [4, 5, 6, 7]]]
    assert rows_of_parts(8, two, parts=2) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert rows_of_parts(7, two, parts=2) == [[[0, 1], [2, 3]], [[4, 5], [6]]]
    assert rows_of_parts(3, two, parts=2) == [[[0, 1], [2]]]      # every device has rows of each part
    assert rows_of_parts(8, two, parts=9) == [[[i], [i + 1]] for i in (0, 2, 4, 6)]
    assert rows_of_parts(8, two, parts=2, shares=[1, 3]) == [[[0], [1, 2, 3]], [[4], [5, 6, 7]]]
    assert rows_of_parts(1, two, parts=2) == [[[0]]]              # the second device has no rows
    # A worker of several takes part in the exchanges of every part
    assert rows_of_parts(1, two[:1], parts=2, workers=of_three()) == [[[0]], []]


def test_shards_instead_of_a_batch(device_list):
    X = np.ones((2, 2))
    with pytest.raises(ValueError, match='arrays of 2, 2, 4 rows: those of a batch must have the same'):
        backward((X, X), np.zeros(4), weights_on(device_list(2)), Devices(device_list(2), parts=2))


@pytest.mark.parametrize('num_rows', [8, 7, 3, 1])
@pytest.mark.parametrize('parts', [1, 2, 3])
def test_gradients_are_sums_over_all_parts(num_rows, parts, device_list):
    devices = Devices(device_list(2), parts=parts)
    params = weights_on(devices)
    X = np.arange(2 * num_rows, dtype='float32').reshape(-1, 2)
    ls = step.in_parts(backward, X, np.zeros(num_rows), params, devices)
    assert sum(l.size for l in ls) == num_rows
    on_devices = [w.grad.asnumpy() for w, in params]
    assert sum(on_devices).tolist() == X.asnumpy().sum(axis=0).tolist()  # whole numbers: no rounding
    assert on_devices[1].any() == (num_rows > 1)  # zero on a device without rows


@pytest.mark.parametrize('used_in', [(0,), (1,), (0, 2), ()])
def test_a_parameter_that_only_some_parts_use(used_in, device_list):
    devices, part = Devices(device_list(2), parts=3), iter(range(3))
    params = [[np.ones(2, ctx=device), np.ones(2, ctx=device)] for device in devices]
    for w in (w for on_device in params for w in on_device):
        w.attach_grad()
        w.grad[:] = 7  # of an earlier batch

    def backward(X, y, params, devices):
        use = next(part) in used_in
        with autograd.record():
            ls = [((w + v if use else w) * X).sum(axis=1) for X, (w, v) in zip(split_batch(X, y, devices)[0], params)]
        autograd.backward(ls)
        return ls

    X = np.ones((6, 2))
    step.in_parts(backward, X, np.zeros(6), params, devices)
    for w, v in params:
        assert (w.grad.tolist(), v.grad.tolist()) == ([3, 3], [len(used_in)] * 2)


def test_a_parameter_of_shape_0_on_a_device_without_rows(device_list):
    devices = device_list(2)
    params = [[np.array(2.0, ctx=device)] for device in devices]
    for (w,) in params:
        w.attach_grad()
        w.grad[()] = 7

    def scale(X, y, params, devices):
        with autograd.record():
            ls = [X_shard * w for X_shard, (w,) in zip(split_and_load(X, devices), params)]
        autograd.backward(ls)
        step.prepare_idle_devices(params, X, devices)
        return ls
    step.in_parts(scale, np.array([3.0]), np.zeros(1), params, as_devices(devices))
    assert [w.grad.item() for w, in params] == [3, 0]


def test_the_gradients_of_a_worker_without_rows_are_zero(device_list):
    devices = Devices(device_list(1), parts=3, workers=of_three())
    params = weights_on(devices)
    assert step.in_parts(backward, np.zeros((0, 2)), np.zeros(0), params, devices) == []
    assert params[0][0].grad.tolist() == [0, 0]


def test_batch_norm_with_a_trainer_of_gluon(device_list):
    devices = device_list(2)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.BatchNorm(in_channels=3), gluon.nn.Dense(2, in_units=3))
    net.initialize(ctx=devices)
    trainer, seen = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}), []
    for _ in range(3):  # from the second step on, the key-value store updates
        concise.train_batch(np.ones((4, 3)), np.zeros(4), net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, devices)
        seen.append(net[1].bias.data(devices[1]).tolist())
    assert seen[0] != seen[1] != seen[2]


def test_a_batch_without_rows_changes_no_statistics(device_list):
    devices = device_list(2)
    net = gluon.nn.BatchNorm(in_channels=1)
    net.initialize(ctx=devices)
    for i, device in enumerate(devices):
        net.running_mean.data(device)[:] = i
    step.prepare_idle_devices(net, np.zeros((0, 1)), devices)
    assert [net.running_mean.data(device).item() for device in devices] == [0, 1]


def test_statistics_of_a_layer_that_is_never_used(device_list):
    devices = device_list(2)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(2, in_units=1))
    net.unused = gluon.nn.BatchNorm()  # its shape stays unknown
    net.initialize(ctx=devices)
    step.prepare_idle_devices(net, np.zeros((1, 1)), devices)
    assert net[0].weight.grad(devices[1]).tolist() == [[0], [0]]


def test_gradients_of_arrays_are_those_on_the_devices(device_list):
    devices = device_list(2)
    first, second = weights_on(devices)
    assert [g.ctx for g in step.gradients([first, second], devices[1:])] == devices[1:]


# Several inputs, in both semantics

class TwoInputs(HybridBlock):
    """A network of two arguments, or of a list or tuple of two arrays."""

    def __init__(self, has_norm):
        super().__init__()
        self.embedding, self.dense = gluon.nn.Embedding(4, 3), gluon.nn.Dense(2, in_units=3)
        self.norm = gluon.nn.BatchNorm(in_channels=3) if has_norm else gluon.nn.Activation('tanh')

    def forward(self, X, z=None):
        X, z = X if z is None else (X, z)
        return self.dense(self.norm(X) + self.embedding(z))


# The batch that a program makes of two inputs, and its call of the network
BATCHES = {'list': (lambda X, z: [X, z], lambda net, X: net(X)),
           'tuple': (lambda X, z: (X, z), lambda net, X: net(X)),
           'arguments': (lambda X, z: (X, z), lambda net, X: net(*X)),
           'columns': (lambda X, z: numpy.concatenate([X, z[:, None]], axis=1), lambda net, X: net(X[:, :3], X[:, 3]))}


def train_two_inputs(devices, batch, all_rows, array):
    """Train in parts on batches of these rows; return parameters and statistics on each device."""
    rng, net, (join, call) = numpy.random.default_rng(0), TwoInputs(has_norm=max(all_rows) == 1), BATCHES[batch]
    net.initialize(init.One(), ctx=devices)
    net.cast('float64')
    for param in trainable(net):
        param.set_data(array(rng.normal(size=param.shape), dtype='float64', ctx=devices[0]))
    trainer = on_each_device(trainable(net), 'sgd', {'learning_rate': 0.1})

    def forward_backward(X, y, net, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [((call(net, X_shard) - y_shard[:, 0]) ** 2).sum(axis=1)
                  for X_shard, (y_shard,) in zip(X_shards, y_shards)]
        step.backward(net, ls)
        step.prepare_idle_devices(net, X, devices)
        return ls

    for rows in all_rows:
        X, y, z = rng.normal(size=(rows, 3)), rng.normal(size=(rows, 1, 2)), rng.integers(0, 4, rows).astype('float64')
        batch = join(X, z), (y,)
        batch = refill(batch, (array(part, dtype='float64') for part in leaves(batch)))
        ls = step.in_parts(forward_backward, *batch, net, Devices(devices, parts=2))
        assert sum(l.size for l in ls) == rows and {type(l) for l in ls} == {type(array([1]))}
        trainer.step(rows)
    npx.waitall()
    return [[param.data(device).asnumpy() for param in by_name(net).values()] for device in devices]


@pytest.mark.parametrize('all_rows', [(7, 1, 5), (1, 1, 1)], ids=['', 'batch norm'])
@pytest.mark.parametrize('batch', BATCHES)
@pytest.mark.parametrize('kind', ['np'] + ['nd'] * (MXNET_MAJOR < 2))
def test_batches_of_several_inputs(kind, batch, all_rows, device_list):
    """Equal to one device; some have no rows in some batches, and then the statistics of the first."""
    array = getattr(mx, kind).array
    with semantics_of(array([1])):
        one, = train_two_inputs(device_list(1), batch, all_rows, array)
        several = train_two_inputs(device_list(3), batch, all_rows, array)
    for replica in several:
        for value, expected in zip(replica, one):  # float64; MXNet's batch norm has float32 momentum
            numpy.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-9)


# Devices that do not fit

def lenet_on(devices):
    params = scratch.init_params(0.1)
    return [scratch.get_params(params, device) for device in devices]


BATCH = numpy.ones((8, 1, 28, 28), 'float32'), numpy.zeros(8, 'int32')


@pytest.mark.parametrize('copies, used', [([0, 1, 2], [0, 1]), ([0, 1], [0, 1, 2]), ([0, 1], [1, 0]), ([0], [1])])
@pytest.mark.parametrize('kind', [list, Devices])
def test_parameters_on_other_devices(copies, used, kind, device_list):
    """Otherwise a copy would keep its gradient, which the next step adds again, or a shard would not be trained."""
    three = device_list(3)
    device_params = lenet_on([three[i] for i in copies])
    devices = kind(three[i] for i in used)
    before = [param.asnumpy() for params in device_params for param in params]
    with pytest.raises(ValueError, match=r'^the parameters are on \[.*\], but the step is on \[.*\]: use the same'):
        scratch.train_batch(*BATCH, device_params, devices, 0.1)
    after = [param.asnumpy() for params in device_params for param in params]
    assert all((a == b).all() for a, b in zip(before, after))  # nothing has changed


def test_parameters_without_gradients(devices):
    device_params = [[param.copyto(device) for param in scratch.init_params()] for device in devices]
    with pytest.raises(ValueError, match=r'^the parameters have no gradients: copy them with get_params'):
        scratch.train_batch(*BATCH, device_params, devices, 0.1)


def test_parameters_in_one_list(devices):
    """Those of `init_params`, or of one device."""
    params = scratch.get_params(scratch.init_params(), devices[0])
    with pytest.raises(ValueError, match='^the parameters are one list of arrays: pass a list of lists'):
        scratch.train_batch(*BATCH, params, devices[:1], 0.1)


def small_net(devices):
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=devices)
    return net


def run_step(net, trainer, devices, rows=6):
    X, y = np.ones((rows, 3)), np.zeros(rows)
    return concise.train_batch(X, y, net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, devices)


@pytest.mark.parametrize('make', [gluon.Trainer, on_each_device])
def test_a_network_on_more_devices_than_the_step(make, device_list):
    three = Devices(device_list(3))
    net = small_net(three)
    trainer = make(trainable(net), 'sgd', {'learning_rate': 0.1})
    run_step(net, trainer, three)
    with pytest.raises(ValueError, match=r'^the Trainer was made for \[.*\], but the step is on \[.*\]: use the same'):
        run_step(net, trainer, three[:2])  # a slice is a plain list


@pytest.mark.parametrize('make', [gluon.Trainer, on_each_device])
@pytest.mark.parametrize('again', ['reset_ctx', 'initialize'])
@pytest.mark.parametrize('before, after', [(1, 2), (2, 3), (3, 2), (2, 1)])
@pytest.mark.parametrize('steps', [0, 1])
def test_a_trainer_that_is_older_than_the_devices(make, again, before, after, steps, device_list):
    devices = device_list(3)
    net = small_net(devices[:before])
    trainer = make(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
    for _ in range(steps):
        run_step(net, trainer, devices[:before])
    if again == 'reset_ctx':
        net.collect_params().reset_ctx(devices[:after]) if MXNET_MAJOR < 2 else net.reset_ctx(devices[:after])
    else:
        net.initialize(ctx=devices[:after], force_reinit=True)
    with pytest.raises(ValueError, match=r'but the step is on \[.*\]: use the same devices for both; make a Trainer'):
        run_step(net, trainer, devices[:after])
    with pytest.raises(ValueError, match=r'is on \[.*\], but the step is on'):
        run_step(net, trainer, devices[:before])
    npx.waitall()


@pytest.mark.parametrize('make', [gluon.Trainer, on_each_device])
def test_one_parameter_is_elsewhere(make, device_list):
    devices = device_list(3)
    net = small_net(devices[:2])
    trainer = make(trainable(net), 'sgd', {'learning_rate': 0.1})
    before = net.weight.data(devices[0]).asnumpy()
    net.bias.reset_ctx(devices)
    with pytest.raises(ValueError, match=r'bias is on \[.*\], but the step is on'):
        run_step(net, trainer, devices[:2])
    assert (net.weight.data(devices[0]).asnumpy() == before).all()


def test_an_unused_layer_on_a_device_without_rows(device_list):
    """`ignore_stale_grad` leaves a layer alone that no device has used; otherwise the step is refused."""
    devices = device_list(2)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=3), gluon.nn.Dense(2, in_units=3))
    net.initialize(ctx=devices)
    trainer = gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 0.1}, update_on_kvstore=False)
    for used, rows in ((net, 4), (net[0], 1)):  # in the second batch, the gradients of the second layer are old
        before = [param.data(devices[0]).asnumpy() for param in trainable(net)]
        X_shards, _ = split_batch(np.ones((rows, 3)), np.zeros(rows), devices)
        with autograd.record():
            ls = [used(X_shard) for X_shard in X_shards]
        autograd.backward(ls)
        step.zero_grad(net, devices[len(X_shards):])
        trainer.step(rows, ignore_stale_grad=True)
    after = [[array.asnumpy() for array in param.list_data()] for param in trainable(net)]
    assert all((first == second).all() for first, second in after)
    assert [(old == new).all() for old, (new, _) in zip(before, after)] == [False, False, True, True]


@pytest.mark.parametrize('X', [np.array(1.0), (np.ones((2, 2)), 1), 3])
def test_a_batch_that_is_no_array_of_rows(X, devices):
    with pytest.raises(ValueError, match=r'^cannot split a .*: pass an array'):
        scratch.train_batch(X, np.zeros(2), lenet_on(devices), devices, 0.1)


@pytest.mark.parametrize('parts', [1, 2])
def test_a_loss_that_is_a_mean(parts, devices):
    """Each device would divide by its own rows; nothing is updated."""
    net = gluon.nn.Dense(3, in_units=2)
    net.initialize(ctx=devices)
    trainer, loss = gluon.Trainer(trainable(net), 'sgd'), gluon.loss.SoftmaxCrossEntropyLoss()
    before = net.weight.data(devices[0]).tolist()
    with pytest.raises(ValueError, match=rf'^the loss has {2 * parts} values for 8 rows: return one for each row'):
        concise.train_batch(np.ones((8, 2)), np.zeros(8), net, lambda *args: loss(*args).mean(), trainer,
                            Devices(devices[:2], parts=parts))
    assert net.weight.data(devices[0]).tolist() == before


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no such layer')
def test_gradients_of_row_sparse_parameters(device_list):
    with semantics_of(mx.nd.ones(1)):
        devices = device_list(2)
        net = gluon.contrib.nn.SparseEmbedding(5, 2)
        net.initialize(ctx=devices)
        gluon.Trainer(net.collect_params(), 'sgd')  # the layer gets its rows from it
        with autograd.record():
            l = net(mx.nd.array([1], ctx=devices[0])).sum()
        l.backward()
        step.zero_grad(net, devices[1:])
        assert [array._fresh_grad for array in net.weight._data] == [True, True]
        with pytest.raises(ValueError, match='^weight is a row_sparse parameter: use dense ones, such as that of'):
            copies(net)


def test_statistics_of_a_symbol_block(device_list, tmp_path, monkeypatch):
    """MXNet does not mark them; a device without rows would keep old ones."""
    monkeypatch.chdir(tmp_path)
    devices, net = device_list(2), gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(2), gluon.nn.BatchNorm())
    net.initialize(ctx=devices)
    net.hybridize()
    X = np.array([[1.0, 2.0]], ctx=devices[0])
    net(X)
    net.export('net')
    net = gluon.SymbolBlock.imports('net-symbol.json', ['data'], 'net-0000.params', ctx=devices)
    with autograd.record():
        l = net(X).sum()
    l.backward()
    step.prepare_idle_devices(net, X, devices)
    npx.waitall()
    mean, = (param for name, param in net.collect_params().items() if 'running_mean' in name)
    first, second = (array.asnumpy().tolist() for array in mean.list_data())
    assert first == second != [0, 0]
    assert unchanged_names(net) == set()


def test_gradients_of_lists_are_set_to_zero(devices):
    params = weights_on(devices[:2])
    step.zero_grad(params, devices[1:2])
    assert numpy.isnan(params[0][0].grad.asnumpy()).all() and params[1][0].grad.tolist() == [0, 0]


@pytest.mark.parametrize('device', [mx.cpu(1), 'cpu:1'])
def test_one_device_instead_of_a_list(device, devices):
    net = gluon.nn.Dense(3, in_units=2)
    net.initialize(ctx=devices)
    with pytest.raises(ValueError, match=r'is not a list of devices: write \[mx\.cpu\(0\), mx\.cpu\(1\)\]$'):
        step.zero_grad(net, device)


def test_parts_need_no_special_list(device_list):
    params = weights_on(device_list(2))
    assert len(step.in_parts(backward, np.ones((4, 2)), np.zeros(4), params, device_list(2))) == 2


def test_a_sum_for_each_shard_is_right_in_a_step_of_your_own(device_list):
    """Unlike a mean, its gradient does not depend on the number of devices."""
    params = weights_on(device_list(2))

    def sums(*args):
        return [l.sum() for l in backward(*args)]

    assert [l.item() for l in step.in_parts(sums, np.ones((4, 2)), np.zeros(4), params, device_list(2))] == [4, 4]


def test_what_is_no_trainer(devices):
    with pytest.raises(ValueError, match='^trainer is a NoneType: pass a gluon.Trainer, made after net.initialize$'):
        step.prepare_trainer(None, devices)


def test_a_trainer_that_sums_nothing(devices):
    net = gluon.nn.Dense(3, in_units=2)
    net.initialize(ctx=devices)
    with pytest.raises(ValueError, match='^the Trainer was made with kvstore=None and sums no gradients: leave out'):
        step.prepare_trainer(gluon.Trainer(trainable(net), 'sgd', kvstore=None), devices)
    net.initialize(ctx=devices[:1], force_reinit=True)
    step.prepare_trainer(gluon.Trainer(trainable(net), 'sgd', kvstore=None), devices[:1])


@pytest.mark.parametrize('params, num_devices', [([], 0), ([[]], 1), ([[], []], 2)])
def test_no_devices_or_no_parameters(params, num_devices, device_list):
    X, y = np.zeros((4, 1, 28, 28)), np.zeros(4)
    with pytest.raises(ValueError, match=f'^{num_devices} lists of parameters on .*: there must be at least one'):
        scratch.train_batch(X, y, params, device_list(num_devices), 0.1)
