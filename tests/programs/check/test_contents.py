"""Networks, Trainers and arrays in what `make` returns."""
import time
import types
from collections import deque
from functools import partial

import pytest
from equals_one import sequential
from slow import slow
from steps_to_check import (
    COPIES_DIFFER,
    HALF,
    ONLY_1,
    check_two,
    make_arrays,
    make_averages,
    make_network,
    some_slow,
    step_from_scratch,
    step_of_several,
    step_with_trainer,
    with_trainer,
    without_the_last,
)

from gluon_mgpu import check_data_parallel
from gluon_mgpu.mxnet_setup.compat import gluon, mx, np
from gluon_mgpu.parallel.step import params_with_gradients
from gluon_mgpu.programs.check.contents import find_all


def make_with_older_trainer(devices, made_for, steps=0, new=False, **options):
    """Return a network that moved to other devices after its Trainer was made."""
    before = [mx.cpu(i) for i in range(made_for)]
    net, trainer = make_network(before, **options)
    net(np.zeros((1, 6), ctx=before[0]))
    for _ in range(steps):
        step_with_trainer((net, trainer), np.ones((4, 6)), np.zeros(4), before)
    net.collect_params().reset_ctx(devices)
    if new:
        trainer = gluon.Trainer(params_with_gradients(net), 'sgd')
    return net, trainer


@ONLY_1
@pytest.mark.parametrize('options', [{'made_for': 1}, {'made_for': 2, 'steps': 1}])
def test_a_trainer_older_than_the_devices(options, batches):
    """On some, MXNet would crash."""
    with pytest.raises(ValueError, match='^make returns a Trainer made before its parameters were on more devices'):
        check_data_parallel(partial(make_with_older_trainer, **options), step_with_trainer, batches)


@ONLY_1
@pytest.mark.parametrize('options', [{'made_for': 2, 'steps': 1, 'new': True}, slow({'made_for': 3, 'steps': 1}),
                                     slow({'made_for': 4}), slow({'made_for': 4, 'steps': 1})])
def test_a_trainer_of_enough_devices_is_right(options, batches):
    """Also after a step in `make`."""
    report = check_data_parallel(partial(make_with_older_trainer, **options), step_with_trainer, batches)
    assert report.ok, report


@pytest.mark.parametrize(('pack', 'names'), [
    (lambda D, G: {'D': D, 'G': G}, ['D.0.weight', 'D.0.bias', 'G.0.weight', 'G.0.bias']),
    (lambda D, G: types.SimpleNamespace(nets={'D': D}, G=G),
     ['nets.D.0.weight', 'nets.D.0.bias', 'G.0.weight', 'G.0.bias']),
    (lambda D, G: (D, G), ['0.weight 0', '0.bias 1', '0.weight 2', '0.bias 3'])])
def test_names_of_two_networks(pack, names, batches):
    def make(devices):
        state = [with_trainer(sequential(gluon.nn.Dense(units)), devices) for units in (4, 5)]
        return pack(*state), state
    report = check_two(make, lambda state, *batch: step_of_several(state[1], *batch), batches)
    assert [row[0] for row in report.parameters] == names


def test_arrays_in_attributes_of_a_block(batches):
    """As in the models that D2L writes from scratch. They are parameters as well."""
    class Net(gluon.Block):
        def __init__(self, params):
            super().__init__()
            self.W, self.b, self._V, self.c = params

    def make(devices):
        return [Net(params) for params in make_arrays(devices)]

    def train_batch(nets, X, y, devices, **options):
        step_from_scratch([[net.W, net.b, net._V, net.c] for net in nets], X, y, devices, **options)
    report = check_data_parallel(make, train_batch, batches)
    assert report.ok and [row[0] for row in report.parameters] == ['W', 'b', '_V', 'c'], report
    assert 'in float64' in report.title
    report = check_two(make, partial(train_batch, allreduce=without_the_last), batches)
    assert 'the gradient of cpu(1) counts 0 times' in report.diagnosis[0]


@ONLY_1
@pytest.mark.parametrize('mistake', [False, True])
def test_sparse_gradients(mistake, batches):
    def make(devices):
        return with_trainer(sequential(gluon.nn.Embedding(40, 4, sparse_grad=True), gluon.nn.Dense(4)), devices)

    def step(state, X, y, devices):
        words = mx.nd.abs(X * 4).floor()  # from 0 to 9
        step_with_trainer(state, words, y, devices, divisor=lambda X: len(X) * (len(devices) if mistake else 1))
    report = check_two(make, step, batches)
    assert report.ok is not mistake, report
    assert report.ok or HALF in report.diagnosis[0]


def test_a_trainer_before_its_network(batches):
    """The names are those of the network."""
    report = check_data_parallel(lambda devices: [*reversed(make_network(devices))], lambda state, *args: (
        step_with_trainer(state[::-1], *args)), batches)
    assert report.ok and report.parameters[0][0] == '0.weight', report


PACKS = {
    'list': lambda averages, devices: {'ema': averages},
    'attributes': lambda averages, devices: {f'ema{i}': arrays for i, arrays in enumerate(averages)},
    'dict by device': lambda averages, devices: {'ema': dict(zip(devices, averages))},
    'deque': lambda averages, devices: {'ema': deque(averages)},
}


@pytest.mark.parametrize('on', [None, 1])
@pytest.mark.parametrize('pack', some_slow(PACKS, 'list'))
def test_moving_averages_that_only_the_first_device_updates(pack, on, batches):
    """They are compared by their place, whatever each device's is called."""
    def make(devices):
        params = make_arrays(devices)
        averages = [[param.copy() for param in copies] for copies in params]
        hidden = types.SimpleNamespace(averages=averages)  # which the check does not enter
        return types.SimpleNamespace(params=params, hidden=hidden, **PACKS[pack](averages, devices))

    def step(state, X, y, devices):
        step_from_scratch(state.params, X, y, devices)
        for params, averages in [*zip(state.params, state.hidden.averages)][:on]:
            for param, average in zip(params, averages):
                average[:] = 0.9 * average + 0.1 * param
    report = check_data_parallel(make, step, batches)
    assert report.ok is (on is None) and len(report.parameters) == 8, report
    if on:
        assert report.diagnosis[0] == COPIES_DIFFER.format(8, 'batch 1, of 12 rows', 'cpu(1), cpu(2)')
        assert [verdict for *_, verdict in report.parameters] == ['equal'] * 4 + ['DIFFERS'] * 4


@pytest.mark.parametrize('on', [slow(None), 1])
def test_a_target_network(on, batches):
    """It has no gradients. A mask of the shape of a parameter is infinite."""
    def make(devices):
        (net, trainer), (target, _) = (make_network(devices) for _ in range(2))
        for param in target.collect_params().values():
            param.grad_req = 'null'
        return net, trainer, target, [np.full((5, 6), -np.inf, dtype='float32', ctx=device) for device in devices]

    def step(state, X, y, devices):
        net, trainer, target, _ = state
        for device in devices:
            target(np.zeros((1, X.shape[1]), ctx=device, dtype=X.dtype))
        step_with_trainer((net, trainer), X, y, devices)
        for param, copy in zip(params_with_gradients(net), target.collect_params().values()):
            for data, array in [*zip(param.list_data(), copy.list_data())][:on]:
                data.copyto(array)
    report = check_data_parallel(make, step, batches)
    assert report.ok is (on is None) and len(report.parameters) == 9, report
    assert report.ok or report.diagnosis[0] == COPIES_DIFFER.format(9, 'batch 1, of 12 rows', 'cpu(1), cpu(2)')


@pytest.mark.parametrize('keep', [lambda copies: copies[:1], lambda copies: [
    [array for i, array in enumerate(arrays) if i % len(copies) == device] for device, arrays in enumerate(copies)]])
def test_arrays_of_some_devices_are_not_compared(keep, batches):
    """All on the first device, or each device keeps some."""
    def make(devices):
        state = make_averages(devices)
        return {**state, 'averages': keep(state['averages']), 'target': [param.copy() for param in state['params'][-1]]}

    def step(state, X, y, devices):
        step_from_scratch(state['params'], X, y, devices)
        for averages in state['averages']:
            for average in averages:
                average += len(devices)
    report = check_data_parallel(make, step, batches)
    assert report.ok and [row[0] for row in report.parameters] == [f'params {i}' for i in range(4)], report


def test_copies_that_the_step_makes(batches):
    """New arrays in place of the old ones are compared; those in addition are not."""
    def step(state, X, y, devices):
        step_from_scratch(state['params'], X, y, devices)
        for i, params in enumerate(state['params']):
            state.setdefault('before', []).append([param.copy() for param in params])
            state['averages'][i] = [0.9 * average + param for average, param in zip(state['averages'][i], params)]
    report = check_data_parallel(make_averages, step, batches)
    assert report.ok and len(report.parameters) == 8, report


class Node:
    def __init__(self, next_node):
        self.next = next_node


def test_a_project_with_many_objects(batches):
    """The check enters no objects in attributes of others, and takes no longer for many words."""
    nodes = tuples = None
    for _ in range(3000):
        nodes, tuples = Node(nodes), (tuples, 1.0)
    words = [f'word {i}' for i in range(40000)]
    walked = types.SimpleNamespace(nodes=nodes, tuples=tuples, words=words, net=gluon.nn.Dense(4))
    start = time.process_time()
    for _ in range(10):
        assert [path for path, _ in find_all(walked, gluon.Block)] == ['net']
    assert time.process_time() - start < 2  # usually 0.1

    def make(devices):
        net, trainer = make_network(devices)
        net.words, net.nodes = words, nodes
        return net, trainer, nodes
    assert check_two(make, lambda state, *args: step_with_trainer(state[:2], *args), batches).ok


def test_constants_of_the_program_stay_as_they_are(batches):
    constant = np.ones((1, 6), dtype='float32')

    def step(state, X, y, devices):
        step_from_scratch(state[1], X * state[0], y, devices)
    report = check_two(lambda devices: (constant, make_arrays(devices)), step, batches)
    assert report.ok and constant.dtype == 'float32', report
