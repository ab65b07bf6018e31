"""k devices equal one: what a training program reads on several devices and on one, where it may be plain Gluon."""
import numpy
from semantics import array
from trainers import trainable

from gluon_mgpu.mxnet_setup.compat import autograd, gluon, npx
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import prepare_idle_devices
from gluon_mgpu.training.parameters import copies, parameters_by_name


def equals_one(program, devices, one=None, tolerance=1e-10):
    """Run ``program(devices, rng)`` on all devices and on the first; what it yields after each batch must be equal.

    It yields networks, arrays and numbers, also in lists and dicts. All devices must have exactly the same copy of a
    network. `one` is the program on one device, by default the same. The tolerance is relative to the largest number of
    an array, or to 1: in float64, sums in another order differ by 1e-16 of the largest term.
    """
    seed = numpy.random.randint(2**31)
    expected, found = _run(one or program, devices[:1], seed), _run(program, devices, seed)
    assert len(found) == len(expected) > 0, f'{len(found)} steps instead of {len(expected)}'
    for i, (ours, of_one) in enumerate(zip(found, expected)):
        assert ours.keys() == of_one.keys() and ours, f'other names in step {i}: {[*ours]} instead of {[*of_one]}'
        for name, value in of_one.items():
            assert ours[name].shape == value.shape, f'{name} in step {i}'
            difference = abs(ours[name] - value).max(initial=0)
            assert difference <= tolerance * max(1, abs(value).max(initial=0)), f'{name} in step {i}: {difference}'


def _run(program, devices, seed):
    npx.random.seed(seed)
    return [_values(found) for found in program(devices, numpy.random.default_rng(seed))]


def _values(found):
    """Return copies of all arrays by name."""
    if hasattr(found, 'collect_params'):
        npx.waitall()  # under static shapes, backward passes write statistics without MXNet's engine
        return dict(_parameters(found))
    if isinstance(found, (list, tuple)):
        found = dict(enumerate(found))
    if isinstance(found, dict):
        return {f'{key} {name}'.strip(): value for key, part in found.items() for name, value in _values(part).items()}
    return {'': found.asnumpy() if hasattr(found, 'asnumpy') else numpy.array(found)}


def _parameters(net):
    for name, arrays in copies(net).items():
        if not name.endswith('gamma') or parameters_by_name(net)[name].grad_req != 'null':  # plain Gluon sets that to 1
            yield name, same(arrays, name)


def same(arrays, name='an array'):
    """Return the first of the copies on several devices, which must be exactly equal, as a NumPy array."""
    first, *others = (array if isinstance(array, numpy.ndarray) else array.asnumpy() for array in arrays)
    assert all(numpy.array_equal(first, other) for other in others), f'{name} differs between devices'
    return first


def rows(shards):
    """Return the rows of arrays on several devices as one array."""
    return numpy.concatenate([shard.asnumpy() for shard in shards])


class Plain:
    """Plain Gluon with the methods of `SyncBatchNorm`, which combine nothing."""

    def __init__(self, net):
        self.net = self.block = net
        self.collect_params = net.collect_params

    def __call__(self, *args):
        return self.net(*args)

    def forward(self, X_shards, *more_shards):
        return [self.net(*args) for args in zip(X_shards, *(on or [None] * len(X_shards) for on in more_shards))]

    backward = staticmethod(autograd.backward)


def total_gradients(*nets):
    """Return the gradients of the trained parameters, summed over the devices."""
    return [sum(gradient.asnumpy() for gradient in param.list_grad()) for net in nets for param in trainable(net)
            if param.grad_req != 'null']


def sequential(*layers, kind=gluon.nn.HybridSequential):
    net = kind()
    net.add(*layers)
    return net


def started(net, devices, rng, *shapes, scale=0.5):
    """Initialize a network in float64, with parameters from `rng`; `shapes` of one row of its inputs decide others."""
    net.initialize(ctx=devices)
    with autograd.train_mode():
        for device in devices if shapes else ():
            net(*(array(numpy.zeros((1, *shape)), dtype='float32', ctx=device) for shape in shapes))
    net.cast('float64')
    for name, param in parameters_by_name(net).items():
        if 'running' not in name:  # also the gamma that a batch norm without scale ignores
            param.set_data(array(rng.normal(scale=scale, size=param.shape), dtype='float64', ctx=devices[0]))
    return net


def take_gradients(losses_of, nets, X, y, devices):
    """Compute the gradients as own-project.md does; ``losses_of(X_shard, y_shard)`` is the loss of each row."""
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [losses_of(X_shard, y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    autograd.backward(ls)
    for net in nets:
        prepare_idle_devices(net, y, devices)


def squared(net):
    return lambda X, y: ((net(X) - y) ** 2).sum(axis=1)
