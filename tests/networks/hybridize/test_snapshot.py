"""A network computes the same as plain Gluon after anything has changed that its code reads."""
import functools
import itertools
import os
import random
import types
from array import array
from collections import UserDict, deque

import numpy
import pytest

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, gluon, np
from gluon_mgpu.networks.hybridize.block import HybridizedBlock, hybridized
from gluon_mgpu.networks.hybridize.snapshot import Snapshot


class Settings:
    scale = 2

    def value(self):
        return self.scale


MODULE = types.ModuleType('user_settings')
MODULE.scale = NUMBER = 2  # type: ignore[attr-defined]
SETTINGS = {'scale': [2]}


def helper(X, scale=2):
    return X * (scale * NUMBER)


class Scaled:
    __slots__ = ('scale',)

    def __mul__(self, X):
        return X * SETTINGS['scale'][0] * self.scale


def with_slot(scale):
    scaled = Scaled()
    scaled.scale = scale
    return scaled


def counted(X):
    global NUMBER
    NUMBER += 1
    return X * NUMBER


def with_attribute(X):
    with_attribute.number = vars(with_attribute).get('number', 0) + 1
    return X * with_attribute.number


def defined_later(X):
    try:
        return X * LATER
    except NameError:
        return X


def attribute(**attributes):
    return lambda net: vars(net).update(attributes)


def nothing(net):
    pass


# name: forward, prepare(net), change(net, n)
CHANGES = {
    'attribute of a class': (lambda net, X: X * net.scale, nothing, lambda net, n: setattr(type(net), 'scale', n)),
    'method': (lambda net, X: net.method(X), nothing,
               lambda net, n: setattr(type(net), 'method', lambda net, X: X * n)),
    'forward': (lambda net, X: X * 2, nothing, lambda net, n: setattr(type(net), 'forward', lambda net, X: X * n)),
    'default value': (lambda net, X: helper(X), nothing, lambda net, n: setattr(helper, '__defaults__', (n,))),
    'global variable of a helper': (lambda net, X: helper(X), nothing,
                                    lambda net, n: globals().update(NUMBER=n)),
    'helper in a partial': (lambda net, X: net.part(X), attribute(part=functools.partial(helper, scale=3)),
                            lambda net, n: globals().update(NUMBER=n)),
    'method of an object': (lambda net, X: X * net.value(), lambda net: vars(net).update(value=Settings().value),
                            lambda net, n: setattr(net.value.__self__, 'scale', n)),
    'global dict': (lambda net, X: X * SETTINGS['scale'][0], nothing,
                    lambda net, n: SETTINGS['scale'].__setitem__(0, n)),
    'nested lists': (lambda net, X: X * net.lists[0][0]['scale'], lambda net: vars(net).update(lists=[({'scale': 2},)]),
                     lambda net, n: net.lists[0][0].update(scale=n)),
    'set': (lambda net, X: X * len(net.numbers), lambda net: vars(net).update(numbers={0}),
            lambda net, n: net.numbers.add(n)),
    'object': (lambda net, X: X * net.settings.value(), lambda net: vars(net).update(settings=Settings()),
               lambda net, n: setattr(net.settings, 'scale', n)),
    'class': (lambda net, X: X * Settings.scale, nothing, lambda net, n: setattr(Settings, 'scale', n)),
    'namespace': (lambda net, X: X * net.settings.scale,
                  lambda net: vars(net).update(settings=types.SimpleNamespace(scale=2)),
                  lambda net, n: setattr(net.settings, 'scale', n)),
    'array of NumPy': (lambda net, X: X * float(net.numbers[0]),
                       lambda net: vars(net).update(numbers=numpy.ones(2)),
                       lambda net, n: net.numbers.fill(n)),
    'large array of NumPy': (lambda net, X: X * float(net.numbers[0]),
                             lambda net: vars(net).update(numbers=numpy.ones(10 ** 4)),
                             lambda net, n: net.numbers.fill(n)),
    'many objects': (lambda net, X: X * net.numbers[0][0][0], lambda net: vars(net).update(
        numbers=[[[n]] for n in range(2000)]), lambda net, n: net.numbers[0][0].__setitem__(0, n)),
    'long list': (lambda net, X: X * net.numbers[0][0], lambda net: vars(net).update(
        numbers=[[2], *range(5000)]), lambda net, n: net.numbers[0].__setitem__(0, n)),
    'array of MXNet': (lambda net, X: X * net.numbers.item(), lambda net: vars(net).update(numbers=np.ones(1)),
                       lambda net, n: net.numbers.__setitem__(0, n)),
    'attribute of a module': (lambda net, X: X * MODULE.scale, nothing, lambda net, n: setattr(MODULE, 'scale', n)),
    'environment': (lambda net, X: X * float(os.environ['SCALE']), nothing,
                    lambda net, n: os.environ.update(SCALE=str(n))),
    'slot': (lambda net, X: net.scaled * X, lambda net: vars(net).update(scaled=with_slot(2)),
             lambda net, n: setattr(net.scaled, 'scale', n)),
    'operator of an object': (lambda net, X: net.scaled * X, lambda net: vars(net).update(scaled=with_slot(2)),
                              lambda net, n: SETTINGS['scale'].__setitem__(0, n)),
    'deque': (lambda net, X: X * net.numbers[0], lambda net: vars(net).update(numbers=deque([2])),
              lambda net, n: net.numbers.appendleft(n)),
    'bytes': (lambda net, X: X * net.numbers[0], lambda net: vars(net).update(numbers=bytearray([2])),
              lambda net, n: net.numbers.__setitem__(0, n)),
    'array of Python': (lambda net, X: X * net.numbers[0], lambda net: vars(net).update(numbers=array('d', [2])),
                        lambda net, n: net.numbers.__setitem__(0, n)),
    'object of a package': (lambda net, X: X * net.settings['scale'],
                            lambda net: vars(net).update(settings=UserDict(scale=2)),
                            lambda net, n: net.settings.update(scale=n)),
    'variable that is defined later': (lambda net, X: defined_later(X), nothing,
                                       lambda net, n: globals().update(LATER=n)),
    'iterator': (lambda net, X: X * next(net.numbers), lambda net: vars(net).update(numbers=itertools.count()), None),
    'generator': (lambda net, X: X * next(net.numbers), lambda net: vars(net).update(numbers=iter(range(9))), None),
    'random numbers': (lambda net, X: X * net.random(), lambda net: vars(net).update(random=random.Random(1).random),
                       None),
    'random numbers of NumPy': (lambda net, X: X * float(net.rng.uniform()),
                                lambda net: vars(net).update(rng=numpy.random.default_rng(1)), None),
    'counter': (lambda net, X: (SETTINGS['scale'].append(1), X * len(SETTINGS['scale']))[1],
                lambda net: SETTINGS.update(scale=[2]), None),
    'counter of a class': (lambda net, X: (setattr(type(net), 'scale', net.scale + 1), X * net.scale)[1], nothing,
                           None)}


@pytest.fixture
def restored(monkeypatch):
    """Restore after the test what a change changes."""
    monkeypatch.setenv('SCALE', '2')
    monkeypatch.setitem(globals(), 'LATER', 1)
    del globals()['LATER']
    for name, value in {'SETTINGS': {'scale': [2]}, 'NUMBER': 2}.items():
        monkeypatch.setitem(globals(), name, value)
    for owner, name, value in ((Settings, 'scale', 2), (MODULE, 'scale', 2), (helper, '__defaults__', (2,))):
        monkeypatch.setattr(owner, name, value)


@pytest.mark.parametrize('name', CHANGES)
def test_changes(name, devices, restored):
    forward, prepare, change = CHANGES[name]
    X = np.array([1.0, 2.0], ctx=devices[0])

    def results(wrap):
        net = type('Net', (HybridBlock,), {'forward': forward, 'scale': 2, 'method': lambda net, X: X * 2})()
        prepare(net)
        call, found = wrap(net), []
        for n in (3, 4, 5):
            found.append(call(X).tolist())
            if change:
                change(net, n)
        return found

    expected = results(lambda net: net)
    assert len({str(result) for result in expected}) == 3
    if change:
        for owner in (Settings, MODULE):
            owner.scale = 2
        helper.__defaults__ = 2,
        globals().update(NUMBER=2, SETTINGS={'scale': [2]})
        globals().pop('LATER', None)
        os.environ['SCALE'] = '2'
    assert results(hybridized) == expected


def test_what_does_not_change_is_traced_once(devices, restored):
    """Also with helpers, objects and lists."""
    class Net(HybridBlock):
        def __init__(self):
            super().__init__()
            self.settings, self.lists = Settings(), [[1], {'a': {2}}]
            self.dense = gluon.nn.Dense(2, in_units=2)
            self.steps = iter(range(9))  # which forward does not use

        def forward(self, X):
            return helper(self.dense(X)) * self.settings.value() * len(self.lists)

    net = Net()
    net.initialize(ctx=devices)
    fast = HybridizedBlock(net)
    graphs = []
    for _ in range(3):
        fast(np.ones((1, 2), ctx=devices[0]))
        next(net.steps)
        graphs += fast._graphs.graphs.values()
    assert graphs[0] and graphs[0] is graphs[1] is graphs[2] and len(graphs) == 3


def test_restore(restored):
    class Net(HybridBlock):
        number = 1

        def forward(self, X):
            return X * float(self.array[0]) * self.number * SETTINGS['scale'][0] * self.lists[0][0] * NUMBER

    net = Net()
    net.array, net.lists = numpy.ones(2), [[1]]
    before = Snapshot(net)
    net.array[0] = net.lists[0][0] = net.new = Net.number = Net.new = 7
    SETTINGS['scale'][0] = 7
    globals()['NUMBER'] = 7
    assert not before.is_current()
    before.restore()
    assert before.is_current()
    assert (net.array.tolist(), net.lists, Net.number, SETTINGS, NUMBER) == ([1, 1], [[1]], 1, {'scale': [2]}, 2)
    assert not hasattr(net, 'new') and not hasattr(Net, 'new')


def test_a_function_in_a_layer_of_mxnet(devices, restored):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.HybridLambda((lambda F, X: helper(X)) if MXNET_MAJOR < 2 else helper))
    fast, X = hybridized(net), np.ones(2, ctx=devices[0])
    for number in (2, 3):
        globals()['NUMBER'] = number
        assert fast(X).tolist() == net(X).tolist() == [2 * number] * 2


@pytest.mark.parametrize('function', [counted, with_attribute])
def test_functions_that_change_variables_run_as_they_are(function, devices, restored):
    fast, X = hybridized(function), np.ones(1, ctx=devices[0])
    first = fast(X).item()
    assert [fast(X).item() - first, function(X).item() - first, fast(X).item() - first] == [1, 2, 3]
