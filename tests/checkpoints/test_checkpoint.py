"""Checkpoints of a user's own training loop: a resumed loop gives the same values as an uninterrupted one."""
import json
import re

import numpy
import pytest
import safetensors
import safetensors.numpy
from limits import limits
from loops import OPTIMIZERS, Loop, network, sharing_layers, small_resnet, values
from refused import refused
from slow import slow
from trainers import trainable

from gluon_mgpu.base.files import LARGEST
from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.checkpoint import CheckpointError
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, np
from gluon_mgpu.training.parameters import parameters_by_name


def all_of(net):
    return net.collect_params()


@pytest.mark.parametrize('options', [{}, {'update_on_kvstore': False}], ids=['kvstore', 'each device'])
@pytest.mark.parametrize('params, make', [
    (trainable, network), slow(all_of, network), (trainable, small_resnet),
    pytest.param(all_of, sharing_layers, marks=pytest.mark.skipif(MXNET_MAJOR < 2, reason='needs share_parameters'))],
    ids=['trainable', 'all', 'static', 'shared'])  # the store of those has other numbers than the Trainer's list
@pytest.mark.parametrize('optimizer', OPTIMIZERS)
@pytest.mark.parametrize('k', [slow(1), 2, slow(3), slow(4)])
def test_a_resumed_loop_equals_an_uninterrupted_one(k, optimizer, params, make, options, device_list, tmp_path):
    devices = device_list(k)
    whole = Loop(devices, optimizer, params, make, **options).train(3)
    checkpoint.save(tmp_path / 'a', whole.net, whole.trainer, num_steps=whole.num_steps)
    kept = whole.values()
    whole.train(3)
    for before in (0, 2):  # a new Trainer, and one that has taken other steps
        resumed = Loop(devices, optimizer, params, make, **options).train(before)
        metadata = checkpoint.load(tmp_path / 'a', resumed.net, resumed.trainer)
        assert metadata == {'num_steps': 3}
        resumed.num_steps = 3
        assert resumed.values() == kept
        assert resumed.train(3).values() == whole.values() != kept
    assert k > 1 or make is sharing_layers or resumed.values()['1.running_mean'][0] != [0, 0, 0]


def test_unknown_shapes_are_taken_from_the_checkpoint(devices, tmp_path):
    whole = Loop(devices).train(2)
    checkpoint.save(tmp_path / 'a', whole.net, whole.trainer)
    net = network(devices)
    assert checkpoint.load(tmp_path / 'a', net) == {}
    assert values(net) == whole.values()


@pytest.mark.parametrize('make', [network, small_resnet])
def test_a_hybridized_network(make, devices, tmp_path):
    """The file equals that of the network before, and the graph uses the values that were loaded."""
    loop = Loop(devices, make=make).train(1)
    X = np.ones((3, 1, 6, 6), ctx=devices[0])
    checkpoint.save(tmp_path / 'a', loop.net)
    loop.net.hybridize(static_alloc=True, static_shape=True)
    scores = loop.net(X).asnumpy()
    checkpoint.save(tmp_path / 'b', loop.net)
    assert (tmp_path / 'a').read_bytes() == (tmp_path / 'b').read_bytes()
    loop.train(2)
    assert loop.net(X).asnumpy().tolist() != scores.tolist()
    checkpoint.load(tmp_path / 'a', loop.net)
    assert loop.net(X).asnumpy().tolist() == scores.tolist()


def test_values_that_differ_between_devices_are_kept_per_device(devices, tmp_path):
    loop = Loop(devices).train(2)
    checkpoint.save(tmp_path / 'a', loop.net)
    _, arrays = checkpoint.read(tmp_path / 'a')
    assert {name: len(copies) for name, copies in arrays.items()} == {
        f'parameters/{name}': len(devices) if 'running' in name else 1 for name in parameters_by_name(loop.net)}
    for k in range(len(devices)):
        assert arrays['parameters/1.running_mean'][k].tolist() == loop.values()['1.running_mean'][k]


def test_twelve_devices(tmp_path):
    """Their numbers are not in the order of their text."""
    arrays = [numpy.array([k]) for k in range(12)]
    checkpoint.write(tmp_path / 'a', checkpoint.Snapshot({'parameters/a': arrays}, {}), {})
    assert checkpoint.read(tmp_path / 'a')[1]['parameters/a'] == arrays


def test_the_mean_of_devices_is_computed_in_float64(tmp_path):
    arrays = [numpy.array([value], 'float32') for value in (2**24, 1, 1)]  # in float32, 2**24 + 1 is 2**24
    checkpoint.write(tmp_path / 'a', checkpoint.Snapshot({'parameters/parameter 0': arrays}, {}), {})
    params = [np.zeros(1)]
    checkpoint.load(tmp_path / 'a', params, log=lambda line: None)
    assert params[0].item() == (2**24 + 2) / 3


def test_another_number_of_devices(device_list, tmp_path):
    """Values that differ between devices are averaged with a message; parameters and the update count are kept."""
    two, messages = Loop(device_list(2), 'adam').train(3), []
    checkpoint.save(tmp_path / 'a', two.net, two.trainer)
    for k in (1, 3):
        other = Loop(device_list(k), 'adam')
        checkpoint.load(tmp_path / 'a', other.net, other.trainer, messages.append)
        for name, kept in two.values().items():
            mean = numpy.mean(kept, axis=0).tolist() if 'running' in name else kept[0]
            for found in other.values()[name]:
                numpy.testing.assert_allclose(found, mean, rtol=1e-6, err_msg=name)  # the mean, in float32
        other.num_steps = 3
        other.train(1)
        assert other.trainer.optimizer.num_update == 4
    assert messages == ['2 arrays, such as 1.running_mean, differed between the 2 devices of the checkpoint; '
                        'each device now has their mean'] * 2


def test_parameters_as_lists(devices, tmp_path):
    made = [[np.array([1.0, 2.0], ctx=d), np.full((2, 2), 3.0, ctx=d), np.array(4.0, ctx=d)] for d in devices]
    checkpoint.save(tmp_path / 'a', made, epoch=3, words=['é', None])
    others = [[np.zeros(2, ctx=d), np.zeros((2, 2), ctx=d), np.array(0.0, ctx=d)] for d in devices]
    assert checkpoint.load(tmp_path / 'a', others) == {'epoch': 3, 'words': ['é', None]}
    for params in others:
        assert [p.asnumpy().tolist() for p in params] == [[1, 2], [[3, 3], [3, 3]], 4]


@pytest.mark.parametrize('make', [
    lambda: None, lambda: {'a': np.ones(2)}, lambda: [numpy.ones(2)], lambda: [[np.ones(2), np.ones(2)], [np.ones(2)]],
    lambda: [[np.ones(2)], [np.ones(3)]], lambda: [[np.ones(2)], [np.ones(2, dtype='float64')]],
    lambda: [np.ones(2), [np.ones(2)]], lambda: [[np.ones(2)], np.ones(2)]])
def test_invalid_parameter_lists_are_rejected(make, tmp_path):
    path = tmp_path / 'a'
    checkpoint.save(path, [np.ones(2)])
    before = path.read_bytes()
    for call in (checkpoint.save, checkpoint.load):
        line = refused(call, path, make())
        assert ': expected a Gluon network, a list of arrays, or a list of such lists, one per device' in line
    assert path.read_bytes() == before


def test_other_programs_can_read_a_checkpoint(devices, tmp_path):
    loop = Loop(devices, 'momentum').train(1)
    checkpoint.save(tmp_path / 'a.safetensors', loop.net, loop.trainer, epoch=1)
    tensors = safetensors.numpy.load_file(tmp_path / 'a.safetensors')
    assert tensors['parameters/4.bias@0'].tolist() == loop.values()['4.bias'][0]
    with safetensors.safe_open(tmp_path / 'a.safetensors', 'numpy') as file:
        assert json.loads(file.metadata()['gluon_mgpu'])['metadata'] == {'epoch': 1}


def test_the_old_file_is_kept_until_the_new_one_is_complete(devices, tmp_path, full_disk):
    loop = Loop(devices)
    checkpoint.save(tmp_path / 'a', loop.net, epoch=1)
    before = (tmp_path / 'a').read_bytes()
    with full_disk(), pytest.raises(OSError, match='No space left'):
        checkpoint.save(tmp_path / 'a', loop.net, epoch=2)
    assert (tmp_path / 'a').read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ['a']


@pytest.mark.parametrize('edit, message', [
    (lambda r, a: a.pop('parameters/4.bias'),
     'of another network, only one of the two has 4.bias'),
    (lambda r, a: a.update({f'parameters/{name}': [numpy.zeros(1)] for name in ('most', 'more', 'much', 'next', 'z')}),
     'of another network, only one of the two has more'),
    (lambda r, a: r.update(left_out=['4.bias']), 'of another network, only one of the two has 4.bias'),
    (lambda r, a: a.update({'parameters/4.bias': [numpy.zeros(3, 'float32')]}),
     'of another network, 4.bias is float32 (3,) in the file and float32 (2,) in the network'),
    (lambda r, a: a.update({'parameters/4.bias': [numpy.zeros(2, 'float16')]}),
     'of another network, 4.bias is float16 (2,) in the file and float32 (2,) in the network'),
    (lambda r, a: r['optimizer'].update(name='Adam'), "the optimizer's state is of Adam, this is SGD"),
    (lambda r, a: r['optimizer']['counts'].pop('4.bias'), 'its Trainer did not update 4.bias, but this one does'),
    (lambda r, a: a.update({'states/4.bias/1': a['states/4.bias/0']}),
     "the optimizer's state of 4.bias does not fit: give SGD the same settings"),
    *((lambda r, a, wrong=wrong: a.update({'states/4.bias/0': [wrong]}), "the optimizer's state of 4.bias does not fit")
      for wrong in (numpy.zeros(3, 'float32'), numpy.zeros(2, 'float16'))),
    (lambda r, a: a.pop('states/4.bias/0'), "the optimizer's state of 4.bias does not fit"),
    (lambda r, a: r.pop('optimizer'), 'it has no optimizer state; load it without the trainer')])
def test_a_checkpoint_that_does_not_fit_is_rejected_and_changes_nothing(edit, message, devices, tmp_path):
    """Its checksum is right."""
    loop, path = Loop(devices, 'momentum').train(1), tmp_path / 'a'
    checkpoint.save(path, loop.net, loop.trainer)
    record, arrays = checkpoint.read(path)
    edit(record, arrays)
    checkpoint.write(path, checkpoint.Snapshot(arrays, record), {})
    before = loop.train(1).values()
    with pytest.raises(CheckpointError, match=re.escape(f'{path}: {message}')):
        checkpoint.load(path, loop.net, loop.trainer)
    assert loop.values() == before


FOREIGN = safetensors.numpy.save({'a': numpy.zeros(9)}, {'gluon_mgpu': '{"version":1}'})


@pytest.mark.parametrize('content', [b'', b'{}', b'\0' * 100, b'\xff' * 100, b'PK\3\4' * 30, FOREIGN])
def test_a_file_that_is_not_a_checkpoint_is_rejected(content, tmp_path):
    (tmp_path / 'a').write_bytes(content)
    with pytest.raises(CheckpointError, match='a: truncated or altered, or not a checkpoint of gluon_mgpu$'):
        checkpoint.read(tmp_path / 'a')


def test_missing_and_altered_files_and_other_versions_are_rejected(tmp_path):
    path = tmp_path / 'a'
    with pytest.raises(CheckpointError, match=r'a: cannot be read \(No such file or directory\)'):
        checkpoint.read(path)
    checkpoint.save(path, [[np.zeros(2)]])
    whole = path.read_bytes()
    path.write_bytes(whole.replace(rb'\"version\":1', rb'\"version\":2'))
    with pytest.raises(CheckpointError, match='version 2, but this gluon_mgpu reads version 1; use the'):
        checkpoint.read(path)
    path.write_bytes(whole[:-1] + b'\1')
    with pytest.raises(CheckpointError, match='truncated or altered'):
        checkpoint.read(path)


def test_a_parameter_of_unknown_shape(devices, tmp_path):
    """Not even the number of its dimensions is known before the first batch."""
    class Deferred(gluon.Block):
        def __init__(self):
            super().__init__()
            self.w = gluon.Parameter('w', allow_deferred_init=True)

    saved, loaded = Deferred(), Deferred()
    for net in (saved, loaded):
        net.w.initialize(ctx=devices)
    saved.w.shape = (2, 3)
    saved.w._finish_deferred_init()
    checkpoint.save(tmp_path / 'a', saved)
    checkpoint.load(tmp_path / 'a', loaded)
    assert (loaded.w.data(devices[0]).asnumpy() == saved.w.data(devices[0]).asnumpy()).all()


def test_saving_unsupported_values_is_rejected(devices, tmp_path):
    loop = Loop(devices)
    with pytest.raises(TypeError, match='object is not JSON serializable'):
        checkpoint.save(tmp_path / 'a', loop.net, epoch=object())
    with pytest.raises(ValueError, match=r'the Trainer updates \S+, which is not in the network'):
        checkpoint.save(tmp_path / 'a', Loop(devices).net, loop.trainer)
    checkpoint.save(tmp_path / 'b', loop.net)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(1))
    with pytest.raises(RuntimeError, match='has not been initialized'):
        checkpoint.load(tmp_path / 'b', net)
    assert [p.name for p in tmp_path.iterdir()] == ['b']


def test_a_file_larger_than_the_memory_is_refused_before_it_is_read(tmp_path):
    """It takes no room on the disk, and its header is right."""
    size = LARGEST + 1
    header = json.dumps({'a@0': {'dtype': 'U8', 'shape': [size], 'data_offsets': [0, size]}}).encode()
    with open(tmp_path / 'a', 'wb') as file:
        file.write(len(header).to_bytes(8, 'little') + header)
        file.truncate(8 + len(header) + size)
    with limits(10), pytest.raises(CheckpointError, match=r'a: cannot be read \(larger than [\d,]+ bytes\)'):
        checkpoint.read(tmp_path / 'a')


class WithUnusedLayer(gluon.Block):
    def __init__(self, devices):
        super().__init__()
        self.used, self.unused = gluon.nn.Dense(2), gluon.nn.Dense(3)
        self.initialize(init.Xavier(), ctx=devices)

    def forward(self, X):
        return self.used(X)


@pytest.mark.parametrize('k', [1, 2])
def test_a_layer_that_is_never_used(k, device_list, tmp_path):
    """Its weight has no shape and no values. It is left out of the checkpoint, with a warning."""
    def new():
        return Loop(device_list(k), 'adam', lambda net: trainable(net.used), WithUnusedLayer)

    loop, resumed = new().train(1), new()
    with pytest.warns(UserWarning, match='unused.weight has no values yet, .*: 1 parameter will not be part'):
        checkpoint.save(tmp_path / 'a', loop.net, loop.trainer)
    assert 'parameters/unused.weight' not in checkpoint.read(tmp_path / 'a')[1]
    checkpoint.load(tmp_path / 'a', resumed.net, resumed.trainer)
    assert resumed.values() == loop.values() and resumed.net.unused.weight.shape == (3, -1)
    resumed.net.unused(np.ones((1, 2), ctx=device_list(k)[0]))  # used since the checkpoint: it keeps its weights
    weights = resumed.train(1).values()['unused.weight']
    checkpoint.load(tmp_path / 'a', resumed.net)
    assert resumed.values() == {**loop.values(), 'unused.weight': weights}


@pytest.mark.parametrize('loaded_into', ['new', 'trained'])
def test_before_the_first_batch(loaded_into, devices, tmp_path):
    """Most parameters have no values yet; a Trainer starts anew."""
    def new():
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.BatchNorm(), gluon.nn.Dense(2))
        net.initialize(ctx=devices)
        net[1].weight.grad_req = 'add'
        return net, gluon.Trainer(net.collect_params(), 'adam')

    def step(net, trainer):
        with autograd.record():
            ls = [net(np.ones((1, 3), ctx=device)).sum() for device in devices]
        autograd.backward(ls)
        trainer.step(2)

    with pytest.warns(UserWarning, match='0.gamma has no values yet, .*: 5 parameters'):
        checkpoint.save(tmp_path / 'a', *new(), epoch=0)
    net, trainer = new()
    if loaded_into == 'trained':
        step(net, trainer)
    assert checkpoint.load(tmp_path / 'a', net, trainer) == {'epoch': 0}
    step(net, trainer)
    assert net[1].bias.data(devices[0]).asnumpy() == pytest.approx([-0.001] * 2, rel=1e-4)  # Adam's first step
    assert trainer.optimizer.num_update == 1


@pytest.mark.parametrize('layer', [gluon.nn.Dense, gluon.nn.BatchNorm])
def test_another_network_that_was_not_called_yet(layer, devices, tmp_path):
    """The parameters of its further layer, of unknown shape, would stay random without a word."""
    def net(*more):
        found = gluon.nn.HybridSequential()
        found.add(gluon.nn.Dense(3), gluon.nn.Dense(3), *more)
        found.initialize(ctx=devices)
        return found

    first = net()
    first(np.ones((1, 2), ctx=devices[0]))
    checkpoint.save(tmp_path / 'a', first)
    with pytest.raises(CheckpointError, match='of another network, only one of the two has 2'):
        checkpoint.load(tmp_path / 'a', net(layer(3) if layer is gluon.nn.Dense else layer()))
    checkpoint.load(tmp_path / 'a', net())
